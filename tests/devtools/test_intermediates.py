# SPDX-License-Identifier: BSD-3-Clause
# Intermediate values of instructions, selected by index, operator, line and module.

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchette
from torchette.devtools.inspect import FrameInfo, InstructionInfo, MethodInfo, describe
from torchette.devtools.intermediates import Value, intermediates, select
from torchette.errors import InputError
from torchette.runtime import Intermediate, Method, Runtime

pytestmark = pytest.mark.usefixtures("portable_plan")


def _info() -> MethodInfo:
    lines = [[FrameInfo("net.py", line, "forward", "")] for line in (7, 8)]
    instructions = [
        InstructionInfo(0, "kernel", "aten::mm.out", [], [], None, lines[0]),
        InstructionInfo(1, "kernel", "aten::relu.out", [], [], None, lines[1]),
        InstructionInfo(2, "kernel", "aten::mm.out", [], [], None, lines[1]),
    ]
    empty: Any = []
    return MethodInfo("forward", empty, empty, empty, {}, empty, instructions, [0], empty, None, None)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], [0, 1, 2]),
        (["1"], [1]),
        (["1-2"], [1, 2]),
        (["aten::mm*"], [0, 2]),
        (["mm.out", "relu*"], [0, 1, 2]),
        (["net.py:8"], [1, 2]),
        (["layers.1.*"], [1, 2]),
        (["layers.1"], [1]),
    ],
)
def test_patterns_select_instructions(patterns: list[str], expected: list[int]) -> None:
    more = {1: ["layers.1"], 2: ["layers.1.head"]}
    assert [instruction.index for instruction in select(_info(), patterns, more)] == expected


def test_pattern_without_match_raises() -> None:
    with pytest.raises(InputError, match=r"no instruction of method 'forward' matches 'layers\.9'"):
        select(_info(), ["1", "layers.9"])


@pytest.fixture(scope="module")
def module_and_file() -> tuple[nn.Module, bytes]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    return module, bytes(torchette.compile(module, (torch.ones(2, 4),)))


def _method(data: bytes, tracing: bool = True) -> Method:
    return Runtime.get().load_program(data).load_method("forward", tracing=tracing)


def test_values_are_those_of_the_layers(module_and_file: tuple[nn.Module, bytes]) -> None:
    module, data = module_and_file
    info = describe(data).methods[0]
    x = torch.randn(2, 4)
    values: list[Value] = []
    (output,) = intermediates(_method(data), info, [x], values.append)
    expected = x
    for layer, value in zip(module, values, strict=True):
        expected = layer(expected).detach()
        torch.testing.assert_close(value.value, expected)
        assert (value.instruction, value.output, value.part) == (value.step, 0, None)
    assert torch.equal(output, values[-1].value)
    values.clear()
    intermediates(_method(data), info, [x.numpy()], values.append, select(info, ["aten::relu*"]))
    assert [value.info.op for value in values] == ["aten::relu.out"]
    assert isinstance(values[0].value, np.ndarray)


def test_loop_iterations_are_steps() -> None:
    class Loop(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            from torch._higher_order_ops.while_loop import while_loop

            return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))[1]

    data = bytes(torchette.compile(Loop().eval(), (torch.ones(2),)))
    info = describe(data).methods[0]
    values: list[Value] = []
    intermediates(_method(data), info, [torch.ones(2)], values.append, select(info, ["aten::mul*"]))
    assert [value.value[0].item() for value in values] == [2, 4, 8]
    assert len({value.step for value in values}) == 3


def test_failing_observer_ends_execution(module_and_file: tuple[nn.Module, bytes]) -> None:
    method = _method(module_and_file[1])
    values: list[Intermediate] = []

    def fail(value: Intermediate) -> None:
        values.append(value)
        if len(values) > 1:
            raise ZeroDivisionError("enough")

    with pytest.raises(ZeroDivisionError, match="enough"):
        method.execute([torch.ones(2, 4)], fail)
    assert len(values) == 2
    assert len(method.execute([torch.ones(2, 4)])) == 1  # the next execution succeeds, and is not observed
    assert len(values) == 2


def test_without_tracing_raises(module_and_file: tuple[nn.Module, bytes]) -> None:
    with pytest.raises(InputError, match="loaded without tracing"):
        _method(module_and_file[1], tracing=False).execute([torch.ones(2, 4)], print)
