# SPDX-License-Identifier: BSD-3-Clause
# The Python face of the C++ runtime: a program and inputs come in, outputs go out. Imports numpy and the native module,
# never torch, though torch's tensors are taken and given where they come in.
"""Load and execute .pte programs.

>>> from torchette.runtime import Runtime
>>> program = Runtime.get().load_program("model.pte")
>>> method = program.load_method("forward")
>>> outputs = method.execute([numpy.ones((1, 3), "float32")])

Objects keep alive what they come from; outputs are freshly owned arrays. Nothing is printed: what the runtime has to say
is in the exceptions, and goes to ``logging.getLogger("torchette")``.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import hashlib
import importlib
import logging
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

from torchette import notebook
from torchette.errors import (
    ExecutionError,
    FormatError,
    InputError,
    InputTypeError,
    ModelNotFoundError,
    NativeModuleError,
    RuntimeLoadError,
    TorchetteError,
    kernel_hints,
)
from torchette.schema import DTYPES

__all__ = [
    "BackendRegistry",
    "Event",
    "Intermediate",
    "Method",
    "MethodMeta",
    "OperatorRegistry",
    "Program",
    "Quantization",
    "Runtime",
    "TensorInfo",
    "Verification",
    "load_kernels",
    "operator_names",
]

_log = logging.getLogger("torchette")
_log.addHandler(logging.NullHandler())  # else Python itself would print what nobody listens to


# The runtime's error numbers that Python tells apart.
_INVALID_ARGUMENT, _OPERATOR_MISSING = 0x12, 0x14
_NOT_FOUND = 0x20
_ACCESS_FAILED, _INVALID_PROGRAM, _INVALID_EXTERNAL_DATA = 0x22, 0x23, 0x24

# Names of the element types, by number.
_DTYPES = tuple(dtype.torch_name for dtype in DTYPES)
_KINDS = ("None", "Tensor", "str", "float", "int", "bool")


@functools.cache
def _module() -> Any:
    try:
        return importlib.import_module("torchette.runtime._native")
    except ImportError as error:
        raise NativeModuleError(
            f"the compiled part of the runtime cannot be imported: {error}",
            hints=["in a checkout, build it: ./dev setup", "`torchette doctor` says what is missing"],
        ) from None


class Verification(enum.IntEnum):
    """How much of a program is checked when it is opened. Each is safe: what is not checked now is checked before it
    is used. Integrity also reads the whole file and finds any changed bit; the file must have a receipt for that."""

    Minimal = 0
    InternalConsistency = 1
    Integrity = 2


def _verification(given: Any) -> Verification:
    """``Verification.Integrity`` of itself, ``"integrity"`` or 2."""
    names = {level.name.lower(): level for level in Verification}
    try:
        return names[given.lower().replace("-", "")] if isinstance(given, str) else Verification(given)
    except (KeyError, ValueError):
        raise InputError(
            f"there is no verification {given!r}", hints=[f"there are {', '.join(names)}"]
        ) from None


def _integrity_error(fault: Exception, name: str, data_files: Sequence[str | os.PathLike]) -> TorchetteError:
    _, number, text, _ = fault.args
    _log.error("%s: %s", name, text)
    if number == _NOT_FOUND:
        return FormatError(
            f"{name} has no receipt, so its integrity cannot be checked",
            hints=[
                "compile it with torchette.compile(..., verify=True), which stores one",
                "torchette.receipt.sign() adds one to a file that you trust",
            ],
            code="no-receipt",
        )
    if number in (_INVALID_PROGRAM, _INVALID_EXTERNAL_DATA):
        reason = str(text).partition("\n")[0]
        for index, file in enumerate(data_files):
            reason = reason.replace(f"data file {index} ", f"data file {os.fspath(file)} ")
        return FormatError(
            f"{name} is damaged: {reason}",
            hints=["copy or download it again", "`torchette verify` names the tensors that have changed"],
            code="damaged",
        )
    return RuntimeLoadError(f"{name}: {text}")


class Quantization(NamedTuple):
    """What whole numbers q stand for: (q - zero_point) scale."""

    scale: float
    zero_point: int
    axis: int | None = None
    """None: all elements have one scale."""


class TensorInfo:
    """A tensor of a method's signature."""

    def __init__(self, signature: Any, constant: Callable[[str], Any] = lambda key: None) -> None:
        self._constant = constant  # by key: what the file says of the quantization of an input or output
        self._sizes: tuple[int, ...] = signature.sizes
        self._dtype: int = signature.dtype
        self._planned: bool = signature.is_memory_planned
        self._nbytes: int = signature.nbytes
        self.name: str = signature.name
        self.is_dynamic: bool = signature.is_dynamic
        self.ranges: tuple[tuple[int, int], ...] = signature.ranges
        """Of an input with a dynamic shape: the minimum and the maximum size (2^31 - 1: none) of each dimension."""
        self.dim_order: tuple[int, ...] = signature.dim_order
        """Dimensions from the outermost to the innermost in memory."""

    def sizes(self) -> tuple[int, ...]:
        """The shape; upper bounds where `is_dynamic`."""
        return self._sizes

    def dtype(self) -> int:
        """The element type, as torch numbers them; `dtype_name` has its name."""
        return self._dtype

    @property
    def dtype_name(self) -> str:
        """The element type as torch and numpy name it, such as ``float32``."""
        return _DTYPES[self._dtype] if self._dtype < len(_DTYPES) else f"dtype {self._dtype}"

    @property
    def quant(self) -> Quantization | None:
        """What the whole numbers of an input or output stand for, (scale, zero point, axis); None where they stand for
        themselves, and for floats."""
        scale, zero_point = self._constant("scale"), self._constant("zp")
        return None if scale is None or zero_point is None else Quantization(scale, zero_point)

    @property
    def quant_range(self) -> tuple[int, int] | None:
        """The least and the greatest whole number that is in use; None where `quant` is."""
        least, most = self._constant("quant_min"), self._constant("quant_max")
        return None if least is None or most is None else (least, most)

    def is_memory_planned(self) -> bool:
        """Whether it has a place in the method's planned memory; else it stays in the caller's."""
        return self._planned

    def nbytes(self) -> int:
        """Bytes, at the upper bounds."""
        return self._nbytes

    def __repr__(self) -> str:
        bound = " at most" if self.is_dynamic else ""
        return f"{self.dtype_name}[{', '.join(map(str, self._sizes))}]{bound}"


class MethodMeta:
    """What a method takes, gives and needs. Indices out of range raise IndexError."""

    def __init__(self, signature: Any, constant: Callable[[str], Any] = lambda name: None) -> None:
        self._signature = signature
        self._constant = constant  # by name: the value of a method of the file that returns a constant
        self._attributes = [TensorInfo(tensor) for tensor in signature.attributes]
        self._inputs = self._ports("input", signature.inputs)
        self._outputs = self._ports("output", signature.outputs)

    def _ports(self, what: str, ports: list[Any]) -> list[tuple[int, TensorInfo | None]]:
        def info(index: int, tensor: Any) -> TensorInfo:
            names = [f"{self.name()}_{what}{index}"]
            if self.name() == "forward":
                names.append(f"{what}{index}")  # ExecuTorch's name, without the method

            def constant(key: str) -> Any:
                return next((v for name in names if (v := self._constant(f"{name}_{key}")) is not None), None)

            return TensorInfo(tensor, constant)

        return [(port.tag, port.tensor and info(index, port.tensor)) for index, port in enumerate(ports)]

    def name(self) -> str:
        """The method's name, such as ``forward``."""
        return self._signature.name.removesuffix(_module().PORTABLE)

    @property
    def plan_name(self) -> str:
        """What the file calls it: another name where it is the portable plan of a method whose backends are missing."""
        return self._signature.name

    def num_inputs(self) -> int:
        """How many values `execute` takes."""
        return len(self._inputs)

    def num_outputs(self) -> int:
        """How many values `execute` returns."""
        return len(self._outputs)

    def num_attributes(self) -> int:
        """How many tensors inside of the method have a name."""
        return len(self._attributes)

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """The tensor that input `index` is. TypeError if it is none."""
        return self._tensor("input", self._inputs, index)

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """The tensor that output `index` is. TypeError if it is none."""
        return self._tensor("output", self._outputs, index)

    def attribute_tensor_meta(self, index: int) -> TensorInfo:
        """The named tensor `index`, such as a buffer that the method updates."""
        return self._attributes[_checked("attribute", index, len(self._attributes))]

    @staticmethod
    def _tensor(what: str, ports: list, index: int) -> TensorInfo:
        kind, tensor = ports[_checked(what, index, len(ports))]
        if tensor is None:
            raise TypeError(f"{what} {index} is not a tensor but of kind {_kind(kind)}")
        return tensor

    def input_text(self, index: int) -> str:
        """Input `index` for people: ``float32[1, 3]``, ``int``."""
        kind, tensor = self._inputs[_checked("input", index, len(self._inputs))]
        return repr(tensor) if tensor else _kind(kind)

    def output_text(self, index: int) -> str:
        """Output `index` for people."""
        kind, tensor = self._outputs[_checked("output", index, len(self._outputs))]
        return repr(tensor) if tensor else _kind(kind)

    def input_name(self, index: int) -> str:
        """The name of the model's argument that input `index` is; empty where the file has none."""
        tensor = self._inputs[_checked("input", index, len(self._inputs))][1]
        return tensor.name if tensor else ""

    @property
    def planned_sizes(self) -> list[int]:
        """Bytes of each planned buffer."""
        return list(self._signature.planned_sizes)

    @property
    def num_instructions(self) -> int:
        """How many instructions one execution has, without jumps."""
        return self._signature.num_instructions

    @property
    def backend_names(self) -> list[str]:
        """The backends that the method delegates to, one entry per delegate."""
        return list(self._signature.backend_names)

    @property
    def encoded_inputs(self) -> str:
        """The tree of the inputs in the file's text form; empty where there is none."""
        return self._signature.encoded_inputs

    @property
    def encoded_outputs(self) -> str:
        """The tree of the outputs in the file's text form; empty where there is none."""
        return self._signature.encoded_outputs

    def __repr__(self) -> str:
        inputs = [
            f"{self.input_name(i) or f'input {i}'}: {self.input_text(i)}" for i in range(self.num_inputs())
        ]
        outputs = [self.output_text(i) for i in range(self.num_outputs())]
        return f"{self.name()}({', '.join(inputs)}) -> {', '.join(outputs) or 'nothing'}"

    def _repr_html_(self) -> str:
        ports = [
            *(("input", self.input_name(i), self.input_text(i)) for i in range(self.num_inputs())),
            *(("output", "", self.output_text(i)) for i in range(self.num_outputs())),
        ]
        about = [f"{self.num_instructions} instructions", f"{sum(self.planned_sizes):,} bytes planned"]
        about += sorted(set(self.backend_names))
        return notebook.tables([("", ("", "name", "type"), ports)], f"{self.name()}: {', '.join(about)}")


def _portable(name: str) -> str:
    """The name of a method's second plan, which needs no backend."""
    return name + _module().PORTABLE


def _thread_count(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 1 << 31:
        raise InputError(
            f"a method cannot run on {count!r} threads", hints=["a whole number from 1; 1 is the default"]
        )
    return count


def _etdump_bytes(size: Any, enabled: bool) -> int | None:
    """Bytes of the debug buffer; None where no ETDump is asked for."""
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 62:
        raise InputError(f"a debug buffer cannot have {size!r} bytes", hints=["a whole number from 0"])
    if size and not enabled:
        raise InputError("a debug buffer is part of an ETDump", hints=["enable_etdump=True"])
    return size if enabled else None


def _kind(kind: int) -> str:
    return _KINDS[kind] if kind < len(_KINDS) else "list"


def _checked(what: str, index: int, count: int) -> int:
    if not 0 <= index < count:
        raise IndexError(f"there are {count} {what}s, number {index} is asked for")
    return index


class Event(NamedTuple):
    """Something that a method spent time on. It lies inside of the events that began before it and end after it."""

    block: int
    """0 for loading; executions are counted from 1."""
    name: str
    """Of a kernel, ``DELEGATE_CALL``, ``JF_CALL``, ``MOVE_CALL``, ``FREE_CALL``, ``Method::execute``, ``Method::init``, or
    what a backend calls a part of its own work."""
    chain: int | None
    """Of the instruction; None for what the method does as a whole."""
    instruction: int | None
    """Its place in the chain."""
    in_delegate: bool
    """Whether a backend has said it, of the call that the instruction is."""
    part: int | None
    """The backend's number for it: XNNPACK gives the debug handle of the node."""
    begin: int
    """Nanoseconds of a clock that never goes back."""
    end: int
    """Likewise."""


class Intermediate(NamedTuple):
    """A value that an instruction of a method has just written."""

    chain: int
    """Of the instruction."""
    instruction: int
    """Its place in the chain."""
    step: int
    """How many instructions ran before it in this execution; turns of a loop count."""
    in_delegate: bool
    """Whether a backend shows it, a value inside of the call that the instruction is."""
    part: int | None
    """The backend's number for it."""
    name: str
    """The backend's name for it; empty for what an instruction writes."""
    value: Any
    """A copy of it: an array or tensor as `execute` returns them, a number, or a list of these."""


class Method:
    """A method, loaded with memory of its own. Calls from several threads wait for one another; the interpreter's lock
    is free while a call computes."""

    def __init__(self, method: Any, meta: MethodMeta) -> None:
        self._method = method
        self._meta = meta
        self.input_names = [meta.input_name(i) for i in range(meta.num_inputs())]
        """What messages call the inputs; may be changed."""

    def execute(
        self,
        inputs: Sequence[Any],
        observer: Callable[[Intermediate], None] | None = None,
        only: Collection[tuple[int, int]] = (),
    ) -> list[Any]:
        """Runs the method.

        Args:
            inputs: one value per input, flat. Tensors are numpy arrays, torch tensors or anything else on the CPU that
                speaks DLPack, of the method's dtype and rank, each size within its bound. They are used in place where
                their layout is the method's and converted where it is not. Numbers, strings and None where the method
                takes those.
            observer: called with each value that an instruction writes, when it is written. Nothing is kept, so that a model
                takes no more memory than the observer does. What it raises ends the execution and is raised here. It must
                not call the method. The method must have been loaded with ``tracing=True``.
            only: instructions to observe, (chain, place in the chain); all where there are none.

        Returns:
            One value per output. Arrays are freshly owned; they are torch's if an input was, else numpy's (bfloat16, which
            numpy lacks, becomes float32).

        Raises:
            InputError: an input does not fit; names it, and both sides.
            InputTypeError: an input is of a type that the method cannot take.
            ExecutionError: the method failed.
        """
        if observer is None:
            arguments: tuple[Any, ...] = (inputs,)
        else:
            self._check_traced()
            seen = observer
            arguments = (inputs, lambda *record: seen(_intermediate(*record)), set(only))
        try:
            return self._method.execute(*arguments)
        except _module().Fault as fault:
            raise self._error(fault, inputs) from None

    def _check_traced(self) -> None:
        if not self._method.is_traced:
            raise InputError(
                f"method {self._meta.name()!r} shows no values: it was loaded without tracing",
                hints=["program.load_method(name, tracing=True)"],
            )

    __call__ = execute

    @property
    def metadata(self) -> MethodMeta:
        """What the method takes, gives and needs."""
        return self._meta

    @property
    def method_bytes(self) -> int:
        """Bytes of the method pool that it takes, in a pool that starts at a multiple of any alignment; what its backends
        take of that pool is counted, what their libraries take of the heap is not."""
        return self._method.method_bytes

    @property
    def dynamic_memory_peak(self) -> int:
        """The most bytes that tensors of dynamic shape, which take memory as they need it, ever held at once."""
        return self._method.dynamic_memory_peak

    def take_events(self) -> list[Event]:
        """What loading and executing the method has spent time on since the last call, in the order in which it began;
        empty unless it was loaded with ``tracing=True``. It is kept until it is taken."""
        events = []
        for block, name, chain, instruction, in_delegate, part, begin, end in self._method.take_events():
            if chain < 0:
                chain = instruction = None
            number = None if part < 0 else part
            events.append(Event(block, name, chain, instruction, in_delegate, number, begin, end))
        return events

    def get_attribute(self, name: str) -> Any:
        """A copy of the named tensor inside of the method, such as a buffer that it updates. KeyError if there is none."""
        return self._method.attribute(name, False)

    def set_attribute(self, name: str, value: Any) -> None:
        """Gives the named tensor the values of an array as `get_attribute` returns it. KeyError if there is none.

        Raises:
            InputError: the array has another shape or dtype, or the tensor is a weight of a file.
        """
        import numpy

        old, array = (numpy.asarray(one) for one in (self.get_attribute(name), value))
        if (old.shape, old.dtype) != (array.shape, array.dtype):
            raise InputError(
                f"{name} is {old.dtype}{list(old.shape)}, {array.dtype}{list(array.shape)} is given"
            )
        attributes = map(self._meta.attribute_tensor_meta, range(self._meta.num_attributes()))
        if next(info.dtype_name for info in attributes if info.name == name) == "bfloat16":
            array = (array.view(numpy.uint32) >> 16).astype(numpy.uint16)
        try:
            self._method.set_attribute(name, numpy.ascontiguousarray(array))
        except ValueError as error:
            raise InputError(f"{name} cannot be set: {error}") from None

    def output_in_place(self, index: int) -> Any:
        """Output `index` where it lies in planned memory, an array that shows what the method has there and may be written
        to; None where it lies elsewhere."""
        return self._method.output_in_place(_checked("output", index, self._meta.num_outputs()))

    def reset(self) -> None:
        """Gives buffers that the method updates, on a device or here, the values that they had after loading."""
        self._method.reset()

    def cancel(self) -> None:
        """Ends the call of `execute` that runs in another thread, or else the next one, before its next instruction: that
        call raises an ExecutionError. Ctrl-C does the same to a call on the main thread, which raises KeyboardInterrupt.
        """
        self._method.cancel()

    def _error(self, fault: Exception, inputs: Sequence[Any]) -> TorchetteError:
        kind, number, text, index = fault.args
        _log.error("%s: %s", self._meta.name(), text)
        if kind == "runtime":
            reason, *where = text.splitlines() or ["no reason was given"]
            if number == _INVALID_ARGUMENT and text.startswith("input "):
                return InputError(f"method {self._meta.name()!r}: {reason}")
            return ExecutionError(f"method {self._meta.name()!r} failed: {reason}", where=where)
        if text == "count":
            count = self._meta.num_inputs()
            takes = ", ".join(f"{self._called(i)}: {self._meta.input_text(i)}" for i in range(count))
            return InputError(
                f"method {self._meta.name()!r} takes {count} input{'s' * (count != 1)} ({takes or 'none'}), "
                f"{index} {'is' if index == 1 else 'are'} given"
            )
        hints = []
        tensor = self._meta._inputs[index][1]
        if tensor and text.startswith("has dtype"):
            hints = [
                f"convert it: x.astype('{tensor.dtype_name}') in numpy, x.to(torch.{tensor.dtype_name}) in torch"
            ]
        elif tensor and text.startswith("has shape"):
            hints = [
                "sizes that vary are declared when compiling: dynamic_shapes={'x': {0: torch.export.Dim('n', max=8)}}"
            ]
        exception = InputTypeError if kind == "input-type" else InputError
        layout = str(getattr(inputs[index], "layout", "")).removeprefix("torch.")
        if layout.startswith("sparse"):
            text, hints = f"is a sparse tensor ({layout}), and the runtime's are dense", ["x.to_dense()"]
        return exception(
            f"input {index} ({self._called(index)}) of method {self._meta.name()!r} {text}", hints=hints
        )

    def _called(self, index: int) -> str:
        return self.input_names[index] or f"input[{index}]"

    def __repr__(self) -> str:
        return f"<Method {self._meta!r}>"

    def _repr_html_(self) -> str:
        return self._meta._repr_html_()


class Program:
    """A program: its methods share its constants."""

    def __init__(
        self, program: Any, name: str, has_etdump: bool = False, aten: Callable[[bool], bool] | None = None
    ) -> None:
        self._program = program
        self._name = name
        self._has_etdump = has_etdump
        self._aten = aten

    def has_etdump(self) -> bool:
        """Whether it was loaded with ``enable_etdump=True``."""
        return self._has_etdump

    def write_etdump_result_to_file(
        self, etdump_path: str | os.PathLike[str], debug_buffer_path: str | os.PathLike[str] | None = None
    ) -> None:
        """Writes what its methods have done since it was loaded, or since the last call, for Inspectors.

        Args:
            etdump_path: gets the ETDump (.etdp): times of each instruction, of what backends do and of loading.
            debug_buffer_path: gets the values that instructions have written, where there is a debug buffer.

        Raises:
            InputError: the program was loaded without ``enable_etdump=True``, or no method was loaded since the last call.
        """
        self._need_etdump()
        dump, values, dropped = self._program.take_etdump()
        if not dump:
            raise InputError(
                f"{self._name}: there is nothing to write: no method was loaded or run since the last ETDump"
            )
        if dropped:
            words = f"{self._name}: {dropped} events or values found no room and are not in the ETDump: a larger debug_buffer_size keeps them"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        Path(etdump_path).write_bytes(dump)
        if debug_buffer_path is not None:
            Path(debug_buffer_path).write_bytes(values)

    def set_bundled_input_index(self, index: int) -> None:
        """Says which case of a bundled program runs from now on, for the ETDump; -1 for none."""
        self._need_etdump()
        self._program.set_bundled_input_index(index)

    def _need_etdump(self) -> None:
        if not self._has_etdump:
            raise InputError(
                f"{self._name} was loaded without an ETDump", hints=["load_program(..., enable_etdump=True)"]
            )

    @property
    def method_names(self) -> set[str]:
        """The names of its methods."""
        return {name for name in self._program.method_names if not name.endswith(_module().PORTABLE)}

    def load_method(self, name: str, *, threads: int | None = None, tracing: bool = False) -> Method:
        """Loads a method: all checks of the file are done, its memory is allocated, its buffers have their first values.

        It may use `threads` threads, or as many as `Runtime.set_num_threads` says (the physical cores at first): kernels
        divide their loops among them. Chains that need nothing of
        each other then run at the same time, see `ExecutorchBackendConfig(parallel=...)`, and results are the same, bit by bit.
        A backend uses as many too, at most one for each processor, unless an option of its own says how many.

        Where a backend is missing or refuses and the program was compiled with `portable_fallback`, the portable kernels
        run the method, and a RuntimeWarning says so, once; likewise where Vulkan's payload runs without a device.

        With `tracing`, the time of each instruction is recorded, and of what backends do: see `Method.take_events`. Chains
        then run one after the other. `torchette profile` prints a table of it.

        Raises:
            InputError: `threads` is no whole number from 1, or the program has an ETDump and `tracing` is asked for.
            RuntimeLoadError: there is no such method, or it needs kernels (all of them are named) or backends that are not
                there.
            FormatError: the file is damaged.
        """
        count = 0 if threads is None else _thread_count(threads)
        if tracing and self._has_etdump:
            raise InputError("a method has one tracer: the ETDump, or the events that tracing=True records")
        meta = self.metadata(name)
        try:
            loaded = self._load(name, count, tracing)
        except _module().Fault as fault:
            if self._has_portable(meta):
                self._load_portable(name, count, tracing)  # raises: this plan cannot be loaded either
            raise self._error(fault, f"method {name!r} cannot be loaded") from None
        reason, _, rest = loaded.loading_log.partition("\n")
        place = "processor" if "runs on the processor" in rest else ""
        if loaded.signature.name != name:
            meta, place = MethodMeta(loaded.signature), "portable kernels"
        if place:
            text = f"{self._name}: method {name!r} runs on the {place}: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return Method(loaded, meta)

    def _load(self, plan: str, threads: int, tracing: bool) -> Any:
        """The native method: of the plan, or of the portable plan if a backend is missing or refuses."""
        if self._aten is None:
            return self._program.load_method(plan, threads, tracing)
        before = self._aten(True)
        try:
            return self._program.load_method(plan, threads, tracing)
        finally:
            self._aten(before)

    def _has_portable(self, meta: MethodMeta) -> bool:
        """Whether the file has a second plan of a method that uses backends."""
        return bool(meta.backend_names) and _portable(meta.name()) in self._program.method_names

    def load_fastest(
        self,
        name: str,
        inputs: Sequence[Any] | None = None,
        *,
        choice: bytes = b"",
        seconds: float = 0.5,
        tolerance: float = 0.01,
        clock: Callable[[], float] = time.perf_counter,
    ) -> tuple[Method, bytes]:
        """Loads the faster one of a method's two plans: that of its backends, or the portable one that
        `portable_fallback` stores. Both are loaded and run in turn to find out; one of them stays.

        Args:
            inputs: what they are run on; by default arrays of the greatest shapes, floats from -1 to 1, the rest zero.
            choice: what an earlier call returned. Where it was made for such a method on such a machine with these
                backends, nothing is measured.
            seconds: for measuring, after a first run of each plan; each runs once more at least.
            tolerance: how far results of the backends may be from the portable ones, in parts of the largest of each
                output. Beyond that, or where they fail, the portable plan is taken, and a RuntimeWarning says so.
            clock: tells the time in seconds.

        Returns:
            The method, its buffers as after loading; and the choice, to be kept. None is made (``b""``) where the backends
            are missing, refuse or fail: the next call tries them again.

        Raises:
            InputError: a method that takes numbers or strings needs `inputs`.
            Otherwise what `load_method` raises.
        """
        meta = self.metadata(name)
        if not self._has_portable(meta):
            return self.load_method(name), b""
        key = self._kind_of_machine([meta, MethodMeta(self._program.signature(_portable(name)))])
        known, _, plan = choice.partition(b" ")
        if known == key and plan == b"portable":
            return self._load_portable(name), choice
        method = self.load_method(name)
        if (known == key and plan == b"backends") or not method.metadata.backend_names:
            return method, choice if method.metadata.backend_names else b""
        if inputs is None:
            inputs = _examples(meta)
        portable = self._load_portable(name)
        expected = portable.execute(inputs)
        try:
            _compare(expected, method.execute(inputs), tolerance)
            methods = {b"backends": method, b"portable": portable}
            best = _times(methods, inputs, seconds, clock)
        except ExecutionError as error:
            reason = str(error).partition("\n")[0]
            words = f"{self._name}: method {name!r} runs on the portable kernels: {reason}"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
            portable.reset()
            return portable, b""
        chosen = min(best, key=best.__getitem__)
        methods[chosen].reset()
        return methods[chosen], key + b" " + chosen

    def _kind_of_machine(self, plans: Sequence[MethodMeta]) -> bytes:
        """A hash of all that a choice between plans depends on: their signatures and the machine."""
        facts = [(meta, meta.planned_sizes, meta.num_instructions, meta.backend_names) for meta in plans]
        machine = (platform.machine(), os.cpu_count(), kernel_levels(), sorted(_module().backends()))
        text = repr((facts, machine))
        return hashlib.sha256(text.encode()).hexdigest().encode()

    def _load_portable(self, name: str, threads: int = 0, tracing: bool = False) -> Method:
        try:
            loaded = self._load(_portable(name), threads, tracing)
            return Method(loaded, MethodMeta(loaded.signature))
        except _module().Fault as fault:
            raise self._error(fault, f"the portable plan of method {name!r} cannot be loaded") from None

    def metadata(self, method_name: str) -> MethodMeta:
        """What a method takes, gives and needs, without loading it. RuntimeLoadError if there is no such method."""
        if method_name not in self.method_names:
            names = ", ".join(sorted(map(repr, self.method_names)))
            raise RuntimeLoadError(f"{self._name} has no method {method_name!r}; it has {names or 'none'}")
        try:
            return MethodMeta(self._program.signature(method_name), self._constant)
        except _module().Fault as fault:
            raise self._error(fault, f"method {method_name!r} cannot be read") from None

    def _constant(self, name: str) -> Any:
        """What a method returns that takes nothing, computes nothing and gives one value; None of any other, or if there is none."""
        if name not in self.method_names:
            return None
        meta = self.metadata(name)
        if (meta.num_instructions, meta.num_inputs(), meta.num_outputs()) != (0, 0, 1):
            return None
        return self.load_method(name).execute([])[0]

    def _error(self, fault: Exception, what: str) -> TorchetteError:
        _, number, text, _ = fault.args
        _log.error("%s: %s", self._name, text)
        # Module's hint about backends is for C++ programs.
        lines = [line for line in text.splitlines() if not line.startswith("backends that there are: ")]
        lines = lines or [f"error {number}"]
        if number == _OPERATOR_MISSING:
            missing = [line.removeprefix("there is no kernel for ").partition(": add ")[0] for line in lines]
            return RuntimeLoadError(
                f"{self._name}: {what}: there is no kernel for {', '.join(missing)}",
                hints=kernel_hints(missing, in_aten=self._aten is not None),
            )
        kind = FormatError if number == _INVALID_PROGRAM else RuntimeLoadError
        hints = []
        without = "compile with portable_fallback=True, and the program runs without it"
        if number in (_INVALID_EXTERNAL_DATA, _NOT_FOUND):
            hints = ["load_program(..., data_files=['weights.ptd'])"]
        elif "needs the backend" in lines[0]:
            names = ", ".join(BackendRegistry().registered_backend_names)
            hints = [
                f"backends that there are: {names or 'none'}",
                "backend_registry.load('libmine.so') registers one that is built elsewhere",
                without,
            ]
        elif "needs XNNPACK's library" in lines[0]:
            hints = ["./dev xnnpack builds it, in a checkout", without]
        elif "Vulkan's shader" in lines[0]:
            hints = [without]
        return kind(f"{self._name}: {what}: {lines[0]}", where=lines[1:], hints=hints)

    def __repr__(self) -> str:
        return f"<Program {self._name}: {', '.join(sorted(self.method_names))}>"

    def _repr_html_(self) -> str:
        methods = [(repr(self.metadata(name)),) for name in sorted(self.method_names)]
        return notebook.tables([("", (), methods)], self._name)


def _intermediate(
    chain: int, instruction: int, step: int, in_delegate: bool, part: int, name: str, value: Any
) -> Intermediate:
    return Intermediate(chain, instruction, step, in_delegate, None if part < 0 else part, name, value)


def _examples(meta: MethodMeta) -> list[Any]:
    """An array for each input, of its greatest shape."""
    import numpy

    arrays = []
    for index in range(meta.num_inputs()):
        try:
            info = meta.input_tensor_meta(index)
        except TypeError:
            raise InputError(
                f"input {index} of method {meta.name()!r} is {meta.input_text(index)}: no example can be made of that",
                hints=["load_fastest(name, inputs) with inputs that the method is used on"],
            ) from None
        count, dtype = math.prod(info.sizes()), info.dtype_name
        if "float" in dtype:
            values = numpy.linspace(-1, 1, count).astype("float32" if dtype == "bfloat16" else dtype)
        else:
            values = numpy.zeros(count, dtype)
        arrays.append(values.reshape(info.sizes()))
    return arrays


def _times(
    methods: dict[bytes, Method], inputs: Sequence[Any], seconds: float, clock: Callable[[], float]
) -> dict[bytes, float]:
    """The least time of each, run in turn."""
    best = dict.fromkeys(methods, math.inf)
    start = clock()
    while True:
        for plan, method in methods.items():
            before = clock()
            method.execute(inputs)
            best[plan] = min(best[plan], clock() - before)
        if clock() - start >= seconds:
            return best


def _compare(expected: Sequence[Any], given: Sequence[Any], tolerance: float) -> None:
    """Raises ExecutionError for an output that is further off than that part of its largest element."""
    import numpy

    def plain(value: Any) -> Any:  # numpy knows no bfloat16 of torch's
        return numpy.asarray(value.double() if hasattr(value, "double") else value, "float64")

    for index, (wanted, got) in enumerate(zip(expected, given, strict=True)):
        if wanted is None or isinstance(wanted, str):
            continue
        wanted, got = plain(wanted), plain(got)
        limit = tolerance * numpy.abs(wanted[numpy.isfinite(wanted)]).max(initial=0)
        if wanted.shape != got.shape or not numpy.allclose(got, wanted, rtol=0, atol=limit, equal_nan=True):
            raise ExecutionError(f"output {index} of the backends differs from the portable one")


class BackendRegistry:
    """The backends that delegates can be run on."""

    @property
    def registered_backend_names(self) -> list[str]:
        """Their names."""
        return _module().backends()

    def is_available(self, backend_name: str) -> bool:
        """Whether that backend is registered and can run on this machine."""
        return _module().is_backend_available(backend_name)

    def set_option(self, backend_name: str, **options: bool | int | str) -> None:
        """Settings of a backend by name, such as ``set_option("XnnpackBackend", num_threads=2)``.

        Raises:
            InputError: there is no such backend or option, or the value is not one that it can have.
        """
        for key, value in options.items():
            self._option(backend_name, "set_backend_option", key, value)

    def get_option(self, backend_name: str, key: str) -> bool | int | str:
        """The value of a setting of a backend.

        Raises:
            InputError: there is no such backend or option.
        """
        return self._option(backend_name, "get_backend_option", key)

    def _option(self, backend_name: str, function: str, key: str, *value: Any) -> Any:
        native = _module()
        try:
            return getattr(native, function)(backend_name, key, *value)
        except native.Fault as fault:
            there = backend_name in self.registered_backend_names
            why = "it has no such option, or not such a value" if there else "there is no such backend"
            raise InputError(
                f"option {key} of {backend_name}: {fault.args[2] or why}",
                hints=[f"backends that there are: {', '.join(self.registered_backend_names) or 'none'}"],
                code="bad-backend-option",
            ) from None

    def load(self, path: str | os.PathLike) -> str:
        """Registers the backend in a shared library; returns its name.

        Args:
            path: a library with ``extern "C" torchette::Backend* torchette_backend()``.

        Raises:
            RuntimeLoadError: it cannot be loaded, has no such function, or there is a backend of that name already.
        """
        native = _module()
        try:
            return native.load_backend(os.path.abspath(path))
        except native.Fault as fault:
            raise RuntimeLoadError(
                f"the backend in {os.fspath(path)} cannot be registered: {fault.args[2]}",
                hints=["`torchette backend new NAME` makes a folder that builds one"],
            ) from None


class OperatorRegistry:
    """The operators that there are kernels for."""

    def __init__(self, aten: bool = False) -> None:
        self._aten = aten

    @property
    def operator_names(self) -> set[str]:
        """Full names, such as ``aten::add.out``; in ATen mode torch's, too."""
        if not self._aten:
            return operator_names()
        return operator_names().union(importlib.import_module("torch")._C._dispatch_get_all_op_names())


def operator_names() -> set[str]:
    """The full names of all operators that there are kernels for, such as ``aten::add.out``."""
    return set(operator_signatures())


def operator_signatures() -> dict[str, str]:
    """By full name, the parameters of the kernels: one code each, as torchette/schema/kernels.def lists them."""
    native = _module()
    return dict((*native.operators(), *native.loaded_operators()))


def load_kernels(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Registers the kernels of a library that `torchette custom build` made; a second time that changes nothing.

    Returns:
        (schema, look of the result) of each operator that the library describes; `torchette.load_library` tells torch.

    Raises:
        RuntimeLoadError: it cannot be loaded, is of another version, or there is a kernel of such a name already.
    """
    native = _module()
    try:
        return native.load_library(os.path.abspath(path))
    except native.Fault as fault:
        raise RuntimeLoadError(
            f"the operators in {os.fspath(path)} cannot be registered: {fault.args[2]}",
            hints=["`torchette custom build my_op.cpp` makes a library that can"],
        ) from None


def call_kernel(name: str, arguments: Sequence[Any]) -> None:
    """Runs one kernel on arrays or tensors, numbers, lists, strings and None, in the order of its signature; it writes
    to the last ones.

    Raises:
        ExecutionError: there is no such kernel, it refuses the arguments, or it fails.
    """
    try:
        _module().call_kernel(name, *arguments)
    except KeyError:
        raise ExecutionError(f"there is no kernel {name}", hints=["`torchette ops` lists them"]) from None
    except (RuntimeError, TypeError, ValueError) as error:
        raise ExecutionError(str(error)) from None


def xxh64(data: Any) -> int:
    """The 64-bit hash XXH64 (seed 0) of an object's bytes; receipts have it of the parts of a file."""
    return _module().xxh64(data)


def kernel_level() -> str:
    """The instruction-set level of the kernels that run here: v1, v3 or v4 of x86-64, elsewhere baseline."""
    return _module().isa()


def kernel_levels() -> list[str]:
    """The levels that this build has kernels for and that this CPU runs, the best first."""
    return _module().levels()


def scratch_bytes(name: str, arguments: Sequence[Any], level: str) -> tuple[int, int] | None:
    """Temporary memory of one kernel call, found by making it.

    Args:
        name: the operator, such as ``aten::mm.out``.
        arguments: those of the kernel, outputs included. Tensors are (dtype number, sizes, dim order): they are made up,
            of zeros, or all true where they are bools. Numbers, strings, None and lists as they are.
        level: one of `kernel_levels()`.

    Returns:
        Bytes with which no request for memory is refused, and the least bytes with which the kernel succeeds; None where
        there is no such kernel or the call fails.
    """
    return _module().scratch_bytes(name, arguments, level)


def _aten_switch() -> Callable[[bool], bool]:
    """Whether methods that this thread loads from now on run on torch's kernels; returns what was before."""
    from torchette.build import aten

    path = aten.library()
    # torch, and the operators that it defines in Python
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.ao.quantization.fx._decomposed")
    load_kernels(path)
    switch = ctypes.CDLL(str(path)).torchette_aten_mode
    switch.argtypes, switch.restype = [ctypes.c_bool], ctypes.c_bool
    return switch


class Runtime:
    """The runtime of this process; `Runtime.get()` has it."""

    _instances: ClassVar[dict[bool, Runtime]] = {}

    @staticmethod
    def get(aten: bool = False) -> Runtime:
        """The one runtime.

        Args:
            aten: the one that runs torch's own kernels (docs/aten-mode.md). The first time on a machine it is compiled against
                the torch that is installed.

        Raises:
            NativeModuleError: its compiled part is missing.
            MissingPackageError, MissingCompilerError, BuildError: ATen mode cannot be compiled here; says why.
        """
        if aten not in Runtime._instances:
            _module()
            Runtime._instances[aten] = Runtime(_aten_switch() if aten else None)
        return Runtime._instances[aten]

    def __init__(self, aten: Callable[[bool], bool] | None = None) -> None:
        self._aten = aten

    def set_num_threads(self, count: int) -> None:
        """How many threads methods that are loaded from now on may use where `load_method` does not say; the physical cores at
        first. See
        docs/threads.md. InputError if it is no whole number from 1."""
        _module().set_num_threads(_thread_count(count))

    @property
    def num_threads(self) -> int:
        """What `set_num_threads` has said, else the physical cores."""
        return _module().num_threads()

    @property
    def backend_registry(self) -> BackendRegistry:
        """The backends."""
        return BackendRegistry()

    @property
    def operator_registry(self) -> OperatorRegistry:
        """The kernels."""
        return OperatorRegistry(self._aten is not None)

    def load_program(
        self,
        data: bytes | bytearray | memoryview | BinaryIO | Path | str,
        *,
        verification: Verification | str = Verification.InternalConsistency,
        data_files: Sequence[str | os.PathLike] = (),
        data_path: str | os.PathLike | None = None,
        enable_etdump: bool = False,
        debug_buffer_size: int = 0,
    ) -> Program:
        """Opens a program.

        Args:
            data: a path, which is mapped, so that weights cost memory once they are used; or the bytes, which are used in
                place where they are immutable; or an open binary file, which is read.
            verification: how much is checked at once; also as text, such as ``"integrity"``.
            data_files: paths of the .ptd files with the weights that the program has not; mapped, so that programs share
                them. Where two have a name, the first has it.
            data_path: one such path, by ExecuTorch's name; it comes after `data_files`.
            enable_etdump: whether its methods record what they do, see `Program.write_etdump_result_to_file`.
            debug_buffer_size: bytes for the values that every instruction writes, recorded too where it is not 0. Values
                that find no room are left out.

        Raises:
            InputError: a debug buffer of less than 0 bytes, or without `enable_etdump`, or more than there is memory for.
            ModelNotFoundError: there is no such file.
            FormatError: the file is not a program, or a data file is none, or one of them is cut short or damaged. Of
                integrity: code "damaged" where bytes are not those that the receipt was made for, "no-receipt" where there
                is none.
            InputError: there is no such verification.
        """
        level = _verification(verification)
        verify = level != Verification.Minimal
        etdump = _etdump_bytes(debug_buffer_size, enable_etdump)
        data_files = [*data_files, *([] if data_path is None else [data_path])]
        native = _module()
        name = "the program"
        try:
            if isinstance(data, (str, os.PathLike)):
                name = os.fspath(data)
                if not os.path.exists(name):
                    raise ModelNotFoundError(f"there is no file {name}")
                if os.path.isdir(name):
                    raise FormatError(f"{name} is a folder, a program is a file")
                return self._opened(native.Program.from_path(name, verify), name, data_files, level, etdump)
            if hasattr(data, "read"):
                name = str(getattr(data, "name", name))
                data = data.read()
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise InputTypeError(
                    f"a program is a path, bytes or a binary file, not {type(data).__name__}",
                    hints=["Runtime.get().load_program('model.pte')"],
                )
            return self._opened(native.Program.from_bytes(data, verify), name, data_files, level, etdump)
        except native.Fault as fault:
            _, number, text, _ = fault.args
            _log.error("%s: %s", name, text)
            if number == _ACCESS_FAILED:
                raise RuntimeLoadError(text) from None
            kind = FormatError if number == _INVALID_PROGRAM else RuntimeLoadError
            raise kind(f"{name}: {text}") from None

    def _opened(
        self,
        program: Any,
        name: str,
        data_files: Sequence[str | os.PathLike],
        level: Verification,
        etdump: int | None,
    ) -> Program:
        for file in data_files:
            path = os.fspath(file)
            if not os.path.exists(path):
                raise ModelNotFoundError(f"there is no file {path}")
            try:
                program.add_data_file(path)
            except _module().Fault as fault:
                _, number, text, _ = fault.args
                kind = FormatError if number == _INVALID_EXTERNAL_DATA else RuntimeLoadError
                raise kind(f"{path}: {text}") from None
        if level == Verification.Integrity:
            try:
                program.verify_integrity()
            except _module().Fault as fault:
                raise _integrity_error(fault, name, data_files) from None
        if etdump is not None:
            try:
                program.enable_etdump(etdump)
            except MemoryError:
                raise InputError(f"there is no memory for a debug buffer of {etdump} bytes") from None
        return Program(program, name, etdump is not None, self._aten)

    def __repr__(self) -> str:
        return f"<Runtime with {len(self.operator_registry.operator_names)} operators>"
