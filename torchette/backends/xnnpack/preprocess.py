# SPDX-License-Identifier: BSD-3-Clause
# A program of operators that XNNPACK has comes in, a payload goes out. See payload.py for its form, operators/ for
# what each operator becomes.
"""What the XNNPACK backend makes of a program."""

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

EXTERNAL_TAG = "external_tag"  # the option that names the data file for the weights
_INPUT, _RESULT = 1, 2  # the library's flags of values that are given from outside


@dataclass(frozen=True)
class ExternalMeta:
    """The place of a value among the arguments of a delegate.

    Attributes:
        external_id: its number: inputs first, then results.
        io_type: 1 for an input, 2 for a result.
    """

    external_id: int
    io_type: int


def generate_node_to_external_map(
    exported_program: ExportedProgram, edge_graph_module: GraphModule
) -> dict[Node, ExternalMeta]:
    """The arguments of the delegate that a program becomes, by their nodes in its graph.

    Raises:
        ValueError: a result is an input, or stands twice among the results: it has two places.
    """
    stored = constants(exported_program)
    nodes = [
        node for node in edge_graph_module.graph.nodes if node.op == "placeholder" and node not in stored
    ]
    given = set(nodes)
    nodes += list_arg(edge_graph_module.graph.output_node())
    found: dict[Node, ExternalMeta] = {}
    for place, node in enumerate(nodes):
        if node in found:
            raise ValueError(
                f"{node} is {'an input' if node in given else 'a result'} and a result, which has one place"
            )
        found[node] = ExternalMeta(place, _INPUT if place < len(given) else _RESULT)
    return found


def assert_default_dim_order(edge_graph_module: GraphModule) -> None:
    """Inputs and weights have their dimensions in memory from the first to the last.

    Raises:
        ValueError: one has not; names it and its order.
    """
    for node in edge_graph_module.graph.find_nodes(op="placeholder"):
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor) and val.dim_order() != tuple(range(val.dim())):
            raise ValueError(
                f"{node} has the dim order {val.dim_order()}, XNNPACK takes {tuple(range(val.dim()))}"
            )


def _data_file(node: Node) -> str | None:
    """The data file that the weights of a call go to, as `delegate_external_constants_pass_unlifted` says of them."""
    for source in node.all_input_nodes:
        for stored in (source, *source.all_input_nodes):
            tag = (stored.meta.get("custom") or {}).get("delegate_constant_tag")
            if tag is not None and stored.op == "placeholder":
                result: str | None = tag
                return result
    return None


class XnnpackBackend(BackendDetails):
    """Float32 networks on Google's XNNPACK library. The payload is ExecuTorch's: either runtime runs it."""

    option_names = frozenset([EXTERNAL_TAG])

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """The payload of a program; its weights are named data.

        Raises:
            ValueError: a node that the library cannot run, or a buffer that changes.
        """
        options = {spec.key: spec.value.decode() for spec in compile_specs}
        external_tag = options.get(EXTERNAL_TAG)
        if changes := written(edge_program):
            raise ValueError(f"it changes {', '.join(changes)}: the XNNPACK backend keeps no state")
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
        # the payload's nodes have the handles of those that they come from, and a tracer is told them
        handles = {
            handle for node in calls(edge_program) if (handle := node.meta.get("debug_handle")) is not None
        }
        processed, named_data = lowering.finish()
        return PreprocessResult(
            processed,
            debug_handle_map={handle: (handle,) for handle in sorted(handles)},
            data_store_output=named_data,
        )
