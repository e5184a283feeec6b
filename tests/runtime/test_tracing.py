# SPDX-License-Identifier: BSD-3-Clause
# The events that Python reads: the time of each part of a method.

from __future__ import annotations

import warnings

import pytest
import torch

import torchette
from torchette.backends.null import NullPartitioner
from torchette.errors import ExecutionError
from torchette.exir import ExecutorchBackendConfig
from torchette.runtime import Event, Method, Runtime


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x + y, 0) * y


ARGS = (torch.ones(2, 3), torch.ones(2, 3))


def _loaded(*, tracing: bool = True, **how: object) -> Method:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torchette.compile(Net(), ARGS, **how)
    program = Runtime.get().load_program(bytes(model))
    return program.load_method("forward", tracing=tracing)


def _nested(events: list[Event]) -> None:
    open_: list[Event] = []
    for event in events:
        assert event.begin <= event.end
        while open_ and open_[-1].end <= event.begin:
            open_.pop()
        if open_:
            assert open_[-1].begin <= event.begin and event.end <= open_[-1].end
        open_.append(event)


def test_kernel_calls_are_events() -> None:
    method = _loaded()
    (load,) = method.take_events()
    assert (load.block, load.name, load.chain, load.instruction) == (0, "Method::init", None, None)
    for block in (1, 2):
        method.execute(ARGS)
        events = method.take_events()
        assert {event.block for event in events} == {block}
        assert [event.name for event in events] == [
            "Method::execute",
            "aten::add.out",
            "aten::cumsum.out",
            "aten::mul.out",
        ]
        assert [(event.chain, event.instruction) for event in events] == [
            (None, None),
            (0, 0),
            (0, 1),
            (0, 2),
        ]
        _nested(events)
    assert method.take_events() == []


def test_events_accumulate_until_taken() -> None:
    method = _loaded()
    for _ in range(3):
        method.execute(ARGS)
    events = method.take_events()
    assert [event.block for event in events if event.name == "Method::execute"] == [1, 2, 3]


def test_no_events_without_tracing() -> None:
    method = _loaded(tracing=False)
    method.execute(ARGS)
    assert method.take_events() == []


def test_backend_reports_its_parts() -> None:
    method = _loaded(backend=NullPartitioner())
    method.execute(ARGS)
    events = [event for event in method.take_events() if event.block == 1]
    _nested(events)
    assert [(event.name, event.instruction, event.part) for event in events] == [
        ("Method::execute", None, None),
        ("DELEGATE_CALL", 0, None),
        ("", 0, 0),
        ("aten::cumsum.out", 1, None),
        ("DELEGATE_CALL", 2, None),
        ("", 2, 0),
    ]


def test_failed_execution_has_partial_events() -> None:
    method = _loaded()
    method.take_events()
    method.cancel()
    with pytest.raises(ExecutionError):
        method.execute(ARGS)
    assert [event.name for event in method.take_events()] == ["Method::execute"]


def test_traced_chains_run_in_sequence() -> None:
    class Squares(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * x, y * y

    args = (torch.ones(3, 50), torch.ones(2, 70))
    model = torchette.compile(
        Squares(), args, backend=NullPartitioner(), config=ExecutorchBackendConfig(parallel=2)
    )
    method = Runtime.get().load_program(bytes(model)).load_method("forward", tracing=True, threads=2)
    for actual, expected in zip(method.execute(args), args, strict=True):
        assert torch.equal(torch.as_tensor(actual), expected)
    events = [event for event in method.take_events() if event.block == 1]
    _nested(events)
    calls = [(event.chain, event.instruction) for event in events if event.name == "DELEGATE_CALL"]
    assert calls == [(0, 0), (1, 0)]
