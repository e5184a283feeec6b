# SPDX-License-Identifier: BSD-3-Clause
# In: a program of operators that XNNPACK has. Out: a payload. payload.py describes its format, operators/ lowers each operator.
"""Lowers a program to a payload of the XNNPACK backend."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from torchette.backends.xnnpack.operators import Lowering, why_not
from torchette.exir.arguments import list_arg
from torchette.exir.delegation.delegate import BackendDetails, CompileSpec, PreprocessResult
from torchette.exir.graph import calls, constants, outputs, placeholders, written

EXTERNAL_TAG = "external_tag"  # the option with the name of the weights' data file
_INPUT, _RESULT = 1, 2  # XNNPACK's flags of external values


@dataclass(frozen=True)
class ExternalMeta:
    """The position of a value among the arguments of a delegate.

    Attributes:
        external_id: index: inputs first, then results.
        io_type: 1 for an input, 2 for a result.
    """

    external_id: int
    io_type: int


def generate_node_to_external_map(
    exported_program: ExportedProgram, edge_graph_module: GraphModule
) -> dict[Node, ExternalMeta]:
    """Returns the arguments of the delegate of a program, by their nodes in its graph.

    Raises:
        ValueError: a result is also an input, or occurs twice among the results.
    """
    stored = constants(exported_program)
    nodes = [
        node for node in edge_graph_module.graph.nodes if node.op == "placeholder" and node not in stored
    ]
    inputs = set(nodes)
    nodes += list_arg(edge_graph_module.graph.output_node())
    arguments: dict[Node, ExternalMeta] = {}
    for index, node in enumerate(nodes):
        if node in arguments:
            raise ValueError(
                f"{node} is {'an input' if node in inputs else 'a result'} and also a result; a value can be only one argument"
            )
        arguments[node] = ExternalMeta(index, _INPUT if index < len(inputs) else _RESULT)
    return arguments


def assert_default_dim_order(edge_graph_module: GraphModule) -> None:
    """Checks that inputs and weights have the default dim order.

    Raises:
        ValueError: a tensor has another dim order; the message states its name and dim order.
    """
    for node in edge_graph_module.graph.find_nodes(op="placeholder"):
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor) and val.dim_order() != tuple(range(val.dim())):
            raise ValueError(
                f"{node} has the dim order {val.dim_order()}; XNNPACK requires {tuple(range(val.dim()))}"
            )


def _data_file(node: Node) -> str | None:
    """Returns the data file of a call's weights, which `delegate_external_constants_pass_unlifted` set, or None."""
    for source in node.all_input_nodes:
        for stored in (source, *source.all_input_nodes):
            tag = (stored.meta.get("custom") or {}).get("delegate_constant_tag")
            if tag is not None and stored.op == "placeholder":
                result: str | None = tag
                return result
    return None


class XnnpackBackend(BackendDetails):
    """Lowers programs to ExecuTorch's XNNPACK payload, which both runtimes run."""

    option_names = frozenset([EXTERNAL_TAG])

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Returns the payload of a program; its weights are named data.

        Raises:
            ValueError: XNNPACK cannot run a node, or the program changes a buffer.
        """
        options = {spec.key: spec.value.decode() for spec in compile_specs}
        external_tag = options.get(EXTERNAL_TAG)
        if changes := written(edge_program):
            raise ValueError(
                f"the program changes {', '.join(changes)}, but the XNNPACK backend keeps no state"
            )
        stored = dict(constants(edge_program))
        inputs = [node for node in placeholders(edge_program) if node not in stored]
        results = outputs(edge_program)
        for node in calls(edge_program):
            reason = None if node.target is operator.getitem else why_not(node, stored)
            if reason is not None:
                raise ValueError(f"{node.target}: {reason}")
        lowering = Lowering(len(inputs) + len(results), stored, external_tag)
        for argument, node in enumerate(inputs):
            lowering.add_input(node, argument)
        for argument, node in enumerate(results, len(inputs)):
            lowering.add_output(node, argument)
        for node in calls(edge_program):
            if node.target is not operator.getitem:
                lowering.payload.external_tag = external_tag or _data_file(node)
                lowering.lower(node)
        # The payload's nodes have the debug handles of their source nodes, which a tracer receives. A node that applies a clamp
        # has the value of the clamp.
        handles: dict[int, tuple[int, ...]] = {}
        for node in calls(edge_program):
            handle = node.meta.get("debug_handle")
            if handle is None:
                continue
            layer = lowering.fused.get(node, node).meta.get("debug_handle", handle)
            handles[layer] = (*handles.get(layer, ()), handle) if layer != handle else (handle,)
        processed, named_data = lowering.finish()
        return PreprocessResult(
            processed,
            debug_handle_map=dict(sorted(handles.items())),
            data_store_output=named_data,
        )
