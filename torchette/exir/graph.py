# SPDX-License-Identifier: BSD-3-Clause
# In: an ExportedProgram. Out: the same program, edited. Graph, signature and tensors must agree at all times: every
# edit that touches more than one node is a function of this file. No function retraces the graph.
"""Editing an ExportedProgram in place: copies, constants, calls, source locations, notes for the report."""

from __future__ import annotations

import copy
import operator
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._prims_common import is_contiguous_or_false
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.node import Argument, Target

from torchette.exir.arguments import node_arg

_STATE = {InputKind.PARAMETER, InputKind.BUFFER}


def copy_program(program: ExportedProgram) -> ExportedProgram:
    """Returns a copy that can be edited without changing the given program. The tensors are shared, not copied."""
    result = copy.copy(program)
    signature = program.graph_signature
    result._graph_module = _copy_module(program.graph_module)
    result._graph_signature = ExportGraphSignature(
        [copy.copy(spec) for spec in signature.input_specs],
        [copy.copy(spec) for spec in signature.output_specs],
    )
    result._state_dict = dict(program.state_dict)
    result._constants = dict(program.constants)
    return result


def program_of(module: GraphModule) -> ExportedProgram:
    """Returns a program around a graph module. All placeholders become user inputs. Edits of the program change the
    module."""

    def argument(value: object) -> Any:
        if isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor):
            return TensorArgument(value.name)
        return ConstantArgument(getattr(value, "name", ""), None)

    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    results = module.graph.output_node().args[0]
    listed = results if isinstance(results, (list, tuple)) else (results,)
    program = ExportedProgram.__new__(ExportedProgram)
    program._graph_module = module
    program._graph_signature = ExportGraphSignature(
        [InputSpec(InputKind.USER_INPUT, argument(node), None) for node in placeholders],
        [OutputSpec(OutputKind.USER_OUTPUT, argument(value), None) for value in listed],
    )
    program._state_dict, program._constants, program._range_constraints = {}, {}, {}
    program._module_call_graph = []
    return program


def _copy_module(module: GraphModule) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}
    output = graph.graph_copy(module.graph, copies, return_output_node=True)
    if isinstance(output, tuple):
        value, old = output
        graph.output(value, getattr(old, "type", None)).meta = copy.copy(old.meta)
    # torch accepts names that Python reserves, such as "input".
    for node, copied in copies.items():
        copied.name = node.name
    # A node with a reference to another node (an alias) must refer to the copy of that node.
    for node in graph.nodes:
        for key, value in node.meta.items():
            if isinstance(value, tuple) and value and isinstance(value[0], Node):
                node.meta[key] = (copies.get(value[0], value[0]), *value[1:])
            elif isinstance(value, Node):
                node.meta[key] = copies.get(value, value)
    # A branch with two names becomes two branches, so that an edit changes only one of them. Unused branches are not
    # copied.
    attributes = {
        name: _copy_module(value) if isinstance(value, GraphModule) else value
        for name, value in _attributes(module, graph).items()
    }
    # Lazy: Python code is generated when the module is called, which a compile never does.
    result = _LazyGraphModule(attributes, graph)
    result.meta = {**module.meta, "notes": list(module.meta.get("notes", ()))}
    return result


def _attributes(module: GraphModule, graph: Graph) -> dict[str, Any]:
    names = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    return {name: getattr(module, name) for name in names if "." not in name and hasattr(module, name)}


def note(program: ExportedProgram, text: str) -> None:
    """Records an action of the running pass for the report."""
    program.graph_module.meta.setdefault("notes", []).append(text)


def graph_modules(program: ExportedProgram) -> Iterator[GraphModule]:
    """Yields the graph module of the program and those of its control-flow branches."""
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            yield module


def recompile(module: object) -> None:
    """Regenerates the Python code of a graph module and of its branches after an edit of their graphs."""
    for part in module.modules() if isinstance(module, GraphModule) else ():
        if isinstance(part, GraphModule):
            part.recompile()


def drop_unused_branches(module: GraphModule) -> None:
    """Removes the subgraphs that the graph does not refer to."""
    named = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for name, child in list(module.named_children()):
        if isinstance(child, GraphModule) and name not in named:
            delattr(module, name)


def calls(program: ExportedProgram, *targets: object) -> Iterator[Node]:
    """Yields the calls of the given operators, or all calls, in all graphs. Nodes may be erased during the
    iteration."""
    for module in graph_modules(program):
        for node in list(module.graph.nodes):
            if node.op == "call_function" and (not targets or node.target in targets):
                yield node


# ---- constants ----


def constants(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """Returns the stored tensor of each placeholder, except for the tensors that `changing_tensors` names."""
    signature = program.graph_signature
    changing = changing_tensors(program)
    tensors = {}
    for node, spec in zip(placeholders(program), signature.input_specs, strict=True):
        if spec.target in changing:
            continue
        tensor = tensor_of(program, spec)
        if tensor is not None:
            tensors[node] = tensor
    return tensors


def state(signature: ExportGraphSignature) -> set[str]:
    """Returns the names of the stored tensors that change: updated buffers, and parameters that have a gradient."""
    kinds = (OutputKind.BUFFER_MUTATION, OutputKind.GRADIENT_TO_PARAMETER)
    return {spec.target for spec in signature.output_specs if spec.kind in kinds and spec.target is not None}


# Attribute of a program: the names of the buffers that it reads and that another method of the file writes.
_WRITTEN_ELSEWHERE = "torchette_written_elsewhere"


def changing_tensors(program: ExportedProgram) -> set[str]:
    """Returns the names of the stored tensors that this method or another method changes."""
    return state(program.graph_signature) | written_elsewhere(program)


def written_elsewhere(program: ExportedProgram) -> frozenset[str]:
    """Returns the names of the buffers that another method writes, see `mark_written_elsewhere`."""
    result: frozenset[str] = program.__dict__.get(_WRITTEN_ELSEWHERE, frozenset())
    return result


def mark_written_elsewhere(program: ExportedProgram, names: Iterable[str]) -> None:
    """Sets the names of the buffers that another method writes. They are not `constants` of the program."""
    program.__dict__[_WRITTEN_ELSEWHERE] = frozenset(names)


# Attribute of a program: the remarks of its passes, which become constant methods of the file.
_REMARKS = "torchette_remarks"


def add_remark(program: ExportedProgram, name: str, text: str) -> None:
    """Stores a text in the file, as the constant method "<method>_<name>"."""
    program.__dict__.setdefault(_REMARKS, {})[name] = text


def remarks(program: ExportedProgram) -> dict[str, str]:
    """Returns the texts that `add_remark` stored."""
    result: dict[str, str] = program.__dict__.get(_REMARKS, {})
    return result


def mark_shared_state(programs: Mapping[str, ExportedProgram]) -> None:
    """Marks, in each method of a file, the buffers that it reads and that another method writes.

    The methods may share these buffers (`MemoryPlanningPass(share_mutable_buffers=True)`), so no pass and no backend may
    use their initial values instead.
    """
    written = {name: _written_buffers(program) for name, program in programs.items()}
    for name, program in programs.items():
        others = {buffer for other, buffers in written.items() if other != name for buffer in buffers}
        read = set(program.graph_signature.inputs_to_buffers.values()) - written[name]
        mark_written_elsewhere(program, written_elsewhere(program) | (read & others))


def _written_buffers(program: ExportedProgram) -> set[str]:
    """Returns the buffers of the signature that a method writes. The signature of a captured program does not contain
    the statistics that its batch norms update."""
    written = set(program.graph_signature.buffers_to_mutate.values())
    buffers = program.graph_signature.inputs_to_buffers
    for norm in calls(program, _aten.batch_norm.default):
        if norm.args[5] is True:
            written |= {buffers[node.name] for node in norm.all_input_nodes if node.name in buffers}
    return written


def tensor_of(program: ExportedProgram, spec: InputSpec) -> torch.Tensor | None:
    """Returns the stored tensor of an input, or None for a user input."""
    if spec.target is None:
        return None
    if spec.kind in _STATE and spec.target in program.state_dict:
        result: torch.Tensor | None = program.state_dict[spec.target]
        return result
    value = program.constants.get(spec.target)
    return value if isinstance(value, torch.Tensor) else None


def placeholders(program: ExportedProgram) -> list[Node]:
    """Returns the placeholders of the main graph, in order."""
    return list(program.graph.find_nodes(op="placeholder"))


def add_constant(
    program: ExportedProgram,
    name: str,
    tensor: torch.Tensor,
    like: Node | None = None,
    stored_as: str | None = None,
) -> Node:
    """Stores a tensor in the program and returns its placeholder.

    Args:
        name: the requested name of the placeholder; a suffix is added if it is already used.
        tensor: stored without a copy.
        like: the new node inherits the source location of this node.
        stored_as: the key in the program's table of constants. The name of the placeholder is the key if `stored_as` is
            None or already used.
    """
    graph, signature = program.graph, program.graph_signature
    first_input = next(
        (i for i, spec in enumerate(signature.input_specs) if spec.kind in _NOT_STORED),
        len(signature.input_specs),
    )
    inputs = placeholders(program)
    anchor = inputs[first_input] if first_input < len(inputs) else _after_placeholders(graph)
    with graph.inserting_before(anchor):
        node = graph.create_node("placeholder", name, name=name)
    node.target = node.name
    node.meta["val"] = fake(program, tensor)
    if like is not None:
        node.meta.update(
            {key: like.meta[key] for key in ("stack_trace", "nn_module_stack") if key in like.meta}
        )
    is_used = stored_as is None or stored_as in program.constants or stored_as in program.state_dict
    key = node.name if stored_as is None or is_used else stored_as
    spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), key)
    signature.input_specs.insert(first_input, spec)
    # torch does not count a Parameter as a constant.
    program.constants[key] = tensor.detach() if isinstance(tensor, torch.nn.Parameter) else tensor
    result: Node = node
    return result


def lift_constant_tensor_pass(program: ExportedProgram) -> ExportedProgram:
    """Converts tensors that are attributes of the graph module to constants of the program. Edits and returns the
    program."""
    for node in list(program.graph.nodes):
        if node.op != "get_attr":
            continue
        tensor = program.graph_module
        for part in str(node.target).split("."):
            tensor = getattr(tensor, part)
        if isinstance(tensor, torch.Tensor):
            constant = add_constant(program, f"_lifted_tensor_constant{len(program.constants)}", tensor, node)
            node.replace_all_uses_with(constant)
            program.graph.erase_node(node)
    recompile(program.graph_module)
    return program


# A tuple: a set would compute the hash of each kind, which is slow.
_NOT_STORED = (InputKind.USER_INPUT, InputKind.TOKEN, InputKind.CUSTOM_OBJ)


def _after_placeholders(graph: Graph) -> Node:
    result: Node = next(node for node in graph.nodes if node.op != "placeholder")
    return result


def replace_constant(program: ExportedProgram, node: Node, tensor: torch.Tensor) -> None:
    """Replaces the value of a parameter, buffer or constant. The previous tensor is not modified."""
    spec = program.graph_signature.input_specs[placeholders(program).index(node)]
    store = (
        program.state_dict if spec.kind in _STATE and spec.target in program.state_dict else program.constants
    )
    if spec.kind is InputKind.PARAMETER and not isinstance(tensor, torch.nn.Parameter):
        tensor = torch.nn.Parameter(tensor, requires_grad=False)
    store[spec.target] = tensor
    node.meta["val"] = fake(program, tensor)


def drop_unused_constants(
    program: ExportedProgram, kinds: Container[InputKind] = frozenset(InputKind)
) -> int:
    """Removes stored tensors of these kinds that have no uses. Returns the count."""
    signature = program.graph_signature
    retained, dropped = [], 0
    changing = state(signature)
    for node, spec in zip(placeholders(program), signature.input_specs, strict=True):
        if node.users or spec.kind in _NOT_STORED or spec.target in changing or spec.kind not in kinds:
            retained.append(spec)
            continue
        program.graph.erase_node(node)
        dropped += 1
    if dropped:
        signature.input_specs = retained
        used = {spec.target for spec in retained}
        for store in (program._state_dict, program._constants):
            for name in [name for name in store if name not in used]:
                del store[name]
    return dropped


def fake(program: ExportedProgram, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a fake tensor for `meta["val"]`: shape, strides and dtype of a real tensor, without data."""
    mode = fake_mode(program)
    if mode is None:
        return tensor.detach().to("meta")
    result: torch.Tensor = mode.from_tensor(tensor.detach(), static_shapes=True)
    return result


def fake_mode(program: ExportedProgram) -> Any:
    """Returns the FakeTensorMode of the `meta["val"]` of the program, or None."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch._subclasses.FakeTensor):
            return value.fake_mode
    return None


# ---- nodes ----


def call(
    before: Node,
    target: Target,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    val: object,
    like: Node,
) -> Node:
    """Inserts a call before a node. `val` is the result; the new node inherits the source location of `like`."""
    with before.graph.inserting_before(before):
        node = before.graph.create_node("call_function", target, args, kwargs or {})
    dropped = (
        "val",
        "alias",
        "in_place",
        "unbacked_bindings",
        *(("origins", "rejections") if is_reordering(target) else ()),
    )
    node.meta = {key: value for key, value in like.meta.items() if key not in dropped}
    node.meta["val"] = val
    return node


def replace(program: ExportedProgram, old: Node, new: Node) -> None:
    """Replaces all uses of a node, including outputs, by another node, and erases the first node."""
    _inherit(old, new)
    if old.meta.get("unbacked_bindings") and new.meta["val"] is old.meta["val"]:
        new.meta.setdefault("unbacked_bindings", old.meta["unbacked_bindings"])
    rename_outputs(program, old.name, new.name)
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


class Origin(NamedTuple):
    """A call as it was before the target's passes. `meta["origins"]` of the node that replaced it maps its name to
    this."""

    op: str
    macs: int  # multiply-adds
    cost: int  # estimate of delegation/cost.py


def is_reordering(target: object) -> bool:
    """Returns whether an operator only changes the shape or order of its operand."""
    return target is operator.getitem or target in REORDERINGS


_aten = torch.ops.aten
REORDERINGS = frozenset(
    {
        _aten.permute_copy.default, _aten.transpose_copy.int, _aten.t_copy.default, _aten.view_copy.default,
        _aten.unsqueeze_copy.default, _aten.squeeze_copy.dim, _aten.squeeze_copy.dims, _aten.squeeze_copy.default,
        _aten.expand_copy.default, _aten.clone.default,
    }
)  # fmt: skip


def _is_unused(node: Node, new: Node) -> bool:
    return node is not new and not node.users and is_reordering(node.target)


def _inherit(old: Node, new: Node) -> None:
    """Copies the origins of a replaced node, and of operands that only this node used, to the new node."""
    replaced: dict[Node, None] = {old: None}
    waiting, sources = [old], set()
    while waiting:
        for source in waiting.pop().all_input_nodes:
            sources.add(source)
            if source.op != "call_function" or source is new or source in replaced:
                continue
            if all(user in replaced or _is_unused(user, new) for user in source.users):
                replaced[source] = None
                waiting.append(source)
    if not any("origins" in node.meta for node in replaced):
        return
    while (
        is_reordering(new.target) and new not in sources
    ):  # the operator precedes the calls that reorder its result
        new = node_arg(new)
    if new.op == "call_function" and new not in sources:
        origins = [node.meta.get("origins", {}) for node in (new, *reversed(replaced))]
        new.meta["origins"] = {name: origin for each in origins for name, origin in each.items()}


def rename_outputs(program: ExportedProgram, old: str, new: str) -> None:
    """Renames an output in the signature, which refers to outputs by node name."""
    for spec in program.graph_signature.output_specs:
        if getattr(spec.arg, "name", None) == old:
            spec.arg = copy.copy(spec.arg)
            spec.arg.name = new


def sync_signature(program: ExportedProgram) -> None:
    """Updates the names in the signature from a graph that was edited freely. The order must be the same."""
    signature = program.graph_signature
    for node, spec in zip(placeholders(program), signature.input_specs, strict=True):
        if getattr(spec.arg, "name", node.name) != node.name:
            spec.arg = copy.copy(spec.arg)
            spec.arg.name = node.name
    for value, output in zip(outputs(program), signature.output_specs, strict=True):
        if isinstance(value, Node) and getattr(output.arg, "name", value.name) != value.name:
            output.arg = copy.copy(output.arg)
            output.arg.name = value.name


def outputs(program: ExportedProgram) -> list[Any]:
    """Returns the results of the graph, in the order of the outputs in the signature."""
    return list(program.graph.output_node().args[0])


def written(program: ExportedProgram) -> list[str]:
    """Returns descriptions of the values that a program mutates, such as "the buffer count" and "the input x"."""
    signature = program.graph_signature
    names = [f"the buffer {name}" for name in signature.buffers_to_mutate.values()]
    return [*names, *(f"the input {name}" for name in signature.user_inputs_to_mutate.values())]


def buffer_updates(program: ExportedProgram) -> list[tuple[OutputSpec, Node, Node]]:
    """Returns (output, node of the new value, placeholder of the buffer or input) for each mutation."""
    signature = program.graph_signature
    by_target = {
        spec.target: node for node, spec in zip(placeholders(program), signature.input_specs, strict=True)
    }
    by_name = {node.name: node for node in placeholders(program)}
    updates = []
    for value, spec in zip(outputs(program), signature.output_specs, strict=True):
        if spec.kind is OutputKind.BUFFER_MUTATION:
            updates.append((spec, value, by_target[spec.target]))
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            updates.append((spec, value, by_name[spec.target]))
    return updates


# ---- source locations ----

_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n\s*(?P<code>[^\n]*)'
)
# Frames in these folders are not the user's code.
_LIBRARIES = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}")


class Frame(NamedTuple):
    """A line of a stack trace."""

    file: str
    line: int
    function: str
    code: str


def frames(node: Node) -> list[Frame]:
    """Returns the stack trace of a node, outermost frame first; empty if a pass created the node."""
    trace = node.meta.get("stack_trace")
    matches = _FRAME.finditer(trace) if isinstance(trace, str) else ()
    return [Frame(f["file"], int(f["line"]), f["function"], f["code"].strip()) for f in matches]


def user_frame(node: Node) -> Frame | None:
    """Returns the innermost frame outside torch and Torchette, or the innermost frame if there is none."""
    trace = [frame for frame in frames(node) if not frame.file.startswith("<")]
    user_frames = [frame for frame in trace if not frame.file.startswith(_LIBRARIES)]
    candidates = user_frames or trace
    return candidates[-1] if candidates else None


def place(node: Node) -> str:
    """Returns the source location of a node in the user's model: `model.py:12, in forward: y = x + 1`."""
    frame = user_frame(node)
    if frame is not None:
        return f"{frame.file}:{frame.line}, in {frame.function}: {frame.code}"
    if node.op == "placeholder":
        # An input has no source location. The location of its first use identifies it.
        used = next((user for user in node.users if isinstance(user.meta.get("stack_trace"), str)), None)
        return f"{node.name}, first used at {place(used)}" if used is not None else f"input {node.name}"
    path, kind = module_of(node)
    return f"module {path or '(top)'} ({kind})" if kind else f"node {node.name}"


# The path that torch records for a node created outside any module, such as the size of an input.
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"


def module_of(node: Node) -> tuple[str, str]:
    """Returns the path and the class name of the innermost module of a node. The path of the model itself is empty.
    Both are empty if a pass created the node."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    if not modules or modules[-1][0] == _NO_MODULE:
        return "", ""
    path, kind = modules[-1]
    return path, kind.rsplit(".", 1)[-1] if isinstance(kind, str) else kind.__name__


def shape_text(value: object) -> str:
    """Returns a short text for a value of the graph: `float32[1, 3, s0]`."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(str(size) for size in value.shape)}]"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(shape_text(item) for item in value)})"
    return str(value)


def node_text(node: Node) -> str:
    """Returns a node as one line, with its result."""
    described = node.format_node() or f"return {node.args[0] if node.args else None}"
    described = re.sub(r"\[num_users=\d+\]", "", described)
    val = node.meta.get("val")
    return described if val is None else f"{described}  # {shape_text(val)}"


def map_nodes(value: Argument, function: Callable[[Node], Any]) -> Any:
    """Applies a function to every node within nested arguments."""
    return torch.fx.node.map_arg(value, function)


def is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is known to be contiguous. Adds no guard on a symbolic size."""
    return bool(is_contiguous_or_false(tensor))


def size_key(size: int | torch.SymInt) -> Any:
    """Returns a value that can be hashed and is equal for sizes that are known to be equal."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def same_size(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Returns whether two dimensions are known to be equal. Adds no guard on a symbolic size."""
    return bool(size_key(a) == size_key(b))


def same_shape(a: Sequence[int | torch.SymInt], b: Sequence[int | torch.SymInt]) -> bool:
    """Returns whether two shapes are known to be equal."""
    return len(a) == len(b) and all(same_size(x, y) for x, y in zip(a, b, strict=True))
