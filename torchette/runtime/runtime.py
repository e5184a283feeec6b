# SPDX-License-Identifier: BSD-3-Clause
# The runtime of the process: opens programs, and has the registries of backends and operators.

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from torchette.errors import (
    FormatError,
    InputError,
    InputTypeError,
    RuntimeLoadError,
)
from torchette.files import hints_for, missing_file
from torchette.runtime import native
from torchette.runtime.backend_registry import BackendRegistry
from torchette.runtime.operator_registry import OperatorRegistry, load_kernels
from torchette.runtime.program import Program, checked_num_threads
from torchette.runtime.verification import Verification, integrity_error, verification_of

_log = logging.getLogger("torchette")


class Runtime:
    """The runtime of this process; `Runtime.get()` returns it.

    Example:
        >>> runtime = Runtime.get()
        >>> program = runtime.load_program("model.pte", verification="internal-consistency")
    """

    _instances: ClassVar[dict[bool, Runtime]] = {}

    @staticmethod
    def get(aten: bool = False) -> Runtime:
        """Returns the runtime of the process.

        Args:
            aten: whether to return the runtime that executes the kernels of torch (docs/aten-mode.md). The first call on a
                machine compiles it for the installed torch.

        Returns:
            The same object in each call with the same argument.

        Raises:
            NativeModuleError: the native module is missing.
            MissingPackageError, MissingCompilerError, BuildError: ATen mode cannot be compiled here.
        """
        if aten not in Runtime._instances:
            native.module()
            Runtime._instances[aten] = Runtime(_aten_switch() if aten else None)
        return Runtime._instances[aten]

    def __init__(self, aten: Callable[[bool], bool] | None = None) -> None:
        self._aten = aten

    def set_num_threads(self, count: int) -> None:
        """Sets the number of threads of methods that are loaded afterwards. See docs/threads.md.

        Args:
            count: the number of threads; the default is the number of physical cores. `Program.load_method` can override it.

        Raises:
            InputError: `count` is not an integer of at least 1.
        """
        native.module().set_num_threads(checked_num_threads(count))

    @property
    def num_threads(self) -> int:
        """The number of threads of `set_num_threads`; by default the number of physical cores."""
        result: int = native.module().num_threads()
        return result

    @property
    def backend_registry(self) -> BackendRegistry:
        """The registered backends."""
        return BackendRegistry()

    @property
    def operator_registry(self) -> OperatorRegistry:
        """The operators with registered kernels."""
        return OperatorRegistry(self._aten is not None)

    def load_program(
        self,
        data: bytes | bytearray | memoryview | BinaryIO | Path | str,
        *,
        verification: Verification | str = Verification.InternalConsistency,
        data_files: Sequence[str | os.PathLike[str]] = (),
        data_path: str | os.PathLike[str] | None = None,
        enable_etdump: bool = False,
        debug_buffer_size: int = 0,
    ) -> Program:
        """Opens a program.

        Args:
            data: a path, or bytes, or an open binary file. The file of a path is mapped, so weights use memory when they are
                first read. Immutable bytes are used in place. An open file is read.
            verification: the checks that are done now; also as text, such as ``"integrity"``.
            data_files: paths of .ptd files with weights outside the program. They are mapped, so programs share them. If two
                files have the same name, the first file counts.
            data_path: one such path, by ExecuTorch's name; it comes after `data_files`.
            enable_etdump: whether its methods write an ETDump, see `Program.write_etdump_result_to_file`.
            debug_buffer_size: bytes for the values of all instructions in the ETDump; 0 for no values. Values that do not fit
                are left out.

        Returns:
            The program.

        Raises:
            InputTypeError: `data` is not a path, bytes or a binary file.
            InputError: the verification does not exist, or `debug_buffer_size` is negative, is set without `enable_etdump`,
                or is more than the memory of the machine.
            ModelNotFoundError: a file does not exist.
            RuntimeLoadError: a file cannot be read.
            FormatError: the program or a data file has another format, is truncated or damaged. For integrity: the code is
                "damaged" if the bytes differ from the receipt, and "no-receipt" if the file has no receipt.
        """
        level = verification_of(verification)
        verify = level != Verification.Minimal
        etdump = _etdump_bytes(debug_buffer_size, enable_etdump)
        data_files = [*data_files, *([] if data_path is None else [data_path])]
        binding = native.module()
        name = "the program"
        try:
            if isinstance(data, (str, os.PathLike)):
                name = os.fspath(data)
                if not os.path.exists(name):
                    raise missing_file(name)
                if os.path.isdir(name):
                    raise FormatError(f"{name} is a folder, not a file", hints=hints_for(name))
                return self._opened(binding.Program.from_path(name, verify), name, data_files, level, etdump)
            if hasattr(data, "read"):
                name = str(getattr(data, "name", name))
                data = data.read()
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise InputTypeError(
                    f"a program is a path, bytes or a binary file, not {type(data).__name__}",
                    hints=["Runtime.get().load_program('model.pte')"],
                )
            return self._opened(binding.Program.from_bytes(data, verify), name, data_files, level, etdump)
        except binding.Fault as fault:
            _, number, text, _ = fault.args
            _log.error("%s: %s", name, text)
            if number == native.ACCESS_FAILED:
                raise RuntimeLoadError(text) from None
            kind = FormatError if number == native.INVALID_PROGRAM else RuntimeLoadError
            raise kind(f"{name}: {text}", hints=hints_for(name) if kind is FormatError else ()) from None

    def _opened(
        self,
        program: Any,
        name: str,
        data_files: Sequence[str | os.PathLike[str]],
        level: Verification,
        etdump: int | None,
    ) -> Program:
        for file in data_files:
            path = os.fspath(file)
            if not os.path.exists(path):
                raise missing_file(path)
            try:
                program.add_data_file(path)
            except native.module().Fault as fault:
                _, number, text, _ = fault.args
                kind = FormatError if number == native.INVALID_EXTERNAL_DATA else RuntimeLoadError
                raise kind(f"{path}: {text}") from None
        if level == Verification.Integrity:
            try:
                program.verify_integrity()
            except native.module().Fault as fault:
                raise integrity_error(fault, name, data_files) from None
        if etdump is not None:
            try:
                program.enable_etdump(etdump)
            except MemoryError:
                raise InputError(f"not enough memory for a debug buffer of {etdump} bytes") from None
        return Program(program, name, etdump is not None, self._aten)

    def __repr__(self) -> str:
        return f"<Runtime with {len(self.operator_registry.operator_names)} operators>"


def _aten_switch() -> Callable[[bool], bool]:
    """Returns a function that sets whether methods loaded by this thread use the kernels of torch, and returns the old value."""
    import ctypes

    from torchette.build import aten

    path = aten.library()
    # torch, and the operators that it defines in Python
    with contextlib.suppress(ImportError):
        importlib.import_module("torch.ao.quantization.fx._decomposed")
    load_kernels(path)
    switch = ctypes.CDLL(str(path)).torchette_aten_mode
    switch.argtypes, switch.restype = [ctypes.c_bool], ctypes.c_bool
    return switch


def _etdump_bytes(size: object, enabled: bool) -> int | None:
    """Returns the size of the debug buffer in bytes; None if no ETDump is enabled. Raises InputError if the size is invalid."""
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 62:
        raise InputError(f"the size of a debug buffer must be an integer of at least 0, got {size!r}")
    if size and not enabled:
        raise InputError("a debug buffer is part of an ETDump", hints=["enable_etdump=True"])
    return size if enabled else None
