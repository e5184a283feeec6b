# SPDX-License-Identifier: BSD-3-Clause
"""The choice between two plans: by their times, which a clock of the tests controls, and by their results."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import export

from torchette.backends.null import NullPartitioner
from torchette.errors import InputError, RuntimeLoadError
from torchette.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from torchette.format import pte
from torchette.runtime import Method, Program, Runtime

X, Y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.ones(3, 4)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.full((3, 4), 3.0))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, y):
        self.calls.add_(1)
        return (x + y) * self.weight, self.calls * 1


@pytest.fixture(scope="module")
def data() -> bytes:
    edge = to_edge_transform_and_lower(export(_Net(), (X, Y)), partitioner=NullPartitioner())
    return edge.to_executorch(ExecutorchBackendConfig(portable_fallback=True)).buffer


def _program(data: bytes) -> Program:
    return Runtime.get().load_program(data)


def _clock(*durations: float) -> Iterator[float]:
    """Yields the start and end time of each plan, alternately, forever."""
    now = 0.0
    yield now
    while True:
        for duration in durations:
            yield now
            now += duration
            yield now
        yield now


def _is_delegated(method: Method) -> bool:
    return method.metadata.backend_names == ["NullBackend"]


@pytest.mark.parametrize(("backends", "portable", "delegated"), [(1.0, 2.0, True), (2.0, 1.0, False)])
def test_faster_plan_is_selected(data: bytes, backends: float, portable: float, delegated: bool) -> None:
    times, calls = _clock(backends, portable), 0

    def clock() -> float:
        nonlocal calls
        calls += 1
        return next(times)

    method, choice = _program(data).load_fastest("forward", [X, Y], seconds=7.0, clock=clock)
    assert _is_delegated(method) == delegated
    assert calls == 1 + 3 * 5, "three turns of three seconds"
    for call in (1, 2):  # the buffers have their initial values
        result, count = method.execute([X, Y])
        torch.testing.assert_close(torch.as_tensor(result), (X + Y) * 3)
        assert float(count[0]) == call

    def never() -> float:
        raise AssertionError("a choice that is known is not measured again")

    again, same = _program(data).load_fastest("forward", choice=choice, clock=never)
    assert _is_delegated(again) == delegated and same == choice


def test_choice_of_another_program_is_ignored(data: bytes) -> None:
    for choice in (b"something else", b"0" * 64 + b" portable", b""):
        times = _clock(1.0, 2.0)
        method, new_choice = _program(data).load_fastest(
            "forward", choice=choice, seconds=0, clock=times.__next__
        )
        assert _is_delegated(method) and new_choice != choice and new_choice.endswith(b" backends")


def test_missing_or_wrong_backend_is_not_selected(data: bytes) -> None:
    absent = _without_backend(data)
    (at,) = [i for i in range(len(data)) if data.startswith(b"NUL1", i)]
    three = np.float32(3).tobytes()
    changed = data[:at] + data[at:].replace(three, np.float32(4).tobytes())  # the factors in the payload
    assert changed.count(three) >= 12, "the portable plan's are as before"
    for wrong, words in ((absent, "which is not registered"), (changed, "output 0 of the backends differs")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            method, choice = _program(wrong).load_fastest("forward", seconds=0)
        assert ["portable kernels" in str(w.message) and words in str(w.message) for w in caught] == [True]
        assert not _is_delegated(method) and choice == b""
        result, count = method.execute([X, Y])
        torch.testing.assert_close(torch.as_tensor(result), (X + Y) * 3)
        assert float(count[0]) == 1


def _without_backend(data: bytes) -> bytes:
    return data.replace(b"NullBackend\0", b"?ullBackend\0")


def test_portable_plan_of_a_missing_backend_is_a_method_like_any_other(data: bytes) -> None:
    program = _program(_without_backend(data))
    with pytest.warns(RuntimeWarning, match="runs on the portable kernels: the method needs the backend"):
        method = program.load_method("forward", tracing=True)
    assert method.metadata.plan_name == f"forward{pte.PORTABLE}" and method.metadata.name() == "forward"
    assert [(event.block, event.name) for event in method.take_events()] == [(0, "Method::init")]
    method.execute([X, Y])
    assert {event.block for event in method.take_events()} == {1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = _program(_without_backend(data)).load_method("forward")
    assert plain.method_bytes == program._load_portable("forward").method_bytes


def test_message_of_a_method_without_a_plan_that_can_be_loaded(data: bytes) -> None:
    broken = _without_backend(data).replace(b"aten::mul\0", b"aten::?ul\0")
    with pytest.raises(RuntimeLoadError) as raised:
        _program(broken).load_method("forward")
    text = str(raised.value)
    assert (
        "the portable plan of method 'forward' cannot be loaded: there is no kernel for aten::?ul.out" in text
    )


def test_single_plan_is_selected() -> None:
    edge = to_edge_transform_and_lower(export(_Net(), (X, Y)), partitioner=NullPartitioner())
    method, choice = _program(edge.to_executorch().buffer).load_fastest("forward")
    assert _is_delegated(method) and choice == b""


class _Scaled(nn.Module):
    def forward(self, x, n: int):
        return (x + x) * x * n


def test_examples_consist_of_arrays() -> None:
    program = export(_Scaled(), (X, 3), dynamic_shapes=(None, torch.export.Dim.DYNAMIC))
    edge = to_edge_transform_and_lower(program, partitioner=NullPartitioner())
    loaded = _program(edge.to_executorch(ExecutorchBackendConfig(portable_fallback=True)).buffer)
    with pytest.raises(InputError, match="input 1 of method 'forward' is int"):
        loaded.load_fastest("forward")
    method, choice = loaded.load_fastest("forward", [X, 3], seconds=0)
    assert choice
    torch.testing.assert_close(torch.as_tensor(method.execute([X, 3])[0]), (X + X) * X * 3)
