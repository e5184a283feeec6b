# SPDX-License-Identifier: BSD-3-Clause
# A module and its arguments come in, in the words of ExecuTorch's first releases; a program goes out. Each step is what
# `torch.export.export`, `to_edge` and `to_executorch` do.
"""`capture(module, args).to_edge().to_executorch().buffer`, as tutorials of 2023 have it."""

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
    """Choices of a tracer that torch has no longer; of no effect."""

    allow_rnn: bool = True
    verbose: bool = True
    assume_static_by_default: bool = False


@dataclass
class CaptureConfig:
    """How to capture. Of effect is only whether sizes may vary: `enable_dynamic_shape` or `enable_aot` without
    `dynamic_shapes` is refused, as torch must be told which."""

    pt2_mode: bool = True
    enable_functionalization: bool = True
    enable_dynamic_shape: bool = False
    enable_aot: bool = False
    _dynamo_config: ExirDynamoConfig = field(default_factory=ExirDynamoConfig)
    _unlift: bool = False
    _use_old_decomp_table: bool = False


class CallSpec(NamedTuple):
    """The structure of a program's arguments and of its results, a `TreeSpec`; None if it is unknown."""

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
    """Capture a module or a function. New code calls `torch.export.export` and `torchette.exir.to_edge`.

    Args:
        f: what to capture.
        args: its arguments, in a tuple.
        dynamic_shapes: as for `torch.export.export`.

    Raises:
        InputTypeError: the arguments are no tuple, or sizes are to vary and `dynamic_shapes` does not say which.
    """
    warnings.warn(
        "exir.capture is the way of ExecuTorch's first releases: use torch.export.export(module, args) and "
        "torchette.exir.to_edge(program)",
        DeprecationWarning,
        stacklevel=2,
    )
    if not isinstance(args, tuple):
        raise InputTypeError(
            f"the arguments of a module are a tuple, not {type(args).__name__}",
            hints=["capture(module, (x,))"],
        )
    config = config or CaptureConfig()
    if config.enable_dynamic_shape and dynamic_shapes is None:
        raise InputTypeError(
            "enable_dynamic_shape does not say which sizes vary",
            hints=["capture(module, (x,), dynamic_shapes={'x': {0: torch.export.Dim('n', max=8)}})"],
        )
    module = f if isinstance(f, torch.nn.Module) else _Function(f)
    if not isinstance(f, torch.nn.Module) and isinstance(dynamic_shapes, dict):
        dynamic_shapes = {"args": tuple(dynamic_shapes.values())}
    return ExirExportedProgram(torch.export.export(module, args, dynamic_shapes=dynamic_shapes))


class ExirExportedProgram:
    """A captured program on its way.

    Args:
        exported_program: what torch.export has captured, or, if `after_to_edge_passes`, a program in the Edge dialect.
    """

    def __init__(self, exported_program: ExportedProgram, after_to_edge_passes: bool = False) -> None:
        self._captured = exported_program
        self._edge = EdgeProgramManager(exported_program) if after_to_edge_passes else None

    @property
    def exported_program(self) -> ExportedProgram:
        """The program as it is now."""
        return self._captured if self._edge is None else self._edge.exported_program()

    @property
    def graph_module(self) -> torch.fx.GraphModule:
        """Its graph."""
        result: torch.fx.GraphModule = self.exported_program.graph_module
        return result

    @property
    def code(self) -> str:
        """Its graph as Python."""
        return self.graph_module.code

    def __call__(self, *args: object) -> Any:
        """What the program computes, run by torch."""
        return self.exported_program.module()(*args)

    def transform(self, *passes: Callable[..., Any]) -> ExirExportedProgram:
        """Another program, on which passes have run."""
        if self._edge is not None:
            return self._with(self._edge.transform(list(passes)))
        return ExirExportedProgram(transform(self._captured, *passes))

    def to_edge(self, config: EdgeCompileConfig | None = None) -> ExirExportedProgram:
        """The program in the Edge dialect; see `torchette.exir.to_edge`."""
        return self._with(to_edge(self._captured, compile_config=config))

    def to_executorch(self, config: ExecutorchBackendConfig | None = None) -> ExecutorchProgram:
        """The finished program; see `EdgeProgramManager.to_executorch`."""
        edge = self._edge or to_edge(self._captured)
        return ExecutorchProgram(edge.to_executorch(config))

    def dump(self) -> None:
        """Print the program."""
        print(self.exported_program)

    def _with(self, edge: EdgeProgramManager) -> ExirExportedProgram:
        program = ExirExportedProgram(self._captured)
        program._edge = edge
        return program


class ExecutorchProgram:
    """A finished program with one method; `manager` has all of `ExecutorchProgramManager`."""

    def __init__(self, manager: ExecutorchProgramManager) -> None:
        self.manager = manager

    @property
    def buffer(self) -> bytes:
        """The whole file."""
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
        """Instruction -> its backend and that one's debug handles."""
        return self.manager.delegate_map["forward"]
