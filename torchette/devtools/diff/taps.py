# SPDX-License-Identifier: BSD-3-Clause
# In: a subgraph that a backend lowered, and its inputs. Out: intermediate values. The subgraph is lowered again with
# its intermediate values as additional outputs. This works for any backend without its support.
"""`tapped` returns intermediate values of a delegate; `first_departing` returns its first operator that departs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.fx import Interpreter, Node

from torchette.devtools.diff.judge import NoReference, Verdict, growth_of, judge
from torchette.devtools.diff.operators import is_comparable
from torchette.errors import TorchetteError
from torchette.exir import ops
from torchette.exir.delegation.delegate import LoweredBackendModule, flat_signature, to_backend
from torchette.exir.graph import copy_program, tensor_of
from torchette.exir.program import to_edge
from torchette.runtime import Runtime


class Inside(NamedTuple):
    """An operator inside a delegate that departs."""

    node: Node
    verdict: Verdict


def tappable(lowered: LoweredBackendModule) -> list[Node]:
    """Returns the nodes with values that can be tapped: calls that return one tensor."""
    graph = lowered.original_module.graph
    return [
        node
        for node in graph.nodes
        if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor)
    ]


def tapped(
    lowered: LoweredBackendModule, inputs: Sequence[Any], nodes: Iterable[Node]
) -> tuple[list[Any], dict[Node, Any]]:
    """Runs a delegate on inputs, and returns its outputs and the values of the nodes inside it.

    Raises:
        DelegationError: the backend does not accept the subgraph with these outputs.
        RuntimeLoadError, ExecutionError: the subgraph cannot be executed with these outputs.
    """
    targets = list(nodes)
    program = copy_program(lowered.original_module)
    by_name = {node.name: node for node in program.graph.nodes}
    output = program.graph.output_node()
    known = list(output.args[0])
    added = [node for node in targets if by_name[node.name] not in known]
    output.args = (tuple(known + [by_name[node.name] for node in added]),)
    for node in added:
        program.graph_signature.output_specs.append(
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None)
        )
    program.graph_module.recompile()
    again = to_backend(lowered.backend_id, flat_signature(program), lowered.compile_specs)
    example = tuple(value if isinstance(value, Tensor) else torch.as_tensor(value) for value in inputs)
    manager = to_edge(torch.export.export(again, example)).to_executorch()
    method = Runtime.get().load_program(manager.buffer).load_method("forward")
    outputs = [
        torch.as_tensor(value) if hasattr(value, "__dlpack__") else value
        for value in method.execute(inputs, real_view=True)
    ]
    mutated = len(known) - (len(outputs) - len(added))
    by_output = dict(zip([*known[mutated:], *(by_name[node.name] for node in added)], outputs, strict=False))
    by_node = {node: by_output[by_name[node.name]] for node in targets if by_name[node.name] in by_output}
    return outputs[: len(outputs) - len(added)], by_node


def first_departing(lowered: LoweredBackendModule, inputs: Sequence[Any]) -> Inside | None:
    """Returns the first operator inside a delegate that departs, or None.

    First, all values are tapped in one execution, and each operator is judged on the values that the backend computed.
    Additional outputs can prevent a backend from fusing operators. If no operator departs, each value is therefore
    tapped in a separate execution and compared with torch's value, computed from the delegate's inputs.
    """
    nodes = tappable(lowered)
    try:
        _, values = tapped(lowered, inputs, nodes)
        inside = _local(lowered, inputs, values)
        if inside is not None:
            return inside
    except TorchetteError:
        pass
    return _one_by_one(lowered, inputs, nodes)


def _stored(lowered: LoweredBackendModule, inputs: Sequence[Any]) -> list[Any]:
    program = lowered.original_module
    remaining = iter(inputs)
    values = []
    for spec in program.graph_signature.input_specs:
        stored = tensor_of(program, spec)
        values.append(stored.detach() if stored is not None else next(remaining))
    return values


def _local(lowered: LoweredBackendModule, inputs: Sequence[Any], values: dict[Node, Any]) -> Inside | None:
    graph = lowered.original_module.graph_module
    evaluator = Interpreter(graph, garbage_collect_values=False)
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    env: dict[Node, Any] = dict(zip(placeholders, _stored(lowered, inputs), strict=True))
    evaluator.env = env
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node in values and is_comparable(node.target):
            sources = list(node.all_input_nodes)

            def run(inputs: list[Any], node: Node = node, sources: list[Node] = sources) -> list[Any]:
                saved = [env[each] for each in sources]
                env.update(zip(sources, inputs, strict=True))
                try:
                    return [evaluator.run_node(node)]
                finally:
                    env.update(zip(sources, saved, strict=True))

            input_values = [env[each] for each in sources]
            growth = growth_of(input_values, [values[node]], ops.is_pointwise(node.target))
            try:
                verdict = judge([values[node]], run, input_values, growth)
            except NoReference:
                verdict = None
            if verdict is not None and verdict.departs:
                return Inside(node, verdict)
        env[node] = values[node] if node in values else evaluator.run_node(node)
    return None


def _one_by_one(lowered: LoweredBackendModule, inputs: Sequence[Any], nodes: list[Node]) -> Inside | None:
    from torchette.devtools.diff.model import delegate_results

    for node in nodes:
        try:
            _, values = tapped(lowered, inputs, [node])
        except TorchetteError:
            continue

        def run(inputs: list[Any], node: Node = node) -> list[Any]:
            env: dict[Node, Any] = {}
            delegate_results(lowered.original_module, inputs, env)
            return [env[node]]

        try:
            verdict = judge([values[node]], run, list(inputs), 64.0)
        except (NoReference, KeyError):
            continue
        if verdict.departs:
            return Inside(node, verdict)
    return None
