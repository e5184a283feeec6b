# SPDX-License-Identifier: BSD-3-Clause
# In: a module. Out: a program in the Edge dialect, or a finished one. The names are those of ExecuTorch's examples
# (executorch.extension.export_util.utils).
"""`export_to_edge`, `export_to_exec_prog`, `save_pte_program`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchette.capture import DynamicShapes
from torchette.exir.program import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge,
)


def export_to_edge(
    model: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    example_kwarg_inputs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes = None,
    edge_constant_methods: Mapping[str, Any] | None = None,
    edge_compile_config: EdgeCompileConfig | None = None,
    strict: bool = True,
    verbose: bool = True,
    generate_etrecord: bool = False,
) -> EdgeProgramManager:
    """Captures a module and converts it to the Edge dialect; see `torch.export.export` and `torchette.exir.to_edge`.

    `verbose` is ignored.
    """
    del verbose
    exported = torch.export.export(
        model,
        example_inputs,
        dict(example_kwarg_inputs or {}),
        dynamic_shapes=dynamic_shapes,
        strict=strict,
    )
    return to_edge(exported, edge_constant_methods, edge_compile_config, generate_etrecord)


def export_to_exec_prog(
    model: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    *,
    backend_config: ExecutorchBackendConfig | None = None,
    **options: Any,
) -> ExecutorchProgramManager:
    """Returns the finished program of a module, which is set to eval mode. `options` are those of `export_to_edge`."""
    return export_to_edge(model.eval(), example_inputs, **options).to_executorch(backend_config)


def save_pte_program(prog: ExecutorchProgramManager, model_name: str, output_dir: str = "") -> str:
    """Writes a program and its data files.

    Returns:
        The path of the program: `model_name`, or ``<output_dir>/<model_name>.pte`` if `model_name` has no suffix.
    """
    path = Path(model_name) if model_name.endswith(".pte") else Path(output_dir) / f"{model_name}.pte"
    prog.save(path)
    prog.write_tensor_data_to_file(output_dir)
    return str(path)
