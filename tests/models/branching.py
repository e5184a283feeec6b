# SPDX-License-Identifier: BSD-3-Clause
# Small models with data-dependent control flow, and inputs for every branch. Used by the end-to-end tests and the tests
# with ExecuTorch's runtime.

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop_stack_output
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

Inputs = list[tuple[Any, ...]]


class Function(nn.Module):
    """A module with a forward that calls `function(linear, x)` or `function(linear, x, y)`."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        return self.function(self.linear, x) if y is None else self.function(self.linear, x, y)


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
BOTH: Inputs = [(X.abs(),), (-X.abs(),)]


def _cond(linear: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: linear(x) + 1, lambda x: x * 2.0, (x,))


def _cond_without_work(linear: Any, x: Tensor) -> Any:
    """Results that are operands, equal, views, or different outputs of the same operator."""
    return torch.cond(
        x.sum() > 0,
        lambda x: (x.clone(), x + 1, x + 1, x.max(1)[0], x.view(-1)[:4] + 0),
        lambda x: (x * 2.0, x - 3, x.relu(), x.max(1)[0], x.sin()[:, 0] + 1),
        (x,),
    )


def _nested_cond(linear: Any, x: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        return torch.cond(x[0, 0] > 1, lambda x: x.relu() + linear(x), lambda x: x.sin(), (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: x * 2.0, (x,)) + 1


def _map(linear: Any, x: Tensor, y: Tensor) -> Tensor:
    return torch_map(lambda a, b: linear(a.unsqueeze(0))[0] + b, x, y)


def _nested_map(linear: Any, x: Tensor) -> Tensor:
    return torch_map(lambda row: torch_map(lambda item: item * 2 + 1, row), x)


def _scan(linear: Any, x: Tensor) -> Any:
    return scan(lambda c, a: (c + a, (c * a).sum()), torch.zeros(3), x)


def _associative_scan(linear: Any, x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")


def _while(linear: Any, x: Tensor, trips: Tensor) -> Any:
    return while_loop(lambda i, x: i < trips, lambda i, x: (i + 1, linear(x).tanh()), (torch.tensor(0), x))


def _while_number(linear: Any, x: Tensor) -> Any:
    return while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x * 2), (0, x))


def _while_stacked(linear: Any, x: Tensor, trips: Tensor) -> Any:
    rows = while_loop_stack_output(
        lambda i, x, trips, y, w: i < trips,
        lambda i, x, trips, y, w: (i + 1, (x @ w + y).tanh()),
        (torch.tensor(0), x),
        (trips, x * 2, linear.weight),
    )
    return (*rows, rows[1].sum(0))


def _while_in_stacked(linear: Any, x: Tensor, trips: Tensor) -> Any:
    def body(i: Tensor, x: Tensor, trips: Tensor) -> Any:
        inner = while_loop(lambda j, x: j < 2, lambda j, x: (j + 1, x * 0.5), (i * 0, x.sin()))
        return i + 1, inner[1]

    return while_loop_stack_output(lambda i, x, trips: i < trips, body, (torch.tensor(0), x), (trips,))


def _while_reads_old_values(linear: Any, x: Tensor, trips: Tensor) -> Any:
    """Fibonacci: each new value depends on the old value of the other, which is read after the first write."""
    return while_loop(
        lambda i, a, b: i < trips, lambda i, a, b: (i + 1, b.clone(), a + b), (torch.tensor(0), x, x * 2)
    )[1:]


def _nested_while(linear: Any, x: Tensor) -> Any:
    def body(i: Tensor, y: Tensor) -> Any:
        inner = while_loop(lambda j, z: j < 2, lambda j, z: (j + 1, z * 1.5 + x), (i * 0, y.sin()))
        return i + 1, inner[1]

    return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x.cos()))


def _cond_in_map(linear: Any, x: Tensor) -> Tensor:
    return torch_map(
        lambda a: torch.cond(a.sum() > 0, lambda a: linear(a.unsqueeze(0))[0], lambda a: a - 1, (a,)), x
    )


def _map_in_cond(linear: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: torch_map(lambda a: a + 1, x), lambda x: x - 2.0, (x,))


def _cond_in_while(linear: Any, x: Tensor, trips: Tensor) -> Any:
    def body(i: Tensor, x: Tensor) -> Any:
        return i + 1, torch.cond(x.sum() > 0, lambda x: x - 5, lambda x: linear(x).exp(), (x,))

    return while_loop(lambda i, x: i < trips, body, (torch.tensor(0), x))


def _different_needs(linear: Any, x: Tensor) -> Tensor:
    """One branch needs much memory, the other none."""
    return torch.cond(
        x.sum() > 0,
        lambda x: (x.repeat(8, 8).sin() @ x.repeat(8, 8).cos().t()).sum(1)[:4] + x[:, 0],
        lambda x: x[:, 1].clone(),
        (x,),
    )


TRIPS: Inputs = [(X, torch.tensor(trips)) for trips in (5, 0, 1)]
CASES: dict[str, tuple[Callable, Inputs]] = {
    "cond": (_cond, BOTH),
    "cond_without_work": (_cond_without_work, BOTH),
    "nested_cond": (_nested_cond, [*BOTH, (X.abs() + 1,)]),
    "different_needs": (_different_needs, BOTH),
    "map": (_map, [(X, torch.ones(3))]),
    "nested_map": (_nested_map, [(X,)]),
    "scan": (_scan, [(X,)]),
    "associative_scan": (_associative_scan, [(X,)]),
    "while": (_while, TRIPS),
    "while_number": (_while_number, [(X,)]),
    "while_reads_old_values": (_while_reads_old_values, TRIPS),
    "nested_while": (_nested_while, [(X,)]),
    "cond_in_map": (_cond_in_map, [(X,)]),
    "map_in_cond": (_map_in_cond, BOTH),
    "cond_in_while": (_cond_in_while, TRIPS),
}
# The results of these models have no upper bound, so they need a heap, and ExecuTorch's runtime does not load them.
UNBOUNDED: dict[str, tuple[Callable, Inputs]] = {
    "while_stacked": (_while_stacked, TRIPS),
    "while_in_stacked": (_while_in_stacked, TRIPS),
}


def build(name: str) -> tuple[nn.Module, Inputs]:
    """Returns the module of that name in eval mode, and inputs for every branch."""
    function, inputs = (CASES | UNBOUNDED)[name]
    torch.manual_seed(0)
    return Function(function).eval(), inputs


def random_model(seed: int) -> nn.Module:
    """Nested control flow with random operators on matrices of two sizes. Values remain small in every branch."""
    numbers = random.Random(seed)

    def step(depth: int) -> Callable:
        kind = numbers.choice(
            ["pointwise", "pointwise", "product", "reuse", *(["cond", "loop"] if depth else [])]
        )
        if kind == "cond":
            a, b, limit = block(depth - 1), block(depth - 1), numbers.uniform(-0.5, 0.5)
            return lambda x: torch.cond(x.mean() > limit, a, b, (x,))
        if kind == "loop":
            body, trips = block(depth - 1), numbers.randrange(4)
            return lambda x: while_loop(
                lambda i, x: i < trips, lambda i, x: (i + 1, body(x)), (torch.zeros((), dtype=torch.int64), x)
            )[1]
        if kind == "product":
            return lambda x: (x @ x.t() @ x).tanh()
        if kind == "reuse":
            return lambda x: (x.cos() + x.repeat(1, 2)[:, 3:9].sin()) * x
        function = numbers.choice([torch.sin, torch.tanh, torch.neg, torch.sigmoid])
        return lambda x: function(x) - 0.1

    def block(depth: int) -> Callable:
        steps = [step(depth) for _ in range(numbers.randrange(1, 4))]

        def run(x: Tensor) -> Tensor:
            y = x
            for each in steps:
                y = each(y)
            return y + x * 0.5

        return run

    outermost = block(3)
    return Function(lambda linear, x: outermost(x)).eval()
