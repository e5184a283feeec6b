# SPDX-License-Identifier: BSD-3-Clause
# An opened program: its methods, its ETDump.

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchette.errors import (
    ExecutionError,
    FormatError,
    InputError,
    RuntimeLoadError,
    TorchetteError,
    did_you_mean,
    kernel_hints,
    not_copyable,
)
from torchette.runtime import native
from torchette.runtime.backend_registry import BackendRegistry
from torchette.runtime.method import Method
from torchette.runtime.method_meta import MethodMeta

_log = logging.getLogger("torchette")


class Program:
    """An opened program. Its methods share its constants. `Runtime.load_program` returns it.

    Example:
        >>> program = Runtime.get().load_program("model.pte")
        >>> method = program.load_method("forward", threads=1)
        >>> program.metadata("forward").planned_sizes
    """

    def __init__(
        self, program: Any, name: str, has_etdump: bool = False, aten: Callable[[bool], bool] | None = None
    ) -> None:
        self._program = program
        self._name = name
        self._has_etdump = has_etdump
        self._aten = aten

    def __reduce__(self) -> Any:
        raise not_copyable("a program", "pass the path or the bytes of its file, and call load_program there")

    def has_etdump(self) -> bool:
        """Returns whether the program was loaded with ``enable_etdump=True``."""
        return self._has_etdump

    def write_etdump_result_to_file(
        self, etdump_path: str | os.PathLike[str], debug_buffer_path: str | os.PathLike[str] | None = None
    ) -> None:
        """Writes the events of its methods since it was loaded, or since the last call, for an Inspector.

        Args:
            etdump_path: the file for the ETDump (.etdp): the times of instructions, of parts of backends and of loading.
            debug_buffer_path: the file for the values of instructions, if the program has a debug buffer.

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
            words = f"{self._name}: {dropped} events or values did not fit and are not in the ETDump: increase debug_buffer_size"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        Path(etdump_path).write_bytes(dump)
        if debug_buffer_path is not None:
            Path(debug_buffer_path).write_bytes(values)

    def set_bundled_input_index(self, index: int) -> None:
        """Sets the case of a bundled program to which the following ETDump events belong.

        Args:
            index: the index of the case; -1 for none.

        Raises:
            InputError: the program was loaded without ``enable_etdump=True``.
        """
        self._need_etdump()
        self._program.set_bundled_input_index(index)

    def _need_etdump(self) -> None:
        if not self._has_etdump:
            raise InputError(
                f"{self._name} was loaded without an ETDump", hints=["load_program(..., enable_etdump=True)"]
            )

    @property
    def method_names(self) -> set[str]:
        """The names of the methods."""
        return {name for name in self._program.method_names if not name.endswith(native.module().PORTABLE)}

    def load_method(self, name: str, *, threads: int | None = None, tracing: bool = False) -> Method:
        """Loads a method: checks the file, allocates memory and initialises the buffers of the method.

        If a backend is missing or refuses, and the program was compiled with `portable_fallback`, the portable kernels run
        the method. A RuntimeWarning says so, once. A RuntimeWarning also says if the payload of Vulkan runs without a
        device.

        Args:
            name: the method.
            threads: the number of threads; by default the number of `Runtime.set_num_threads`. Kernels divide their loops
                among them. Independent chains run at the same time, see `ExecutorchBackendConfig(parallel=...)`. The
                results are the same, bit by bit. A backend uses this number, at most one per processor, unless its own
                option has another number.
            tracing: whether the times of instructions and of parts of backends are recorded, see `Method.take_events`.
                Chains then run in sequence. `torchette profile` prints a table of the times.

        Returns:
            The method, with its own memory.

        Raises:
            InputError: `threads` is not an integer of at least 1, or the program has an ETDump and `tracing` is set.
            RuntimeLoadError: the method does not exist, or kernels (the message has all of them) or backends are missing.
            FormatError: the file is damaged.
        """
        count = 0 if threads is None else checked_num_threads(threads)
        if tracing and self._has_etdump:
            raise InputError("a method has one tracer: the ETDump, or the events that tracing=True records")
        meta = self.metadata(name)
        try:
            loaded = self._load(name, count, tracing)
        except native.module().Fault as fault:
            if self._has_portable(meta):
                self._load_portable(name, count, tracing)  # raises: this plan cannot be loaded either
            raise self._error(fault, f"method {name!r} cannot be loaded") from None
        reason, _, details = loaded.loading_log.partition("\n")
        executor = "processor" if "runs on the processor" in details else ""
        if loaded.signature.name != name:
            meta, executor = MethodMeta(loaded.signature), "portable kernels"
        if executor:
            text = f"{self._name}: method {name!r} runs on the {executor}: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return Method(loaded, meta)

    def _load(self, plan: str, threads: int, tracing: bool) -> Any:
        """Returns the native method of the plan, or of the portable plan if a backend is missing or refuses."""
        if self._aten is None:
            return self._program.load_method(plan, threads, tracing)
        before = self._aten(True)
        try:
            return self._program.load_method(plan, threads, tracing)
        finally:
            self._aten(before)

    def _has_portable(self, meta: MethodMeta) -> bool:
        """Whether the method uses backends and the file has a portable plan for it."""
        return bool(meta.backend_names) and native.portable(meta.name()) in self._program.method_names

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
        """Loads the faster of the two plans of a method: the plan with backends, or the portable plan that
        `portable_fallback` stores. Loads both and measures them in turn; keeps one.

        Args:
            name: the method.
            inputs: the inputs for measuring; by default arrays of the maximum shapes, floats from -1 to 1, others zero.
            choice: the second result of an earlier call. If it fits the method, the machine and the backends, nothing is
                measured.
            seconds: the time for measuring, after a first run of each plan; each plan runs at least once more.
            tolerance: the allowed difference between the outputs of the two plans, relative to the largest element of an
                output. If the difference is larger or the backends fail, the portable plan is loaded, and a
                RuntimeWarning says so.
            clock: returns the time in seconds.

        Returns:
            The method, with its buffers as after loading, and the choice, for the next call. The choice is ``b""`` if the
            backends are missing, refuse or fail: the next call tries them again.

        Raises:
            InputError: the method has inputs that are not tensors, and `inputs` is not set.
            Also the exceptions of `load_method`.
        """
        from torchette.runtime import fastest

        meta = self.metadata(name)
        if not self._has_portable(meta):
            return self.load_method(name), b""
        key = fastest.machine_key([meta, MethodMeta(self._program.signature(native.portable(name)))])
        choice_key, _, plan = choice.partition(b" ")
        if choice_key == key and plan == b"portable":
            return self._load_portable(name), choice
        method = self.load_method(name)
        if (choice_key == key and plan == b"backends") or not method.metadata.backend_names:
            return method, choice if method.metadata.backend_names else b""
        if inputs is None:
            inputs = fastest.example_inputs(meta)
        portable = self._load_portable(name)
        expected = portable.execute(inputs, real_view=True)
        try:
            fastest.compare(expected, method.execute(inputs, real_view=True), tolerance)
            methods = {b"backends": method, b"portable": portable}
            best = fastest.measure_times(methods, inputs, seconds, clock)
        except ExecutionError as error:
            reason = str(error).partition("\n")[0]
            words = f"{self._name}: method {name!r} runs on the portable kernels: {reason}"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
            portable.reset()
            return portable, b""
        chosen = min(best, key=best.__getitem__)
        methods[chosen].reset()
        return methods[chosen], key + b" " + chosen

    def _load_portable(self, name: str, threads: int = 0, tracing: bool = False) -> Method:
        try:
            loaded = self._load(native.portable(name), threads, tracing)
            return Method(loaded, MethodMeta(loaded.signature))
        except native.module().Fault as fault:
            raise self._error(fault, f"the portable plan of method {name!r} cannot be loaded") from None

    def metadata(self, method_name: str) -> MethodMeta:
        """Returns the signature of a method without loading it.

        Args:
            method_name: the name, one of `method_names`.

        Raises:
            RuntimeLoadError: the method does not exist.
            FormatError: the file is damaged.
        """
        if method_name not in self.method_names:
            names = ", ".join(sorted(map(repr, self.method_names)))
            near = did_you_mean(method_name, self.method_names)
            raise RuntimeLoadError(
                f"{self._name} has no method {method_name!r}; it has {names or 'none'}{near}"
            )
        try:
            return MethodMeta(self._program.signature(method_name), self._constant)
        except native.module().Fault as fault:
            raise self._error(fault, f"method {method_name!r} cannot be read") from None

    def _constant(self, name: str) -> Any:
        """Returns the value of a constant method (no inputs, no instructions, one output); None for other or missing methods."""
        if name not in self.method_names:
            return None
        meta = self.metadata(name)
        if (meta.num_instructions, meta.num_inputs(), meta.num_outputs()) != (0, 0, 1):
            return None
        return self.load_method(name).execute([])[0]

    def _error(self, fault: Exception, label: str) -> TorchetteError:
        _, number, text, _ = fault.args
        _log.error("%s: %s", self._name, text)
        # Module's hint about backends is for C++ programs.
        lines = [line for line in text.splitlines() if not line.startswith("registered backends: ")]
        lines = lines or [f"error {number}"]
        if number == native.OPERATOR_MISSING:
            missing = [line.removeprefix("there is no kernel for ").partition(": add ")[0] for line in lines]
            return RuntimeLoadError(
                f"{self._name}: {label}: there is no kernel for {', '.join(missing)}",
                hints=kernel_hints(missing, in_aten=self._aten is not None),
            )
        kind = FormatError if number == native.INVALID_PROGRAM else RuntimeLoadError
        hints = []
        without = "compile with portable_fallback=True, and the program runs without it"
        if number in (native.INVALID_EXTERNAL_DATA, native.NOT_FOUND):
            hints = ["load_program(..., data_files=['weights.ptd'])"]
        elif "needs the backend" in lines[0]:
            names = ", ".join(BackendRegistry().registered_backend_names)
            hints = [
                f"registered backends: {names or 'none'}",
                "backend_registry.load('libmine.so') registers one that is built elsewhere",
                without,
            ]
        elif "of XNNPACK's graph" in lines[0] or "Vulkan's shader" in lines[0]:
            hints = [without]
        return kind(f"{self._name}: {label}: {lines[0]}", where=lines[1:], hints=hints)

    def __repr__(self) -> str:
        return f"<Program {self._name}: {', '.join(sorted(self.method_names))}>"

    def _repr_html_(self) -> str:
        from torchette import notebook

        methods = [(repr(self.metadata(name)),) for name in sorted(self.method_names)]
        return notebook.tables([("", (), methods)], self._name)


def checked_num_threads(count: object) -> int:
    """Returns `count`. Raises InputError if it is not an integer of at least 1."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 1 << 31:
        raise InputError(f"the number of threads must be an integer of at least 1, got {count!r}")
    return count
