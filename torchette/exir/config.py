# SPDX-License-Identifier: BSD-3-Clause
# What users choose about compiling, as data. Names and fields are ExecuTorch's; what is ours beyond them has a default.
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


class DynamicMemoryPlanningMode(Enum):
    """Where tensors of dynamic shape lie.

    UPPER_BOUND: in planned memory, at their greatest size. Without a greatest size, as with SYMBOLIC.
    SYMBOLIC: in memory that the caller's `DynamicAllocator` gives while the method runs, at their actual size.
    """

    UPPER_BOUND = 0
    SYMBOLIC = 1


class DefaultMemoryPlanningPass(MemoryPlanningPass):
    """What a configuration plans with where its user has not chosen a pass: `torchette.compile` may choose then."""


@dataclass
class EdgeCompileConfig:
    """How to reach the Edge dialect.

    Attributes:
        preserve_ops: operators that are not decomposed.
        disable_passes: names of optional passes not to run; `torchette.exir.pipeline.optional_passes()` returns them.
        check_passes: after every pass, compare the program's results on its example inputs with those before.
        train_mode: compile what layers do in training instead of refusing it: dropout draws anew at every call, and batch
            norm follows the statistics of its batches.
        strict: fail, rather than warn, when partitioners are given and something expensive runs on no backend.
        progress: called with (stage, pass) before each pass.
        dump: a folder that receives the program's text after each pass.
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
    """How to go from the Edge dialect to the bytes of a file.

    Attributes:
        passes: users' passes, run before everything else.
        memory_planning_pass: one for all methods, or method name -> pass. By default inputs and outputs have places in
            planned memory, as in ExecuTorch; a model of `torchette.compile` uses the caller's memory.
        dynamic_memory_planning_mode: where tensors of dynamic shape lie. None stands for UPPER_BOUND, as in ExecuTorch;
            in `torchette.compile` for SYMBOLIC, unless the device's memories are given or inputs are planned.
        to_out_var_pass: takes the place of our own pass to out variants if given.
        emit_stacktrace: store for each instruction the whole stack trace of the call that it came from.
        source_lines: store for each instruction the line of the model that it came from, which run-time errors and
            `torchette profile` name.
        segment_alignment: bytes, a power of two, at which weights and delegate data begin in the file.
        constant_tensor_alignment: bytes, a power of two, at which each weight begins; None: 16.
        remove_view_copy: let copies that move nothing share memory.
        emit_mutable_buffer_names: store the names of the model's state.
        external_constants: the weights go to a data file, which `write_tensor_data_to_file` writes and programs may share:
            True for all of them, or a function of a weight's placeholder that names its file, None for the program itself.
        external_mutable_weights: the parameters of a program with gradients go to a data file, too; see docs/training.md.
        portable_fallback: store for each method with delegates a second plan that needs no backend; the runtime takes
            it, with a warning, where a backend is missing or refuses.
        row_splits: method name -> image layers to compute a few rows at a time, which takes less planned memory.
        named_data: further bytes that the file holds, by name: a tokenizer, say. `torchette.runtime` and ExecuTorch find them
            as named data.
        parallel: how many chains of instructions may run at the same time; more than one takes more planned memory.
        do_quant_fusion_and_const_prop: of no effect: quantization is fused and constants are folded in any case.
        disable_passes, check_passes: as in `EdgeCompileConfig`.

    The other fields are ExecuTorch's and must keep their defaults for now; a value that would have to do something
    raises UnsupportedError.
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
                "ExecutorchBackendConfig: sym_shape_eval_pass is not there yet",
                hints=["leave it at its default"],
            )
