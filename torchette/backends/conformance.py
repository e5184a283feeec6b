# SPDX-License-Identifier: BSD-3-Clause
# In: a backend's partitioner. Out: an AssertionError with the reason if the backend breaks a rule for all backends. The models
# only add and multiply. A backend that supports neither is not checked.
"""The conformance suite: `CHECKS` are functions with one parameter, which creates the backend's partitioner.

>>> @pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
... def test_conformance(check):
...     check(MyPartitioner)
"""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim, export

from torchette.errors import DelegationError, DelegationWarning, TorchetteError
from torchette.exir.delegation.delegate import Partitioner, backend, to_backend
from torchette.exir.program import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from torchette.runtime import Runtime

if TYPE_CHECKING:
    from torchette.runtime import Method, Program

MakePartitioner = Callable[[], Partitioner]


class Unclaimed(Exception):
    """The backend does not support the subject of a check, which is allowed: nothing was checked."""


class _Chain(torch.nn.Module):
    """A chain of additions and multiplications, with a weight."""

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y) * self.weight + x


class _Interrupted(torch.nn.Module):
    """A model that one delegate cannot run: a node between two additions must run outside of the backend."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x + y
        return torch.cumsum(first, 0) + first, first, first * y


class _ReturnsInputs(torch.nn.Module):
    """Returns an input, a weight, and one result twice."""

    weight: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.full((2, 3), 2.0))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sum = x + y * self.weight
        return x, sum, self.weight, sum


class _Counts(torch.nn.Module):
    """A model that changes a buffer."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.count.add_(x)
        return self.count + y


class _OneDelegate(torch.nn.Module):
    """A model that calls one delegate for the whole program."""

    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.part(x, y)


class _Elementwise(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y) * y + x


def float32(make: MakePartitioner) -> None:
    """A chain with a weight runs on the backend in one call and equals eager in each execution."""
    model = _Chain(torch.randn(3, 4)).eval()
    edge = _lower(model, (torch.randn(3, 4), torch.randn(3, 4)), make)
    assert len(_backends(edge)) == 1, "the backend must run a chain in one call"
    method = _load(edge.to_executorch())
    for _ in range(5):
        _equal(method, model, (torch.randn(3, 4), torch.randn(3, 4)))


def integers(make: MakePartitioner) -> None:
    """int32 and int64 results equal those of eager exactly, also after an overflow, or the nodes are not claimed."""
    claimed = False
    for dtype in (torch.int32, torch.int64):
        limit = torch.iinfo(dtype).max
        args = (torch.tensor([1, -5, limit], dtype=dtype), torch.tensor([7, 11, limit], dtype=dtype))
        edge = _lower(_Elementwise(), args, make, is_required=False)
        claimed |= bool(_backends(edge))
        _equal(_load(edge.to_executorch()), _Elementwise(), args)
    if not claimed:
        raise Unclaimed("integers")


def unsupported_node_between_delegates(make: MakePartitioner) -> None:
    """A node between two delegates runs outside of the backend, and the results are correct."""
    args = (torch.randn(3, 4), torch.randn(3, 4))
    edge = _lower(_Interrupted(), args, make)
    _equal(_load(edge.to_executorch()), _Interrupted(), args)


def dynamic_shapes(make: MakePartitioner) -> None:
    """Dynamic sizes may have any value within their bounds, inclusive, in any order."""
    n = Dim("n", min=1, max=16)
    args = (torch.randn(4, 3), torch.randn(4, 3))
    edge = _lower(_Elementwise(), args, make, is_required=False, dynamic_shapes={"x": {0: n}, "y": {0: n}})
    if not _backends(edge):
        raise Unclaimed("dynamic shapes")
    method = _load(edge.to_executorch())
    for size in (4, 16, 1, 7, 16):
        _equal(method, _Elementwise(), (torch.randn(size, 3), torch.randn(size, 3)))


def several_methods(make: MakePartitioner) -> None:
    """Methods of one file are independent."""
    args = (torch.randn(2, 2), torch.randn(2, 2))
    models = {"first": _Chain(torch.randn(2, 2)).eval(), "second": _Chain(torch.randn(2, 2)).eval()}
    programs = {name: export(model, args) for name, model in models.items()}
    program = _manager(to_edge_transform_and_lower, programs, partitioner=make()).to_executorch()
    loaded = Runtime.get().load_program(program.buffer)
    methods = {name: loaded.load_method(name) for name in models}
    for _ in range(2):
        for name, model in models.items():
            _equal(methods[name], model, args)


def threads(make: MakePartitioner) -> None:
    """Methods of one program run in several threads concurrently."""
    model = _Chain(torch.randn(64, 64)).eval()
    args = (torch.randn(64, 64), torch.randn(64, 64))
    loaded = Runtime.get().load_program(_lower(model, args, make).to_executorch().buffer)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            method = loaded.load_method("forward")
            for _ in range(20):
                inputs = (torch.randn(64, 64), torch.randn(64, 64))
                _equal(method, model, inputs)
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]


def missing_backend(make: MakePartitioner) -> None:
    """If the backend is absent, loading fails with an error that contains its name."""
    edge = _lower(_Elementwise(), (torch.randn(2), torch.randn(2)), make)
    (name,) = set(_backends(edge))
    absent = "?" + name[1:]
    data = edge.to_executorch().buffer.replace(name.encode() + b"\0", absent.encode() + b"\0")
    try:
        Runtime.get().load_program(data).load_method("forward")
    except TorchetteError as error:
        assert absent in str(error), f"the message does not name the backend: {error}"
        assert name in str(error), f"the message does not list the registered backends: {error}"
    else:
        raise AssertionError("a method with an unknown backend was loaded without an error")


def refused_payload(make: MakePartitioner) -> None:
    """Bytes that the backend refuses make loading fail each time. Valid programs load and run in between."""
    args = (torch.randn(2, 3), torch.randn(2, 3))
    model = _Chain(torch.randn(2, 3)).eval()
    edge = _lower(model, args, make)
    data = edge.to_executorch().buffer
    (blob,) = (bytes(module.processed_bytes) for module in _modules(edge))
    sound = Runtime.get().load_program(data)
    broken = Runtime.get().load_program(data.replace(blob, bytes(len(blob))))
    for _ in range(20):
        assert _refuses(broken), "the backend accepted a payload of zeros"
        _equal(sound.load_method("forward"), model, args)


def payload_freed_after_init(make: MakePartitioner) -> None:
    """After a method is loaded, the file's bytes may change: the backend has copied the weights that it needs."""
    args = (torch.randn(2, 3), torch.randn(2, 3))
    model = _Chain(torch.randn(2, 3)).eval()
    edge = _lower(model, args, make)
    data = bytearray(edge.to_executorch().buffer)
    (blob,) = (bytes(module.processed_bytes) for module in _modules(edge))
    at = data.index(blob)
    method = Runtime.get().load_program(data).load_method("forward")
    data[at : at + len(blob)] = bytes(len(blob))
    _equal(method, model, args)


def returns_inputs_and_weights(make: MakePartitioner) -> None:
    """A program that is one delegate may return inputs and weights, and one result twice."""
    args = (torch.randn(2, 3), torch.randn(2, 3))
    model = _ReturnsInputs().eval()
    _equal(_load(_as_one_delegate(model, args, make).to_executorch()), model, args)


def keeps_or_refuses_state(make: MakePartitioner) -> None:
    """A program that changes a buffer is refused as one delegate, or returns correct results each time; reset() restores it."""
    args = (torch.ones(2, 3), torch.zeros(2, 3))
    try:
        edge = _as_one_delegate(_Counts().eval(), args, make)
    except DelegationError:
        return
    method = _load(edge.to_executorch())
    for _ in range(2):
        model = _Counts().eval()
        for _ in range(2):
            _equal(method, model, args)
        method.reset()


def portable_fallback(make: MakePartitioner) -> None:
    """If the backend is absent, a file with a portable plan runs on the portable kernels, with a warning."""
    args = (torch.randn(2, 3), torch.randn(2, 3))
    model = _Chain(torch.randn(2, 3)).eval()
    edge = _lower(model, args, make)
    (name,) = set(_backends(edge))
    data = edge.to_executorch(ExecutorchBackendConfig(portable_fallback=True)).buffer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _equal(Runtime.get().load_program(data).load_method("forward"), model, args)
    program = Runtime.get().load_program(
        data.replace(name.encode() + b"\0", b"?" + name[1:].encode() + b"\0")
    )
    assert program.method_names == {"forward"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        method = program.load_method("forward")
    assert ["portable kernels" in str(warning.message) for warning in caught] == [True]
    assert method.metadata.name() == "forward"
    _equal(method, model, args)


def reports_events(make: MakePartitioner) -> None:
    """A tracer does not change the results. The backend reports events only to a tracer. Each event lies within a call of the
    delegate, and has a name or a handle of the debug_handle_map."""
    args = (torch.randn(2, 3), torch.randn(2, 3))
    model = _Interrupted()
    edge = _lower(model, args, make)
    program = Runtime.get().load_program(edge.to_executorch().buffer)
    silent = program.load_method("forward")
    _equal(silent, model, args)
    assert silent.take_events() == []
    method = program.load_method("forward", tracing=True)
    for _ in range(2):
        _equal(method, model, args)
    events = method.take_events()
    delegate_calls = {
        (event.block, event.chain, event.instruction): event
        for event in events
        if event.name == "DELEGATE_CALL"
    }
    assert len(delegate_calls) == 2 * len(_backends(edge)), (
        "the trace must contain one event for each call of a delegate"
    )
    maps = [module.meta["debug_handle_map"] or {} for module in _modules(edge)]
    delegate_events = [event for event in events if event.in_delegate]
    for event in delegate_events:
        call = delegate_calls.get((event.block, event.chain, event.instruction))
        assert call is not None, f"{event} does not belong to a call of the backend"
        assert call.begin <= event.begin <= event.end <= call.end, f"the time of {event} is not within {call}"
        assert event.name or any(event.part in handles for handles in maps), (
            f"{event} has neither a name nor a handle of the debug_handle_map"
        )
    if not delegate_events:
        raise Unclaimed("events inside of a delegate")


def damaged_payload(make: MakePartitioner) -> None:
    """Loading changed bytes either raises TorchetteError or succeeds. A payload of zeros must raise it."""
    args = (torch.randn(2, 3), torch.randn(2, 3))
    edge = _lower(_Chain(torch.randn(2, 3)).eval(), args, make)
    data = edge.to_executorch().buffer
    (blob,) = (module.processed_bytes for module in _modules(edge))
    at = data.index(bytes(blob))
    dice = random.Random(0)
    for turn in range(200):
        changed = bytearray(data)
        if turn == 0:
            changed[at : at + len(blob)] = bytes(len(blob))
        else:
            for _ in range(dice.randint(1, 4)):
                changed[at + dice.randrange(len(blob))] = dice.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256))
                )
        try:
            with warnings.catch_warnings():
                # kernels may run a program that the backend refuses
                warnings.simplefilter("ignore", RuntimeWarning)
                Runtime.get().load_program(bytes(changed)).load_method("forward").execute(list(args))
        except TorchetteError:
            continue
        assert turn > 0, "the backend accepted a payload of zeros"


def unsupported_operators(make: MakePartitioner) -> None:
    """A program with operators that the backend does not support compiles."""
    program = export(torch.nn.GRU(2, 2), (torch.randn(1, 1, 2),))
    edge = _manager(to_edge_transform_and_lower, program, partitioner=make())
    assert edge.to_executorch().buffer, "a program with unsupported operators must compile"


CHECKS: tuple[Callable[[MakePartitioner], None], ...] = (
    float32,
    integers,
    unsupported_node_between_delegates,
    dynamic_shapes,
    several_methods,
    threads,
    missing_backend,
    refused_payload,
    payload_freed_after_init,
    returns_inputs_and_weights,
    keeps_or_refuses_state,
    portable_fallback,
    reports_events,
    damaged_payload,
    unsupported_operators,
)


def _manager(lower: Callable[..., EdgeProgramManager], *args: object, **kwargs: object) -> EdgeProgramManager:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        return lower(*args, **kwargs)


def _lower(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    make: MakePartitioner,
    *,
    is_required: bool = True,
    **options: Any,
) -> EdgeProgramManager:
    edge = _manager(to_edge_transform_and_lower, export(model, args, **options), partitioner=make())
    if is_required and not _backends(edge):
        raise Unclaimed("addition and multiplication")
    for name in _backends(edge):
        assert backend(name).__name__ == name
    return edge


def _as_one_delegate(
    model: torch.nn.Module, args: tuple[Any, ...], make: MakePartitioner
) -> EdgeProgramManager:
    """Returns a program that is one delegate of the backend."""
    (name,) = set(_backends(_lower(_Elementwise(), args, make)))
    part = to_backend(name, to_edge(export(model, args)).exported_program(), [])
    return to_edge(export(_OneDelegate(part), args))


def _modules(edge: EdgeProgramManager) -> list[Any]:
    module = edge.exported_program().graph_module
    return [child for child in module.children() if hasattr(child, "processed_bytes")]


def _backends(edge: EdgeProgramManager) -> list[str]:
    return [module.backend_id for module in _modules(edge)]


def _load(program: ExecutorchProgramManager) -> Any:
    return Runtime.get().load_program(program.buffer).load_method("forward")


def _refuses(program: Program) -> bool:
    try:
        program.load_method("forward")
    except TorchetteError:
        return True
    return False


def _equal(method: Method, model: torch.nn.Module, args: tuple[Any, ...]) -> None:
    expected = model(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, expected_result in zip(method.execute(list(args)), expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(result), expected_result, rtol=1e-4, atol=1e-5)
