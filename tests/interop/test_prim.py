# SPDX-License-Identifier: BSD-3-Clause
# Programs of ExecuTorch's compiler that compute with sizes: one for each scalar operator in its runtime.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchette.format import pte
from torchette.runtime import Runtime

pytest.importorskip("executorch", reason="the peer is not installed")


def shaped(size: Callable[[Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    """A function with a result of `size(n) + 2` elements.

    The offset avoids the sizes that torch.export specializes on.
    """
    return lambda x, n: x.new_zeros((size(n) + 2,))


def branch(condition: Callable[[Any], Any]) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, n: torch.cond(condition(n), lambda x: x + 1, lambda x: x - 1, (x,))


CASES: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "aten::sym_size.int": shaped(lambda n: n),
    "executorch_prim::add.Scalar": shaped(lambda n: n + 3),
    "executorch_prim::sub.Scalar": shaped(lambda n: n - 1),
    "executorch_prim::mul.Scalar": shaped(lambda n: n * 2),
    "executorch_prim::floordiv.Scalar": shaped(lambda n: n // 2),
    "executorch_prim::mod.Scalar": shaped(lambda n: n % 3),
    "executorch_prim::neg.Scalar": shaped(lambda n: -n + 20),
    "executorch_prim::truediv.Scalar": lambda x, n: x * (n / 3),
    "executorch_prim::trunc.Scalar": shaped(lambda n: math.trunc(n / 2)),
    "executorch_prim::ceil.Scalar": shaped(lambda n: math.ceil(n / 2)),
    "executorch_prim::round.Scalar": shaped(lambda n: round(n / 4)),
    "executorch_prim::sym_float.Scalar": lambda x, n: x * torch.sym_float(n),
    "executorch_prim::sym_max.Scalar": shaped(lambda n: torch.sym_max(n, 4)),
    "executorch_prim::sym_min.Scalar": shaped(lambda n: torch.sym_min(n, 4)),
    "executorch_prim::sym_ite.Scalar": shaped(lambda n: torch.sym_ite(n > 4, n * 2, n)),
    "executorch_prim::sym_not.Scalar": shaped(lambda n: torch.sym_ite(torch.sym_not(n > 4), n * 2, n)),
    "executorch_prim::eq.Scalar": branch(lambda n: n == 4),
    "executorch_prim::gt.Scalar": branch(lambda n: n > 4),
    "executorch_prim::ge.Scalar": branch(lambda n: n >= 4),
    "executorch_prim::lt.Scalar": branch(lambda n: n < 4),
    "executorch_prim::le.Scalar": branch(lambda n: n <= 4),
    "executorch_prim::et_view.default": lambda x, n: (x + 1).view(n * 2, 1).sum(1),
    "executorch_prim::et_copy_index.tensor": lambda x, n: torch._higher_order_ops.map(lambda row: row + 1, x),
}
# Operators in its runtime that its compiler does not emit, because it writes another name or rejects the scalar.
NOT_WRITTEN = {
    "aten::sym_numel",
    "executorch_prim::floordiv.int",
    "executorch_prim::mod.int",
    "executorch_prim::sym_int.Scalar",
}


class Sized(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor, Any], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, x.shape[0])


@pytest.mark.parametrize("name", CASES)
def test_our_runtime_runs_peer_program(name: str) -> None:
    from executorch.exir import EdgeCompileConfig, to_edge

    function, sizes = CASES[name], (3, 4, 5, 9)
    shapes: Any = ({0: torch.export.Dim("n", min=3, max=9)},)
    if "copy_index" in name:  # the peer's `map` requires the number of rows of the capture
        shapes, sizes = None, (5, 5, 5, 5)
    exported = torch.export.export(Sized(function), (torch.ones(5, 2),), dynamic_shapes=shapes)
    # Its verifier rejects sym_float, sym_max and sym_min, although its runtime has them.
    config = EdgeCompileConfig(_check_ir_validity=False)
    contents = to_edge(exported, compile_config=config).to_executorch().buffer
    operators = pte.read(contents).program.execution_plan[0].operators
    assert name in {f"{operator.name}.{operator.overload}" for operator in operators}
    method = Runtime.get().load_program(contents).load_method("forward")
    for n in sizes:
        x = torch.randn(n, 2)
        torch.testing.assert_close(torch.as_tensor(method.execute([x])[0]), function(x, n))


def test_each_peer_operator_has_a_program() -> None:
    from executorch.extension.pybindings.portable_lib import _get_operator_names

    names = {name for name in _get_operator_names() if name.startswith(("executorch_prim::", "aten::sym_"))}
    assert names == CASES.keys() | NOT_WRITTEN
