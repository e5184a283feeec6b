# SPDX-License-Identifier: BSD-3-Clause
# Assertions of a model: which of them stay in the graph, their messages, and the check on the device.

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import Function, lower
from torch import Tensor
from torch.export import Dim

import torchette
from torchette.errors import ExecutionError
from torchette.exir import EdgeCompileConfig, ops, to_edge
from torchette.runtime import Runtime

N = ({0: Dim("n", min=2, max=16)},)


def texts(program: torch.export.ExportedProgram) -> list[str]:
    return [
        str(node.args[1])
        for module in program.graph_module.modules()
        for node in module.graph.find_nodes(op="call_function", target=ops.assert_scalar)
    ]


def is_shorter(x: Tensor) -> Tensor:
    torch._check(x.shape[0] <= 16)
    return x.to(torch.float64)


def is_counted(x: Tensor) -> Tensor:
    torch._check(x.nonzero().shape[0] >= 0)
    return x + 1


def is_of_a_dtype(x: Tensor) -> Tensor:
    torch.ops.aten._assert_tensor_metadata(x, dtype=torch.float32)
    return x + 1


@pytest.mark.parametrize("function", [is_shorter, is_counted, is_of_a_dtype])
def test_assertions_proven_by_input_ranges_are_removed(function: Callable) -> None:
    program, report = lower(function, (torch.randn(3),), "edge", dynamic_shapes=N)
    assert texts(program) == []
    assert (
        not report.notes("keep_assertions")
        or "0 assertions are checked" in report.notes("keep_assertions")[0]
    )


def at_most_ten(x: Tensor) -> Tensor:
    n = x.sum().item()
    torch._check(n >= 0, lambda: "a length is not negative")
    torch._check(n <= 10, lambda: "ten are enough")
    return torch.full((n,), 2.0)


def index(x: Tensor) -> Tensor:
    n = x[0].item()
    torch._check(n >= 0)
    torch._check(n < 5, lambda: "there are five")
    return torch.arange(5.0).narrow(0, n, 1)


def loud(x: Tensor) -> Tensor:
    torch._check(x.abs().max().item() < 8.5, lambda: "too loud")
    return x * 2


def all_positive(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all(), "not positive")
    return x * 2


def some(x: Tensor) -> Tensor:
    torch._assert_async(x.sum())
    return x * 2


def every_element(x: Tensor) -> Tensor:
    torch._check_tensor_all(x > 0, lambda: "an element")
    return x * 2


def related(x: Tensor) -> Tensor:
    n = x.sum().item()
    torch._check(2 * n + 1 <= x.shape[0] * 3, lambda: "too many for the rows")
    return x * n


def combined(x: Tensor) -> Tensor:
    n = x.sum().item()
    torch._check((n != 7) | (x.shape[0] > 9), lambda: "seven")
    return x * n


def hits(x: Tensor) -> Tensor:
    indices = x.nonzero()
    torch._check(indices.shape[0] > 1, lambda: "one hit is not enough")
    return indices * 2


def in_a_branch(x: Tensor) -> Tensor:
    def first(x: Tensor) -> Tensor:
        n = x.sum().item()
        torch._check(n < 100, lambda: "within")
        return x * n

    return torch.cond(x[0] > 0, first, lambda x: x + 1, (x,))


def constrained(x: Tensor) -> Tensor:
    n = x.sum().item()
    torch.ops.aten.sym_constrain_range.default(n, min=1, max=9)
    return x * n


# (function, an input that satisfies the assertions, failing inputs with their error messages)
CASES: list[tuple[Callable, list, dict[tuple, str]]] = [
    (at_most_ten, [1, 2], {(5, 6): "ten are enough, .*: 11 is not at most 10", (-1, 0): "not negative, .*: -1 is not at least 0"}),
    (index, [4, 9], {(5, 0): "there are five, .*: 5 is not at most 4", (-1, 0): r"check failed, .*_check\(n >= 0\): -1 is"}),
    (loud, [8.25, -8.0], {(8.5, 0.0): "too loud, .*: 8.5 is not less than 8.5", (0.0, float("nan")): "nan is not less than"}),
    (all_positive, [1.0, 2.0], {(1.0, 0.0): "not positive, "}),
    (some, [1.0, 2.0], {(-1.0, 1.0): "0 is not other than 0"}),
    (every_element, [1.0, 2.0], {(1.0, 0.0): "an element, "}),
    (related, [1, 1], {(1, 2): "too many for the rows, .*: 7 is not at most 6"}),
    (combined, [1, 2], {(3, 4): "seven, "}),
    (hits, [1, 2], {(1, 0): "one hit is not enough, .*: 1 is not at least 2"}),
    (in_a_branch, [1, 2], {(1, 99): "within, .*: 100 is not"}),
    (constrained, [1, 2], {(5, 5): "10 is not at most 9", (0, 0): "0 is not at least 1"}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "good", "bad"), CASES, ids=[case[0].__name__ for case in CASES])
def test_remaining_assertions_are_checked_at_run_time(
    function: Callable, good: list, bad: dict[tuple, str]
) -> None:
    shapes = (N,) if function in (related, combined) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torchette.compile(
            Function(function).eval(),
            (torch.tensor(good),),
            dynamic_shapes=shapes,
            edge=EdgeCompileConfig(check_passes=True),
        )
    torch.testing.assert_close(model(torch.tensor(good)), function(torch.tensor(good)))
    for values, message in bad.items():
        with pytest.raises(ExecutionError, match=message) as caught:
            model(torch.tensor(values))
        assert re.search(r", \w+\.py:\d+, in \w+: ", str(caught.value))
    torch.testing.assert_close(model(torch.tensor(good)), function(torch.tensor(good)))


def test_each_assertion_is_one_instruction() -> None:
    model = torchette.compile(Function(at_most_ten).eval(), (torch.tensor([1, 2]),))
    (plan,) = model.program.executorch_program.execution_plan
    names = [f"{op.name}.{op.overload}" for op in plan.operators]
    called = [names[each.instr_args.op_index] for chain in plan.chains for each in chain.instructions]
    assert [name for name in called if "prim" in name] == [
        "executorch_prim::ge.Scalar",
        "executorch_prim::le.Scalar",
    ]


def test_exported_programs_report_the_expression() -> None:
    """torch.export loses the messages of torch._check, but not the expression and the source line of the value."""
    program = to_edge(
        torch.export.export(Function(at_most_ten).eval(), (torch.tensor([1, 2]),))
    ).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    with pytest.raises(ExecutionError, match=r"u0 <= 10 is asserted, .*: 11 is not at most 10"):
        method.execute((torch.tensor([5, 6]),))


def test_lowering_twice_changes_nothing() -> None:
    once, _ = lower(at_most_ten, (torch.tensor([1, 2]),), "edge")
    twice: Any = to_edge(once).exported_program()
    assert len(texts(once)) == 2 and texts(twice) == texts(once)
