# SPDX-License-Identifier: BSD-3-Clause
# In: a part of the compiler that traces symbolic sizes. Out: the same results, in less time: torch computes the strides, the
# contiguity and the storage of each fake tensor from its symbolic sizes, mostly with the same few expressions.
"""`cached_size_arithmetic`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

# Methods of torch's SymNode that compute a result from two operands.
_METHODS = ("_add", "_sub", "_mul", "_int_floordiv", "_mod", "_eq", "_ne", "_ge", "_gt", "_le", "_lt")


@contextlib.contextmanager
def cached_size_arithmetic() -> Iterator[None]:
    """Computes each operation on symbolic sizes once. A trace that records sizes computes them again."""
    if "sympy" not in sys.modules:  # there are no symbolic sizes
        yield
        return
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
    from torch.fx.experimental.sym_node import SymNode

    results: dict[Any, Any] = {}

    def cached(name: str, compute: Callable[[SymNode, object], Any]) -> Callable[[SymNode, object], Any]:
        def method(left: SymNode, right: object) -> Any:
            env = left.shape_env
            if env is None or not isinstance(right, SymNode) or get_proxy_mode() is not None:
                return compute(left, right)
            # A replacement of a symbol changes the key of the environment.
            key = name, env, env._get_key(), left._expr, right._expr, left.pytype, right.pytype
            if key not in results:
                results[key] = compute(left, right)
            return results[key]

        return method

    before = {name: getattr(SymNode, name) for name in _METHODS if hasattr(SymNode, name)}
    for name, compute in before.items():
        setattr(SymNode, name, cached(name, compute))
    try:
        yield
    finally:
        for name, compute in before.items():
            setattr(SymNode, name, compute)
