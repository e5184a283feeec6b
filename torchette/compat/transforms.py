# SPDX-License-Identifier: BSD-3-Clause
"""Passes and constants for custom backends, with the names of executorch.backends.transforms."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from torchette.errors import PassError
from torchette.exir import ops
from torchette.exir.arguments import checked, node_arg
from torchette.exir.dialects._ops import ops as exir_ops
from torchette.exir.dialects._ops import to_edge_operators, to_torch_operators
from torchette.exir.graph import fake, placeholders, recompile, replace_constant, tensor_of
from torchette.exir.pass_base import ExportPass, NodeMetadata, ProxyValue
from torchette.exir.passes.fold_batch_norm import fold_batch_norm
from torchette.exir.passes.fuse_linear import transpose_source
from torchette.exir.tensor import get_memory_format

aten, edge = torch.ops.aten, exir_ops.edge.aten

# ---- constants ----


def get_shape(input_node: Node) -> list[Any]:
    """Returns the sizes of a node's result."""
    value = input_node.meta.get("val")
    return list((getattr(_owner(input_node), str(input_node.target)) if value is None else value).shape)


def _owner(node: Node) -> Any:
    return node.graph.owning_module


def is_get_attr_node(node: Node) -> bool:
    """Whether a node is a get_attr node."""
    return node.op == "get_attr"


def is_param_node(exp_prog: ExportedProgram, node: Node) -> bool:
    """Whether a node represents a stored tensor: a parameter, a buffer, a constant or an attribute."""
    return node.op == "get_attr" or _spec(exp_prog, node) is not None


def get_param_tensor(exp_prog: ExportedProgram, node: Node | None) -> torch.Tensor | None:
    """Returns the stored tensor of a node, or None."""
    if node is not None and node.op == "get_attr":
        result: torch.Tensor | None = getattr(_owner(node), str(node.target))
        return result
    spec = None if node is None else _spec(exp_prog, node)
    return None if spec is None else tensor_of(exp_prog, spec)


def set_param_tensor(exp_prog: ExportedProgram, node: Node, tensor: torch.Tensor) -> None:
    """Replaces the stored tensor of a node.

    Raises:
        RuntimeError: if the node does not represent a stored tensor.
    """
    if node.op == "get_attr":
        setattr(_owner(node), str(node.target), tensor)
    elif _spec(exp_prog, node) is None:
        raise RuntimeError(f"{node} does not represent a stored tensor")
    else:
        replace_constant(exp_prog, node, tensor)


def _spec(program: ExportedProgram, node: Node) -> InputSpec | None:
    stored = (spec for spec in program.graph_signature.input_specs if spec.target is not None)
    return next((spec for spec in stored if getattr(spec.arg, "name", None) == node.name), None)


def _legal(name: str) -> str:
    """Converts a name to an identifier of torch.fx."""
    name = re.sub("[^0-9a-zA-Z_]+", "_", name)
    return f"_{name}" if name[0].isdigit() else name


def _new_input(program: ExportedProgram, graph: Graph, name: str, data: torch.Tensor) -> Node:
    used_names = {node.name for node in graph.nodes}
    while name in used_names:
        name += "_1"
    node = graph.create_node("placeholder", name, name=name)
    node.target = node.name
    node.meta["val"] = fake(program, data)
    return node


def _store(
    program: ExportedProgram, node: Node, kind: InputKind, target: str, persistent: bool | None
) -> None:
    place = [each for each in node.graph.nodes if each.op == "placeholder"].index(node)
    spec = InputSpec(kind, TensorArgument(node.name), target, persistent)
    program.graph_signature.input_specs.insert(place, spec)


def create_constant_placeholder(
    exp_program: ExportedProgram,
    graph: Graph,
    name: str,
    kind: InputKind,
    data: torch.Tensor,
    persistent_buffer: bool | None = None,
) -> Node:
    """Returns the input of a stored tensor, and creates it before the graph's insertion point if it does not exist.

    Raises:
        RuntimeError: if `persistent_buffer` is missing, the kind has no stored tensor, or the name is used.
    """
    name = _legal(name)
    known = next((node for node in graph.nodes if node.op == "placeholder" and node.name == name), None)
    if known is not None:
        if name in exp_program.graph_signature.buffers_to_mutate:
            raise RuntimeError(f"{name!r} already exists as a mutable buffer")
        if _spec(exp_program, known) is not None:
            result: Node = known
            return result
    if kind is InputKind.BUFFER and persistent_buffer is None:
        raise RuntimeError(f"persistent_buffer is required for the buffer {name!r}")
    if kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
        raise RuntimeError(f"{kind} has no stored tensor")
    node = _new_input(exp_program, graph, name, data)
    if kind is InputKind.PARAMETER:
        data = torch.nn.Parameter(data, requires_grad=False)
    in_state = kind is InputKind.PARAMETER or bool(persistent_buffer)
    (exp_program.state_dict if in_state else exp_program.constants)[node.name] = data
    _store(exp_program, node, kind, node.name, persistent_buffer)
    return node


def duplicate_constant_node(exported_program: ExportedProgram, candidate_node: str) -> set[str]:
    """Copies a stored tensor, so that each user except the first reads a separate copy through a separate input.

    Args:
        exported_program: the program, modified in place.
        candidate_node: the name of the input.

    Returns:
        The names of the new inputs.

    Raises:
        ValueError: if no input of a stored tensor has this name.
    """
    inputs = placeholders(exported_program)
    node = next((one for one in inputs if one.name == candidate_node), None)
    spec = None if node is None else _spec(exported_program, node)
    tensor = None if node is None else get_param_tensor(exported_program, node)
    if node is None or spec is None or tensor is None:
        raise ValueError(f"{candidate_node!r} is not an input of a stored tensor")
    names = set()
    for number, user in enumerate(list(node.users)[1:]):
        with node.graph.inserting_before(node):
            copied = create_constant_placeholder(
                exported_program, node.graph, f"{candidate_node}_copy_{number}", spec.kind, tensor.clone(), spec.persistent
            )  # fmt: skip
        copied.meta = dict(node.meta)
        user.replace_input_with(node, copied)
        names.add(copied.name)
    exported_program.graph_module.recompile()
    return names


def delete_constant_placeholder(exp_program: ExportedProgram, node: Node) -> None:
    """Erases the input of a stored tensor, and the tensor.

    Raises:
        RuntimeError: if the input has users, or if it has no stored tensor.
    """
    spec = _spec(exp_program, node)
    if node.users or spec is None:
        raise RuntimeError(f"{node} {'has users' if node.users else 'does not represent a stored tensor'}")
    exp_program.graph_signature.input_specs.remove(spec)
    for store in (exp_program.state_dict, exp_program.constants):
        store.pop(spec.target, None)
    node.graph.erase_node(node)


def create_mutable_buffer(exp_program: ExportedProgram, name: str, data: torch.Tensor) -> Node:
    """Creates a mutable buffer and its input. The name of the buffer has no prefix ``b_``.

    Raises:
        RuntimeError: if the buffer exists.
    """
    graph, signature, name = exp_program.graph, exp_program.graph_signature, _legal(name)
    target = name.removeprefix("b_")
    if any(node.name == name and _spec(exp_program, node) for node in graph.find_nodes(op="placeholder")):
        where = "state_dict" if target in exp_program.state_dict else "the graph"
        raise RuntimeError(f"{name!r} already exists in {where}")
    inputs = placeholders(exp_program)
    pairs = zip(inputs, signature.input_specs)
    after = next((node for node, spec in pairs if spec.kind is not InputKind.PARAMETER), None)
    with graph.inserting_before(after or next(iter(graph.nodes))):
        node = _new_input(exp_program, graph, name, data)
    target = node.name.removeprefix("b_")
    exp_program.state_dict[target] = data
    _store(exp_program, node, InputKind.BUFFER, target, True)
    kinds = [spec.kind for spec in signature.output_specs]
    place = kinds.count(OutputKind.BUFFER_MUTATION)
    update = OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(node.name), target)
    signature.output_specs.insert(place, update)
    output = graph.output_node()
    results = list(output.args[0])
    output.args = ((*results[:place], node, *results[place:]),)
    return node


# ---- passes ----


class _Rewrite(PassBase):
    """The base of rewrites.

    `rewrite(node)` inserts the replacement of a call before it, or returns None to keep the call.
    """

    targets: Sequence[Any] = ()

    def rewrite(self, node: Node) -> Node | None:
        raise NotImplementedError

    def call(self, graph_module: GraphModule) -> PassResult:
        """Transforms the graph."""
        graph, modified = graph_module.graph, False
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target not in self.targets:
                continue
            with graph.inserting_before(node):
                new = self.rewrite(node)
            if new is None:
                continue
            if new is not node:
                new.meta = {**node.meta, **new.meta} if new.op == "call_function" else new.meta
                node.replace_all_uses_with(new)
                graph.erase_node(node)
            modified = True
        if modified:
            graph.eliminate_dead_code()
            graph_module.recompile()
        return PassResult(graph_module, modified)


class FuseViewCopyTransform(_Rewrite):
    """Merges consecutive views, and removes views that do not change the shape."""

    targets = (aten.view_copy.default,)

    def rewrite(self, node: Node) -> Node | None:  # noqa: D102
        source: Any = node.args[0]
        before = source
        while source.op == "call_function" and source.target in self.targets:
            source = source.args[0]
        if source.meta.get("val") is not None and get_shape(source) == get_shape(node):
            result: Node | None = source
            return result
        if source is before:
            return None
        node.update_arg(0, source)
        return node


class ReplaceSqueezeAndUnsqueezeWithViewPass(_Rewrite):
    """Replaces squeezes and unsqueezes with static sizes by views."""

    targets = (
        aten.squeeze_copy.default, aten.squeeze_copy.dim, aten.squeeze_copy.dims, aten.unsqueeze_copy.default,
    )  # fmt: skip

    def rewrite(self, node: Node) -> Node | None:  # noqa: D102
        shape = get_shape(node)
        if not all(isinstance(size, int) for size in shape):
            return None
        return node.graph.call_function(edge.view_copy.default, (node.args[0], shape))


class ViewCopyToSqueezeUnsqueezePass(_Rewrite):
    """Replaces a view that removes dimensions of size 1, or adds one, by a squeeze or an unsqueeze."""

    targets = FuseViewCopyTransform.targets

    def rewrite(self, node: Node) -> Node | None:  # noqa: D102
        source: Any = node.args[0]
        before, after = get_shape(source), get_shape(node)
        graph = node.graph
        if len(after) == len(before) + 1:
            for dim in range(len(after)):
                if after[dim] == 1 and after[:dim] + after[dim + 1 :] == before:
                    return graph.call_function(edge.unsqueeze_copy.default, (source, dim))
        dims = [dim for dim, size in enumerate(before) if size == 1]
        while len(before) - len(dims) < len(after) and dims:
            dims.pop()
        if dims and [size for dim, size in enumerate(before) if dim not in dims] == after:
            return graph.call_function(edge.squeeze_copy.dims, (source, dims))
        return None


class RemoveCloneOpsTransform(_Rewrite):
    """Removes copies that keep the dim order, and dequantize-quantize pairs with equal parameters.

    Args:
        preserve_input_output_copies: whether to keep a copy from an input to an output.
        eliminate_quant_dequant_pairs: whether to remove dequantize-quantize pairs.
    """

    def __init__(
        self, preserve_input_output_copies: bool = False, eliminate_quant_dequant_pairs: bool = True
    ) -> None:
        super().__init__()
        self._keep = preserve_input_output_copies
        quantize = tuple(_twins()) if eliminate_quant_dequant_pairs else ()
        self.targets = (aten.clone.default, ops.clone_dim_order, *quantize)

    def rewrite(self, node: Node) -> Node | None:  # noqa: D102
        source: Any = node.args[0]
        if node.target not in (aten.clone.default, ops.clone_dim_order):  # quantizes
            twin = source.op == "call_function" and source.target == _twins()[node.target]
            return source.args[0] if twin and source.args[1:] == node.args[1:] else None
        if self._is_non_identity_clone(node):
            return None
        ends = source.op == "placeholder" and any(user.op == "output" for user in node.users)
        return None if ends and self._keep else source

    def _is_non_identity_clone(self, node: Node) -> bool:
        """Whether a copy changes the dim order. Subclasses may override this method."""
        old, new = node_arg(node).meta.get("val"), node.meta.get("val")
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            return False
        return bool(old.dim_order() != new.dim_order())


def _twins() -> dict[Any, Any]:
    """Returns quantize operator -> the matching dequantize operator."""
    import torch.ao.quantization.fx._decomposed

    spaces = torch.ops.quantized_decomposed
    return {
        getattr(spaces, f"quantize_{kind}").default: getattr(spaces, f"dequantize_{kind}").default
        for kind in ("per_tensor", "per_channel")
    }


class RemoveGetItemPass(_Rewrite):
    """Replaces a max pool, or `max` over a dimension, by an operator that returns only the result that is read."""

    targets = (aten.max_pool2d_with_indices.default, aten.max.dim)

    def rewrite(self, node: Node) -> Node | None:  # noqa: D102
        if len(node.users) != 1:
            if node.target == aten.max.dim:
                return None
            raise AssertionError(f"{node} has {len(node.users)} users; expected one that reads its maxima")
        (item,) = node.users
        if item.target is not operator.getitem:
            raise AssertionError(f"{node} is read by {item}, which is not a getitem")
        first = item.args[1] == 0
        if node.target == aten.max.dim:
            new = node.graph.call_function(
                (edge.amax if first else edge.argmax).default, node.args, node.kwargs
            )
        elif first:
            new = node.graph.call_function(edge.max_pool2d.default, node.args, node.kwargs)
        else:
            raise AssertionError(f"{node}: its indices are read, but not its maxima")
        new.meta = dict(item.meta)
        item.replace_all_uses_with(new)
        node.graph.erase_node(item)
        return new


class AddmmToLinearTransform(_Rewrite):
    """Replaces matrix multiplications with a transposed matrix by linear layers."""

    targets = (aten.mm.default, aten.addmm.default)

    def rewrite(self, node: Node) -> Node | None:  # noqa: D102
        bias, (x, transposed) = (None, node.args) if len(node.args) == 2 else (node.args[0], node.args[1:])
        weight = transpose_source(transposed)
        if weight is None or node.kwargs:
            return None
        if isinstance(bias, Node) and get_shape(bias) != get_shape(weight)[:1]:
            return None
        args = (x, weight) if bias is None else (x, weight, bias)
        return node.graph.call_function(edge.linear.default, args)


def apply_addmm_mm_to_linear_transform(graph: Graph) -> Graph:
    """Applies `AddmmToLinearTransform` to a graph."""
    AddmmToLinearTransform().call(checked(graph.owning_module, GraphModule))
    return graph


class DimOrderOpsRevertPass(_Rewrite):
    """Replaces ExecuTorch's dim-order copies by torch's copies with a memory format."""

    targets = (ops.to_dim_order_copy, ops.clone_dim_order)

    def rewrite(self, node: Node) -> Node | None:  # noqa: D102
        kwargs = dict(node.kwargs)
        kwargs["memory_format"] = get_memory_format(kwargs.pop("dim_order", None))  # type: ignore[arg-type]
        target = edge._to_copy if node.target == ops.to_dim_order_copy else edge.clone
        if target is edge.clone:
            kwargs.pop("non_blocking", None)
        return node.graph.call_function(target.default, node.args, kwargs)


class MeanToSumDiv(ExportPass):
    """Replaces a mean by a sum and a division."""

    def call_operator(
        self, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata
    ) -> ProxyValue:
        """Replaces `mean.dim`."""
        if op != aten.mean.dim:
            return super().call_operator(op, args, kwargs, meta)
        shape = args[0].to_tensor().shape
        count = 1
        for dim in args[1] or range(len(shape)):
            count *= shape[dim]
        total = super().call_operator(edge.sum.dim_IntList, args, kwargs, meta)
        return super().call_operator(edge.div.Tensor, (total, count), {}, meta)


class Rank0ToRank1Pass(ExportPass):
    """Reshapes inputs without dimensions to the shape [1, 1]."""

    def placeholder(self, name: str, arg: object, meta: NodeMetadata) -> ProxyValue:
        """Converts an input of the graph."""
        if isinstance(arg, torch.Tensor) and arg.dim() == 0:
            meta["val"] = arg = arg.reshape(1, 1)
        return super().placeholder(name, arg, meta)


class DecomposeScaledDotProductAttention(ExportPass):
    """Decomposes attention into matrix multiplications, a mask and a softmax. `allow_non_fake_inputs` is ignored."""

    def __init__(self, allow_non_fake_inputs: bool = True) -> None:
        super().__init__()
        del allow_non_fake_inputs

    def call(self, graph_module: GraphModule) -> PassResult:
        """Transforms the graph."""
        result = super().call(graph_module)
        if result.modified:
            graph_module.graph = result.graph_module.graph
        return PassResult(graph_module, result.modified)

    def call_operator(
        self, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata
    ) -> ProxyValue:
        """Decomposes `scaled_dot_product_attention` according to torch's definition."""
        if op != aten.scaled_dot_product_attention.default:
            return super().call_operator(op, args, kwargs, meta)

        def call(op: Callable[..., Any], *args: object) -> ProxyValue:
            return ExportPass.call_operator(self, op, args, {}, meta)

        names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        options: dict[str, Any] = dict(zip(names, (None, 0.0, False, None, False)))
        options |= dict(zip(names, args[3:])) | kwargs
        query, key, value = args[:3]
        if options["dropout_p"]:
            raise PassError(
                "attention with dropout is not supported outside of training",
                hints=["export the model in eval() mode"],
            )
        if options["enable_gqa"]:
            heads = query.to_tensor().shape[-3] // key.to_tensor().shape[-3]
            key, value = (call(aten.repeat_interleave.self_int, each, heads, -3) for each in (key, value))
        scale = query.to_tensor().shape[-1] ** -0.5 if options["scale"] is None else options["scale"]
        scores = call(aten.matmul.default, query, call(aten.transpose.int, key, -2, -1))
        scores = call(aten.mul.Scalar, scores, scale)
        mask = options["attn_mask"]
        if options["is_causal"]:
            ones = call(aten.tril.default, call(aten.ones_like.default, scores))
            mask = call(aten.to.dtype, ones, torch.bool)
        if mask is not None and mask.to_tensor().dtype is torch.bool:
            scores = call(
                aten.masked_fill.Scalar, scores, call(aten.logical_not.default, mask), float("-inf")
            )
        elif mask is not None:
            scores = call(aten.add.Tensor, scores, mask)
        return call(aten.matmul.default, call(aten.softmax.int, scores, -1), value)


class FuseBatchNormWithConvPass(PassBase):
    """Folds batch norms in eval mode into the preceding layer.

    Args:
        exported_program: the program with the graph that the pass transforms.
    """

    def __init__(self, exported_program: ExportedProgram) -> None:
        super().__init__()
        self.exported_program = exported_program

    def call(self, graph_module: GraphModule) -> PassResult:
        """Transforms the program."""
        before = len(graph_module.graph.nodes)
        to_edge_operators(fold_batch_norm(to_torch_operators(self.exported_program)))
        recompile(graph_module)
        return PassResult(graph_module, len(graph_module.graph.nodes) != before)
