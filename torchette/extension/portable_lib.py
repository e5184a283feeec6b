# SPDX-License-Identifier: BSD-3-Clause
# In: the calls of ExecuTorch's Python bindings, `executorch.extension.pybindings.portable_lib`. Out: our runtime's answers.
"""The bindings' names, as users of ExecuTorch import them.

>>> from torchette.extension.pybindings.portable_lib import _load_for_executorch
>>> _load_for_executorch("model.pte").forward([torch.ones(1, 4)])
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchette.devtools.bundle import BundledModule, load_method, run, torch_s
from torchette.devtools.bundle import Module as ExecuTorchModule
from torchette.devtools.profile_blocks import create_profile_block as _create_profile_block
from torchette.devtools.profile_blocks import dump_profile_results as _dump_profile_results
from torchette.devtools.profile_blocks import reset_profile_results as _reset_profile_results
from torchette.errors import InputError, RuntimeLoadError
from torchette.runtime import (
    BackendRegistry,
    Method,
    MethodMeta,
    Program,
    Runtime,
    TensorInfo,
    Verification,
    operator_names,
)
from torchette.units import counted

__all__ = [
    "BundledModule",
    "ExecuTorchMethod",
    "ExecuTorchModule",
    "ExecuTorchProgram",
    "MethodMeta",
    "PyDataLoader",
    "TensorInfo",
    "Verification",
    "_create_profile_block",
    "_dump_profile_results",
    "_reset_profile_results",
]


class ExecuTorchMethod:
    """A method that is given its inputs, run, and asked for its outputs in three calls, or in one."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._inputs: Any = ()
        self._outputs: list[Any] | None = None

    def set_inputs(self, inputs: object) -> None:
        """What `execute` runs on, as in `ExecuTorchModule.run_method`."""
        self._inputs = inputs

    def execute(self) -> None:
        """Runs the method. Raises as `torchette.runtime.Method.execute`."""
        self._outputs = run(self._method, self._inputs)

    def get_outputs(self, clone_outputs: bool = True) -> list[Any]:
        """What the last `execute` gave. InputError where there was none."""
        del clone_outputs
        if self._outputs is None:
            name = self._method.metadata.name()
            raise InputError(f"method {name!r} has no outputs: it has not run", hints=["method.execute()"])
        return self._outputs

    def call(self, inputs: object = (), clone_outputs: bool = True) -> list[Any]:
        """All three."""
        self.set_inputs(inputs)
        self.execute()
        return self.get_outputs(clone_outputs)

    __call__ = call

    def method_meta(self) -> MethodMeta:
        """Its signature and memory."""
        return self._method.metadata

    def get_attribute(self, name: str) -> Any:
        """As `torchette.runtime.Method.get_attribute`, a tensor."""
        return torch_s([self._method.get_attribute(name)])[0]


class ExecuTorchProgram:
    """A program whose methods are loaded one by one; they are numbered in the order of their names."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._names = sorted(program.method_names)
        self.method_meta: Callable[[str], MethodMeta] = program.metadata
        self.has_etdump = program.has_etdump
        self.write_etdump_result_to_file = program.write_etdump_result_to_file

    def num_methods(self) -> int:
        """How many methods it has."""
        return len(self._names)

    def get_method_name(self, method_index: int) -> str:
        """The name of a method by its number. RuntimeLoadError if there is none."""
        if not 0 <= method_index < len(self._names):
            raise RuntimeLoadError(
                f"there is no method number {method_index}; the program has {counted(len(self._names), 'method')}"
            )
        return self._names[method_index]

    def load_method(self, method_name: str) -> ExecuTorchMethod:
        """Raises as `torchette.runtime.Program.load_method`."""
        return ExecuTorchMethod(load_method(self._program, method_name))


def _load(
    make: Callable[..., Any],
    program: object,
    data: str | os.PathLike[str] | bytes | None,
    enable_etdump: bool,
    debug_buffer_size: int,
    verification: Verification,
) -> Any:
    options = {
        "verification": verification,
        "enable_etdump": enable_etdump,
        "debug_buffer_size": debug_buffer_size if enable_etdump else 0,
    }
    if not isinstance(data, (bytes, bytearray, memoryview)):
        return make(program, data_path=data, **options)
    with tempfile.NamedTemporaryFile(
        suffix=".ptd"
    ) as file:  # which is mapped, and so lives on without its name
        file.write(data)
        file.flush()
        return make(program, data_path=file.name, **options)


def _load_for_executorch(
    program_path: str,
    data_path: str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.InternalConsistency,
) -> ExecuTorchModule:
    result: ExecuTorchModule = _load(
        ExecuTorchModule,
        Path(program_path),
        data_path,
        enable_etdump,
        debug_buffer_size,
        program_verification,
    )
    return result


def _load_for_executorch_from_buffer(
    buffer: bytes,
    data_map_buffer: bytes | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.InternalConsistency,
) -> ExecuTorchModule:
    result: ExecuTorchModule = _load(
        ExecuTorchModule, buffer, data_map_buffer, enable_etdump, debug_buffer_size, program_verification
    )
    return result


class PyDataLoader:
    """A program in a file, for `_load_for_executorch_from_data_loader`. ExecuTorch's Python package has this class, but no
    function that makes an object of it.

    Args:
        path: of the .pte file, which is read when a module is loaded.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)


def _load_for_executorch_from_data_loader(
    loader: PyDataLoader,
    data_path: str | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.InternalConsistency,
) -> ExecuTorchModule:
    return _load_for_executorch(
        str(loader.path), data_path, enable_etdump, debug_buffer_size, program_verification
    )


def _load_for_executorch_from_bundled_program(
    module: BundledModule,
    data_map_buffer: bytes | None = None,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
) -> ExecuTorchModule:
    return _load_for_executorch_from_buffer(module.program, data_map_buffer, enable_etdump, debug_buffer_size)


def _program(program: bytes | str | Path, **options: Any) -> ExecuTorchProgram:
    return ExecuTorchProgram(Runtime.get().load_program(program, **options))


def _load_program(
    path: str,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.Minimal,
    data_path: str | None = None,
) -> ExecuTorchProgram:
    result: ExecuTorchProgram = _load(
        _program, Path(path), data_path, enable_etdump, debug_buffer_size, program_verification
    )
    return result


def _load_program_from_buffer(
    buffer: bytes,
    enable_etdump: bool = False,
    debug_buffer_size: int = 0,
    program_verification: Verification = Verification.Minimal,
    data_path: str | None = None,
) -> ExecuTorchProgram:
    result: ExecuTorchProgram = _load(
        _program, buffer, data_path, enable_etdump, debug_buffer_size, program_verification
    )
    return result


def _load_bundled_program_from_buffer(buffer: bytes, non_const_pool_size: int = 0) -> BundledModule:
    del non_const_pool_size
    return BundledModule(buffer)


def _is_available(backend_name: str) -> bool:
    return BackendRegistry().is_available(backend_name)


def _get_registered_backend_names() -> list[str]:
    return BackendRegistry().registered_backend_names


def _get_operator_names() -> list[str]:
    return sorted(operator_names())


def _threadpool_get_thread_count() -> int:
    return Runtime.get().num_threads


def _unsafe_reset_threadpool(num_threads: int) -> None:
    """Of methods that are loaded from now on; those that there are keep their threads, so that nothing is unsafe."""
    Runtime.get().set_num_threads(num_threads)
