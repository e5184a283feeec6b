# SPDX-License-Identifier: BSD-3-Clause
# Compile options as dataclasses. Names and fields match ExecuTorch's; additional fields have defaults.
"""`EdgeCompileConfig` and `ExecutorchBackendConfig`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from torchette.errors import UnsupportedError
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.exir.passes.split_rows import Split

# The maximum sizes of several dimensions multiply: 1024 sequences of 1024 tokens need 17 GB for the scores of one attention.
MAX_PLANNED_BYTES = 1 << 30


class DynamicMemoryPlanningMode(Enum):
    """Selects the memory of tensors with dynamic shapes.

    UPPER_BOUND: planned memory of the maximum size. A tensor without a maximum size is allocated as with SYMBOLIC.
    SYMBOLIC: memory of the actual size, which the caller's `DynamicAllocator` provides while the method runs.
    """

    UPPER_BOUND = 0
    SYMBOLIC = 1


class DefaultMemoryPlanningPass(MemoryPlanningPass):
    """The default planning pass of a configuration. `torchette.compile` may replace it, but not a pass that the user
    chose."""


@dataclass
class EdgeCompileConfig:
    """Options of the conversion to the Edge dialect.

    Attributes:
        preserve_ops: operators that are not decomposed.
        disable_passes: names of optional passes that are skipped; `torchette.exir.pipeline.optional_passes()`
            returns the possible names.
        check_passes: run the program on its example inputs after every pass and compare the results with those
            before.
        train_mode: compile the training behaviour of layers instead of raising an error: dropout draws new values
            at every call, and batch norm updates its running statistics.
        strict: raise an error instead of a warning if partitioners are given and no backend accepts an expensive
            call.
        progress: called with (stage, pass) before each pass.
        dump: a folder. The program's text is written to it after each pass.

    Example:
        >>> config = EdgeCompileConfig(preserve_ops=[torch.ops.aten.gelu.default])
    """

    _check_ir_validity: bool = True
    _skip_dim_order: bool = False
    _core_aten_ops_exception_list: list[torch._ops.OpOverload] = field(default_factory=list)
    preserve_ops: list[torch._ops.OpOverload] = field(default_factory=list)
    disable_passes: Sequence[str] = ()
    check_passes: bool = False
    train_mode: bool = False
    strict: bool = False
    progress: Callable[[str, str], None] | None = None
    dump: str | Path | None = None


@dataclass
class ExecutorchBackendConfig:
    """Options of the conversion from the Edge dialect to the bytes of a file.

    Attributes:
        passes: the user's passes. They run before all other passes.
        memory_planning_pass: one pass for all methods, or a dictionary from method name to pass. By default inputs and
            outputs are in planned memory, as in ExecuTorch; `torchette.compile` uses memory of the caller for them.
        dynamic_memory_planning_mode: the memory of tensors with dynamic shapes. None selects UPPER_BOUND, as in
            ExecuTorch. A method whose maximum sizes need more than 1 GiB is SYMBOLIC instead, and its inputs stay in
            the memory of the caller. In `torchette.compile` None selects SYMBOLIC, unless the memories of the device
            are given or inputs are planned.
        to_out_var_pass: replaces the built-in pass that converts calls to out variants.
        emit_stacktrace: store for each instruction the full stack trace of the call that it was compiled from.
        source_lines: store for each instruction the source line of the model. Run-time errors and `torchette profile`
            print it.
        segment_alignment: alignment of weights and delegate data in the file, in bytes; a power of two.
        constant_tensor_alignment: alignment of each weight in bytes, a power of two. None selects 16.
        remove_view_copy: let the result of a copy share the memory of its operand if no element moves.
        emit_mutable_buffer_names: store the names of the mutable buffers.
        external_constants: store weights in a data file, which `write_tensor_data_to_file` writes and which programs
            can share. True selects all weights. A function receives the placeholder of a weight and returns the name of
            its file, or None for a weight that stays in the program.
        external_mutable_weights: also store the parameters of a program with gradients in a data file; see
            docs/training.md.
        portable_fallback: store for each method with delegates a second plan that needs no backend. The runtime uses it,
            with a warning, if a backend is missing or rejects its data.
        row_splits: dictionary from method name to the image layers that are computed a few rows at a time. This needs
            less planned memory.
        named_data: additional bytes to store in the file by name, for example a tokenizer. `torchette.runtime` and
            ExecuTorch read them as named data.
        parallel: the maximum number of instruction chains that may run at the same time. More than one needs more
            planned memory.
        do_quant_fusion_and_const_prop: has no effect: quantization is always fused and constants are always folded.
        disable_passes, check_passes: see `EdgeCompileConfig`.
        extract_delegate_segments: store the data of delegates in segments instead of inside the program.
        propagate_device_config, delegate_alignment, sym_shape_eval_pass, run_reinplace_pass, enable_non_cpu_memory_planning, reinplace_extra_ops:
            have no effect. They exist for compatibility with ExecuTorch.

    Raises:
        UnsupportedError: `sym_shape_eval_pass` is a HintBasedSymShapeEvalPass.

    Example:
        >>> config = ExecutorchBackendConfig(external_constants=True, segment_alignment=4096)
    """

    passes: Any = field(default_factory=list)
    memory_planning_pass: Any = field(default_factory=DefaultMemoryPlanningPass)
    propagate_device_config: Any = None
    to_out_var_pass: Any = None
    dynamic_memory_planning_mode: DynamicMemoryPlanningMode | None = None
    emit_stacktrace: bool = False
    source_lines: bool = True
    extract_delegate_segments: bool = True
    segment_alignment: int = 128
    constant_tensor_alignment: int | None = None
    delegate_alignment: int | None = None
    sym_shape_eval_pass: Any = None
    remove_view_copy: bool = True
    external_constants: bool | Callable[[torch.fx.Node], str | None] = False
    external_mutable_weights: bool = False
    emit_mutable_buffer_names: bool = False
    do_quant_fusion_and_const_prop: bool = False
    run_reinplace_pass: bool = False
    enable_non_cpu_memory_planning: bool = True
    reinplace_extra_ops: frozenset[Any] | None = None
    portable_fallback: bool = False
    row_splits: Mapping[str, Sequence[Split]] = field(default_factory=dict)
    named_data: Mapping[str, bytes] = field(default_factory=dict)
    parallel: int = 1
    disable_passes: Sequence[str] = ()
    check_passes: bool = False

    def __post_init__(self) -> None:
        if type(self.sym_shape_eval_pass).__name__ == "HintBasedSymShapeEvalPass":
            raise UnsupportedError(
                "ExecutorchBackendConfig: sym_shape_eval_pass=HintBasedSymShapeEvalPass is not supported",
                hints=["leave it at its default"],
            )
