# SPDX-License-Identifier: BSD-3-Clause
# In: a user's pass of any accepted kind. Out: a function from ExportedProgram to ExportedProgram. It checks the graph,
# updates the signature, and adds missing values to the nodes.
"""`PassManager`, and the adapter for users' passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from torchette import compat
from torchette.errors import PassError
from torchette.exir.arguments import function
from torchette.exir.dialects._ops import EdgeOpOverload, to_edge_operators, to_torch_operators
from torchette.exir.graph import (
    calls,
    copy_program,
    fake_mode,
    map_nodes,
    placeholders,
    recompile,
    sync_signature,
)
from torchette.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult, PassType

__getattr__ = compat.attributes(__name__)  # for ExecuTorch's names

__all__ = ["ExportedProgramPassManager", "PassManager", "PassType", "adapt", "flatten"]


COPIED_FROM = "_copied_from"  # attribute of a program in a pipeline: the program that it is a copy of


class PassManager:
    """Runs passes on a graph module in sequence.

    Args:
        passes: callables from graph module to `PassResult` or None.
        run_checks_after_each_pass: check the graph after each pass. By default the check requires that the graph does
            not call methods or modules, because no dialect allows them. See `add_checks`.
        suppress_check_failures: ignored, as in ExecuTorch.
        steps: the maximum number of times to run all passes. The manager stops when no pass changed the graph.
    """

    def __init__(
        self,
        passes: Iterable[Any] | None = None,
        run_checks_after_each_pass: bool = False,
        suppress_check_failures: bool = False,
        steps: int = 1,
        **_: object,  # ordering constraints for torch's solver, which are ignored: the passes run in the given order
    ) -> None:
        del suppress_check_failures
        self.passes: list[Any] = list(passes or ())
        self.steps = steps
        self.run_checks_after_each_pass = run_checks_after_each_pass

    def add_pass(self, new: PassType) -> None:
        """Appends a pass."""
        self.passes.append(new)

    def add_checks(self, check: Callable[[Any], None]) -> None:
        """Replaces the check. The new check is called with the graph module before the first pass and, with
        `run_checks_after_each_pass`, after each pass. It must raise an error if the graph is invalid.

        Raises:
            TypeError: the check does not have exactly one parameter.
        """
        count = len(inspect.signature(check).parameters)
        if count != 1:
            raise TypeError(f"a check must have one parameter, the graph module, got {count}")
        vars(self)["check"] = check

    def __call__(self, module: Any) -> Any:
        """Runs all passes. `modified` of the result is true if a pass changed the graph."""
        overall = False
        if "check" in vars(self):  # set by add_checks
            self.check(module)
        for _ in range(self.steps):
            modified = False
            for run in self.passes:
                module, changed = self._apply(run, module)
                modified |= changed
                if self.run_checks_after_each_pass:
                    self.check(module)
            overall |= modified
            if not modified:
                break
        return self._result(module, overall)

    _result: Any = PassResult

    def _apply(self, run: Callable[..., Any], module: Any) -> tuple[Any, bool]:
        result = run(module)
        module, modified = (
            (result.graph_module, result.modified) if isinstance(result, PassResult) else (module, False)
        )
        recompile(module)  # a pass that edits in place may return None, or edit only a branch
        return module, modified

    def check(self, module: GraphModule) -> None:
        """Raises PassError if the graph calls methods or modules."""
        for node in module.graph.nodes:
            if node.op in ("call_method", "call_module"):
                raise PassError(f"{node} is a {node.op}: a graph may call only operators")

    def __repr__(self) -> str:
        return f"PassManager({', '.join(_name(run) for run in self.passes)})"


class ExportedProgramPassManager(PassManager):
    """Runs passes on a whole program: passes over the program (`ExportedProgramPassBase`) or over its graph module.
    Edits the program and returns an `ExportedProgramPassResult`."""

    _result = ExportedProgramPassResult

    def _apply(self, run: Callable[..., Any], module: ExportedProgram) -> tuple[ExportedProgram, bool]:
        if isinstance(run, ExportedProgramPassBase):
            on_program = run(module)
            recompile(on_program.exported_program.graph_module)
            return on_program.exported_program, on_program.modified
        module._graph_module, modified = super()._apply(run, module.graph_module)
        sync_signature(module)
        return module, modified


def flatten(passes: object) -> list[Any]:
    """Returns a list of passes from a pass, a sequence of passes, a PassManager or None."""
    if passes is None:
        return []
    if isinstance(passes, PassManager) or hasattr(passes, "passes"):
        return list(passes.passes)
    return list(passes) if isinstance(passes, (list, tuple)) else [passes]


def adapt(run: object) -> Callable[[ExportedProgram], ExportedProgram]:
    """Returns a pass of the pipeline that runs a user's pass. The user's pass sees Edge operators, which are equal to
    torch's operators, and may call both.

    A user's pass is a callable that accepts a graph module and returns a `PassResult`, a graph module or None (edited
    in place), such as an `ExportPass`, or a callable with a parameter that is annotated as ExportedProgram.
    """
    if not callable(run):
        raise PassError(
            f"{run!r} is not a pass",
            hints=["pass a function of a torch.fx.GraphModule, or an ExportPass object"],
            code="not-a-pass",
        )
    on_program = _takes_program(run)

    def adapted(program: ExportedProgram) -> ExportedProgram:
        before = len(placeholders(program))
        to_edge_operators(program)
        # A pass that stores a reference to the source program must edit the copy of it that becomes the result.
        source, attributes = getattr(program, COPIED_FROM, None), getattr(run, "__dict__", {})
        held = [name for name, value in attributes.items() if source is not None and value is source]
        attributes.update(dict.fromkeys(held, program))
        try:
            result = run(program if on_program else program.graph_module)
        finally:
            attributes.update(dict.fromkeys(held, source))
        if on_program:
            program = getattr(result, "exported_program", result) or program
        else:
            module = result.graph_module if isinstance(result, PassResult) else result
            if isinstance(module, GraphModule):
                program._graph_module = module
        if len(placeholders(program)) != before and not on_program and not held:
            raise PassError(
                f"pass {_name(run)} changed the number of inputs of the graph",
                hints=[
                    "annotate its parameter as ExportedProgram, and update the graph signature together with the graph"
                ],
                code="pass-changed-inputs",
            )
        sync_signature(program)
        _fill_values(program)
        program = to_torch_operators(program)
        recompile(program.graph_module)
        return program

    adapted.__name__ = adapted.__qualname__ = _name(run)
    adapted.__doc__ = run.__doc__
    return adapted


def transform(program: ExportedProgram, *passes: object, **_: object) -> ExportedProgram:
    """Runs users' passes in sequence on a copy of a program and returns the copy."""
    edge = any(isinstance(node.target, EdgeOpOverload) for node in calls(program))
    program = to_torch_operators(copy_program(program))
    for run in passes:
        program = adapt(run)(program)
    program = to_edge_operators(program) if edge else program
    recompile(program.graph_module)
    return program


def _name(run: object) -> str:
    return getattr(run, "__name__", None) or type(run).__name__


def _takes_program(run: Callable[..., Any]) -> bool:
    function = run if inspect.isroutine(run) or inspect.isclass(run) else run.__call__  # type: ignore[operator]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    annotation = parameters[0].annotation if parameters else None
    return annotation is ExportedProgram or (
        isinstance(annotation, str) and annotation.split(".")[-1] == "ExportedProgram"
    )


def _fill_values(program: ExportedProgram) -> None:
    """Computes the values of nodes that a pass created without `meta["val"]`, one node at a time, with torch."""
    mode = fake_mode(program)
    for node in calls(program):
        if "val" in node.meta or mode is None:
            continue
        args, kwargs = map_nodes((node.args, dict(node.kwargs)), _value_of)
        with mode:
            node.meta["val"] = function(node)(*args, **kwargs)
        before = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        for key in ("stack_trace", "nn_module_stack"):
            if before is not None and key not in node.meta and key in before.meta:
                node.meta[key] = before.meta[key]


def _value_of(node: Node) -> Any:
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = getattr(node.graph.owning_module, str(node.target))
    return value.detach() if isinstance(value, torch.nn.Parameter) else value
