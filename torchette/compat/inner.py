# SPDX-License-Identifier: BSD-3-Clause
"""ExecuTorch's internal functions, with its names."""

from __future__ import annotations

import contextlib
import copy
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.fx.passes.tools_common import legalize_graph
from torch.fx.passes.utils.fuser_utils import fuse_as_graphmodule
from torch.fx.passes.utils.source_matcher_utils import SourcePartition
from typing_extensions import deprecated

from torchette.exir import control_flow, ops, pipeline
from torchette.exir.arguments import nodes_arg, overload
from torchette.exir.config import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.exir.dialects._ops import to_torch_operators
from torchette.exir.dialects.edge import dtypes
from torchette.exir.dialects.edge._ops import edge_operator
from torchette.exir.emit.records import scalar_type
from torchette.exir.graph import copy_program, drop_unused_constants, recompile
from torchette.exir.memory.algorithms import interval
from torchette.exir.pass_base import ExportPass, NodeMetadata, PassType, ProxyValue
from torchette.exir.tensor import TensorSpec
from torchette.format import pte

# ---- exir._warnings, exir.passes.pass_registry ----


class ExperimentalWarning(DeprecationWarning):
    """An experimental name, which may change or be removed."""


class experimental(deprecated):
    """Marks a class or function as experimental; its use issues a warning."""

    def __init__(
        self, message: str, /, *, category: type[Warning] = ExperimentalWarning, stacklevel: int = 1
    ) -> None:
        super().__init__(message, category=category, stacklevel=stacklevel)


class PassRegistry:
    """A registry of passes by name."""

    registry: ClassVar[dict[str, list[PassType]]] = {}

    @classmethod
    def register(cls, pass_name: str | None = None) -> Callable[[PassType], PassType]:
        """Returns a decorator that registers a pass; the default name is that of the pass."""

        def keep(one_pass: PassType) -> PassType:
            cls.registry[pass_name or one_pass.__name__] = [one_pass]
            result: PassType = one_pass
            return result

        return keep

    @classmethod
    def register_list(cls, pass_name: str, pass_list: list[PassType]) -> None:
        """Registers a list of passes under one name."""
        cls.registry[pass_name] = list(pass_list)

    @classmethod
    def get(cls, key: str) -> list[PassType]:
        """Returns the passes of a name.

        Raises:
            KeyError: if the name is not registered.
        """
        return cls.registry[key]


# ---- exir.program._fake_program, exir.tracer ----


def get_fake_program(real_exported_program: ExportedProgram) -> ExportedProgram:
    """Returns a copy of a program with fake parameters and buffers, without storage. Constants are shared."""
    program = copy_program(real_exported_program)
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    program._state_dict = {
        name: mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value
        for name, value in real_exported_program.state_dict.items()
    }
    program._constants = real_exported_program.constants
    program._module_call_graph = copy.deepcopy(real_exported_program.module_call_graph)
    return program


def update_to_real_program(
    fake_exported_program: ExportedProgram, real_exported_program: ExportedProgram
) -> None:
    """Replaces the fake parameters and buffers of a program by real ones."""
    fake_exported_program._state_dict = real_exported_program.state_dict


def default_decomposition_table() -> dict[Any, Any]:
    """Returns torch's decompositions to core ATen."""
    return dict(torch.export.default_decompositions().items())


# ---- exir.capture._capture, exir.common ----


@contextlib.contextmanager
def patch_forward(obj: torch.nn.Module, new_method: Callable[..., Any]) -> Iterator[None]:
    """A context in which a method of the module replaces `forward`, so that `torch.export.export` captures it."""
    before = obj.forward
    obj.forward = new_method
    try:
        yield
    finally:
        obj.forward = before


def extract_out_arguments(schema: torch.FunctionSchema, keyword_args: dict[str, Any]) -> Any:
    """Returns (name, value) of the out argument among an operator's keyword arguments, or a list of several pairs."""
    names = [argument.name for argument in schema.arguments if ops.writes(argument)]
    out_args = [(name, keyword_args[name]) for name in names if name in keyword_args]
    return out_args[0] if len(out_args) == 1 else out_args


def get_schema_for_operators(names: Iterable[str]) -> dict[str, str]:
    """Returns operator name, such as "torch.ops.aten.add.Tensor", -> schema. Unknown operators are omitted."""
    schemas = {}
    for name in names:
        path = name.removeprefix("torch.ops.").split(".")
        with contextlib.suppress(AttributeError):
            schemas[name] = str(operator.attrgetter(".".join(path))(torch.ops)._schema)
    return schemas


# ---- exir.verification.arg_validator ----


class EdgeOpArgValidator(Interpreter):
    """Runs a graph on tensors and checks the dtypes of Edge operators.

    Attributes:
        violating_ops: operator that was called with an unsupported combination of dtypes -> (name -> dtype, the node).
    """

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__(graph_module)
        self.violating_ops: dict[Any, tuple[dict[str, torch.dtype], Node]] = {}

    def run_node(self, n: Node) -> Any:
        """Runs one call and checks its dtypes."""
        result = super().run_node(n)
        constraint = getattr(getattr(n.target, "_schema", None), "dtype_constraint", None)
        if constraint is not None:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            row = dtypes.row(overload(n)._schema, args, kwargs, result)
            if not constraint.takes(row):
                values = (
                    dict(zip((argument.name for argument in overload(n)._schema.arguments), args)) | kwargs
                )
                results = result if isinstance(result, (tuple, list)) else [result]
                values |= {f"__ret_{i}": each for i, each in enumerate(results)}
                argument_dtypes = {
                    name: value.dtype for name, value in values.items() if isinstance(value, torch.Tensor)
                }
                self.violating_ops[n.target] = argument_dtypes, n
        return result


# ---- exir.tensor, exir.scalar_type ----


scalar_type_enum = scalar_type


def get_scalar_type(enum: pte.ScalarType) -> torch.dtype:
    """Returns the dtype of a file's scalar type.

    Raises:
        KeyError: if torch has no such dtype.
    """
    return {scalar_type(dtype): dtype for dtype in dtypes.DTYPES.values()}[enum]


def num_bytes_from_shape_and_dtype(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Returns the bytes of a dense tensor."""
    return math.prod(shape) * dtype.itemsize


def make_allocation_info(mem_id: int, mem_offset: int) -> pte.AllocationDetails:
    """Returns the record of a tensor's memory id and offset.

    Raises:
        ValueError: if a value is negative.
    """
    if mem_id < 0 or mem_offset < 0:
        raise ValueError(f"memory {mem_id} and offset {mem_offset}: both must be 0 or greater")
    return pte.AllocationDetails(mem_id, mem_offset & 0xFFFFFFFF, mem_offset >> 32)


def make_tensor_value(
    data_buffer_idx: int, allocation_info: pte.AllocationDetails | None, spec: TensorSpec
) -> pte.Tensor:
    """Returns the record of a tensor in a file."""
    return pte.Tensor(
        scalar_type=scalar_type(spec.dtype),
        sizes=list(spec.shape),
        dim_order=list(spec.dim_order),
        requires_grad=spec.requires_grad,
        data_buffer_idx=data_buffer_idx,
        allocation_info=allocation_info,
        shape_dynamism=pte.TensorShapeDynamism(int(spec.shape_dynamism)),
    )


# ---- exir.graph_module, exir.lowered_backend_module ----


def contains_any_call_fn_target_op(graph_module: GraphModule, target_ops: Iterable[Any]) -> bool:
    """Whether a graph or one of its branches calls one of the operators, in any dialect."""
    targets = set(target_ops)
    for module in graph_module.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            if node.op == "call_function" and {node.target, getattr(node.target, "_op", None)} & targets:
                return True
    return False


def create_submodule_from_nodes(
    gm: GraphModule, node_list: Sequence[Node], tag: str, skip_legalize_graph: bool = False
) -> tuple[GraphModule, Node]:
    """Moves nodes into a separate module, which the graph calls. Returns the module and the call."""
    selected = set(node_list)
    nodes = [node for node in gm.graph.nodes if node in selected]
    name = f"fused_{tag}"
    module, inputs, outputs = fuse_as_graphmodule(gm, nodes, name)
    end = module.graph.output_node()
    end.args = (list(end.args[0]) if isinstance(end.args[0], tuple) else [end.args[0]],)
    module.recompile()
    gm.add_submodule(name, module)
    with gm.graph.inserting_after(nodes[-1]):
        call = gm.graph.call_module(name, tuple(inputs))
    call.meta["val"] = [node.meta.get("val") for node in outputs]
    with gm.graph.inserting_after(call):
        for place, node in reversed(list(enumerate(outputs))):
            item = gm.graph.call_function(operator.getitem, (call, place))
            item.meta["val"] = node.meta.get("val")
            node.replace_all_uses_with(item)
    for node in reversed(nodes):
        gm.graph.erase_node(node)
    if not skip_legalize_graph:
        legalize_graph(gm)
    gm.recompile()
    return module, call


# ---- exir.operator.convert ----


def is_out_variant(qualified_opname: str, overload: str) -> bool:
    """Whether an operator, such as ``aten::topk``, writes to out arguments."""
    return ops.is_out_variant(_overload(qualified_opname, overload))


def is_inplace_variant(qualified_opname: str, overload: str) -> bool:
    """Whether an operator modifies its first argument."""
    return ops.writes(_overload(qualified_opname, overload)._schema.arguments[0])


def _overload(name: str, overload: str) -> Any:
    space, _, name = name.partition("::")
    return getattr(getattr(getattr(torch.ops, space), name), overload or "default")


def to_out_variant(op_overload: OpOverload) -> tuple[Any, tuple[str, ...]]:
    """Returns the out overload of an operator, and the names of its out arguments.

    Raises:
        MissingOutVariantError: if there is no such overload.
    """
    out_variant = ops.out_variant(op_overload)
    if out_variant is None:
        raise ops.missing_out_variants([(op_overload, "to_out_variant()")])
    return out_variant, tuple(
        argument.name for argument in out_variant._schema.arguments if ops.writes(argument)
    )


# ---- exir.memory_planning ----


def filter_nodes(inputs: Iterable[Any]) -> Iterable[Node]:
    """Yields the nodes among arguments."""
    return [item for item in inputs if isinstance(item, Node)]


def get_node_tensor_specs(node: Node) -> list[TensorSpec]:
    """Returns the specs of all tensors that a node yields."""
    spec = node.meta.get("spec")
    return [
        one for one in (spec if isinstance(spec, (tuple, list)) else [spec]) if isinstance(one, TensorSpec)
    ]


def collect_specs_from_nodes(
    nodes: Iterable[Node],
    graph_signature: ExportGraphSignature | None = None,
    ignore_graph_input: bool = False,
    ignore_graph_output: bool = False,
    ignore_mutable_buffers: bool = False,
    ignore_const: bool = True,
    ignore_out_var_node: bool = True,
    dedup: bool = True,
    do_assertion: bool = True,
    ignore_dynamic_unbound_tensor: bool = True,
) -> Iterator[TensorSpec]:
    """Yields the specs of nodes that need memory, without duplicates unless `dedup` is false.

    `ignore_out_var_node` and `do_assertion` are ignored: the node of an out variant has the spec of its result.
    """
    del ignore_out_var_node, do_assertion
    nodes = list(nodes)
    names = graph_signature.inputs_to_buffers if graph_signature else {}
    changing = set(graph_signature.buffers_to_mutate.values()) if graph_signature else set()
    left: set[TensorSpec] = set()
    for node in nodes:
        state = names.get(str(node.target)) in changing if node.op == "placeholder" else False
        skipped = (
            (node.op == "placeholder" and (ignore_mutable_buffers if state else ignore_graph_input)),
            (node.op == "output" and ignore_graph_output),
        )
        for source in (node, *node.all_input_nodes) if node.op == "output" else (node,):
            left.update(get_node_tensor_specs(source) if any(skipped) else ())
    for node in nodes:
        for spec in get_node_tensor_specs(node) if node.op != "get_attr" else ():
            unbound = ignore_dynamic_unbound_tensor and spec.is_dynamic_unbound_tensor
            if spec in left or (ignore_const and spec.const) or unbound or spec.base is not None:
                continue
            if dedup:
                left.add(spec)
            yield spec


@dataclass
class AllocationSpec:
    """A tensor in a slot, and its offset in the slot in bytes."""

    offset: int
    spec: TensorSpec


@dataclass
class SharedObject:
    """A slot that tensors use in sequence or next to each other, with the lifetime from its first to its last use."""

    idx: int
    offset: int
    size: int
    first_used_index: int
    last_used_index: int
    allocations: list[AllocationSpec] = field(default_factory=list)


def pick_shared_obj(
    shared_objects: list[SharedObject], spec: TensorSpec, allow_overlapping_allocations: bool = True
) -> SharedObject:
    """Selects the slot for a tensor, for custom planning algorithms, and adds the tensor to it.

    The slot is the smallest one without a tensor of an overlapping lifetime. If overlapping allocations are allowed, a
    slot with room after its live tensors is also suitable. If no slot is suitable, a new slot is appended to
    `shared_objects`.
    """
    size = spec.allocated_memory
    first, last = interval(spec)[:2]

    def end(slot: SharedObject) -> int:
        living = [a for a in slot.allocations if interval(a.spec)[0] <= last and first <= interval(a.spec)[1]]
        return max((a.offset + a.spec.allocated_memory for a in living), default=0)

    ends = [(slot, end(slot)) for slot in shared_objects]
    free = [(slot, 0) for slot, used in ends if not used]
    if not free and allow_overlapping_allocations:
        free = [(slot, used) for slot, used in ends if used + size <= slot.size]
    if free:
        slot, offset = min(free, key=lambda one: (max(one[0].size, size), one[0].idx))
    else:
        slot, offset = SharedObject(len(shared_objects), 0, size, first, last), 0
        shared_objects.append(slot)
    slot.size = max(slot.size, offset + size)
    slot.first_used_index, slot.last_used_index = (
        min(slot.first_used_index, first),
        max(slot.last_used_index, last),
    )
    slot.allocations.append(AllocationSpec(offset, spec))
    return slot


def _calls(graph_module: GraphModule, kind: str) -> list[Node]:
    nodes = graph_module.graph.nodes
    return [node for node in nodes if node.op == "call_function" and control_flow.name(node.target) == kind]


def get_cond_nodes(graph_module: GraphModule) -> list[Node]:
    """Returns the calls of `torch.cond`."""
    return _calls(graph_module, "cond")


def get_while_nodes(graph_module: GraphModule) -> list[Node]:
    """Returns the calls of `while_loop`."""
    return _calls(graph_module, "while_loop")


def get_map_nodes(graph_module: GraphModule) -> list[Node]:
    """Returns the calls of `map`."""
    return _calls(graph_module, "map_impl")


def get_scan_nodes(graph_module: GraphModule) -> list[Node]:
    """Returns the calls of `scan`."""
    return _calls(graph_module, "scan")


# ---- devtools.bundled_program.config ----

ConfigValue: TypeAlias = torch.Tensor | int | bool | float | complex
MethodInputType = Sequence[ConfigValue]
MethodOutputType = Sequence[torch.Tensor]
DataContainer: TypeAlias = list[Any] | tuple[Any, ...] | dict[str, Any]

# ---- exir.passes ----

_DATA_FILE = "_default_external_constant"


def external_constants_pass(
    gm: GraphModule, gen_tag_fn: Callable[[Node], str | None] | None = None
) -> PassResult:
    """Marks constants with specs for the data file that `gen_tag_fn` names; `to_executorch` writes them there.

    `ExecutorchBackendConfig(external_constants=gen_tag_fn)` does it in one step.
    """
    return _mark(gm, gen_tag_fn or (lambda node: _DATA_FILE))


def external_mutable_weights_pass(gm: GraphModule, ep: ExportedProgram) -> PassResult:
    """Marks parameters with a gradient for a data file."""
    signature, kind = ep.graph_signature, OutputKind.GRADIENT_TO_PARAMETER
    trained = {spec.target for spec in signature.output_specs if spec.kind is kind}
    names = {name for name, target in signature.inputs_to_parameters.items() if target in trained}
    return _mark(gm, lambda node: _DATA_FILE if node.target in names else None)


def _mark(gm: GraphModule, tag: Callable[[Node], str | None]) -> PassResult:
    modified = False
    for node in gm.graph.find_nodes(op="placeholder"):
        spec = node.meta.get("spec")
        if "_lifted_tensor" in node.name or not isinstance(spec, TensorSpec) or not spec.const:
            continue
        node_tag = tag(node)
        if node_tag is not None:
            node.meta["constant_tag"], modified = node_tag, True
    return PassResult(gm, modified)


def delegate_external_constants_pass_unlifted(
    module: torch.nn.Module, gen_tag_fn: Callable[[Node], str | None] | None = None
) -> PassResult:
    """Marks the weights of a captured module (`ep.module()`) for the data files that `gen_tag_fn` names.

    Backends write the weights there after the module is captured again with ``strict=True``.
    """
    modified = False
    for part in module.modules() if gen_tag_fn else ():
        for node in part.graph.find_nodes(op="get_attr") if isinstance(part, GraphModule) else ():
            node.meta.setdefault("custom", {})["delegate_constant_tag"] = gen_tag_fn(node)  # type: ignore[misc]
            modified = True
    return PassResult(module, modified)


def remove_unused_parameters_pass(ep: ExportedProgram) -> ExportedProgram:
    """Erases unused parameters and their storage. Modifies and returns the program."""
    drop_unused_constants(ep, {InputKind.PARAMETER})
    recompile(ep.graph_module)
    return ep


class PruneEmptyTensorsPass(PassBase):
    """Removes tensors without elements from concatenations."""

    def remove_empty_tensors_from_cat(self, graph_module: GraphModule, cat_node: Node) -> None:
        """Removes them from one `cat`; keeps one if all are empty. Subclasses may override this method."""
        non_empty = [part for part in nodes_arg(cat_node) if 0 not in part.meta["val"].shape]
        cat_node.args = (non_empty or nodes_arg(cat_node)[:1], *cat_node.args[1:])

    def call(self, graph_module: GraphModule) -> PassResult:
        """Transforms the graph."""
        for node in list(graph_module.graph.nodes):
            if node.target == torch.ops.aten.cat.default:
                self.remove_empty_tensors_from_cat(graph_module, node)
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()
        return PassResult(graph_module, True)


class FoldRedundantDequantizeQuantizePass(PassBase):
    """Removes a dequantize that is followed by a quantize with the same parameters."""

    def call(self, graph_module: GraphModule) -> PassResult:
        """Transforms the graph."""
        from torchette.compat.transforms import RemoveCloneOpsTransform

        fold = RemoveCloneOpsTransform()
        fold.targets = fold.targets[2:]
        return fold.call(graph_module)


# ---- exir.memory: calls of these functions in a graph represent memory ----


def alloc(spec: tuple[Sequence[int], torch.dtype] | list[tuple[Sequence[int], torch.dtype]]) -> Any:
    """Returns an uninitialized tensor of a (shape, dtype), or a list of tensors for a list of pairs."""
    return (
        [alloc(one) for one in spec] if isinstance(spec, list) else torch.empty(tuple(spec[0]), dtype=spec[1])
    )


def free(spec: TensorSpec) -> None:
    """Does nothing. A call marks the end of a tensor's lifetime."""


def view(base: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Returns `base` with another shape, in the same memory."""
    return base.view(size)


# ---- exir.program._program, exir.passes.replace_aten_with_edge_pass ----


def edge_to_executorch_passes(
    config: ExecutorchBackendConfig,
    name: str | None = None,
    edge_compile_config: EdgeCompileConfig | None = None,
) -> list[Callable[[ExportedProgram], ExportedProgram]]:
    """Returns the passes of the pipeline between Edge and memory planning, for a configuration and a method.

    The passes accept and return ExportedPrograms.
    """
    stages = pipeline.build(edge_compile_config, config, method=name or "forward").stages
    passes = [one for stage in stages if stage.name in pipeline.TO_PLAN[:-1] for one in stage.passes]
    return [to_torch_operators, *passes]


# Operators that Edge programs call by torch's names.
DISALLOW_LIST = [
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten.scalar_tensor.default,
]


def should_lower_to_edge(op: object) -> bool:
    """Whether `OpReplacePass` replaces calls of an operator: those of torch's overloads that are not in
    DISALLOW_LIST.
    """
    return isinstance(op, OpOverload) and op not in DISALLOW_LIST


class OpReplacePass(ExportPass):
    """Replaces calls of torch's operators by calls of Edge operators."""

    def call_operator(
        self, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata
    ) -> ProxyValue:
        """Replaces the operator of one call."""
        return super().call_operator(
            edge_operator(op) if should_lower_to_edge(op) else op, args, kwargs, meta
        )


# ---- quantized graphs ----


class DuplicateDequantNodePass(PassBase):
    """Duplicates dequantize calls, so that each user of a dequantized value reads a separate call.

    A backend can then match dequantize, operator and quantize as one pattern.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        """Transforms the graph."""
        graph = graph_module.graph
        dequant_nodes = [node for node in graph.nodes if "dequantize_per_tensor." in str(node.target)]
        shared = [(node, user) for node in dequant_nodes for user in list(node.users)[1:]]
        for node, user in shared:
            with graph.inserting_before(user):
                copied = graph.node_copy(node)
            user.replace_input_with(node, copied)
        graph_module.recompile()
        return PassResult(graph_module, bool(shared))


def replace_quantized_partition_with_op(
    graph_module: GraphModule, partition: SourcePartition, replacement_op: Callable[..., Any]
) -> tuple[Node, list[Node], list[Node]]:
    """Replaces a partition, with the dequantize calls before it and the quantize calls after it, by one operator.

    The operator's arguments are the inputs of the replaced nodes, in the order of their use.

    Returns:
        The new call, and the replaced dequantize and quantize nodes.

    Raises:
        ValueError: if no dequantize call feeds the partition, or no quantize call reads it.
    """
    inside = set(partition.nodes)
    order = {node: place for place, node in enumerate(graph_module.graph.nodes)}
    nodes = sorted(inside, key=order.__getitem__)
    inputs = dict.fromkeys(one for node in nodes for one in node.all_input_nodes if one not in inside)
    users = dict.fromkeys(one for node in nodes for one in node.users if one not in inside)
    # A quantize call, possibly after an activation.
    behind = dict.fromkeys(user for one in users for user in (one, *one.users))
    before = [one for one in inputs if "dequantize_per_tensor." in str(one.target)]
    after = [one for one in behind if ".quantize_per_tensor." in f".{one.target}"]
    between = [one for one in users if one not in after and set(one.users) & set(after)]
    if not before or not after:
        missing = "no quantize call reads it" if before else "no dequantize call feeds it"
        raise ValueError(f"the partition of {nodes[0].name} cannot become a quantized operator: {missing}")
    replaced = sorted({*before, *nodes, *between, *after}, key=order.__getitem__)
    arguments = dict.fromkeys(
        one for node in replaced for one in node.all_input_nodes if one not in set(replaced)
    )
    graph = graph_module.graph
    with graph.inserting_before(replaced[-1]):
        new = graph.call_function(replacement_op, tuple(arguments))
    new.meta = dict(replaced[-1].meta)
    for node in after:
        node.replace_all_uses_with(new)
    for node in reversed(replaced):
        if not node.users:
            graph.erase_node(node)
    graph_module.recompile()
    return new, before, after
