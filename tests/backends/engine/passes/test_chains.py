# SPDX-License-Identifier: BSD-3-Clause
# Elementwise calls that become one cpu::chain, its program, and the results of the compiled model compared with eager.
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchette
from torchette.backends.engine.passes.chains import place_chains
from torchette.capture import capture
from torchette.exir import to_edge
from torchette.exir.dialects._ops import to_torch_operators
from torchette.exir.graph import calls

F = torch.nn.functional
X, Y = torch.linspace(-4, 4, 4 * 70).view(4, 70), torch.linspace(3, -2, 4 * 70).view(4, 70)
SCALE = torch.linspace(0.5, 1.5, 70)


class Function(nn.Module):
    """A function of two tensors and a stored vector."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(SCALE)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(x, y, self.scale)


def placed(function: Callable, x: torch.Tensor = X, dynamic: bool = False) -> list[torch.fx.Node]:
    """Returns the calls of a compiled function."""
    rows = {0: torch.export.Dim("rows", max=64)} if dynamic else None
    program = capture(Function(function).eval(), (x, Y), None, [rows, rows] if dynamic else None, "forward")
    return list(calls(place_chains(to_torch_operators(to_edge(program).exported_program()))))


def by_hand_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


FORMS = {
    "glu": (lambda x, y, s: F.silu(x) * y, "sigmoid i0 mul i0 v0 mul v1 i1", "none"),
    "layer scale": (lambda x, y, s: x + s * y, "mul i0 i1 add i2 v0", "none"),
    "gelu by hand": (lambda x, y, s: by_hand_gelu(x), "mul i0 n0 mul i0 n1 erf v1 add v2 n2 mul v0 v3", "none"),
    "mish": (
        lambda x, y, s: F.mish(x),
        "exp i0 log1p v0 gt i0 n0 where v2 i0 v1 tanh v3 mul i0 v4",
        "none",
    ),
    "clamps": (lambda x, y, s: (x.clamp(-1) * y.clamp(max=2)).clamp(0, 1),
               "maximum i0 n0 minimum i1 n1 mul v0 v1 maximum v2 n2 minimum v3 n3", "none"),
    "powers": (lambda x, y, s: (x**2 + y**3) + ((x - y).abs() ** 0.5) * s, None, "none"),
    "slopes": (lambda x, y, s: F.leaky_relu(x, 0.1) + F.elu(y, 2.0), None, "none"),
    "choice": (lambda x, y, s: torch.where((x > 0) & (y != 1), x * s, -y), None, "none"),
    "alpha": (lambda x, y, s: torch.sub(x, y, alpha=3).abs(), "mul i0 n0 sub i1 v0 abs v1", "none"),
    "mean of squares": (lambda x, y, s: (x * x).mean(-1, keepdim=True), "mul i0 i0", "mean"),
    "sum": (lambda x, y, s: (x * y).sum(1), "mul i0 i1", "sum"),
    "largest": (lambda x, y, s: (x - y).abs().amax(-1), "sub i0 i1 abs v0", "max"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_form_becomes_one_chain(form: str) -> None:
    function, program, fold = FORMS[form]
    (node,) = placed(function)
    assert node.target is torch.ops.cpu.chain.default
    assert program in (None, node.args[3])
    assert node.args[4] == fold


@pytest.mark.parametrize("form", FORMS)
def test_compiled_form_equals_eager(form: str) -> None:
    module = Function(FORMS[form][0]).eval()
    torch.testing.assert_close(torchette.compile(module, (X, Y), backend="cpu")(X, Y), module(X, Y))


def test_nan_results_equal_eager() -> None:
    x = X.clone()
    x[:, ::7] = float("nan")

    def function(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        joined = torch.maximum(x.relu(), y) + torch.minimum(y, F.hardtanh(x))
        return (joined + F.relu6(x) * F.hardswish(x)) + torch.clamp(x, 0, 3)

    module = Function(function).eval()
    result = torchette.compile(module, (x, Y), backend="cpu")(x, Y)
    torch.testing.assert_close(result, module(x, Y), equal_nan=True)


def test_dynamic_sizes() -> None:
    (node,) = placed(FORMS["glu"][0], dynamic=True)
    assert node.target is torch.ops.cpu.chain.default


def test_value_with_other_readers_ends_a_chain() -> None:
    first, second = placed(
        lambda x, y, s: ((a := (x * y).exp()) + a.tanh(), a.view(-1))[0] * a.view(70, 4).t().sum()
    )[-2:]
    assert first is not second


def test_operand_of_another_shape_is_computed_once() -> None:
    targets = [node.target for node in placed(lambda x, y, s: x * (1 + s.exp() * y[0]) + y)]
    assert targets.count(torch.ops.cpu.chain.default) == 2


@pytest.mark.parametrize(
    "function",
    [lambda x, y, s: x * y, lambda x, y, s: x.double() * y.double() + 1, lambda x, y, s: torch.sin(x) ** 5],
)
def test_unsupported_calls_do_not_form_a_chain(function: Callable) -> None:
    assert torch.ops.cpu.chain.default not in [node.target for node in placed(function)]


def test_long_chains_are_divided() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = (x * y).tanh()
        return x

    nodes = placed(function)
    assert len(nodes) == 3
    module = Function(function).eval()
    torch.testing.assert_close(torchette.compile(module, (X, Y), backend="cpu")(X, Y), module(X, Y))
