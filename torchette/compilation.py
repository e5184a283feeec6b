# SPDX-License-Identifier: BSD-3-Clause
# An nn.Module and example inputs come in, a model that runs on the real runtime goes out. A thin layer: torch.export,
# to_edge, to_executorch and the runtime do the work; here their failures are put in the user's terms.
"""`torchette.compile`: one call from a module to a model that can be called and saved."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torchette import runtime
from torchette.errors import (
    CompileError,
    DialectError,
    ExportError,
    InputTypeError,
    MissingKernelError,
    TorchetteError,
    TrainModeError,
)
from torchette.exir.check import evaluate, user_results
from torchette.exir.passes.plan_memory import MemoryPlanningPass
from torchette.exir.pipeline import Report
from torchette.exir.program import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    lower,
)
from torchette.model import Model

Progress = Callable[[str, str], None]


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

    def report(self, method_name: str = "forward") -> Report:
        """What each pass of the compiler did; prints as a table."""
        return self.program.report(method_name)


def compile(
    module: torch.nn.Module | ExportedProgram | Mapping[str, Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    constant_methods: Mapping[str, Any] | None = None,
    passes: Any = (),
    preserve_ops: Sequence[Any] = (),
    disable_passes: Sequence[str] = (),
    check_passes: bool = False,
    plan_inputs_and_outputs: bool = False,
    progress: Progress | None = None,
    dump: str | Path | None = None,
) -> CompiledModel:
    """Compile a PyTorch model for the runtime.

    Args:
        module: a module in eval mode; or what `torch.export.export` returned; or, for several methods, method name ->
            ExportedProgram or (module, args), (module, args, kwargs) or (module, args, kwargs, dynamic_shapes).
            The first two become the method "forward". Nothing of it is changed.
        args, kwargs: example inputs; their dtypes, ranks and, but for dynamic dimensions, shapes are fixed.
        dynamic_shapes: as for `torch.export.export`; dynamic dimensions need an upper bound, `Dim("n", max=128)`.
        constant_methods: method name -> value that the method returns.
        passes: your own passes, run on the Edge dialect; see docs/add-a-pass.md.
        preserve_ops: operators that are not decomposed.
        disable_passes: names of optimisations not to run.
        check_passes: after every pass compare the results on the example inputs, and name the pass that changes them.
        plan_inputs_and_outputs: give inputs and outputs places in planned memory, into which they are copied, instead
            of using the caller's memory.
        progress: called with (stage, pass) before each step.
        dump: a folder that receives the graph after every pass, as text.

    Returns:
        A model that takes what the module takes and returns what it returns, run by the real runtime.

    Raises:
        TrainModeError: the module, or a part of it, is in training mode.
        ExportError: `torch.export` cannot capture it; names the line of the model and a remedy.
        DialectError: an operator has no place in the compiler's dialects; lists all of them.
        MissingKernelError: the runtime lacks kernels; lists all of them with the lines that need them.
    """
    programs = {
        name: _export(name, given, progress)
        for name, given in _methods(module, args, kwargs, dynamic_shapes).items()
    }
    edge_config = EdgeCompileConfig(
        preserve_ops=list(preserve_ops), disable_passes=disable_passes, check_passes=check_passes
    )
    backend_config = ExecutorchBackendConfig(
        passes=passes,
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=plan_inputs_and_outputs, alloc_graph_output=plan_inputs_and_outputs
        ),
    )
    try:
        program = lower(
            programs,
            constant_methods,
            edge_config,
            backend_config,
            progress=progress,
            dump=Path(dump) if dump is not None else None,
        )
    except DialectError as error:
        raise _as_train_mode(error) or error from None
    _check_kernels(program)
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


def _export(name: str, given: tuple, progress: Progress | None) -> ExportedProgram:
    module, args, kwargs, dynamic_shapes = given
    if isinstance(module, ExportedProgram):
        return module
    if not isinstance(module, torch.nn.Module):
        raise InputTypeError(
            f"expected a torch.nn.Module or an ExportedProgram, not {type(module).__name__}",
            hints=["for a function f, wrap it: class F(torch.nn.Module): def forward(self, x): return f(x)"],
        )
    if isinstance(args, torch.Tensor):
        raise InputTypeError(
            "args is a tensor, it must be a tuple of the module's positional arguments",
            hints=["torchette.compile(module, (x,))"],
        )
    _refuse_train_mode(module)
    if progress is not None:
        progress("export", "torch.export")
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(
                module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
            )
    except TorchetteError:
        raise
    except Exception as error:
        raise _export_error(error, name) from error


# ---- training mode ----


def _refuse_train_mode(module: torch.nn.Module) -> None:
    found = [
        f"{path or '(the module itself)'}: {type(part).__name__}"
        for path, part in module.named_modules()
        if part.training and _depends_on_mode(part)
    ]
    if found:
        raise _train_mode(f"{len(found)} of its modules behave differently there", found)


def _depends_on_mode(part: torch.nn.Module) -> bool:
    nn = torch.nn
    if isinstance(part, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)):
        return bool(part.track_running_stats)
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    if isinstance(part, (nn.RNNBase, nn.MultiheadAttention)):
        return part.dropout > 0
    return isinstance(part, nn.RReLU)


def _train_mode(reason: str, where: Sequence[str]) -> TrainModeError:
    return TrainModeError(
        f"the model is in training mode: {reason}, so it would not compute what it does in use",
        where=where,
        hints=["call model.eval() before compiling"],
    )


def _as_train_mode(error: DialectError) -> TrainModeError | None:
    """Training mode that no module admits to (dropout called as a function) shows in the graph."""
    if not error.violations or any(violation.code != "train-mode" for violation in error.violations):
        return None
    places = list(dict.fromkeys(violation.place for violation in error.violations))
    return _train_mode(f"{len(places)} of its lines draw random numbers or update statistics", places)


# ---- failures of torch.export ----


def _export_error(error: Exception, name: str) -> ExportError:
    text = str(error)
    kind, hints = _diagnose(error, text)
    first_line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    method = "" if name == "forward" else f" (method {name!r})"
    return ExportError(
        f"torch.export cannot capture the model{method}: {kind}\n{type(error).__name__}: {first_line.strip()}",
        where=_users_lines(error),
        hints=hints,
    )


def _diagnose(error: Exception, text: str) -> tuple[str, list[str]]:
    """(what is wrong in the user's terms, remedies)."""
    kind = type(error).__name__
    if "data-dependent" in text or kind in ("GuardOnDataDependentSymNode", "PendingUnbackedSymbolNotFound"):
        return "control flow depends on the values of a tensor, which are known at run time only", [
            "for a choice between two computations: torch.cond(condition, if_true, if_false, (x,))",
            "for a choice between two values: torch.where(condition, a, b)",
            "for a number that is known to be in a range: torch._check(n <= 128) after n = x.item()",
        ]
    if "Constraints violated" in text or "dynamic_shapes" in text or "dynamic shape" in text:
        fixes = text[text.index("Suggested fixes") :].strip() if "Suggested fixes" in text else ""
        hints = [f"torch suggests:\n{fixes}"] if fixes else []
        return "the model does not allow these dynamic shapes", [
            *hints,
            'give each dynamic dimension a range that the model supports: Dim("n", min=2, max=128), or leave it fixed',
        ]
    if "numpy" in text.lower() or "tolist" in text:
        return "a tensor leaves PyTorch (numpy, tolist)", ["compute with torch operators instead of numpy's"]
    if kind == "Unsupported" or "graph break" in text.lower():
        return "a Python construct has no place in a graph", [
            "move prints, I/O and calls of other libraries out of forward",
            "register a Python function as an operator with torch.library.custom_op",
        ]
    if isinstance(error, TypeError) and ("positional argument" in text or "unexpected keyword" in text):
        return "the example inputs do not fit forward", [
            "args is a tuple of positional arguments, kwargs a dict"
        ]
    return "it fails while it is traced with the example inputs", [
        "call module(*args, **kwargs) itself: if that fails too, the cause is in the model or the inputs",
        "torch.export.draft_export(module, args, kwargs) lists what stands in the way",
    ]


def _users_lines(error: BaseException) -> list[str]:
    """The lines of the user's code that the error passed through, the innermost first."""
    ours = str(Path(__file__).parent)
    lines = []
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        foreign = "/torch/" in frame.filename or frame.filename.startswith(("<", ours))
        if not foreign and "contextlib.py" not in frame.filename:
            lines.append(f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}")
    # Below the model's own frames lie those of whoever called compile.
    model = [line for line in lines if ", in <module>" not in line]
    return (model or lines)[:3]


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
        where=[f"{name}: {line}" for name, line in missing.items()],
        hints=[
            "rewrite those lines with other operators; `torchette ops` lists what there is",
            "add a kernel: docs/add-a-kernel.md",
        ],
    )
    error.operators = tuple(missing)
    raise error
