# SPDX-License-Identifier: BSD-3-Clause
# An nn.Module and example inputs come in, a model that runs on the real runtime goes out. A thin layer: torch.export,
# to_edge, to_executorch and the runtime do the work; here their failures are put in the user's terms.
"""`torchette.compile`: one call from a module to a model that can be called and saved."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torchette import runtime
from torchette.capture import as_train_mode, capture
from torchette.errors import (
    CompileError,
    DialectError,
    InputError,
    InputTypeError,
    MissingKernelError,
    MissingPackageError,
)
from torchette.exir.check import evaluate, user_results
from torchette.exir.fit import Budget
from torchette.exir.fit import fit as fit_to_budget
from torchette.exir.graph import calls
from torchette.exir.interface import specs_of
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.exir.ops import is_operator, kernel_name
from torchette.exir.pipeline import Report
from torchette.exir.program import (
    DynamicMemoryPlanningMode,
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    lower_to_edge,
)
from torchette.model import Model

Progress = Callable[[str, str], None]

# What a model can be compiled for: the kernels of this package, on the processor that they are built for.
TARGETS = ("cpu",)


class CompiledModel(Model):
    """A model fresh from the compiler: all that `Model` can do, and how it came about.

    Attributes:
        program: the `ExecutorchProgramManager` with graphs, plan and records of the file.
    """

    def __init__(
        self, program: ExecutorchProgramManager, captured: Mapping[str, ExportedProgram] | None = None
    ) -> None:
        super().__init__(program.buffer)
        self.program = program
        self._captured = dict(captured or {})

    def verify(self, rtol: float = 1e-4, atol: float = 1e-5) -> float:
        """Run every method on its example inputs, here and as it was captured, and compare.

        Returns:
            The largest absolute difference between any two elements.

        Raises:
            CompileError: code "results-differ"; names method and output.
        """
        largest = 0.0
        for name, captured in self._captured.items():
            if captured.example_inputs is None:
                continue
            args, kwargs = captured.example_inputs
            expected = user_results(captured, evaluate(captured, args, kwargs))
            method = self.methods[name]
            method.reset()
            given = pytree.tree_leaves(method(*args, **kwargs))
            method.reset()
            pairs = zip(pytree.tree_leaves(expected), given, strict=True)
            for index, (theirs, ours) in enumerate(pairs):
                if not isinstance(theirs, torch.Tensor):
                    continue
                ours = torch.as_tensor(ours)
                difference = (ours.double() - theirs.double()).abs().max().item() if theirs.numel() else 0.0
                largest = max(largest, difference)
                if not torch.allclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True):
                    raise CompileError(
                        f"method {name!r}: output {index} differs by up to {difference:.3g} from the captured program's",
                        hints=["compile with check_passes=True, which names a pass that changes the result"],
                        code="results-differ",
                    )
        return largest

    @property
    def planned_bytes(self) -> int:
        """Bytes of planned memory, the largest method's."""
        return max(self.program.planned_bytes(name)[0] for name in self.program.methods)

    @property
    def lower_bound_bytes(self) -> int:
        """Bytes that any memory plan would need at least, for the method with the largest plan."""
        return max(self.program.planned_bytes(name) for name in self.program.methods)[1]

    def arenas(self, method_name: str = "forward") -> dict[str, int]:
        """Bytes that a method needs of each arena that it was compiled for, by name; empty where none were given."""
        meta = self.program.exported_program(method_name).graph_module.meta
        return dict(zip(meta.get("arenas", ()), meta["non_const_buffer_sizes"][1:], strict=False))

    def report(self, method_name: str = "forward") -> Report:
        """What each pass of the compiler did; prints as a table."""
        return self.program.report(method_name)


def compile(
    module: torch.nn.Module | ExportedProgram | Mapping[str, Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    target: str = "cpu",
    quantize: Any = None,
    constant_methods: Mapping[str, Any] | None = None,
    passes: Any = (),
    partitioner: Any = None,
    portable_fallback: bool = False,
    train_mode: bool = False,
    preserve_ops: Sequence[Any] = (),
    disable_passes: Sequence[str] = (),
    check_passes: bool = False,
    plan_inputs_and_outputs: bool = False,
    arenas: Mapping[str, int | str | None] | None = None,
    budget: Mapping[str, int | str] | None = None,
    fit: bool = False,
    parallel: int = 1,
    dynamic_memory_planning_mode: DynamicMemoryPlanningMode | None = None,
    progress: Progress | None = None,
    dump: str | Path | None = None,
) -> CompiledModel:
    """Compile a PyTorch model for the runtime.

    Args:
        module: a module in eval mode; or what `torch.export.export` returned; or, for several methods, method name ->
            ExportedProgram or (module, args), (module, args, kwargs) or (module, args, kwargs, dynamic_shapes).
            The first two become the method "forward". Nothing of it is changed.
        args, kwargs: example inputs; their dtypes, ranks and, but for dynamic dimensions, shapes are fixed.
        dynamic_shapes: as for `torch.export.export`; a range, `Dim("n", min=2, max=128)`, is checked when inputs are set.
        target: where the model is to run; one of `TARGETS`.
        quantize: a quantizer of torchao's (`torchao.quantization.pt2e.quantizer.Quantizer`); the model is observed on
            the example inputs and converted. Refused for now, since the runtime has no quantized kernels.
        constant_methods: method name -> value that the method returns.
        passes: your own passes, run on the Edge dialect; see docs/add-a-pass.md.
        partitioner: what chooses the parts that a backend runs; one or several, or method name -> those. See
            docs/add-a-backend.md.
        portable_fallback: with a partitioner: let the file also run where the backend is missing.
        train_mode: compile what layers do in training, too, instead of refusing it: dropout draws anew at every call, as
            Monte Carlo dropout wants, and batch norm follows the statistics of its batches.
        preserve_ops: operators that are not decomposed.
        disable_passes: names of optimisations not to run.
        check_passes: after every pass compare the results on the example inputs, and name the pass that changes them.
        plan_inputs_and_outputs: give inputs and outputs places in planned memory, into which they are copied, instead
            of using the caller's memory.
        arenas: the memories of the device, the fastest first: name -> bytes (``65536``, ``"64K"``), or None for as many
            as it takes. Tensors with the most traffic for their size go to the first. They become memory ids 1, 2, ...
        budget: what the device has for the model: ``{"ram": "64K", "flash": "256K", "target": "cortex-m4"}``, each of which
            may be missing. A model that needs more is refused, with the changes that would make it fit.
        fit: make those changes: compute image layers a few rows at a time, which repeats some work.
        parallel: how many independent branches may run at the same time on a runtime that is given threads; the plan then
            keeps apart what they use. See docs/threads.md.
        dynamic_memory_planning_mode: where tensors of dynamic shape lie; by default they take memory at their actual size
            while the model runs (SYMBOLIC), but where arenas or a budget are given or inputs are planned, at their
            greatest size in planned memory (UPPER_BOUND).
        progress: called with (stage, pass) before each step.
        dump: a folder that receives the graph after every pass, as text.

    Returns:
        A model that takes what the module takes and returns what it returns, run by the real runtime.

    Raises:
        TrainModeError: the module, or a part of it, is in training mode, without `train_mode`.
        ExportError: `torch.export` cannot capture it; names the line of the model and a remedy.
        DialectError: an operator has no place in the compiler's dialects; lists all of them.
        MissingKernelError: the runtime lacks kernels; lists all of them with the lines that need them.
        PlanError: the tensors do not fit into the arenas, or the model not into the budget; names how many bytes are
            missing and what would help.
        InputError: the size of an arena or a budget is no number of bytes; there is no such target.
        UnsupportedError: a quantized model needs kernels that the runtime lacks.
    """
    if target not in TARGETS:
        raise InputError(f"there is no target {target!r}", hints=[f"known targets: {', '.join(TARGETS)}"])
    programs = {
        name: _export(name, given, train_mode, quantize, progress)
        for name, given in _methods(module, args, kwargs, dynamic_shapes).items()
    }
    edge_config = EdgeCompileConfig(
        preserve_ops=list(preserve_ops),
        disable_passes=disable_passes,
        check_passes=check_passes,
        train_mode=train_mode,
    )
    backend_config = ExecutorchBackendConfig(
        passes=passes,
        portable_fallback=portable_fallback,
        parallel=parallel,
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=plan_inputs_and_outputs,
            alloc_graph_output=plan_inputs_and_outputs,
            arenas=arenas,
        ),
        dynamic_memory_planning_mode=dynamic_memory_planning_mode
        or (
            DynamicMemoryPlanningMode.UPPER_BOUND
            if arenas or budget or plan_inputs_and_outputs
            else DynamicMemoryPlanningMode.SYMBOLIC
        ),
    )
    try:
        hooks = {"progress": progress, "dump": Path(dump) if dump is not None else None}
        edge = lower_to_edge(programs, constant_methods, edge_config, partitioner, **hooks)
        limits = Budget.of(budget or {})
        program = fit_to_budget(edge, backend_config, limits, fit, **hooks)
        _check_kernels(program)
    except DialectError as error:
        raise as_train_mode(error) or error from None
    return CompiledModel(program, programs)


def _methods(module: Any, args: Any, kwargs: Any, dynamic_shapes: Any) -> dict[str, tuple]:
    if not isinstance(module, Mapping):
        return {"forward": (module, args, kwargs, dynamic_shapes)}
    if args or kwargs or dynamic_shapes:
        raise InputTypeError(
            "with several methods, each brings its own example inputs",
            hints=['torchette.compile({"encode": (encoder, (x,)), "decode": (decoder, (y,))})'],
        )
    methods = {}
    for name, given in module.items():
        given = given if isinstance(given, (tuple, list)) else (given,)
        methods[name] = (*given, *((), None, None)[len(given) - 1 :])
    return methods


def _export(
    name: str, given: tuple, train_mode: bool, quantizer: Any, progress: Progress | None
) -> ExportedProgram:
    module, args, kwargs, dynamic_shapes = given
    if isinstance(module, ExportedProgram):
        program = module
    else:
        if progress is not None:
            progress("export", "torch.export")
        program = capture(module, args, kwargs, dynamic_shapes, name, train_mode)
    return program if quantizer is None else _quantized(name, program, quantizer, dynamic_shapes)


# ---- quantization ----


def _quantized(name: str, program: ExportedProgram, quantizer: Any, dynamic_shapes: Any) -> ExportedProgram:
    """Annotate, observe on the example inputs, convert: torchao does all of it."""
    try:
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import Quantizer
    except ImportError as error:
        raise MissingPackageError(
            "quantize= needs torchao, which is not installed", hints=["pip install torchao"]
        ) from error
    if not isinstance(quantizer, Quantizer):
        raise InputTypeError(
            f"quantize must be one of torchao's quantizers, not {type(quantizer).__name__}",
            hints=["an instance of a class that derives from torchao.quantization.pt2e.quantizer.Quantizer"],
        )
    if program.example_inputs is None:
        raise InputError(
            f"method {name!r} has no example inputs to observe", hints=["export it with example inputs"]
        )
    args, kwargs = program.example_inputs
    with torch.no_grad():
        observed = prepare_pt2e(program.module(), quantizer)
        observed(*args, **kwargs)
        return capture(convert_pt2e(observed), args, kwargs, dynamic_shapes, name)


# ---- kernels ----


def _check_kernels(program: ExecutorchProgramManager) -> None:
    try:
        known = runtime.operator_names()
    except ImportError:
        logging.getLogger("torchette").warning("the runtime is not built: kernels are not checked")
        return
    missing = {name: line for name, line in program.operators().items() if name not in known}
    if not missing:
        return
    error = MissingKernelError(
        f"the runtime has no kernel for {len(missing)} of the operators that the model needs: {', '.join(missing)}",
        where=[f"{name}{_operands(program, name)}: {line}" for name, line in missing.items()],
        hints=[
            "rewrite those lines with other operators; `torchette ops` lists what there is",
            "add a kernel: docs/add-a-kernel.md",
        ],
    )
    error.operators = tuple(missing)
    raise error


def _operands(program: ExecutorchProgramManager, operator: str) -> str:
    """What the calls of an operator are given, as ` of (float32 0 1, int64 0)`: dtype and dim order of each tensor."""
    found: dict[str, None] = {}
    for method in program.methods:
        for node in calls(program.exported_program(method)):
            if is_operator(node.target) and ".".join(filter(None, kernel_name(node.target))) == operator:
                specs = [
                    spec for source in node.all_input_nodes for spec in specs_of(source) if spec is not None
                ]
                found[
                    ", ".join(f"{str(s.dtype)[6:]} {' '.join(map(str, s.dim_order))}".strip() for s in specs)
                ] = None
    return "".join(f" of ({given})" for given in found)
