# SPDX-License-Identifier: BSD-3-Clause
# A loaded method: execution, attributes, events.

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torchette.errors import (
    ExecutionError,
    FormatError,
    InputError,
    InputTypeError,
    TorchetteError,
    not_copyable,
)
from torchette.runtime import native
from torchette.runtime.method_meta import MethodMeta, checked_index
from torchette.runtime.tracing import Event, Intermediate
from torchette.units import wrong_count

_log = logging.getLogger("torchette")


class Method:
    """A loaded method with its own memory. Calls from several threads run in sequence. The global interpreter lock is
    released while a call computes.

    Example:
        >>> method = Runtime.get().load_program("model.pte").load_method("forward")
        >>> outputs = method.execute([numpy.ones((1, 4), "float32")])
        >>> outputs[0].shape
        (1, 2)
    """

    def __reduce__(self) -> Any:
        raise not_copyable(
            "a method", "pass the path or the bytes of its file, and call load_program(...).load_method there"
        )

    def __init__(self, method: Any, meta: MethodMeta) -> None:
        self._method = method
        self._meta = meta
        self.input_names = [meta.input_name(i) for i in range(meta.num_inputs())]
        """The names of the inputs in messages; may be changed."""
        self._complex = [i for i in range(meta.num_outputs()) if meta.output_is_complex(i)]

    def execute(
        self,
        inputs: object,
        observer: Callable[[Intermediate], None] | None = None,
        only: Collection[tuple[int, int]] = (),
        real_view: bool = False,
    ) -> list[Any]:
        """Runs the method.

        Args:
            inputs: a list or tuple with one value per input, flat, or the only input. Tensors are numpy arrays, torch tensors or
                other CPU objects that support DLPack, of the method's dtype and rank, each size within its bound. They are used in place
                if they have the layout of the method, and are converted otherwise. Other inputs are scalars, strings and
                None.
            observer: called with each value that an instruction writes, when it is written. The value is not kept. An
                exception of the observer ends the execution and is raised here. The observer must not call this method or
                read its attributes and events. The method must have been loaded with ``tracing=True``.
            only: the instructions to observe, (chain, index in the chain); empty for all.
            real_view: whether complex outputs are returned as they are in the file: float tensors with a last dimension of
                size 2, as `torch.view_as_real` returns them. Observers always receive these.

        Returns:
            One value per output. Arrays are freshly owned: tensors of torch if an input was one, otherwise numpy arrays
            (bfloat16 becomes float32). Outputs are complex if `MethodMeta.output_is_complex` says so; a numpy array of
            complex float16 elements becomes complex64.

        Raises:
            InputError: a shape, dtype or value is not that of the signature; the message has the input and both values.
            InputTypeError: the method does not accept the type of an input, or the observer is not a function.
            ExecutionError: the method failed.
            FormatError: an output that the file marks as complex is not the real view of a complex tensor.
        """
        input_list: Sequence[Any] = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        if observer is None:
            arguments: tuple[Any, ...] = (input_list,)
        else:
            self._check_observer(observer)
            callback = observer
            arguments = (input_list, lambda *record: callback(_intermediate(*record)), set(only))
        result: list[Any] = self._checked(self._method.execute, *arguments, inputs=input_list)
        if not real_view:
            for i in self._complex:
                result[i] = _view_as_complex(result[i], f"output {i} of method {self._meta.name()!r}")
        return result

    def _checked(self, call: Callable[..., Any], *arguments: object, inputs: Sequence[Any] = ()) -> Any:
        """Calls a function of the native method. Converts its Fault to an exception of torchette.errors."""
        try:
            return call(*arguments)
        except native.module().Fault as fault:
            raise self._error(fault, inputs) from None

    def _check_observer(self, observer: object) -> None:
        if not callable(observer):
            raise InputTypeError(
                f"method {self._meta.name()!r}: the second argument is the observer, a function, not {type(observer).__name__}",
                hints=["put all inputs into one list: method.execute([x, y])"],
            )
        if not self._method.is_traced:
            raise InputError(
                f"method {self._meta.name()!r} cannot be observed: it was loaded without tracing",
                hints=["program.load_method(name, tracing=True)"],
            )

    __call__ = execute

    @property
    def metadata(self) -> MethodMeta:
        """The signature and the memory needs of the method."""
        return self._meta

    @property
    def method_bytes(self) -> int:
        """The bytes of the method allocator that the method and its backends use, if its memory is aligned for all
        requests. Heap memory of the backends' libraries is not counted."""
        result: int = self._method.method_bytes
        return result

    @property
    def dynamic_memory_peak(self) -> int:
        """The peak memory in bytes of tensors of unbounded dynamic shape, which are allocated during execution."""
        result: int = self._method.dynamic_memory_peak
        return result

    def take_events(self) -> list[Event]:
        """Returns and removes the recorded events of loading and executing the method.

        Returns:
            The events since the last call, in the order of their begin. Empty unless the method was loaded with
            ``tracing=True``.

        Raises:
            ExecutionError: the observer of the running execution called it.
        """
        events = []
        for block, name, chain, instruction, in_delegate, part, begin, end in self._checked(
            self._method.take_events
        ):
            if chain < 0:
                chain = instruction = None
            number = None if part < 0 else part
            events.append(Event(block, name, chain, instruction, in_delegate, number, begin, end))
        return events

    def get_attribute(self, name: str) -> Any:
        """Returns a copy of a named tensor inside the method, such as a buffer that it updates.

        Args:
            name: the fully qualified name, see `MethodMeta.attribute_tensor_meta`.

        Returns:
            A numpy array of the shape and dtype of the tensor (bfloat16 becomes float32).

        Raises:
            KeyError: the method has no tensor of that name.
            ExecutionError: the observer of the running execution called it.
        """
        return self._checked(self._method.attribute, name, False)

    def set_attribute(self, name: str, value: object) -> None:
        """Copies an array to a named tensor inside the method.

        Args:
            name: the fully qualified name, see `MethodMeta.attribute_tensor_meta`.
            value: an array of the shape and dtype that `get_attribute` returns.

        Raises:
            KeyError: the method has no tensor of that name.
            InputError: the array has another shape or dtype, or the tensor is a weight of a file.
            ExecutionError: the observer of the running execution called it.
        """
        import numpy

        old, array = numpy.asarray(self.get_attribute(name)), numpy.asarray(value)
        if (old.shape, old.dtype) != (array.shape, array.dtype):
            raise InputError(f"{name} is {old.dtype}{list(old.shape)}, not {array.dtype}{list(array.shape)}")
        attributes = map(self._meta.attribute_tensor_meta, range(self._meta.num_attributes()))
        if next(info.dtype_name for info in attributes if info.name == name) == "bfloat16":
            array = (array.view(numpy.uint32) >> 16).astype(numpy.uint16)
        try:
            self._checked(self._method.set_attribute, name, numpy.ascontiguousarray(array))
        except ValueError as error:
            raise InputError(f"{name} cannot be set: {error}") from None

    def output_in_place(self, index: int) -> Any:
        """Returns an output without copying it.

        Args:
            index: the output.

        Returns:
            A writable array over the planned memory of the output, which the next execution overwrites. None if the output is
            not in planned memory. A complex output is its real view, with a last dimension of size 2.

        Raises:
            IndexError: there is no such output.
        """
        return self._method.output_in_place(checked_index("output", index, self._meta.num_outputs()))

    def reset(self) -> None:
        """Resets the buffers that the method updates, on a device or here, to their values after loading.

        Raises:
            ExecutionError: a backend cannot reset its state, or the observer of the running execution called it.
        """
        self._checked(self._method.reset)

    def cancel(self) -> None:
        """Cancels the call of `execute` that runs in another thread, or the next one if none is running.

        That call raises an ExecutionError before its next instruction. Ctrl-C cancels a call on the main thread, which raises
        KeyboardInterrupt.
        """
        self._method.cancel()

    def _error(self, fault: Exception, inputs: Sequence[Any]) -> TorchetteError:
        kind, number, text, index = fault.args
        _log.error("%s: %s", self._meta.name(), text)
        if kind == "runtime":
            reason, *where = text.splitlines() or ["no reason was given"]
            if number == native.INVALID_ARGUMENT and text.startswith("input "):
                return InputError(f"method {self._meta.name()!r}: {reason}")
            return ExecutionError(f"method {self._meta.name()!r} failed: {reason}", where=where)
        if text == "count":
            expected = [
                f"{self._input_name(i)}: {self._meta.input_text(i)}" for i in range(self._meta.num_inputs())
            ]
            return InputError(wrong_count(f"method {self._meta.name()!r}", expected, index))
        hints = []
        tensor = self._meta._inputs[index][1]
        if tensor and text.startswith("has dtype"):
            hints = [
                f"convert it: x.astype('{tensor.dtype_name}') in numpy, x.to(torch.{tensor.dtype_name}) in torch"
            ]
        elif tensor and text.startswith("has shape"):
            names = [self._input_name(i) for i in range(self._meta.num_inputs())]
            shape = getattr(inputs[index], "shape", None)  # not every tensor of DLPack has one
            from torchette.runtime.shape_hints import shape_hints  # only after an error

            hints = shape_hints(names, index, tensor, tuple(shape)) if shape is not None else []
        exception = InputTypeError if kind == "input-type" else InputError
        layout = str(getattr(inputs[index], "layout", "")).removeprefix("torch.")
        if layout.startswith("sparse"):
            text, hints = (
                f"is a sparse tensor ({layout}), and the runtime supports only dense tensors",
                ["x.to_dense()"],
            )
        return exception(
            f"input {index} ({self._input_name(index)}) of method {self._meta.name()!r} {text}", hints=hints
        )

    def _input_name(self, index: int) -> str:
        return self.input_names[index] or f"input[{index}]"

    def __repr__(self) -> str:
        return f"<Method {self._meta!r}>"

    def _repr_html_(self) -> str:
        return self._meta._repr_html_()


def _intermediate(
    chain: int, instruction: int, step: int, in_delegate: bool, part: int, name: str, value: object
) -> Intermediate:
    return Intermediate(chain, instruction, step, in_delegate, None if part < 0 else part, name, value)


def _view_as_complex(real: Any, label: str) -> Any:
    """The complex tensor of a real view, which shares its memory if possible. Raises FormatError if `real` is not a real
    view."""
    dtype = str(getattr(real, "dtype", type(real).__name__)).removeprefix("torch.")
    shape = tuple(getattr(real, "shape", ()))
    if dtype not in ("float16", "float32", "float64") or shape[-1:] != (2,):
        raise FormatError(
            f"{label} is marked as complex, but is {dtype}{list(shape)}: it must be a float tensor with a last dimension of size 2"
        )
    if type(real).__module__.startswith("torch"):
        return sys.modules["torch"].view_as_complex(real.contiguous())
    import numpy

    # numpy has no complex dtype of two float16 elements
    wide = real.astype(numpy.float32) if dtype == "float16" else real
    return numpy.ascontiguousarray(wide).view("complex128" if dtype == "float64" else "complex64")[..., 0]
