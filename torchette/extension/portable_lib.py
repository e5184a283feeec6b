# SPDX-License-Identifier: BSD-3-Clause
# Implements ExecuTorch's Python bindings, `executorch.extension.pybindings.portable_lib`, with Torchette's runtime.
"""The Python bindings with the names of ExecuTorch.

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
    """A method of a program, which runs in one call or in three: `set_inputs`, `execute` and `get_outputs`."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._inputs: Any = ()
        self._outputs: list[Any] | None = None

    def set_inputs(self, inputs: object) -> None:
        """Sets the inputs of the next `execute`.

        Args:
            inputs: as for `ExecuTorchModule.run_method`.
        """
        self._inputs = inputs

    def execute(self) -> None:
        """Runs the method on the inputs of `set_inputs`.

        Raises:
            TorchetteError: as for `torchette.runtime.Method.execute`.
        """
        self._outputs = run(self._method, self._inputs)

    def get_outputs(self, clone_outputs: bool = True) -> list[Any]:
        """Returns the outputs of the last `execute`.

        Args:
            clone_outputs: has no effect; accepted for ExecuTorch's signature.

        Returns:
            A list with one value for each output: tensors and scalars.

        Raises:
            InputError: the method has not run.
        """
        del clone_outputs
        if self._outputs is None:
            name = self._method.metadata.name()
            raise InputError(
                f"method {name!r} has no outputs: it has not run", hints=["call method.execute() first"]
            )
        return self._outputs

    def call(self, inputs: object = (), clone_outputs: bool = True) -> list[Any]:
        """Sets the inputs, runs the method and returns the outputs.

        Args:
            inputs: as for `set_inputs`.
            clone_outputs: has no effect; accepted for ExecuTorch's signature.

        Returns:
            The outputs, as `get_outputs` returns them.

        Raises:
            TorchetteError: as for `execute`.
        """
        self.set_inputs(inputs)
        self.execute()
        return self.get_outputs(clone_outputs)

    __call__ = call

    def method_meta(self) -> MethodMeta:
        """Returns the metadata of the method: its inputs, outputs and memory."""
        return self._method.metadata

    def get_attribute(self, name: str) -> Any:
        """Returns a constant or buffer of the method as a torch tensor.

        Args:
            name: as for `torchette.runtime.Method.get_attribute`.

        Raises:
            TorchetteError: as for `torchette.runtime.Method.get_attribute`.
        """
        return torch_s([self._method.get_attribute(name)])[0]


class ExecuTorchProgram:
    """A program with methods that are loaded separately. The index of a method is its rank in the sorted names."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._names = sorted(program.method_names)
        self.method_meta: Callable[[str], MethodMeta] = program.metadata
        self.has_etdump = program.has_etdump
        self.write_etdump_result_to_file = program.write_etdump_result_to_file

    def num_methods(self) -> int:
        """Returns the number of methods."""
        return len(self._names)

    def get_method_name(self, method_index: int) -> str:
        """Returns the name of a method.

        Args:
            method_index: index from 0 to `num_methods() - 1`.

        Raises:
            RuntimeLoadError: the index is out of range.
        """
        if not 0 <= method_index < len(self._names):
            raise RuntimeLoadError(
                f"method index {method_index} is out of range: the program has {counted(len(self._names), 'method')}"
            )
        return self._names[method_index]

    def load_method(self, method_name: str) -> ExecuTorchMethod:
        """Loads a method.

        Args:
            method_name: the name of the method, such as "forward".

        Returns:
            The loaded method.

        Raises:
            TorchetteError: as for `torchette.runtime.Program.load_method`.
        """
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
    ) as file:  # the mapping remains valid after the file is deleted
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
    """A program in a file, for `_load_for_executorch_from_data_loader`.

    ExecuTorch's Python package has this class, but no function that creates an object of it.

    Args:
        path: the .pte file, which is read when a module is loaded.
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
    """Sets the number of threads of methods that are loaded later. Loaded methods keep their threads, so the call is safe."""
    Runtime.get().set_num_threads(num_threads)
