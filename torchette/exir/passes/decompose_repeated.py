# SPDX-License-Identifier: BSD-3-Clause
# In: the program that torch.export captured. Out: the graph that run_decompositions returns, in less time: torch traces each
# distinct call once, and equal calls get copies of its nodes. The layers of a deep model are equal calls.
"""Decomposes equal calls once."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
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
from torch.fx.node import Target
from torch.utils import _pytree as pytree

from torchette.exir import ops
from torchette.exir.arguments import int_arg, list_arg
from torchette.exir.graph import (
    call,
    calls,
    fake_mode,
    map_nodes,
    placeholders,
    replace,
    size_key,
    sync_signature,
)

aten = torch.ops.aten

# Trace the whole program if more than this share of its calls is distinct, because torch then traces almost as many calls.
_MAX_DISTINCT = 0.7
# The result of a decomposition may have other strides than the captured result. The calls that read it are then traced
# in another round.
_MAX_ROUNDS = 8

Key = tuple[Any, ...]
Decompose = Callable[[ExportedProgram], ExportedProgram]


class _Unsupported(Exception):
    """The calls of the program depend on each other: torch must trace the program as a whole."""


class _Fragment(NamedTuple):
    """The decomposition of one call.

    Attributes:
        inputs: placeholders, one for each tensor that the call reads.
        nodes: the calls, in order.
        results: the results of the call: nodes or placeholders, and None for a result that is no tensor.
        is_list: whether the call returns a list or tuple.
    """

    inputs: list[Node]
    nodes: list[Node]
    results: list[Node | None]
    is_list: bool

    def value(self) -> Any:
        """Returns the result of the call: fake tensors."""
        vals = [result.meta["val"] if result is not None else None for result in self.results]
        return vals if self.is_list else vals[0]


class _Step(NamedTuple):
    """A call of the program, after the calls of grad modes were replaced by their bodies."""

    node: Node
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def decompose_repeated(program: ExportedProgram, decompose: Decompose) -> ExportedProgram | None:
    """Returns the decomposed program, or None if torch must trace the program as a whole.

    Args:
        program: a captured program. It is not changed. Programs with symbolic sizes, mutations, control flow, complex
            values or tensor subclasses are traced as a whole.
        decompose: calls `run_decompositions`.
    """
    try:
        steps, sources = _steps(program)
        _check_values(program, steps)
        fragments: dict[Key, _Fragment] = {}
        for _ in range(_MAX_ROUNDS):
            keys, missing = _flow(program, steps, fragments)
            if not missing:
                return _assembled(program, steps, sources, keys, fragments)
            if len(missing) > _MAX_DISTINCT * len(steps):
                return None
            fragments |= _traced(program, missing, decompose)
    except _Unsupported:
        pass
    return None


def decompose_calls(program: ExportedProgram, operators: Collection[object], decompose: Decompose) -> bool:
    """Replaces the calls of some operators by their decompositions, in place.

    Args:
        program: a program of core ATen, except for these calls.
        operators: the operators to decompose.
        decompose: calls `run_decompositions`.

    Returns:
        Whether all calls are replaced. False leaves the program unchanged: torch must trace it as a whole.
    """
    try:
        fragments: dict[Key, _Fragment] = {}
        keys: dict[Node, Key] = {}
        for node in calls(program, *operators):
            if node.graph is not program.graph or ops.is_mutating(node.target):
                raise _Unsupported
            step = _Step(node, node.target, node.args, node.kwargs)
            vals = {each: each.meta.get("val") for each in _tensor_nodes(step)}
            if not all(isinstance(val, (torch.Tensor, torch.SymInt)) for val in vals.values()):
                raise _Unsupported
            key = keys[node] = _key(step, list(vals), vals)
            if key not in fragments:
                # One program for each call: torch reads a symbolic size from the first input that has it.
                fragments |= _traced(program, {key: (step, list(vals.values()))}, decompose)
                if any("unbacked_bindings" in each.meta for each in fragments[key].nodes):
                    raise _Unsupported
    except _Unsupported:
        return False
    sizes: dict[Any, Node] = {}
    for node in list(program.graph.nodes):
        if node in keys:
            _inline(program, node, fragments[keys[node]], sizes)
        elif isinstance(node.meta.get("val"), torch.SymInt):
            sizes.setdefault(size_key(node.meta["val"]), node)
    return True


def _inline(program: ExportedProgram, node: Node, fragment: _Fragment, sizes: dict[Any, Node]) -> None:
    """Replaces a call by copies of the nodes of its decomposition. `sizes` maps the key of a symbolic size to the first
    node that computes it."""
    inputs = dict.fromkeys(_tensor_nodes(_Step(node, node.target, node.args, node.kwargs)))
    copies = dict(zip(fragment.inputs, inputs, strict=True))
    for each in fragment.nodes:
        args, kwargs = map_nodes((each.args, dict(each.kwargs)), copies.__getitem__)
        val = each.meta["val"]
        size = size_key(val) if isinstance(val, torch.SymInt) else None
        copies[each] = sizes.get(size) or call(node, each.target, args, kwargs, val=val, like=node)
        if size is not None:
            sizes.setdefault(size, copies[each])
    if not fragment.is_list:
        (result,) = fragment.results
        assert result is not None
        replace(program, node, copies[result])
        return
    for user in list(node.users):
        result = fragment.results[int_arg(user, 1)]
        assert result is not None
        replace(program, user, copies[result])
    node.graph.erase_node(node)


# ---- the calls of a program ----


def _steps(program: ExportedProgram) -> tuple[list[_Step], dict[Node, Node]]:
    """Returns the calls, and for each node that stands for another node that node."""
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
        raise _Unsupported
    sources: dict[Node, Node] = {}
    steps = list(_inlined(program.graph_module, sources))
    return steps, sources


def _inlined(module: GraphModule, sources: dict[Node, Node]) -> Iterator[_Step]:
    for node in module.graph.nodes:
        if node.op == "get_attr" and not isinstance(getattr(module, str(node.target), None), GraphModule):
            raise _Unsupported  # a tensor
        if node.op != "call_function" or node in sources:
            continue
        if node.target is not torch.ops.higher_order.wrap_with_set_grad_enabled:
            args, kwargs = map_nodes((node.args, dict(node.kwargs)), lambda arg: sources.get(arg, arg))
            yield _Step(node, node.target, args, kwargs)
            continue
        body = getattr(module, str(node.args[1].target))
        for inner, outer in zip(body.graph.find_nodes(op="placeholder"), node.args[2:], strict=True):
            sources[inner] = sources.get(outer, outer)
        yield from _inlined(body, sources)
        results = list_arg(body.graph.output_node())
        for user in node.users:
            if user.target is not operator.getitem:
                raise _Unsupported
            result = results[user.args[1]]
            sources[user] = sources.get(result, result)


_COPIED = frozenset({operator.getitem, aten._assert_tensor_metadata.default})  # calls that need no trace
# Operators of the core set -> the argument that affects neither shapes nor strides. Loops over time steps that torch.export
# unrolled select from the same tensor in every step.
_INDEX = {aten.select.int: 2}
_NORMS = frozenset({aten.batch_norm.default, aten.instance_norm.default})


def _check_values(program: ExportedProgram, steps: Sequence[_Step]) -> None:
    """Raises _Unsupported unless all calls are independent operators with static shapes."""
    for value in (*program.state_dict.values(), *program.constants.values()):
        if not isinstance(value, torch.Tensor) or type(value) not in _PLAIN:
            raise _Unsupported
    for node in placeholders(program):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            _check_tensor(value)
    for step in steps:
        if step.target is operator.getitem:
            continue
        if step.target is aten._assert_tensor_metadata.default:
            if len(step.args) > 1 or {"size", "stride"} & {*step.kwargs}:
                raise _Unsupported
            continue
        if not ops.is_operator(step.target) or ops.is_mutating(step.target):
            raise _Unsupported
        if step.target in _NORMS and step.args[3] is not None and step.args[5]:
            raise _Unsupported  # it updates its statistics
        value = step.node.meta.get("val")
        for part in value if isinstance(value, (list, tuple)) else (value,):
            _check_tensor(part)


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _check_tensor(value: object) -> None:
    # A complex tensor may be the conjugate of its elements, which its shape and strides do not state.
    if not isinstance(value, FakeTensor) or value.layout is not torch.strided or value.is_complex():
        raise _Unsupported
    if not all(isinstance(size, int) for size in (*value.shape, *value.stride())):
        raise _Unsupported


# ---- equal calls ----


def _flow(
    program: ExportedProgram, steps: Sequence[_Step], fragments: Mapping[Key, _Fragment]
) -> tuple[list[Key | None], dict[Key, tuple[_Step, list[Any]]]]:
    """Returns the key of each call, and the calls without a fragment by their keys, with the tensors that they read.

    The results of calls without a fragment are assumed to have the captured strides in the first round, and later those
    of eager's operator.
    """
    mode = fake_mode(program)
    vals: dict[Node, Any] = {node: node.meta.get("val") for node in placeholders(program)}
    keys: list[Key | None] = []
    missing: dict[Key, tuple[_Step, list[Any]]] = {}
    for step in steps:
        if step.target in _COPIED:
            keys.append(None)
            vals[step.node] = vals[step.args[0]][step.args[1]] if step.target is operator.getitem else None
            continue
        tensors = list(dict.fromkeys(_tensor_nodes(step)))
        if not all(isinstance(vals[node], torch.Tensor) for node in tensors):
            raise _Unsupported
        key = _key(step, tensors, vals)
        keys.append(key)
        if key in fragments:
            vals[step.node] = fragments[key].value()
        else:
            missing.setdefault(key, (step, [vals[node] for node in tensors]))
            vals[step.node] = _eager(step, vals, mode) if fragments else step.node.meta["val"]
    return keys, missing


def _eager(step: _Step, vals: Mapping[Node, Any], mode: FakeTensorMode) -> Any:
    args, kwargs = map_nodes((step.args, dict(step.kwargs)), vals.__getitem__)
    with mode, torch.no_grad():
        return step.target(*args, **kwargs)


def _tensor_nodes(step: _Step) -> list[Node]:
    found: list[Node] = []
    map_nodes((step.args, dict(step.kwargs)), found.append)
    return found


def _key(step: _Step, tensors: Sequence[Node], vals: Mapping[Node, Any]) -> Key:
    """Returns a key that is equal for calls with equal decompositions."""
    indices = {node: index for index, node in enumerate(tensors)}
    has_offset = step.target is aten.as_strided.default

    def described(value: object) -> object:
        if isinstance(value, Node):
            return "tensor", indices[value]
        if isinstance(value, (list, tuple)):
            return tuple(map(described, value))
        return type(value), repr(value)  # distinguishes 1, 1.0 and True; NaN equals NaN

    def read(val: torch.Tensor | torch.SymInt) -> Key:
        if not isinstance(val, torch.Tensor):
            return type(val), size_key(val)
        sizes = tuple(map(size_key, (*val.shape, *val.stride())))
        return sizes, val.dtype, val.device, size_key(val.storage_offset()) if has_offset else 0

    kwargs = tuple((name, described(value)) for name, value in sorted(step.kwargs.items()))
    index = _INDEX.get(step.target, len(step.args))
    args = (*step.args[:index], *step.args[index + 1 :])
    return step.target, described(args), kwargs, tuple(read(vals[node]) for node in tensors)


# ---- tracing ----


def _traced(
    program: ExportedProgram, missing: Mapping[Key, tuple[_Step, list[Any]]], decompose: Decompose
) -> dict[Key, _Fragment]:
    """Traces a program with one call for each key, and returns its parts."""
    graph = Graph()
    inputs = [
        graph.create_node("placeholder", name := f"input_{index}_{position}", name=name)
        for index, (_, read) in enumerate(missing.values())
        for position in range(len(read))
    ]
    for node, val in zip(inputs, (val for _, read in missing.values() for val in read), strict=True):
        node.meta["val"] = val
    results: list[list[Node | None]] = []
    begin = 0
    for step, read in missing.values():
        results.append(_call(graph, step, inputs[begin : begin + len(read)]))
        begin += len(read)
    graph.output(tuple(node for nodes in results for node in nodes if node is not None))
    try:
        traced = decompose(_program_of(program, graph))
    except Exception as error:  # torch reports it again, with the location in the model
        raise _Unsupported from error
    if any(spec.kind is not InputKind.USER_INPUT for spec in traced.graph_signature.input_specs):
        raise _Unsupported  # a decomposition stores a constant
    outcomes = iter(traced.graph.output_node().args[0])
    traced_inputs = placeholders(traced)
    order = {node: index for index, node in enumerate(traced.graph.nodes)}
    fragments: dict[Key, _Fragment] = {}
    begin = 0
    for (key, (step, read)), nodes in zip(missing.items(), results, strict=True):
        leaves = [None if node is None else next(outcomes) for node in nodes]
        if not all(leaf is None or isinstance(leaf, Node) for leaf in leaves):
            raise _Unsupported
        is_list = isinstance(step.node.meta["val"], (list, tuple))
        own = traced_inputs[begin : begin + len(read)]
        fragments[key] = _Fragment(own, _between(leaves, own, order), leaves, is_list)
        if step.target in _INDEX and [node.target for node in fragments[key].nodes] != [step.target]:
            raise _Unsupported  # torch decomposes it
        begin += len(read)
    return fragments


def _call(graph: Graph, step: _Step, inputs: Sequence[Node]) -> list[Node | None]:
    """Adds a call and returns its results."""
    tensors = dict(zip(dict.fromkeys(_tensor_nodes(step)), inputs, strict=True))
    args, kwargs = map_nodes((step.args, dict(step.kwargs)), tensors.__getitem__)
    node = graph.create_node("call_function", step.target, args, kwargs)
    node.meta = dict(step.node.meta)
    val = node.meta["val"]
    if not isinstance(val, (list, tuple)):
        return [node]
    results: list[Node | None] = []
    for index, part in enumerate(val):
        results.append(
            graph.create_node("call_function", operator.getitem, (node, index)) if part is not None else None
        )
        if results[-1] is not None:
            results[-1].meta = {**step.node.meta, "val": part}
    return results


def _program_of(program: ExportedProgram, graph: Graph) -> ExportedProgram:
    """Returns a program that torch can trace. All placeholders are inputs, and all results are outputs."""
    inputs = list(graph.find_nodes(op="placeholder"))
    results: list[Any] = list(list_arg(graph.output_node()))
    arguments = [
        TensorArgument(node.name) if isinstance(node.meta["val"], torch.Tensor) else SymIntArgument(node.name)
        for node in inputs
    ]
    signature = ExportGraphSignature(
        [InputSpec(InputKind.USER_INPUT, argument, None) for argument in arguments],
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results],
    )
    args = tuple(node.meta["val"] for node in inputs)
    spec = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_flatten((args, {}))[1],
        out_spec=pytree.tree_flatten(tuple(range(len(results))))[1],
        forward_arg_names=[node.name for node in inputs],
    )
    return ExportedProgram(
        root=GraphModule({}, graph),
        graph=graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", spec)],
        example_inputs=None,
        constants={},
        verifiers=program.verifiers,
    )


def _between(results: Sequence[Node | None], inputs: Sequence[Node], order: Mapping[Node, int]) -> list[Node]:
    """Returns the calls that compute the results from the inputs, in order."""
    known = set(inputs)
    waiting = [result for result in results if result is not None]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in found or node in known:
            continue
        if node.op != "call_function":
            raise _Unsupported
        found.add(node)
        waiting += node.all_input_nodes
    return sorted(found, key=order.__getitem__)


# ---- the decomposed program ----


def _assembled(
    program: ExportedProgram,
    steps: Sequence[_Step],
    sources: Mapping[Node, Node],
    keys: Sequence[Key | None],
    fragments: Mapping[Key, _Fragment],
) -> ExportedProgram:
    graph = Graph()
    values: dict[Node, Any] = {}
    for node in placeholders(program):
        values[node] = graph.create_node("placeholder", node.target, name=node.name)
        values[node].meta = dict(node.meta)
        values[node].name = node.name  # torch accepts names that Python reserves
    for step, key in zip(steps, keys, strict=True):
        if step.target is operator.getitem:
            values[step.node] = values[step.args[0]][step.args[1]]
            continue
        if key is None:
            expected = dict(step.kwargs)
            dtype = expected.pop("dtype", None)
            args = (values[step.args[0]], None, None, dtype)  # as torch traces it
            values[step.node] = _add(graph, step, step.target, args, expected, None)
            continue
        fragment = fragments[key]
        copies = dict(
            zip(fragment.inputs, (values[node] for node in dict.fromkeys(_tensor_nodes(step))), strict=True)
        )
        for node in fragment.nodes:
            args, kwargs = map_nodes((node.args, dict(node.kwargs)), copies.__getitem__)
            if step.target in _INDEX:
                args = (*args[:1], *step.args[1:])
            copies[node] = _add(graph, step, node.target, args, kwargs, node.meta["val"])
        results = [None if node is None else copies[node] for node in fragment.results]
        values[step.node] = results if fragment.is_list else results[0]
    old = program.graph.output_node()
    output = graph.output(map_nodes(old.args[0], lambda node: values[sources.get(node, node)]))
    output.meta = dict(old.meta)
    graph.eliminate_dead_code()
    result = copy.copy(program)
    result._graph_module = _LazyGraphModule({}, graph)
    result._graph_module.meta = program.graph_module.meta
    signature = program.graph_signature
    result._graph_signature = ExportGraphSignature(list(signature.input_specs), list(signature.output_specs))
    sync_signature(result)
    return result


def _add(
    graph: Graph, step: _Step, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any], val: object
) -> Node:
    """Adds a call with the source location of a captured call."""
    packet: Any = getattr(target, "overloadpacket", target)
    node = graph.create_node("call_function", target, args, kwargs, name=packet.__name__)
    node.meta = dict(step.node.meta)
    node.meta["val"] = val
    result: Node = node
    return result
