# SPDX-License-Identifier: BSD-3-Clause
# In: a program before and after a pass. Out: PassError with the name of the pass and the first node that differs.
"""Numeric checks between passes: run the graph on example inputs, at any stage, and compare."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from torchette.errors import PassError
from torchette.exir import control_flow
from torchette.exir.graph import node_text, outputs, place, placeholders, tensor_of


class Reference:
    """The values of all nodes of a program on its example inputs. The result of the next pass is compared with them."""

    def __init__(self, program: ExportedProgram, inputs: tuple[Any, Any]) -> None:
        self._inputs = inputs
        self._values = evaluate(program, *inputs)
        self._names = {node.name: node for node in program.graph.nodes}
        self._outputs = _results(program, self._values)

    def compare(self, program: ExportedProgram, stage: str, name: str) -> Reference:
        """Checks that a program still yields the same results after a pass, and returns the reference of that program.

        Raises:
            PassError: the results differ. The message names the output and the first node that differs.
        """
        try:
            now = Reference(program, self._inputs)
        except Exception as error:
            raise _failure(
                f"pass {name} of stage {stage} left a graph that cannot run: {error}", name
            ) from error
        for label, after in now._outputs.items():
            # The first pass adds an output for each buffer update. The reference contains these outputs from then on.
            difference = _difference(self._outputs[label], after) if label in self._outputs else None
            if difference is None:
                continue
            culprit = self._first_difference(now, program)
            where = [place(culprit), node_text(culprit)] if culprit is not None else []
            first = f"; the first node to differ is {culprit.name}" if culprit is not None else ""
            raise _failure(
                f"pass {name} of stage {stage} changed the result: {label} {difference}{first}",
                name,
                where,
            )
        return now

    def _first_difference(self, now: Reference, program: ExportedProgram) -> Node | None:
        for node in program.graph.nodes:
            if node.op != "call_function" or node not in now._values:
                continue
            earlier = self._names.get(node.name)
            if earlier is None:
                # A new node has no earlier value to compare with.
                continue
            if earlier in self._values and _difference(self._values[earlier], now._values[node]) is not None:
                result: Node | None = node
                return result
        # Only new nodes differ: return the first one that is an output with another value.
        for value, label in zip(outputs(program), now._outputs, strict=True):
            differs = (
                label in self._outputs and _difference(self._outputs[label], now._outputs[label]) is not None
            )
            if isinstance(value, Node) and differs:
                return value
        return None


def evaluate(
    program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> dict[Node, Any]:
    """Runs the graph of a program of any dialect on the user's inputs. Returns the value of every node.

    Buffers keep their initial values: the new value of a buffer is an output of the graph.
    """
    interpreter = _Evaluator(program.graph_module, garbage_collect_values=False)
    flat = iter(program._get_flat_args_with_check(args, kwargs or {})[0])
    inputs = []
    for _, spec in zip(placeholders(program), program.graph_signature.input_specs, strict=True):
        stored = tensor_of(program, spec)
        if stored is None and spec.target is not None and spec.target in program.constants:
            stored = program.constants[spec.target]
        value = stored if stored is not None else next(flat)
        # A captured program may still write to its inputs and buffers.
        inputs.append(value.clone() if isinstance(value, torch.Tensor) else value)
    with torch.no_grad():
        interpreter.run(*inputs)
    return interpreter.env


class _Evaluator(Interpreter):
    """Runs an out variant as the functional operator that it replaced, because the emitter adds the out arguments."""

    def run_node(self, n: Node) -> Any:
        if control_flow.form(n) is not None:
            return self._run_control_flow(n)
        functional = n.meta.get("functional")
        if functional is None:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        schema = {argument.name: argument for argument in functional._schema.arguments}
        kwargs = {name: value for name, value in kwargs.items() if name in schema}
        val = n.meta.get("val")
        if "dtype" in schema and schema["dtype"].kwarg_only and isinstance(val, torch.Tensor):
            kwargs.setdefault("dtype", val.dtype)
        return functional(*args, **kwargs)

    def _run_control_flow(self, node: Node) -> tuple[Any, ...]:
        """Does the same as torch's interpreter, but evaluates the branches with this class, so that any dialect
        works."""

        def value(operand: object) -> Any:
            return self.env[operand] if isinstance(operand, Node) else operand

        def run(branch: GraphModule, *groups: list[Any]) -> list[Any]:
            results = _Evaluator(branch, garbage_collect_values=False).run(
                *(item for group in groups for item in group)
            )
            return pytree.tree_leaves(results)

        graphs, kind = control_flow.branches(node), control_flow.name(node.target)
        shared = [value(item) for item in control_flow.shared(node)]
        if kind == "cond":
            return tuple(run(graphs[0 if value(node.args[0]) else 1], shared))
        carried = [value(item) for item in control_flow.carried(node)]
        if kind == "while_loop":
            # The body may write to the storage of its operands if it is in the EXEC dialect.
            carried = [item.clone() if isinstance(item, torch.Tensor) else item for item in carried]
            while run(graphs[0], carried, shared)[0]:
                carried = run(graphs[1], carried, shared)
            return tuple(carried)
        outputs_by_step: list[list[Any]] = []
        if kind == "while_loop_stack_output":
            first = carried
            while run(graphs[0], carried, shared)[0]:
                carried = run(graphs[1], carried, shared)
                outputs_by_step.append(carried)
            return tuple(torch.stack(parts) for parts in zip(*(outputs_by_step or [first]), strict=True))
        for slices in zip(*(value(item).unbind() for item in control_flow.sliced(node)), strict=True):
            results = run(graphs[0], carried, list(slices), shared)
            carried, step_outputs = results[: len(carried)], results[len(carried) :]
            outputs_by_step.append(step_outputs)
        return (*carried, *(torch.stack(parts) for parts in zip(*outputs_by_step, strict=True)))


def _results(program: ExportedProgram, values: dict[Node, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for value, spec in zip(outputs(program), program.graph_signature.output_specs, strict=True):
        user = spec.kind is OutputKind.USER_OUTPUT
        label = (
            f"output {sum(name.startswith('output') for name in results)}"
            if user
            else f"the new {spec.target}"
        )
        results[label] = values[value] if isinstance(value, Node) else value
    return results


def user_results(program: ExportedProgram, values: dict[Node, Any]) -> list[Any]:
    """Returns the values in the result of `evaluate` that the program returns to its user."""
    return [value for label, value in _results(program, values).items() if label.startswith("output")]


def _difference(before: object, after: object) -> str | None:
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        if before.is_complex() and not after.is_complex():
            before = torch.view_as_real(
                before.resolve_conj()
            )  # split_complex replaces a complex result by this form
        if before.shape != after.shape or before.dtype != after.dtype:
            return f"was {before.dtype} {list(before.shape)} and is {after.dtype} {list(after.shape)}"
        half = before.dtype in (torch.float16, torch.bfloat16)
        tolerance = {"rtol": 1e-2, "atol": 1e-2} if half else {"rtol": 1e-4, "atol": 1e-5}
        if before.is_floating_point() or before.is_complex():
            if torch.allclose(before, after, equal_nan=True, **tolerance):
                return None
            return f"differs by up to {(before.double() - after.double()).abs().max().item():.3g}"
        return None if torch.equal(before, after) else f"differs in {(before != after).sum().item()} elements"
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        pairs = zip(before, after, strict=False)
        return next((d for d in (_difference(a, b) for a, b in pairs) if d is not None), None)
    return None if operator.eq(before, after) else f"was {before} and is {after}"


def _failure(message: str, name: str, where: list[str] | None = None) -> PassError:
    error = PassError(
        message,
        where=where or (),
        hints=[
            f"disable the pass (disable_passes=[{name!r}] for an optional pass of Torchette) or correct it"
        ],
        code="pass-changed-result",
    )
    error.pass_name = name
    return error
