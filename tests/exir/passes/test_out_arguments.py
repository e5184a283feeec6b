# SPDX-License-Identifier: BSD-3-Clause
"""Calls with `out=` compute the same results as eager mode, and their writes are visible at the same tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchette
from torchette.errors import DialectError, UnsupportedError
from torchette.exir import to_edge

X = torch.arange(6.0).reshape(2, 3)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("state", torch.ones(2, 3))

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


def fresh(_: nn.Module, x: Tensor) -> Tensor:
    z = torch.empty(2, 3)
    torch.mul(x, 2, out=z)
    torch.add(z, x, alpha=3, out=z)
    return z


def returned(_: nn.Module, x: Tensor) -> Tensor:
    return torch.exp(x, out=torch.empty_like(x)) + 1


def read_through_a_view(_: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.zeros(3, 2)
    view = z.t()[1:]
    before = view + 1
    torch.mul(x.t(), 5, out=z)
    return view + 1, before


def written_through_a_view(_: nn.Module, x: Tensor) -> Tensor:
    z = torch.zeros(4, 3)
    torch.sub(x, 1, out=z[1:3])
    torch.neg(x[0], out=z[:, 1:][0].new_empty(3))
    return z * 2


def buffer(self: Any, x: Tensor) -> Tensor:
    torch.add(self.state, x, out=self.state)
    return self.state * 2


def part_of_a_buffer(self: Any, x: Tensor) -> Tensor:
    torch.cumsum(x[0], 0, out=self.state[1])
    return self.state + 0


def an_input(_: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.sin(x, out=y) + y


def two_results(_: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = torch.empty(2), torch.empty(2, dtype=torch.int64)
    torch.max(x, 1, out=(values, indices))
    return values + indices, torch.topk(x, 2, out=(torch.empty(2, 2), torch.empty(2, 2, dtype=torch.int64)))[
        1
    ]


def another_dtype(_: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    integers = x.to(torch.int32)
    return (
        torch.add(integers, 1, out=torch.empty(2, 3)),
        torch.sum(integers, 0, out=torch.empty(3)),
        torch.arange(4, out=torch.empty(4)),
        torch.full((2,), 7, out=torch.empty(2, dtype=torch.int64)),
    )


def joined(_: nn.Module, x: Tensor) -> Tensor:
    z = torch.empty(4, 3)
    torch.cat([x, x + 1], out=z)
    torch.matmul(x, x.t(), out=z[:2, :2])
    return z


def empty_is_resized(_: nn.Module, x: Tensor) -> Tensor:
    z = torch.empty(0)
    torch.mul(x, 2, out=z)
    return z.reshape(3, 2) + torch.clamp(x.reshape(3, 2), 1, 3, out=torch.tensor([]))


CASES = (
    fresh, returned, read_through_a_view, written_through_a_view, buffer, part_of_a_buffer, two_results,
    another_dtype, joined, empty_is_resized,
)  # fmt: skip


@pytest.mark.parametrize("function", CASES)
def test_results_and_buffers_equal_eager(function: Callable[..., Any]) -> None:
    eager = Function(function).eval()
    compiled = torchette.compile(copy.deepcopy(eager), (X,), backend="portable")
    for _ in range(2):  # the second call reads the buffer that the first one wrote
        expected, actual = eager(X), compiled(X)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for one, result in zip(
            expected, actual if isinstance(actual, (tuple, list)) else (actual,), strict=True
        ):
            torch.testing.assert_close(torch.as_tensor(result), one)


def test_input_is_updated_as_in_eager() -> None:
    eager = Function(an_input).eval()
    program = to_edge(torch.export.export(eager, (X, torch.zeros(2, 3))))
    expected, y = eager(X, eager_y := torch.zeros(2, 3)), torch.zeros(2, 3)
    torch.testing.assert_close(program.exported_program().module()(X, y), expected)
    torch.testing.assert_close(y, eager_y)


class Bundled(nn.Module):
    """The network of ExecuTorch's page on bundled programs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = 3 * torch.ones(2, 2, dtype=torch.int32), 2 * torch.ones(2, 2, dtype=torch.int32)

    def forward(self, x: Tensor, q: Tensor) -> Tensor:
        z = x.clone()
        torch.mul(self.a, x, out=z)
        y = x.clone()
        torch.add(z, self.b, out=y)
        torch.add(y, q, out=y)
        return y


def test_the_example_of_bundled_programs_compiles() -> None:
    args = (torch.tensor([[1, 2], [3, 4]], dtype=torch.int32), torch.ones(2, 2, dtype=torch.int32))
    result = torchette.compile(Bundled().eval(), args)(*args)
    assert torch.equal(torch.as_tensor(result), Bundled()(*args))


@pytest.mark.parametrize("which", ["y", "state", "view"])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_resizing_a_shared_tensor_is_rejected(which: str) -> None:
    def function(self: Any, x: Tensor, y: Tensor) -> Tensor:
        tensors = {"y": y, "state": self.state, "view": torch.zeros(4)[:0]}
        return torch.mul(x, 2, out=tensors[which]) + y.sum()

    with pytest.raises(DialectError, match=r"the shape \(4, 3\) of its result") as caught:
        torchette.compile(Function(function).eval(), (X.repeat(2, 1), torch.zeros(2, 3)))
    assert caught.value.code == "resized-out" and "out=torch.empty(shape)" in str(caught.value)
    assert {"y": "resizes args_1", "state": "resizes b_state", "view": "resizes zeros"}[which] in str(
        caught.value
    )


def test_out_of_a_custom_operator() -> None:
    library = torch.library.Library("test_out", "DEF")
    library.define("both(Tensor x) -> (Tensor, Tensor)")
    library.define("both.out(Tensor x, *, Tensor(a!) a, Tensor(b!) b) -> (Tensor(a!), Tensor(b!))")
    library.define("only.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    library.impl("both", lambda x: (x + 1, x + 2), "CompositeExplicitAutograd")
    library.impl("both.out", lambda x, a, b: (a.copy_(x + 1), b.copy_(x + 2)), "CompositeExplicitAutograd")
    library.impl("only.out", lambda x, out: out.copy_(x), "CompositeExplicitAutograd")

    def both(self: Any, x: Tensor) -> Tensor:
        out_b = torch.zeros(2, 3)
        first, _ = torch.ops.test_out.both.out(x, a=self.state, b=out_b)
        return first + 2 * self.state + 4 * out_b

    eager = Function(both).eval()
    program = to_edge(torch.export.export(copy.deepcopy(eager), (X,))).exported_program()
    torch.testing.assert_close(program.module()(X), eager(X))
    assert program.graph_signature.output_specs[0].target == "state"
    with pytest.raises(UnsupportedError, match="test_out::only has no functional overload"):
        to_edge(
            torch.export.export(Function(lambda _, x: torch.ops.test_out.only.out(x, out=x.clone())), (X,))
        )
