# SPDX-License-Identifier: BSD-3-Clause
# torch computes strides as minima of sizes, such as min(32, 32 n). torch.export reports a guard with such a minimum as a
# constraint on n, although min(32, 32 n) is 32 for every n. This file replaces minima that the ranges of the sizes determine.
"""`Minima`: simplifies minima of dynamic sizes during capture."""

from __future__ import annotations

from collections.abc import Callable

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import Min


class Minima:
    """A context in which ShapeEnv replaces a minimum by one of its arguments if the other one is never smaller."""

    def __enter__(self) -> Minima:
        self._original = ShapeEnv.simplify
        ShapeEnv.simplify = _with_minima(self._original)  # type: ignore[assignment,method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        ShapeEnv.simplify = self._original  # type: ignore[method-assign]


def _with_minima(simplify: Callable[..., sympy.Expr]) -> Callable[..., sympy.Expr]:
    def simplified(env: ShapeEnv, expr: sympy.Expr, *args: object, **kwargs: object) -> sympy.Expr:
        result = simplify(env, expr, *args, **kwargs)
        minima = {}
        for atom in result.atoms(Min):
            if len(atom.args) != 2:
                continue
            for smaller, larger in (atom.args, atom.args[::-1]):
                if env._maybe_evaluate_static(sympy.Ge(larger, smaller)):
                    minima[atom] = smaller
                    break
        return simplify(env, result.xreplace(minima), *args, **kwargs) if minima else result

    return simplified
