# SPDX-License-Identifier: BSD-3-Clause
# In: a program in the Edge dialect. Out: the program, with a tag on each node that XNNPACK can run and a reason on each other
# node.
"""Selects the nodes that the XNNPACK backend runs."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.xnnpack.attention import decompose_attention
from torchette.backends.xnnpack.configs import ConfigPrecisionType, XNNPartitionerConfig, by_operator
from torchette.backends.xnnpack.operators import why_not
from torchette.backends.xnnpack.payload import FLOATS
from torchette.backends.xnnpack.preprocess import EXTERNAL_TAG, XnnpackBackend
from torchette.backends.xnnpack.quantization import role
from torchette.errors import InputError
from torchette.exir.arguments import checked, list_arg, node_arg, optional_node_arg
from torchette.exir.delegation.delegate import (
    CompileSpec,
    DelegationSpec,
    Partitioner,
    PartitionResult,
    reject,
    rejection_reason,
    tag_constant_data,
)
from torchette.exir.delegation.partition import TAG
from torchette.exir.graph import add_constant, call, calls, constants, copy_program, replace, same_shape
from torchette.exir.ops import functional

_log = logging.getLogger("torchette")


class XnnpackPartitioner(Partitioner):
    """Selects all operators in float32, float16 and int8 that XNNPACK supports.

    These are convolutions, matrix multiplications, activations, pools, softmax, and operators that change shapes. An operator of
    a quantized graph runs on integers if XNNPACK has an integer version of it.
    """

    def __init__(
        self,
        configs: Sequence[type[XNNPartitionerConfig]] | None = None,
        config_precisions: ConfigPrecisionType | Sequence[ConfigPrecisionType] | None = None,
        per_op_mode: bool = False,
        verbose: bool = False,
        external_tag: str | None = None,
        force_non_static_weights_for_f32_linear: bool = False,
        enable_bf16: bool = False,
    ) -> None:
        """
        Args:
            configs: the operators to delegate, by default all that XNNPACK supports.
            config_precisions: the precisions to delegate, by default all.
            per_op_mode: create a separate delegate for each operator, together with the nodes that quantize before and after it.
            verbose: log the reason for each node that is not delegated. `delegation()` reports the reasons in any case.
            external_tag: the name of a data file (.ptd) that stores the weights instead of the program.
            force_non_static_weights_for_f32_linear: pass float32 weights of linear layers to the delegate as inputs. The program
                stores them, so that other operators can read them too. The delegate packs them at each call.
            enable_bf16: not supported; XNNPACK has no linear layers in bfloat16 here.

        Raises:
            InputError: `enable_bf16` is true.
        """
        if enable_bf16:
            raise InputError(
                "enable_bf16: the XNNPACK backend has no linear layers in bfloat16; omit enable_bf16, so that portable kernels "
                "run them, or convert the model with model.half() or model.float()"
            )
        super().__init__()
        self._configs = None if configs is None else by_operator(configs)
        if isinstance(config_precisions, ConfigPrecisionType):
            config_precisions = [config_precisions]
        self._precisions = set(config_precisions or ConfigPrecisionType)
        self._per_op, self._verbose = per_op_mode, verbose
        self._passes_weights = force_non_static_weights_for_f32_linear
        self._specs = [] if external_tag is None else [CompileSpec(EXTERNAL_TAG, external_tag.encode())]

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Returns torchao's quantization operators and those that the given configurations keep, with a filter for nodes."""
        operators = [op for op in {functional(node.target) for node in calls(ep)} if _is_kept_operator(op)]
        configured = [config.get_original_aten() for config in (self._configs or {}).values()]
        return [
            *operators,
            *(op for op in configured if op is not None and op not in operators),
        ], _is_kept_node

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Replaces attention by operators on floating-point values only."""
        return decompose_attention(copy_program(exported_program))

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tags the nodes that XNNPACK can run and the weights that only they read."""
        stored = constants(exported_program)
        dependents: set[Node] = set()  # nodes that depend on a tagged node
        for node in calls(exported_program):
            if any(source in dependents or TAG in source.meta for source in node.all_input_nodes):
                dependents.add(node)
            if node.target is operator.getitem:
                continue
            is_choice = node.target == torch.ops.aten.where.self and self._configs is None
            if is_choice and _replace_where(node, dependents, stored, exported_program):
                continue
            original_args = node.args
            if node.target in _SIZE_OPERATORS and len(node.all_input_nodes) == 2:
                # XNNPACK infers the one dynamic size from the others, so the delegate needs no size as an input.
                sizes = [-1 if isinstance(size, Node) else size for size in list_arg(node, 1)]
                node.args = (original_args[0], sizes)
            reason = rejection_reason(
                lambda: why_not(node, stored) or self._refusal(node, stored, exported_program)  # noqa: B023
            )
            if reason is None:
                node.meta[TAG] = "xnnpack"
            else:
                node.args = original_args
                self._reject(node, reason)
        for node in calls(exported_program):
            if TAG in node.meta and not _is_adjacent_to_operator(node):
                del node.meta[TAG]
                self._reject(node, "it converts between float and int8, but no adjacent node runs on XNNPACK")
        input_weights = self._weights_as_inputs(exported_program, stored) if self._passes_weights else set()
        for node, tensor in stored.items():
            if node in input_weights:
                continue
            inside = [user for user in node.users if TAG in user.meta]
            if inside and len(inside) < len(node.users):
                # Nodes outside the delegate also read it (tied weights), so the delegate stores a copy.
                _copy_constant(exported_program, node, tensor, inside)
        if self._per_op:
            _tag_each_operator(exported_program, constants(exported_program))
        tags = {node.meta[TAG] for node in calls(exported_program) if TAG in node.meta} or {"xnnpack"}
        tag_constant_data(exported_program)
        for node in input_weights:
            node.meta.pop(TAG, None)
        spec = DelegationSpec(XnnpackBackend.__name__, self._specs)
        return PartitionResult(exported_program, dict.fromkeys(sorted(tags), spec))

    def _refusal(
        self, node: Node, stored: Mapping[Node, torch.Tensor], program: ExportedProgram
    ) -> str | None:
        """Returns the reason why the options exclude a node that XNNPACK supports, or None."""
        kind = role(node)
        if kind == "weights" or (kind == "dequantize" and node.args[0] in stored):
            reasons = [self._refusal(user, stored, program) for user in node.users]
            return None if None in reasons else next(iter(reasons), None)
        layer = node
        while (
            role(layer) in ("choose", "quantize rows", "dequantize rows") or layer.target is operator.getitem
        ):
            layer = list(layer.users)[-1]  # the quantized tensor, which reads its scale and zero point
        name = ".".join(str(layer.target).split(".")[-2:])
        # `partition` untags those without an adjacent operator
        conversion = kind in (
            "quantize",
            "dequantize",
        )
        precision = _precision(node, stored)
        if precision not in self._precisions:
            return f"config_precisions does not contain {precision.name}"
        if self._configs is None or conversion:
            return None
        config = self._configs.get(name)
        if config is None:
            return f"configs does not contain {name}"
        if precision not in config.supported_precision_types():
            return f"{type(config).__name__} does not support {precision.name}"
        is_overridden = type(config).check_constraints is not XNNPartitionerConfig.check_constraints
        if kind is None and is_overridden and not config.check_constraints(node, program):
            return f"{type(config).__name__}.check_constraints returned False"
        return None

    def _weights_as_inputs(self, program: ExportedProgram, stored: Mapping[Node, torch.Tensor]) -> set[Node]:
        """Returns the weights and biases that float32 linear layers receive as inputs at each call.

        Other nodes of the delegate that read one of them get a copy.
        """
        layers_of: dict[Node, list[Node]] = {}
        for node in calls(program):
            indices = _LAYERS.get(node.target) if isinstance(node.target, OpOverload) else None
            if TAG not in node.meta or indices is None or node.args[indices[0]] not in stored:
                continue
            tensors = (optional_node_arg(node, index) for index in indices if index < len(node.args))
            parts = [part for part in tensors if part is not None]
            if all(stored[part].dtype is torch.float32 for part in parts):
                for part in parts:
                    layers_of.setdefault(part, []).append(node)
        for weight, layers in layers_of.items():
            others = [user for user in weight.users if TAG in user.meta and user not in layers]
            if others:
                _copy_constant(program, weight, stored[weight], others)
        return set(layers_of)

    def _reject(self, node: Node, reason: str) -> None:
        reject(node, reason)
        if self._verbose:
            _log.info("%s is not delegated to XNNPACK: %s", node, reason)


class XnnpackDynamicallyQuantizedPartitioner(XnnpackPartitioner):
    """Selects only layers with inputs that are quantized at run time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(config_precisions=ConfigPrecisionType.DYNAMIC_QUANT, **options)


class XnnpackFloatingPointPartitioner(XnnpackPartitioner):
    """Selects only operators in floating point."""

    def __init__(self) -> None:
        super().__init__(config_precisions=ConfigPrecisionType.FP32)


class XnnpackQuantizedPartitioner(XnnpackPartitioner):
    """Selects only operators on integers with scales that are constants."""

    def __init__(self) -> None:
        super().__init__(config_precisions=ConfigPrecisionType.STATIC_QUANT)


def _copy_constant(program: ExportedProgram, node: Node, tensor: torch.Tensor, users: Sequence[Node]) -> None:
    """Makes these users of a stored tensor read a copy of it."""
    twin = add_constant(program, f"{node.name}_xnnpack", tensor, node)
    for user in users:
        user.replace_input_with(node, twin)


def _precision(node: Node, stored: Mapping[Node, torch.Tensor]) -> ConfigPrecisionType:
    kind = role(node)
    if kind is not None:
        static = kind in ("quantize", "dequantize")
        return ConfigPrecisionType.STATIC_QUANT if static else ConfigPrecisionType.DYNAMIC_QUANT
    kinds = {role(source) for source in node.all_input_nodes if source.args and source.args[0] not in stored}
    if "dequantize rows" in kinds:
        return ConfigPrecisionType.DYNAMIC_QUANT
    quantized = "dequantize" in kinds or any(role(user) == "quantize" for user in node.users)
    return ConfigPrecisionType.STATIC_QUANT if quantized else ConfigPrecisionType.FP32


def _tag_each_operator(program: ExportedProgram, stored: Mapping[Node, torch.Tensor]) -> None:
    """Assigns a separate tag to each operator in floating point, and to each operator together with its conversions to and from
    integers."""
    parent: dict[Node, Node] = {}

    def root(node: Node) -> Node:
        while parent.get(node, node) is not node:
            parent[node] = node = parent.get(parent[node], parent[node])
        return node

    tagged = [node for node in calls(program) if TAG in node.meta]
    for node in tagged:
        parts = [user for user in node.users if user.target is operator.getitem]  # they have no tag
        for user in {user for part in (node, *parts) for user in part.users}:
            if TAG not in user.meta or role(node) == "quantize":
                continue
            if role(node) is None and role(user) in ("choose", "quantize rows"):
                continue  # the source of a tensor that is quantized at run time computes in floating point
            floats = _precision(node, stored) is _precision(user, stored) is ConfigPrecisionType.FP32
            if not floats:
                parent[root(user)] = root(node)
    for node in tagged:
        node.meta[TAG] = f"xnnpack {root(node).name}"


# Operators that XNNPACK has, or computes in fewer nodes than torch's decomposition.
_KEPT_OPERATORS = {
    torch.ops.aten.hardswish.default, torch.ops.aten.hardsigmoid.default, torch.ops.aten.prelu.default,
    torch.ops.aten.matmul.default, torch.ops.aten.softplus.default, torch.ops.aten.mish.default,
    torch.ops.aten.selu.default, torch.ops.aten.celu.default,
}  # fmt: skip
# Indices of a linear layer's arguments: the weight, then the bias.
_LAYERS = {
    torch.ops.aten.linear.default: (1, 2), torch.ops.aten.addmm.default: (2, 0), torch.ops.aten.mm.default: (1,),
}  # fmt: skip
_SIZE_OPERATORS = {torch.ops.aten.view_copy.default, torch.ops.aten.expand_copy.default}


def _replace_where(
    node: Node, dependents: set[Node], stored: Mapping[Node, torch.Tensor], program: ExportedProgram
) -> bool:
    """Replaces `where` between a delegated value and a scalar by a minimum and a maximum; returns whether it did.

    The condition comes from outside the delegate. The limits are tensors: infinite for each element that selects the delegated
    value, and the scalar for each other element.
    """
    condition, *values = node.args
    nodes = [value for value in values if isinstance(value, Node)]
    scalars = [value for value in nodes if value in stored and stored[value].numel() == 1]
    delegated = [value for value in nodes if TAG in value.meta]
    val = node.meta["val"]
    if condition in dependents or len(scalars) != 1 or len(delegated) != 1:
        return False
    scalar, source = stored[scalars[0]], delegated[0]
    computed = source.meta["val"]
    if not scalar.dtype is computed.dtype is val.dtype or not same_shape(computed.shape, val.shape):
        return False
    if val.dtype not in FLOATS or scalar.isnan().any():
        return False
    lowest = torch.finfo(val.dtype).min
    steps = [(torch.ops.aten.minimum.default, math.inf)] if scalar < math.inf else []
    steps += [(torch.ops.aten.maximum.default, -math.inf)] if scalar > lowest else []
    for operation, infinite in steps:
        no_limit = add_constant(program, "no_limit", torch.full((), infinite, dtype=val.dtype), node)
        arms = [no_limit if value is delegated[0] else value for value in values]
        with computed.fake_mode:
            limits = torch.where(*(checked(arm, Node).meta["val"] for arm in (condition, *arms)))
        limit = call(node, torch.ops.aten.where.self, (condition, *arms), val=limits, like=node)
        reject(limit, "XNNPACK has no boolean tensors")
        source = call(node, operation, (source, limit), val=val, like=node)
        source.meta[TAG] = "xnnpack"
    replace(program, node, source)
    return True


def _is_kept_node(node: Node) -> bool:
    """Returns whether a node is kept: a matmul with a vector is decomposed, because XNNPACK does not have it."""
    if node.target != torch.ops.aten.matmul.default:
        return True
    return all(checked(factor, Node).meta["val"].dim() > 1 for factor in node.args)


def _is_kept_operator(op: object) -> bool:
    return op in _KEPT_OPERATORS or str(op).startswith("torchao.")


def _is_adjacent_to_operator(node: Node) -> bool:
    """Returns whether a node is an operator, or a conversion of an input or output of a tagged operator."""
    if role(node) not in ("quantize", "dequantize"):
        return True
    around = {*node.all_input_nodes, *node.users}
    for neighbor in tuple(around):
        if role(neighbor) in ("quantize", "dequantize"):
            around |= {*neighbor.all_input_nodes, *neighbor.users}
        elif neighbor.target is operator.getitem:
            around.add(node_arg(neighbor))
    return any(TAG in neighbor.meta and role(neighbor) is None for neighbor in around)
