# SPDX-License-Identifier: BSD-3-Clause
# In: calls of lstm, gru and rnn over many steps. Out: scans. torch unrolls these layers step by step, so that compile
# time and file size grow with the sequence length, which a loop avoids.
"""Converts recurrent layers over long sequences to loops."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import Argument

from torchette.exir import ops
from torchette.exir.arguments import int_arg, node_arg
from torchette.exir.graph import call, fake_mode, graph_modules, note, replace

aten = torch.ops.aten

# The speed of a loop does not depend on its length. Shorter sequences stay unrolled, so that backends can fuse all
# steps.
LONG = 16


class Emit:
    """Adds calls at one position of a graph, with their results."""

    def __init__(self, mode: FakeTensorMode, add: Callable[[Any, tuple[Any, ...], Any], Node]) -> None:
        self._mode, self._add = mode, add

    def __call__(self, target: Callable[..., Any], *args: Argument) -> Node:
        """Adds a call."""
        with self._mode, torch.no_grad():
            val = target(*torch.fx.map_arg(args, lambda node: node.meta["val"]))
        return self._add(target, args, val)


Step = Callable[[Emit, Node, Sequence[Node], "LayerWeights"], list[Node]]


class _Kind(NamedTuple):
    """`step` computes the new state from the input term, the old state and the weights. The first state is the
    output."""

    step: Step
    both_biases: bool = True  # whether the state bias can be added to the input bias ahead of time


class LayerWeights(NamedTuple):
    """The weights of one layer in one direction. Biases and projection are optional."""

    input: Node
    state: Node
    input_bias: Node | None
    state_bias: Node | None
    projection: Node | None


def _lstm(emit: Emit, inputs: Node, state: Sequence[Node], weights: LayerWeights) -> list[Node]:
    output, cell = state
    gates = emit(aten.add.Tensor, inputs, emit(aten.linear.default, output, weights.state))
    parts = emit(aten.chunk.default, gates, 4, 1)
    input_gate, forget_gate, candidate, output_gate = (
        emit(operator.getitem, parts, index) for index in range(4)
    )
    input_gate, forget_gate, output_gate = (
        emit(aten.sigmoid.default, gate) for gate in (input_gate, forget_gate, output_gate)
    )
    added = emit(aten.mul.Tensor, input_gate, emit(aten.tanh.default, candidate))
    cell = emit(aten.add.Tensor, emit(aten.mul.Tensor, forget_gate, cell), added)
    output = emit(aten.mul.Tensor, output_gate, emit(aten.tanh.default, cell))
    if weights.projection is not None:
        output = emit(aten.linear.default, output, weights.projection)
    return [output, cell]


def _gru(emit: Emit, inputs: Node, state: Sequence[Node], weights: LayerWeights) -> list[Node]:
    (before,) = state
    recalled = emit(aten.linear.default, before, weights.state, weights.state_bias)
    theirs, ours = (emit(aten.chunk.default, gates, 3, 1) for gates in (inputs, recalled))
    pairs = [(emit(operator.getitem, theirs, i), emit(operator.getitem, ours, i)) for i in range(3)]
    reset, update = (emit(aten.sigmoid.default, emit(aten.add.Tensor, a, b)) for a, b in pairs[:2])
    reset_state = emit(aten.mul.Tensor, reset, pairs[2][1])
    candidate = emit(aten.tanh.default, emit(aten.add.Tensor, pairs[2][0], reset_state))
    change = emit(aten.mul.Tensor, emit(aten.sub.Tensor, before, candidate), update)
    return [emit(aten.add.Tensor, change, candidate)]


def _rnn(activation: Callable[..., Any]) -> Step:
    def step(emit: Emit, inputs: Node, state: Sequence[Node], weights: LayerWeights) -> list[Node]:
        recalled = emit(aten.linear.default, state[0], weights.state)
        return [emit(activation, emit(aten.add.Tensor, inputs, recalled))]

    return step


_KINDS: dict[Any, _Kind] = {
    aten.lstm.input: _Kind(_lstm),
    aten.gru.input: _Kind(_gru, both_biases=False),
    aten.rnn_tanh.input: _Kind(_rnn(aten.tanh.default)),
    aten.rnn_relu.input: _Kind(_rnn(aten.relu.default)),
}


def steps_to_scan(
    program: ExportedProgram, preserve: Iterable[torch._ops.OpOverload] = ()
) -> ExportedProgram:
    """Replace each lstm, gru and rnn over more than LONG steps by a scan, except preserved operators."""
    mode, count = fake_mode(program), 0
    for module in list(graph_modules(program)):
        for node in list(module.graph.nodes):
            if node.target in _KINDS and node.target not in preserve and _is_long(node):
                _rewrite(program, module, node, mode)
                count += 1
    if count:
        note(program, f"{count} recurrent layers became loops")
    return program


def _is_long(node: Node) -> bool:
    steps = node_arg(node).meta["val"].shape[1 if ops.argument(node, "batch_first") else 0]
    drops = ops.argument(node, "train") and ops.argument(node, "dropout")
    return (not isinstance(steps, int) or steps > LONG) and not drops


def _rewrite(program: ExportedProgram, module: GraphModule, node: Node, mode: FakeTensorMode) -> None:
    def direction(
        emit: Emit, x: Node, start: list[Node], weights: LayerWeights, backwards: bool
    ) -> list[Node]:
        return _direction(emit, module, node, x, start, weights, backwards)

    emit = Emit(mode, lambda target, args, val: call(node, target, args, val=val, like=node))
    batch_first = ops.argument(node, "batch_first")
    x = emit(aten.transpose.int, node.args[0], 0, 1) if batch_first else node_arg(node)
    output, *final = write_layers(emit, node, x, direction)
    output = emit(aten.transpose.int, output, 0, 1) if batch_first else output
    replace_results(program, node, [output, *final])


Direction = Callable[[Emit, Node, list[Node], "LayerWeights", bool], list[Node]]


def write_layers(emit: Emit, node: Node, x: Node, direction: Direction) -> list[Node]:
    """Writes the layers of an lstm, gru or rnn. `direction` writes one layer in one direction and returns its final
    state and its outputs. Returns the results of the call."""
    states = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[1]]
    layers = layer_weights(node)
    finals: list[list[Node]] = [[] for _ in states]
    directions = 2 if ops.argument(node, "bidirectional") else 1
    for layer in range(len(layers) // directions):
        outputs = []
        for backwards in range(directions):
            at = layer * directions + backwards
            start = [emit(aten.select.int, state, 0, at) for state in states]
            *final, output = direction(emit, x, start, layers[at], bool(backwards))
            outputs.append(output)
            for into, value in zip(finals, final, strict=True):
                into.append(value)
        x = outputs[0] if directions == 1 else emit(aten.cat.default, outputs, 2)
    return [x, *(emit(aten.stack.default, values, 0) for values in finals)]


def replace_results(program: ExportedProgram, node: Node, results: Sequence[Node]) -> None:
    """Replaces the results of a call by other nodes."""
    for user in list(node.users):
        replace(program, user, results[int_arg(user, 1)])
    node.graph.erase_node(node)


def layer_weights(node: Node) -> list[LayerWeights]:
    """Returns the weights of each layer and direction."""
    params = list(ops.argument(node, "params"))
    biased = ops.argument(node, "has_biases")
    count = ops.argument(node, "num_layers") * (2 if ops.argument(node, "bidirectional") else 1)
    layers = []
    for at in range(0, len(params), len(params) // count):
        mine = params[at : at + len(params) // count]
        input_bias, state_bias = mine[2:4] if biased else (None, None)
        projection = mine[-1] if len(mine) % 2 else None
        layers.append(LayerWeights(mine[0], mine[1], input_bias, state_bias, projection))
    return layers


def _direction(
    emit: Emit, module: GraphModule, node: Node, x: Node, start: list[Node], weights: LayerWeights, backwards: bool
) -> list[Node]:  # fmt: skip
    """Writes one layer in one direction. Returns its final state and its outputs."""
    kind = _KINDS[node.target]
    bias = weights.input_bias
    if bias is not None and kind.both_biases:
        bias = emit(aten.add.Tensor, bias, weights.state_bias)
    if backwards:
        x = emit(aten.flip.default, x, [0])
    inputs = emit(aten.linear.default, x, weights.input, bias)  # all steps at once
    shared = {
        name: value
        for name, value in weights._asdict().items()
        if value is not None
        and (name in ("state", "projection") or (name == "state_bias" and not kind.both_biases))
    }
    number = sum(1 for attribute in module.graph.nodes if attribute.op == "get_attr")
    name = f"{node.name}_step_{number}"
    module.add_submodule(name, _body(emit, node, kind, inputs, start, shared))
    with module.graph.inserting_before(node):
        graph = module.graph.get_attr(name)
    stacked = inputs.meta["val"].new_empty([inputs.meta["val"].shape[0], *start[0].meta["val"].shape])
    vals = [*(state.meta["val"] for state in start), stacked]
    args = (graph, start, [inputs], tuple(shared.values()))
    scan = call(node, torch.ops.higher_order.scan, args, val=tuple(vals), like=node)
    *final, outputs = (emit(operator.getitem, scan, index) for index in range(len(vals)))
    return [*final, emit(aten.flip.default, outputs, [0]) if backwards else outputs]


def _body(
    outer: Emit, node: Node, kind: _Kind, inputs: Node, start: Sequence[Node], shared: dict[str, Node]
) -> GraphModule:
    graph = Graph()

    def add(target: Callable[..., Any], args: tuple[Any, ...], val: object) -> Node:
        added = graph.call_function(target, args)
        added.meta = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
        added.meta["val"] = val
        return added

    operands = []
    for number, source in enumerate((*start, inputs, *shared.values())):
        operands.append(graph.placeholder(f"arg{number}"))
        val = source.meta["val"]
        operands[-1].meta["val"] = val[0] if source is inputs else val
    state, step = operands[: len(start)], operands[len(start)]
    known = dict(zip(shared, operands[len(start) + 1 :], strict=True))
    fields: list[Any] = [known.get(name) for name in LayerWeights._fields]
    weights = LayerWeights(*fields)
    emit = Emit(outer._mode, add)
    new = kind.step(emit, step, state, weights)
    # A separate node, because torch requires that the results of a scan are not aliases.
    graph.output([*new, emit(aten.clone.default, new[0])])
    return _LazyGraphModule({}, graph)
