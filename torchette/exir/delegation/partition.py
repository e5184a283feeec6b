# SPDX-License-Identifier: BSD-3-Clause
# A program whose nodes carry delegation tags comes in; pieces of it that one call each can replace go out, and the
# program of each piece. Nothing here knows a backend.
"""From tags to pieces, from a piece to a program of its own, from a piece to one call.

A tag says which nodes shall run together, not that they can: between two of them there may lie a node that needs the
first and feeds the second. Such a tag is cut into pieces, each of which depends on nothing that depends on it, so that
the graph of pieces and remaining nodes has no cycle. All of it takes time linear in the size of the graph.
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
    """Nodes of one tag, in the order of the graph, that a single call can replace.

    Attributes:
        tag: the tag of its nodes.
        nodes: what it computes.
        inputs: the nodes outside of it that it reads, stored tensors that it owns excepted.
        outputs: its nodes that others read, or that the graph returns.
        owned: stored tensors that become part of it, and what they are to the program.
        attributes: graphs and lowered modules that its calls name, which become part of it.
        updates: (output of the program, new value) of the state that becomes part of it.
        number, of: which piece of its tag this is.
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
    """Cut the tagged nodes of one graph into pieces, and move the nodes of each next to each other.

    Args:
        module: its nodes may have a tag in ``meta["delegation_tag"]``; the order of its nodes changes.
        program: given for the main graph, whose tagged stored tensors then go with the pieces that read them.
    """
    graph = module.graph
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    tags = _tags(nodes)
    found = cut(nodes, tags)
    _sort(graph, nodes, found)
    surroundings = _Surroundings(program)
    for piece in found:
        _find_edges(piece, surroundings)
    return found


class _Surroundings:
    """What the main graph's pieces are asked for: its tagged stored tensors, the updates of its state by name, and each
    node that it returns, with what for. Nothing in a branch's."""

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
        # A part of a result cannot be anywhere but where the result is.
        tag = tags.get(node_arg(node)) if node.target is operator.getitem else node.meta.get(TAG)
        if tag is not None and (node.op == "call_function") and _yields_tensors(node):
            tags[node] = tag
    return tags


def _yields_tensors(node: Node) -> bool:
    """A symbolic number cannot leave a delegate; whatever needs one is given it."""
    val = node.meta.get("val")
    return all(isinstance(item, torch.Tensor) for item in (val if isinstance(val, (list, tuple)) else [val]))


def cut(nodes: list[Node], tags: Mapping[Node, str]) -> list[Piece]:
    """As few pieces as the order of things allows; of each only tag and nodes are known."""
    position = {node: i for i, node in enumerate(nodes)}
    members: dict[str, list[Node]] = {}
    for node in nodes:
        if node in tags:
            members.setdefault(tags[node], []).append(node)
    waits = {node: sum(source in position for source in node.all_input_nodes) for node in nodes}
    # What a tag waits for: edges that come into it from outside.
    tag_waits = {
        tag: sum(
            source in position and tags.get(source) != tag
            for node in inside
            for source in node.all_input_nodes
        )
        for tag, inside in members.items()
    }
    free = [node for node in nodes if waits[node] == 0 and node not in tags]
    whole = [tag for tag, waiting in tag_waits.items() if waiting == 0]
    # Tagged nodes that could run at once: of each tag, and of all for the case that no tag can run as a whole.
    runnable: dict[str, list[int]] = {tag: [] for tag in members}
    earliest: list[int] = []
    done: set[Node] = set()
    found: list[Piece] = []

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
                    whole.append(tag)

    # What needs nothing goes with the first node that reads it, so that a cut does not part a weight from its layer.
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
            return found
        # Where no tag can run as a whole, one must be cut: as far as the first node that can run gets.
        tag = whole.pop() if whole else tags[nodes[earliest[0]]]
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
            found.append(piece)


def _sort(graph: Graph, nodes: list[Node], found: list[Piece]) -> None:
    """Nodes of a piece next to each other, everything else as close to its old place as that allows."""
    if not found:
        return
    group: dict[Node, Any] = {node: piece for piece in found for node in piece.nodes}
    position = {node: i for i, node in enumerate(nodes)}
    content: dict[Any, list[Node]] = {piece: piece.nodes for piece in found}
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
    # In the order in which they will run; and each says how many its tag fell into.
    found.sort(key=lambda piece: first[piece])
    counts: dict[str, int] = {}
    for piece in found:
        piece.number = counts.get(piece.tag, 0)
        counts[piece.tag] = piece.number + 1
    for piece in found:
        piece.of = counts[piece.tag]


def _find_edges(piece: Piece, surroundings: _Surroundings) -> None:
    inside = set(piece.nodes)
    stored, updates = surroundings.stored, surroundings.updates
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
                # State goes along only as a whole: all that reads it, and what writes it.
                update = updates[spec.target]
                if set(source.users) <= inside and update[1] in inside:
                    if source not in owned:
                        piece.updates.append(update)
                    owned[source] = spec
                else:
                    inputs[source] = None
    piece.inputs, piece.owned, piece.attributes = list(inputs), owned, list(attributes)
    kept = {id(spec) for spec, _ in piece.updates}
    for node in piece.nodes:
        outside = any(user not in inside and user.op != "output" for user in node.users)
        if not outside and any(user.op == "output" for user in node.users):
            outside = not surroundings.is_main or any(
                id(spec) not in kept for spec in surroundings.returned.get(node, ())
            )
        if outside:
            piece.outputs.append(node)
    # What a call gives out are tensors: of a result in parts, the parts.
    parts = [node for node in piece.outputs if isinstance(node.meta.get("val"), torch.Tensor)]
    assert len(parts) == len(piece.outputs), "the parts of a result have its tag"


# ---- a piece as a program ----


def program_of(piece: Piece, program: ExportedProgram) -> ExportedProgram:
    """The program that computes a piece; tensors are shared with the program that it comes from.

    Its inputs are `piece.inputs` in that order, its results `piece.outputs`.
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
    """Put one call in the place of a piece; the program no longer has what the piece owns.

    Args:
        replaced: old node -> the one in its place, for the pieces of a graph that were replaced before; is added to.
        name: of the attribute that holds `callee`, such as ``lowered_module_0``.
        call: the target of the call; it is given the attribute, then the inputs, and yields a tuple.
        results: what that tuple holds, by default the piece's outputs; it may repeat one, and hold what the piece is given.
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
    kept = [
        (value, spec)
        for value, spec in zip(output.args[0], signature.output_specs, strict=True)
        if id(spec) not in dropped
    ]
    output.args = (tuple(value for value, _ in kept),)
    signature.output_specs = [spec for _, spec in kept]
