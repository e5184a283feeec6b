# SPDX-License-Identifier: BSD-3-Clause
# In: a captured module. Out: the module with annotations on its nodes, which tell torchao's PT2E what to observe and quantize.
# Annotates only operators that XNNPACK runs on integers. Names are those of ExecuTorch.
"""`XNNPACKQuantizer`: int8 for convolutions, linear layers, `add`, `sub`, `mul`, and operators that move or select elements."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.nn import functional

from torchette.exir.arguments import node_arg
from torchette.packages import missing_package

try:
    from torchao.quantization.pt2e import (
        FakeQuantize,
        FusedMovingAvgObsFakeQuantize,
        HistogramObserver,
        MinMaxObserver,
        MovingAverageMinMaxObserver,
        MovingAveragePerChannelMinMaxObserver,
        PerChannelMinMaxObserver,
        PlaceholderObserver,
    )
    from torchao.quantization.pt2e.quantizer import (
        OperatorConfig,
        OperatorPatternType,
        QuantizationAnnotation,
        QuantizationConfig,
        QuantizationSpec,
        Quantizer,
        SharedQuantizationSpec,
    )
except Exception as error:  # the package's code may raise anything
    raise missing_package("torchao", "the XNNPACK quantizer", error) from error

aten = torch.ops.aten

_KEY = "quantization_annotation"  # the key that torchao reads
_EPSILON = 2**-12  # the minimum scale

_LINEAR = {aten.linear.default}
_CONVOLUTIONS = {aten.conv1d.default, aten.conv2d.default, aten.conv2d.padding}
_TRANSPOSED_CONVOLUTIONS = {aten.conv_transpose1d.default, aten.conv_transpose2d.input}
_BATCH_NORMS = {
    aten.batch_norm.default, aten._native_batch_norm_legit.default, aten._native_batch_norm_legit_no_training.default,
    aten.cudnn_batch_norm.default,
}  # fmt: skip
_CLAMPS = {
    aten.relu.default, aten.relu_.default, aten.hardtanh.default, aten.hardtanh_.default, aten.relu6.default,
    aten.relu6_.default,
}  # fmt: skip
_ADDS, _MULTIPLICATIONS = {aten.add.Tensor, aten.add_.Tensor}, {aten.mul.Tensor, aten.mul_.Tensor}
_SUBTRACTIONS = {aten.sub.Tensor, aten.sub_.Tensor}
_BINARY = _ADDS | _SUBTRACTIONS | _MULTIPLICATIONS
# Operators with results that are elements of their inputs, or means of them: inputs and result share a scale.
_SAME_SCALE = {
    *_CLAMPS, aten.max_pool2d.default, aten.mean.dim, aten.adaptive_avg_pool2d.default, aten.permute.default,
    aten.transpose.int, aten.squeeze.dim, aten.unsqueeze.default, aten.view.default, aten.reshape.default,
    aten.flatten.using_ints, aten.slice.Tensor, aten.select.int, aten.dropout.default, aten.dropout_.default,
}  # fmt: skip
_AVERAGES, _JOINS = {aten.adaptive_avg_pool2d.default}, {aten.cat.default}
_STARTS_SAME_SCALE = _AVERAGES | _JOINS  # quantized even if the source is not
# The histogram of an observer cannot represent larger magnitudes.
_MAX_OBSERVED = 3.4e15


def get_symmetric_quantization_config(
    is_per_channel: bool = False,
    is_qat: bool = False,
    is_dynamic: bool = False,
    act_qmin: int = -128,
    act_qmax: int = 127,
    weight_qmin: int = -127,
    weight_qmax: int = 127,
) -> QuantizationConfig:
    """Returns a setting with int8 activations that have a zero point and int8 weights that have none.

    Args:
        is_per_channel: use a scale for each output channel of a layer instead of one scale.
        is_qat: insert fake quantization for training instead of observers.
        is_dynamic: choose the scales of activations at run time; only for linear layers and convolutions.
        act_qmin: minimum quantized activation.
        act_qmax: maximum quantized activation.
        weight_qmin: minimum quantized weight.
        weight_qmax: maximum quantized weight.

    Returns:
        The setting. Equal arguments return the same object, so that settings compare equal: the factories of their observers
        compare by identity.
    """
    return _symmetric(is_per_channel, is_qat, is_dynamic, act_qmin, act_qmax, weight_qmin, weight_qmax)


@functools.lru_cache
def _symmetric(
    is_per_channel: bool,
    is_qat: bool,
    is_dynamic: bool,
    act_qmin: int,
    act_qmax: int,
    weight_qmin: int,
    weight_qmax: int,
) -> QuantizationConfig:
    extra: dict[str, Any] = {"eps": _EPSILON}
    if is_dynamic and is_qat:
        observer = FakeQuantize
        extra["observer"] = MovingAverageMinMaxObserver.with_args(averaging_constant=1)
    elif is_dynamic:
        observer = PlaceholderObserver
    else:
        observer = FusedMovingAvgObsFakeQuantize if is_qat else HistogramObserver
    activation = QuantizationSpec(
        dtype=torch.int8,
        quant_min=act_qmin,
        quant_max=act_qmax,
        qscheme=torch.per_tensor_affine,
        is_dynamic=is_dynamic,
        observer_or_fake_quant_ctr=observer.with_args(**extra),
    )
    extra = {"eps": _EPSILON}
    if is_qat:
        observer = FusedMovingAvgObsFakeQuantize
        moving = MovingAveragePerChannelMinMaxObserver if is_per_channel else MovingAverageMinMaxObserver
        extra["observer"] = moving
    else:
        observer = PerChannelMinMaxObserver if is_per_channel else MinMaxObserver
    weight = QuantizationSpec(
        dtype=torch.int8,
        quant_min=weight_qmin,
        quant_max=weight_qmax,
        qscheme=torch.per_channel_symmetric if is_per_channel else torch.per_tensor_symmetric,
        ch_axis=0,
        observer_or_fake_quant_ctr=observer.with_args(**extra),
    )
    return QuantizationConfig(activation, None if is_dynamic else activation, weight, None, is_qat)


@dataclass(frozen=True)
class QuantPattern:
    """An operator and the operators that follow it: ``_bn`` in the name is a batch norm, ``_relu`` is a clamp.

    Attributes:
        name: the key in `OP_TO_ANNOTATOR`, for example "conv_bn_relu".
        is_dynamic: whether the scales of its inputs may be chosen at run time.
        is_qat: whether it occurs in training only. For inference a batch norm is folded into the weights.
        op_overloads: the operators that start the pattern.
    """

    name: str
    is_dynamic: bool
    is_qat: bool
    op_overloads: frozenset[Any]

    @property
    def ends(self) -> tuple[set[Any], ...]:
        """The sets of operators that follow, in order."""
        return tuple(
            ops for word, ops in (("bn", _BATCH_NORMS), ("relu", _CLAMPS)) if word in self.name.split("_")
        )


def _patterns() -> list[QuantPattern]:
    patterns = []
    for name, ops in (("conv", _CONVOLUTIONS), ("conv_transpose", _TRANSPOSED_CONVOLUTIONS)):
        patterns += [
            QuantPattern(name + end, not end, "_bn" in end, frozenset(ops))
            for end in ("_bn_relu", "_bn", "_relu", "")
        ]
    patterns += [QuantPattern("linear_relu", False, False, frozenset(_LINEAR))]
    patterns += [QuantPattern("linear", True, False, frozenset(_LINEAR))]
    for name, ops in (("add", _ADDS), ("sub", _SUBTRACTIONS), ("mul", _MULTIPLICATIONS)):
        patterns += [QuantPattern(name + end, False, False, frozenset(ops)) for end in ("_relu", "")]
    for name, ops in (("adaptive_avg_pool2d", _AVERAGES), ("cat", _JOINS)):
        patterns += [QuantPattern(name, False, False, frozenset(ops))]
    return patterns


# Operator -> what may follow it, the longest first.
_ENDINGS: dict[Any, list[tuple[set[Any], ...]]] = {}
for _pattern in _patterns():
    for _op in _pattern.op_overloads:
        _ENDINGS.setdefault(_op, []).append(_pattern.ends)

# Pattern -> chains of modules or functions that match it.
_RELUS = (nn.ReLU, functional.relu)
_PATTERN_CHAINS: dict[str, list[tuple[Callable[..., Any], ...]]] = {
    "conv": [(nn.Conv1d,), (nn.Conv2d,), (functional.conv1d,), (functional.conv2d,)],
    "conv_transpose": [(nn.ConvTranspose1d,), (nn.ConvTranspose2d,), (functional.conv_transpose2d,)],
    "linear": [(nn.Linear,), (functional.linear,)],
    "add": [(torch.add,)],
    "sub": [(torch.sub,)],
    "mul": [(torch.mul,)],
    "adaptive_avg_pool2d": [(nn.AdaptiveAvgPool2d,), (functional.adaptive_avg_pool2d,)],
    "cat": [(torch.cat,)],
}
for _name in ("conv", "conv_transpose", "linear", "add", "sub", "mul"):
    _PATTERN_CHAINS[f"{_name}_relu"] = [(*first, relu) for first in _PATTERN_CHAINS[_name] for relu in _RELUS]


class XNNPACKQuantizer(Quantizer):  # type: ignore[misc]  # torchao has no types
    """Annotates operators that XNNPACK runs on integers.

    A node uses the setting of its module's name, else of its module's type, else of its operator, else the global setting. The
    setting None leaves a node in floating point.

    >>> quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))

    Attributes:
        SUPPORTED_PATTERNS: the patterns that it annotates, the longest first.
    """

    SUPPORTED_PATTERNS = _patterns()

    def __init__(self) -> None:
        super().__init__()
        self.global_config: QuantizationConfig | None = None
        self.operator_type_config: dict[Any, QuantizationConfig | None] = {}
        self.module_type_config: dict[Callable[..., Any], QuantizationConfig | None] = {}
        self.module_name_config: dict[str, QuantizationConfig | None] = {}
        self.filter_fn: Callable[[Node], bool] | None = None

    def set_global(self, quantization_config: QuantizationConfig | None) -> XNNPACKQuantizer:
        """Sets the setting of all nodes without a more specific setting; returns self."""
        self.global_config = quantization_config
        return self

    def set_operator_type(
        self, operator_type: object, quantization_config: QuantizationConfig | None
    ) -> XNNPACKQuantizer:
        """Sets the setting of an operator of torch.ops, with or without its overload; returns self."""
        self.operator_type_config[operator_type] = quantization_config
        return self

    def set_module_type(
        self, module_type: Callable[..., Any], quantization_config: QuantizationConfig | None
    ) -> XNNPACKQuantizer:
        """Sets the setting of all nodes in modules of a class; returns self."""
        self.module_type_config[module_type] = quantization_config
        return self

    def set_module_name(
        self, module_name: str, quantization_config: QuantizationConfig | None
    ) -> XNNPACKQuantizer:
        """Sets the setting of all nodes in one module, for example "blocks.0.attention"; returns self."""
        self.module_name_config[module_name] = quantization_config
        return self

    def set_filter_function(self, filter_fn: Callable[[Node], bool]) -> XNNPACKQuantizer:
        """Quantizes only nodes for which `filter_fn` returns True; returns self."""
        self.filter_fn = filter_fn
        return self

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Replaces scalar operands of float additions, subtractions and multiplications by tensors, which can have a scale."""
        graph = model.graph
        for node in [
            n for n in graph.nodes if n.op == "call_function" and n.target in _BINARY and _is_float(n)
        ]:
            for index, arg in enumerate(node.args):
                if isinstance(arg, Node) or index > 1 or not isinstance(arg, (int, float)):
                    continue
                name = f"_number_{node.name}"
                tensor = torch.tensor(float(arg))
                model.register_buffer(name, tensor)
                with graph.inserting_before(node):
                    attribute = graph.get_attr(name)
                attribute.meta["val"] = node.meta["val"].fake_mode.from_tensor(tensor, static_shapes=True)
                node.update_arg(index, attribute)
        model.recompile()
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotates each node with the quantization of its inputs and its result; returns the model."""
        done: set[Node] = set()
        for node in model.graph.nodes:
            if node.op != "call_function" or node in done:
                continue
            config = self._config(node)
            if config is None:
                continue
            pattern = _ENDINGS.get(node.target)
            if pattern is not None and not (_is_dynamic(config) and not _runs_dynamically(node)):
                # A layer with an input that is quantized at run time has no output scale, so no clamp joins its pattern.
                endings = pattern if config.output_activation is not None else ((),)
                chain = next(chain for ends in endings if (chain := _chain(node, ends)))
                if _annotate_chain(chain, config, model):
                    done.update(chain)
            elif node.target in _SAME_SCALE:
                _annotate_same_scale(node, None)
        return model

    @classmethod
    def get_supported_quantization_configs(cls) -> list[QuantizationConfig]:
        """Returns the settings of `get_symmetric_quantization_config` with default ranges."""
        return [config for config, _ in cls.get_supported_operators()]

    @classmethod
    def get_supported_operator_for_quantization_config(
        cls, quantization_config: QuantizationConfig | None
    ) -> list[OperatorPatternType]:
        """Returns the chains of modules and functions that a setting quantizes.

        Args:
            quantization_config: one of `get_supported_quantization_configs()`, or None for any of them.

        Returns:
            The chains; empty for any other setting.
        """
        patterns = [
            ops for config, ops in cls.get_supported_operators() if quantization_config in (None, config)
        ]
        return max(patterns, key=len, default=[])

    @classmethod
    def get_supported_operators(cls) -> list[OperatorConfig]:
        """Returns each supported setting with the chains of modules and functions that it quantizes."""
        supported = []
        for dynamic in (False, True):
            names = [pattern.name for pattern in cls.SUPPORTED_PATTERNS if pattern.is_dynamic or not dynamic]
            operators = [list(chain) for name in names for chain in _PATTERN_CHAINS.get(name, ())]
            for qat in (False, True):
                for channels in (False, True):
                    config = get_symmetric_quantization_config(channels, qat, dynamic)
                    supported.append(OperatorConfig(config, operators))
        return supported

    def validate(self, model: GraphModule) -> None:
        """Does nothing: all annotations of `annotate` are valid."""

    def _config(self, node: Node) -> QuantizationConfig | None:
        if self.filter_fn is not None and not self.filter_fn(node):
            return None
        modules = [item for item in node.meta.get("nn_module_stack", {}).values() if isinstance(item, tuple)]
        names = [name.removeprefix("L['self'].") for name, _ in modules]
        for name, config in self.module_name_config.items():
            if name in names:
                return config
        types = [kind if isinstance(kind, str) else _type_name(kind) for _, kind in modules]
        for kind, config in self.module_type_config.items():
            if _type_name(kind) in types:
                return config
        for target, config in self.operator_type_config.items():
            if target in (node.target, getattr(node.target, "overloadpacket", None)):
                return config
        return self.global_config


def _type_name(kind: type | Callable[..., Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_float(node: object) -> bool:
    val = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(val, torch.Tensor) and val.dtype is torch.float32


def _is_dynamic(config: QuantizationConfig) -> bool:
    return config.input_activation is not None and config.input_activation.is_dynamic


def _runs_dynamically(node: Node) -> bool:
    """Returns whether XNNPACK has this layer with an input that is quantized at run time."""
    if node.target in _LINEAR:
        return True
    if node.target not in _CONVOLUTIONS | _TRANSPOSED_CONVOLUTIONS:
        return False
    transposed = node.target in _TRANSPOSED_CONVOLUTIONS
    groups = next(iter(node.args[6:]), 1)
    single = node_arg(node, 1).meta["val"].shape[1] == 1
    return bool(groups == 1 or not (transposed or single))


def _chain(node: Node, ends: tuple[set[Any], ...]) -> list[Node]:
    """Returns the node and its successors, one of each set; each is the only user of the one before. Empty if one is missing."""
    chain = [node]
    for targets in ends:
        user = next(iter(chain[-1].users)) if len(chain[-1].users) == 1 else None
        if user is None or user.target not in targets:
            return []
        chain.append(user)
    return chain


def _annotate(node: Node, inputs: dict[Any, Any], output: object) -> None:
    node.meta[_KEY] = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=output, _annotated=True)


def _annotate_chain(chain: list[Node], config: QuantizationConfig, model: GraphModule) -> bool:
    """Annotates an operator and its successors; returns whether they can be quantized."""
    if chain[0].target in _BINARY:
        return _annotate_binary(chain, config, model)
    if chain[0].target in _STARTS_SAME_SCALE:
        return _annotate_same_scale(chain[0], config.input_activation)
    return _annotate_layer(chain, config)


def _annotate_layer(chain: list[Node], config: QuantizationConfig) -> bool:
    """Annotates a layer with stored weights; returns whether it can be quantized."""
    node = chain[0]
    source, weight = node.args[:2]
    if not _is_float(source) or not isinstance(weight, Node) or weight.op not in ("get_attr", "placeholder"):
        return False
    spec = config.weight
    if "transpose" in str(node.target) and spec is not None and spec.qscheme == torch.per_channel_symmetric:
        # The second dimension of a transposed convolution's weights has the outputs; with groups, those of one group.
        groups = node.args[6] if len(node.args) > 6 else 1
        if groups != 1:
            return False
        spec = _with_axis(spec, 1)
    inputs = {source: config.input_activation, weight: spec}
    if len(node.args) > 2 and isinstance(node.args[2], Node):
        inputs[node.args[2]] = config.bias
    _annotate(node, inputs, None)
    for between in chain[1:]:
        _annotate(between, {}, None)
    if config.output_activation is not None:
        last = chain[-1].meta[_KEY]
        _annotate(chain[-1], last.input_qspec_map, config.output_activation)
    return True


def _with_axis(spec: QuantizationSpec, axis: int) -> QuantizationSpec:
    return QuantizationSpec(
        dtype=spec.dtype,
        quant_min=spec.quant_min,
        quant_max=spec.quant_max,
        qscheme=spec.qscheme,
        ch_axis=axis,
        observer_or_fake_quant_ctr=spec.observer_or_fake_quant_ctr,
    )


def _annotate_binary(chain: list[Node], config: QuantizationConfig, model: GraphModule) -> bool:
    node, *clamp = chain
    operands = [arg for arg in node.args[:2] if isinstance(arg, Node)]
    if (
        len(operands) != 2
        or not all(map(_is_float, operands))
        or any(_is_large(arg, model) for arg in operands)
    ):
        return False
    inputs = dict.fromkeys(operands, config.input_activation)
    _annotate(node, inputs, None if clamp else config.output_activation)
    if clamp:
        _annotate(clamp[0], {}, config.output_activation)
    return True


def _is_large(node: Node, model: GraphModule) -> bool:
    if node.op != "get_attr":
        return False
    tensor = operator.attrgetter(str(node.target))(model)
    result: bool = tensor.numel() == 1 and abs(tensor.item()) > _MAX_OBSERVED
    return result


def _annotate_same_scale(node: Node, start: QuantizationSpec | None) -> bool:
    """Annotates all sources and the result with one scale: the first source's scale, or `start` if that source has none."""
    sources = node.all_input_nodes
    first = sources[0] if sources else None
    # A source that is not a tensor is a size; observers ignore it.
    others = [source for source in sources[1:] if isinstance(source.meta.get("val"), torch.Tensor)]
    if first is None or not _is_float(first) or not _is_float(node):
        return False
    has_spec = getattr(first.meta.get(_KEY), "output_qspec", None) is not None
    if not has_spec and start is None:
        return False
    shared = SharedQuantizationSpec((first, node))
    # The source's node observes its result; sharing with this node's input would observe it a second time.
    input_spec = start if others or not has_spec else SharedQuantizationSpec(first)
    _annotate(node, {first: input_spec, **dict.fromkeys(others, shared)}, shared)
    return True


def propagate_annotation(model: GraphModule) -> None:
    """Annotates nodes that move or select elements of a quantized tensor with that tensor's scale; keeps other annotations."""
    for node in model.graph.nodes:
        if node.op == "call_function" and node.target in _SAME_SCALE and _KEY not in node.meta:
            _annotate_same_scale(node, None)


# (model, setting, filter for nodes) -> the chains of nodes that it annotated; skips nodes with an annotation.
Annotator = Callable[..., list[list[Node]] | None]


def _annotator(pattern: QuantPattern) -> Annotator:
    def annotate(
        model: GraphModule,
        quantization_config: QuantizationConfig | None,
        filter_fn: Callable[[Node], bool] | None = None,
    ) -> list[list[Node]] | None:
        if quantization_config is None:
            return None
        annotated = []
        for node in model.graph.nodes:
            chain = _chain(node, pattern.ends) if node.target in pattern.op_overloads else []
            if not chain or any(_KEY in part.meta for part in chain):
                continue
            if filter_fn is not None and not all(map(filter_fn, chain)):
                continue
            if _annotate_chain(chain, quantization_config, model):
                annotated.append(chain)
        return annotated

    annotate.__doc__ = f"Annotates {pattern.name.replace('_', ' ')}."
    return annotate


def _annotate_gru(
    model: GraphModule,
    quantization_config: QuantizationConfig | None,
    filter_fn: Callable[[Node], bool] | None = None,
) -> list[list[Node]] | None:
    """Annotates input, first state, output and last state of GRU layers; the layer itself stays in floating point."""
    if quantization_config is None:
        return None
    annotated = []
    for node in model.graph.nodes:
        if node.target != aten.gru.input or _KEY in node.meta or (filter_fn and not filter_fn(node)):
            continue
        _annotate(node, dict.fromkeys(node.args[:2], quantization_config.input_activation), None)
        for part in node.users:
            _annotate(part, {}, quantization_config.output_activation)
        annotated.append([node, *node.users])
    return annotated


OP_TO_ANNOTATOR: dict[str, Annotator] = {
    **{pattern.name: _annotator(pattern) for pattern in XNNPACKQuantizer.SUPPORTED_PATTERNS},
    "gru_io_only": _annotate_gru,
}
