# SPDX-License-Identifier: BSD-3-Clause
# Modules that change their buffers: the next call sees the change, as in eager, starting from the correct initial
# value.

from __future__ import annotations

import copy

import pytest
import torch

import torchette


class Counter(torch.nn.Module):
    """Counts calls from 7 and keeps a running sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("total", torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += 1
        self.total.mul_(0.5).add_(x)
        return self.count * 2, self.total + 0


class Swap(torch.nn.Module):
    """Two buffers that exchange their values, which fails if write-backs are not ordered correctly."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("left", torch.arange(4.0))
        self.register_buffer("right", -torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = self.left.clone()
        self.left.copy_(self.right + x)
        self.right.copy_(left)
        return self.left - self.right


class ReadBeforeWrite(torch.nn.Module):
    """Returns the content of the buffer before overwriting a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("history", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        before = self.history * 1
        self.history.index_copy_(0, position, x)
        return before + self.history.sum(0)


class Learning(torch.nn.Module):
    """A parameter that the model changes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.add_(x)
        return x * self.weight


class Window(torch.nn.Module):
    """A sliding window: the new value of the buffer is its shifted old value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.window.copy_(torch.cat([self.window[1:], x]))
        return self.window.mean(dim=0, keepdim=True)


class Handed(torch.nn.Module):
    """Returns its buffer. A later call must not change the result of an earlier call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.add_(x)
        return self.state


CASES = [
    (Counter(), lambda i: (torch.full((3,), float(i)),)),
    (Swap(), lambda i: (torch.full((4,), float(i)),)),
    (ReadBeforeWrite(), lambda i: (torch.full((1, 4), float(i + 1)), torch.tensor([i % 3]))),
    (Window(), lambda i: (torch.tensor([float(i)]),)),
    (Handed(), lambda i: (torch.full((3,), float(i)),)),
    (Learning().requires_grad_(False), lambda i: (torch.full((3,), float(i)),)),
]


@pytest.mark.parametrize("through", ["compile", "to_edge"])
@pytest.mark.parametrize(("module", "inputs"), CASES, ids=[type(case[0]).__name__ for case in CASES])
def test_five_calls_equal_eager(module: torch.nn.Module, inputs, through: str) -> None:
    if through == "compile":
        model = torchette.compile(copy.deepcopy(module).eval(), inputs(0))
    else:
        from torchette.exir import to_edge
        from torchette.runtime import Runtime

        program = to_edge(torch.export.export(copy.deepcopy(module).eval(), inputs(0))).to_executorch()
        method = Runtime.get().load_program(program.buffer).load_method("forward")

        def model(*args: torch.Tensor):
            outputs = method.execute(args)
            return tuple(outputs) if len(outputs) > 1 else outputs[0]

    eager, pairs = copy.deepcopy(module).eval(), []
    for call in range(5):
        actual, expected = model(*inputs(call)), eager(*inputs(call))
        torch.testing.assert_close(actual, expected)
        pairs.append((actual, copy.deepcopy(expected)))
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected)


def test_models_do_not_share_their_state(tmp_path) -> None:
    module, inputs = CASES[0]
    torchette.compile(copy.deepcopy(module).eval(), inputs(0)).save(tmp_path / "counter.pte")
    first, second = torchette.load(tmp_path / "counter.pte"), torchette.load(tmp_path / "counter.pte")
    assert [int(first(*inputs(0))[0]) for _ in range(3)] == [16, 18, 20]
    assert [int(second(*inputs(0))[0]) for _ in range(2)] == [16, 18]


def test_compiling_does_not_change_the_module() -> None:
    module, inputs = CASES[0]
    module = copy.deepcopy(module).eval()
    model = torchette.compile(module, inputs(0))
    model(*inputs(0))
    assert int(module.count) == 7
