# SPDX-License-Identifier: BSD-3-Clause
# In: a program with delegation tags on its nodes. Out: pieces that one call each can replace, and the program of each
# piece. This file does not depend on any backend.
"""Splits tags into pieces, extracts a piece as a program, and replaces a piece by one call.

A tag names nodes that should run together. This may be impossible: another node between two of them may depend on the
first one and feed the second one. Such a tag is cut into pieces such that the graph of pieces and remaining nodes has
no cycle. All functions take time linear in the size of the graph.
"""

from __future__ import annotations

import copy
import heapq
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

from torchette.exir.arguments import node_arg
from torchette.exir.graph import placeholders, rename_outputs, tensor_of

TAG = "delegation_tag"


@dataclass(eq=False)
class Piece:
    """Nodes of one tag, in graph order, that one call can replace.

    Attributes:
        tag: the tag of its nodes.
        nodes: the nodes of the piece.
        inputs: the nodes outside the piece that it reads, except stored tensors that it owns.
        outputs: its nodes that other nodes read or that the graph returns.
        owned: stored tensors that move into the piece, with their input specs in the program.
        attributes: subgraphs and lowered modules that its calls use; they move into the piece.
        updates: (output of the program, new value) of the state that moves into the piece.
        number, of: the index of this piece, and the number of pieces of its tag.
    """

    tag: str
    nodes: list[Node]
    inputs: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    owned: dict[Node, InputSpec] = field(default_factory=dict)
    attributes: list[Node] = field(default_factory=list)
    updates: list[tuple[OutputSpec, Node]] = field(default_factory=list)
    number: int = 0
    of: int = 1


def pieces(module: GraphModule, program: ExportedProgram | None = None) -> list[Piece]:
    """Cuts the tagged nodes of one graph into pieces, and makes the nodes of each piece adjacent.

    Args:
        module: its nodes may have a tag in ``meta["delegation_tag"]``. The function changes the order of its nodes.
        program: for the main graph, the program. Tagged stored tensors then move into the pieces that read them.
    """
    graph = module.graph
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    tags = _tags(nodes)
    result = cut(nodes, tags)
    _sort(graph, nodes, result)
    signature_parts = _SignatureParts(program)
    for piece in result:
        _find_edges(piece, signature_parts)
    return result


class _SignatureParts:
    """The parts of the main graph's signature that pieces need: its tagged stored tensors, the updates of its state by
    name, and the output specs of each returned node. Empty for the graph of a branch."""

    def __init__(self, program: ExportedProgram | None) -> None:
        self.stored: dict[Node, InputSpec] = {}
        self.updates: dict[str, tuple[OutputSpec, Node]] = {}
        self.returned: dict[Node, list[OutputSpec]] = {}
        self.is_main = program is not None
        if program is None:
            return
        signature = program.graph_signature
        for node, spec in zip(placeholders(program), signature.input_specs, strict=True):
            if TAG in node.meta and tensor_of(program, spec) is not None:
                self.stored[node] = spec
        for value, output in zip(program.graph.output_node().args[0], signature.output_specs, strict=True):
            if isinstance(value, Node):
                self.returned.setdefault(value, []).append(output)
            if output.kind is OutputKind.BUFFER_MUTATION and output.target is not None:
                self.updates[output.target] = (output, value)


def _tags(nodes: list[Node]) -> dict[Node, str]:
    tags: dict[Node, str] = {}
    for node in nodes:
        # A getitem must run in the same piece as the call that it selects from.
        tag = tags.get(node_arg(node)) if node.target is operator.getitem else node.meta.get(TAG)
        if tag is not None and (node.op == "call_function") and _yields_tensors(node):
            tags[node] = tag
    return tags


def _yields_tensors(node: Node) -> bool:
    """Returns whether the node yields only tensors, because a delegate cannot return a symbolic scalar."""
    val = node.meta.get("val")
    return all(isinstance(item, torch.Tensor) for item in (val if isinstance(val, (list, tuple)) else [val]))


def cut(nodes: list[Node], tags: Mapping[Node, str]) -> list[Piece]:
    """Returns the minimum number of pieces that the dependences allow, with only their tags and nodes."""
    position = {node: i for i, node in enumerate(nodes)}
    members: dict[str, list[Node]] = {}
    for node in nodes:
        if node in tags:
            members.setdefault(tags[node], []).append(node)
    waits = {node: sum(source in position for source in node.all_input_nodes) for node in nodes}
    # The number of incoming edges of each tag from other nodes.
    tag_waits = {
        tag: sum(
            source in position and tags.get(source) != tag
            for node in inside
            for source in node.all_input_nodes
        )
        for tag, inside in members.items()
    }
    free = [node for node in nodes if waits[node] == 0 and node not in tags]
    runnable_tags = [tag for tag, waiting in tag_waits.items() if waiting == 0]
    # Positions of the tagged nodes that can run next: per tag, and over all tags for the case that no tag can run as a
    # whole.
    runnable: dict[str, list[int]] = {tag: [] for tag in members}
    earliest: list[int] = []
    done: set[Node] = set()
    result: list[Piece] = []

    def offer(node: Node) -> None:
        heapq.heappush(runnable[tags[node]], position[node])
        heapq.heappush(earliest, position[node])

    def finish(node: Node) -> None:
        done.add(node)
        for user in node.users:
            if user not in position:
                continue
            waits[user] -= 1
            tag = tags.get(user)
            if waits[user] == 0 and tag is None:
                free.append(user)
            elif waits[user] == 0:
                offer(user)
            if tag is not None and tags.get(node) != tag:
                tag_waits[tag] -= 1
                if tag_waits[tag] == 0:
                    runnable_tags.append(tag)

    # A node without operands joins the piece of its first reader, so that a cut does not separate a weight from its
    # layer.
    late = {
        node: None
        for node, tag in tags.items()
        if waits[node] == 0 and node.users and all(tags.get(user) == tag for user in node.users)
    }
    for node in tags:
        if waits[node] == 0 and node not in late:
            offer(node)
    for node in late:
        finish(node)
    while True:
        while free:
            finish(free.pop())
        while earliest and nodes[earliest[0]] in done:
            heapq.heappop(earliest)
        if not earliest:
            return result
        # If no tag can run as a whole, cut the tag of the first node that can run.
        tag = runnable_tags.pop() if runnable_tags else tags[nodes[earliest[0]]]
        piece = Piece(tag, [])
        while runnable[tag]:
            node = nodes[heapq.heappop(runnable[tag])]
            for source in node.all_input_nodes:
                if source in late:
                    del late[source]
                    piece.nodes.append(source)
            piece.nodes.append(node)
            finish(node)
        if piece.nodes:
            result.append(piece)


def _sort(graph: Graph, nodes: list[Node], pieces: list[Piece]) -> None:
    """Makes the nodes of each piece adjacent. All other nodes stay as close to their position as possible."""
    if not pieces:
        return
    group: dict[Node, Any] = {node: piece for piece in pieces for node in piece.nodes}
    position = {node: i for i, node in enumerate(nodes)}
    content: dict[Any, list[Node]] = {piece: piece.nodes for piece in pieces}
    for node in nodes:
        if node not in group:
            group[node] = node
            content[node] = [node]
    sources = {
        key: {group[s] for node in inside for s in node.all_input_nodes if s in group} - {key}
        for key, inside in content.items()
    }
    users: dict[Any, list[Any]] = {key: [] for key in content}
    for key, needed in sources.items():
        for source in needed:
            users[source].append(key)
    waits = {key: len(needed) for key, needed in sources.items()}
    first = {key: position[inside[0]] for key, inside in content.items()}
    keys = {first[key]: key for key in content}
    ready = [first[key] for key, waiting in waits.items() if waiting == 0]
    heapq.heapify(ready)
    last = next((n for n in reversed(graph.nodes) if n.op == "placeholder"), None)
    while ready:
        key = keys[heapq.heappop(ready)]
        for node in content[key]:
            if last is None:
                graph._root.append(node)
            else:
                last.append(node)
            last = node
        for user in users[key]:
            waits[user] -= 1
            if waits[user] == 0:
                heapq.heappush(ready, first[user])
    # Sort the pieces by execution order, then count the pieces of each tag.
    pieces.sort(key=lambda piece: first[piece])
    counts: dict[str, int] = {}
    for piece in pieces:
        piece.number = counts.get(piece.tag, 0)
        counts[piece.tag] = piece.number + 1
    for piece in pieces:
        piece.of = counts[piece.tag]


def _find_edges(piece: Piece, signature_parts: _SignatureParts) -> None:
    inside = set(piece.nodes)
    stored, updates = signature_parts.stored, signature_parts.updates
    inputs: dict[Node, None] = {}
    owned: dict[Node, InputSpec] = {}
    attributes: dict[Node, None] = {}
    for node in piece.nodes:
        for source in node.all_input_nodes:
            if source in inside:
                continue
            spec = stored.get(source)
            if source.op == "get_attr":
                attributes[source] = None
            elif spec is None:
                inputs[source] = None
            elif spec.target not in updates:
                owned[source] = spec
            else:
                # State moves into a piece only if the piece contains all its readers and its update.
                update = updates[spec.target]
                if set(source.users) <= inside and update[1] in inside:
                    if source not in owned:
                        piece.updates.append(update)
                    owned[source] = spec
                else:
                    inputs[source] = None
    piece.inputs, piece.owned, piece.attributes = list(inputs), owned, list(attributes)
    owned_updates = {id(spec) for spec, _ in piece.updates}
    for node in piece.nodes:
        outside = any(user not in inside and user.op != "output" for user in node.users)
        if not outside and any(user.op == "output" for user in node.users):
            outside = not signature_parts.is_main or any(
                id(spec) not in owned_updates for spec in signature_parts.returned.get(node, ())
            )
        if outside:
            piece.outputs.append(node)
    # A delegate returns tensors. The outputs of a call with several results are its getitem nodes.
    parts = [node for node in piece.outputs if isinstance(node.meta.get("val"), torch.Tensor)]
    assert len(parts) == len(piece.outputs), "the parts of a result have its tag"


# ---- a piece as a program ----


def program_of(piece: Piece, program: ExportedProgram) -> ExportedProgram:
    """Returns the program that computes a piece. It shares tensors with the original program.

    Its inputs are `piece.inputs` and its results `piece.outputs`, in this order.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    specs: list[InputSpec] = []
    state: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for node, owned in piece.owned.items():
        spec = copy.copy(owned)
        copies[node] = _placeholder(graph, node)
        spec.arg = TensorArgument(copies[node].name)
        specs.append(spec)
        store = state if spec.target in program.state_dict else constants
        store[str(spec.target)] = tensor_of(program, spec)
    for node in piece.inputs:
        copies[node] = _placeholder(graph, node)
        specs.append(InputSpec(InputKind.USER_INPUT, _argument(copies[node]), None))
    root = torch.nn.Module()
    for node in piece.attributes:
        copies[node] = graph.node_copy(node)
        value = getattr(node.graph.owning_module, str(node.target))
        setattr(root, str(node.target), value)
        for inner in value.modules():
            for each in inner.graph.nodes if isinstance(inner, GraphModule) else ():
                each.meta.pop(TAG, None)
    for node in piece.nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
        copies[node].meta.pop(TAG, None)
    updated = [(spec, copies[node]) for spec, node in piece.updates]
    returned = [copies[node] for node in piece.outputs]
    graph.output((*(node for _, node in updated), *returned))
    signature = ExportGraphSignature(
        specs,
        [
            *(OutputSpec(spec.kind, TensorArgument(node.name), spec.target) for spec, node in updated),
            *(OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in returned),
        ],
    )
    result = copy.copy(program)
    result._graph_module = _LazyGraphModule(root, graph)
    result._graph_signature = signature
    result._state_dict, result._constants = state, constants
    result._example_inputs = None
    result._module_call_graph = [
        ModuleCallEntry(
            "",
            ModuleCallSignature(
                inputs=[],
                outputs=[],
                in_spec=pytree.tree_structure((tuple(piece.inputs), {})),
                out_spec=pytree.tree_structure(tuple(returned)),
            ),
        )
    ]
    return result


def _placeholder(graph: Graph, node: Node) -> Node:
    copied = graph.placeholder(node.name)
    copied.meta = {key: value for key, value in node.meta.items() if key != TAG}
    return copied


def _argument(node: Node) -> Any:
    val = node.meta.get("val")
    if isinstance(val, torch.Tensor):
        return TensorArgument(node.name)
    if isinstance(val, torch.SymInt):
        return SymIntArgument(node.name)
    return ConstantArgument(node.name, val)


# ---- a piece as one call ----


def replace_by_call(
    piece: Piece,
    module: GraphModule,
    program: ExportedProgram,
    name: str,
    callee: object,
    call: Callable[..., Any],
    replaced: dict[Node, Node],
    results: Sequence[Node] | None = None,
) -> Node:
    """Replaces a piece by one call. The program loses the stored tensors that the piece owns.

    Args:
        replaced: old node -> replacement, for the pieces of the graph that were replaced before. The function updates
            it.
        name: the name of the attribute that stores `callee`, such as ``lowered_module_0``.
        call: the target of the call. Its operands are the attribute and the inputs; it yields a tuple.
        results: the nodes that this tuple represents, by default the piece's outputs. It may repeat an output and
            contain inputs.
    """
    graph = module.graph
    setattr(module, name, callee)
    main = module is program.graph_module
    first, last = piece.nodes[0], piece.nodes[-1]
    with graph.inserting_before(first):
        attribute = graph.get_attr(name)
        node = graph.call_function(call, (attribute, *(replaced.get(n, n) for n in piece.inputs)))
        node.meta = {key: value for key, value in last.meta.items() if key not in (TAG, "val")}
        results = piece.outputs if results is None else results
        node.meta["val"] = tuple(output.meta["val"] for output in results)
        for i, output in enumerate(results):
            if output in replaced or output not in piece.outputs:
                continue
            part = graph.call_function(operator.getitem, (node, i))
            part.meta = {key: value for key, value in output.meta.items() if key != TAG}
            if main:
                rename_outputs(program, output.name, part.name)
            output.replace_all_uses_with(part)
            replaced[output] = part
    if piece.updates:
        _drop_outputs(program, {id(spec) for spec, _ in piece.updates})
    for old in reversed(piece.nodes):
        graph.erase_node(old)
    for old in piece.attributes:
        if not old.users:
            graph.erase_node(old)
            delattr(module, str(old.target))
    return node


def _drop_outputs(program: ExportedProgram, dropped: set[int]) -> None:
    signature = program.graph_signature
    output = program.graph.output_node()
    remaining = [
        (value, spec)
        for value, spec in zip(output.args[0], signature.output_specs, strict=True)
        if id(spec) not in dropped
    ]
    output.args = (tuple(value for value, _ in remaining),)
    signature.output_specs = [spec for _, spec in remaining]
