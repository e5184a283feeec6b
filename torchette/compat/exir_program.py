# SPDX-License-Identifier: BSD-3-Clause
# The API of ExecuTorch's first releases. In: a module and its arguments. Out: a program. `torch.export.export`,
# `to_edge` and `to_executorch` implement the steps.
"""`capture(module, args).to_edge().to_executorch().buffer`, the API of tutorials from 2023."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import TreeSpec

from torchette.capture import DynamicShapes
from torchette.errors import InputTypeError
from torchette.exir.config import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.exir.pass_manager import transform
from torchette.exir.program import EdgeProgramManager, ExecutorchProgramManager, to_edge


@dataclass
class ExirDynamoConfig:
    """Options of a tracer that torch no longer has; ignored."""

    allow_rnn: bool = True
    verbose: bool = True
    assume_static_by_default: bool = False


@dataclass
class CaptureConfig:
    """Options of the capture. Only the options for dynamic sizes have an effect.

    `enable_dynamic_shape` and `enable_aot` require `dynamic_shapes`, which names the dynamic sizes.
    """

    pt2_mode: bool = True
    enable_functionalization: bool = True
    enable_dynamic_shape: bool = False
    enable_aot: bool = False
    _dynamo_config: ExirDynamoConfig = field(default_factory=ExirDynamoConfig)
    _unlift: bool = False
    _use_old_decomp_table: bool = False


class CallSpec(NamedTuple):
    """The structures of a program's arguments and results, `TreeSpec` or None if unknown."""

    in_spec: TreeSpec | None
    out_spec: TreeSpec | None


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: object) -> Any:
        return self.function(*args)


def capture(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    config: CaptureConfig | None = None,
    dynamic_shapes: DynamicShapes = None,
) -> ExirExportedProgram:
    """Captures a module or a function. New code should use `torch.export.export` and `torchette.exir.to_edge`.

    Args:
        f: the module or function.
        args: its arguments, a tuple.
        config: options, see `CaptureConfig`.
        dynamic_shapes: see `torch.export.export`.

    Returns:
        The captured program.

    Raises:
        InputTypeError: if `args` is not a tuple, or if dynamic sizes are requested without `dynamic_shapes`.
    """
    warnings.warn(
        "exir.capture is the API of ExecuTorch's first releases: use torch.export.export(module, args) and "
        "torchette.exir.to_edge(program)",
        DeprecationWarning,
        stacklevel=2,
    )
    if not isinstance(args, tuple):
        raise InputTypeError(
            f"the arguments of a module must be a tuple, got {type(args).__name__}",
            hints=["capture(module, (x,))"],
        )
    config = config or CaptureConfig()
    if config.enable_dynamic_shape and dynamic_shapes is None:
        raise InputTypeError(
            "enable_dynamic_shape does not name the dynamic sizes",
            hints=["capture(module, (x,), dynamic_shapes={'x': {0: torch.export.Dim('n', max=8)}})"],
        )
    module = f if isinstance(f, torch.nn.Module) else _Function(f)
    if not isinstance(f, torch.nn.Module) and isinstance(dynamic_shapes, dict):
        dynamic_shapes = {"args": tuple(dynamic_shapes.values())}
    return ExirExportedProgram(torch.export.export(module, args, dynamic_shapes=dynamic_shapes))


class ExirExportedProgram:
    """A captured program, with methods for the next steps.

    Args:
        exported_program: an exported program or, with `after_to_edge_passes`, a program in the Edge dialect.
        after_to_edge_passes: whether the program is in the Edge dialect.
    """

    def __init__(self, exported_program: ExportedProgram, after_to_edge_passes: bool = False) -> None:
        self._captured = exported_program
        self._edge = EdgeProgramManager(exported_program) if after_to_edge_passes else None

    @property
    def exported_program(self) -> ExportedProgram:
        """The program in its current form."""
        return self._captured if self._edge is None else self._edge.exported_program()

    @property
    def graph_module(self) -> torch.fx.GraphModule:
        """The graph module of the program."""
        result: torch.fx.GraphModule = self.exported_program.graph_module
        return result

    @property
    def code(self) -> str:
        """The graph as Python code."""
        return self.graph_module.code

    def __call__(self, *args: object) -> Any:
        """Runs the program in torch."""
        return self.exported_program.module()(*args)

    def transform(self, *passes: Callable[..., Any]) -> ExirExportedProgram:
        """Returns a new program that the passes have transformed."""
        if self._edge is not None:
            return self._with(self._edge.transform(list(passes)))
        return ExirExportedProgram(transform(self._captured, *passes))

    def to_edge(self, config: EdgeCompileConfig | None = None) -> ExirExportedProgram:
        """Converts the program to the Edge dialect; see `torchette.exir.to_edge`."""
        return self._with(to_edge(self._captured, compile_config=config))

    def to_executorch(self, config: ExecutorchBackendConfig | None = None) -> ExecutorchProgram:
        """Returns the finished program; see `EdgeProgramManager.to_executorch`."""
        edge = self._edge or to_edge(self._captured)
        return ExecutorchProgram(edge.to_executorch(config))

    def dump(self) -> None:
        """Prints the program."""
        print(self.exported_program)

    def _with(self, edge: EdgeProgramManager) -> ExirExportedProgram:
        program = ExirExportedProgram(self._captured)
        program._edge = edge
        return program


class ExecutorchProgram:
    """A finished program with one method. `manager` is its `ExecutorchProgramManager`."""

    def __init__(self, manager: ExecutorchProgramManager) -> None:
        self.manager = manager

    @property
    def buffer(self) -> bytes:
        """The contents of the .pte file."""
        return self.manager.buffer

    @property
    def program(self) -> Any:
        """The program as records of the file's schema."""
        return self.manager.executorch_program

    @property
    def debug_handle_map(self) -> dict[int, Any]:
        """Instruction -> debug handle."""
        return self.manager.debug_handle_map["forward"]

    @property
    def delegate_map(self) -> dict[int, Any]:
        """Instruction -> backend name and debug handles of the delegate."""
        return self.manager.delegate_map["forward"]
