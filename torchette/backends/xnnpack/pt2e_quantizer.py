# SPDX-License-Identifier: BSD-3-Clause
# A captured module comes in; what torchao's PT2E shall observe and quantize is written on its nodes. The choice follows
# what the library has on integers, so that what is quantized runs there. Names are ExecuTorch's.
"""`XNNPACKQuantizer`: int8 for convolutions, linear layers, sums, products, and what only moves or picks elements."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchette.errors import MissingPackageError

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
        QuantizationAnnotation,
        QuantizationConfig,
        QuantizationSpec,
        Quantizer,
        SharedQuantizationSpec,
    )
except ImportError as error:
    raise MissingPackageError(
        "the XNNPACK quantizer needs torchao, which is not installed", hints=["pip install torchao"]
    ) from error

aten = torch.ops.aten

_KEY = "quantization_annotation"  # where torchao looks for it
_EPSILON = 2**-12  # no scale is smaller

_LINEAR = {aten.linear.default}
_CONVOLUTIONS = {
    aten.conv1d.default, aten.conv2d.default, aten.conv2d.padding, aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
}  # fmt: skip
_BATCH_NORMS = {
    aten.batch_norm.default, aten._native_batch_norm_legit.default, aten._native_batch_norm_legit_no_training.default,
    aten.cudnn_batch_norm.default,
}  # fmt: skip
_CLAMPS = {
    aten.relu.default, aten.relu_.default, aten.hardtanh.default, aten.hardtanh_.default, aten.relu6.default,
    aten.relu6_.default,
}  # fmt: skip
_BINARY = {
    aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor, aten.mul.Tensor, aten.mul_.Tensor,
}  # fmt: skip
# They give elements of what they are given, or means of them: one scale for both.
_SHARING = {
    *_CLAMPS, aten.max_pool2d.default, aten.mean.dim, aten.adaptive_avg_pool2d.default, aten.permute.default,
    aten.transpose.int, aten.squeeze.dim, aten.unsqueeze.default, aten.view.default, aten.reshape.default,
    aten.flatten.using_ints, aten.slice.Tensor, aten.select.int, aten.dropout.default, aten.dropout_.default,
}  # fmt: skip
_STARTS_SHARING = {aten.adaptive_avg_pool2d.default, aten.cat.default}  # quantized even after what is not
# The histogram of an observer ends here.
_LARGEST = 3.4e15


@functools.lru_cache
def get_symmetric_quantization_config(
    is_per_channel: bool = False,
    is_qat: bool = False,
    is_dynamic: bool = False,
    act_qmin: int = -128,
    act_qmax: int = 127,
    weight_qmin: int = -127,
    weight_qmax: int = 127,
) -> QuantizationConfig:
    """Activations in int8 with a zero point, weights in int8 without one.

    Args:
        is_per_channel: a scale for each output of a layer, instead of one.
        is_qat: for training with quantization, instead of observing what comes by.
        is_dynamic: scales of activations are chosen when the model runs; linear layers only.
        act_qmin, act_qmax, weight_qmin, weight_qmax: the integers that may occur.
    """
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


class XNNPACKQuantizer(Quantizer):
    """Annotates what the library runs on integers. A node takes the setting of its module's name, else of its module's
    type, else of its operator, else the global one; the setting None leaves it in floating point.

    >>> quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    """

    def __init__(self) -> None:
        super().__init__()
        self.global_config: QuantizationConfig | None = None
        self.operator_type_config: dict[Any, QuantizationConfig | None] = {}
        self.module_type_config: dict[Callable, QuantizationConfig | None] = {}
        self.module_name_config: dict[str, QuantizationConfig | None] = {}
        self.filter_fn: Callable[[Node], bool] | None = None

    def set_global(self, quantization_config: QuantizationConfig | None) -> XNNPACKQuantizer:
        """For all that nothing else is said about."""
        self.global_config = quantization_config
        return self

    def set_operator_type(
        self, operator_type: Any, quantization_config: QuantizationConfig | None
    ) -> XNNPACKQuantizer:
        """For an operator of torch.ops, with or without its overload."""
        self.operator_type_config[operator_type] = quantization_config
        return self

    def set_module_type(
        self, module_type: Callable, quantization_config: QuantizationConfig | None
    ) -> XNNPACKQuantizer:
        """For all inside of modules of a class."""
        self.module_type_config[module_type] = quantization_config
        return self

    def set_module_name(
        self, module_name: str, quantization_config: QuantizationConfig | None
    ) -> XNNPACKQuantizer:
        """For all inside of one module, such as "blocks.0.attention"."""
        self.module_name_config[module_name] = quantization_config
        return self

    def set_filter_function(self, filter_fn: Callable[[Node], bool]) -> XNNPACKQuantizer:
        """Only nodes for which it is true are quantized."""
        self.filter_fn = filter_fn
        return self

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Numbers that are added to floats or multiplied with them become tensors, which can have a scale."""
        graph = model.graph
        for node in [
            n for n in graph.nodes if n.op == "call_function" and n.target in _BINARY and _is_float(n)
        ]:
            for place, arg in enumerate(node.args):
                if isinstance(arg, Node) or place > 1 or not isinstance(arg, (int, float)):
                    continue
                name = f"_number_{node.name}"
                tensor = torch.tensor(float(arg))
                model.register_buffer(name, tensor)
                with graph.inserting_before(node):
                    made = graph.get_attr(name)
                made.meta["val"] = node.meta["val"].fake_mode.from_tensor(tensor, static_shapes=True)
                node.update_arg(place, made)
        model.recompile()
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Write on each node what torchao shall do with its inputs and its result."""
        done: set[Node] = set()
        for node in model.graph.nodes:
            if node.op != "call_function" or node in done:
                continue
            config = self._config(node)
            if config is None:
                continue
            dynamic = config.input_activation is not None and config.input_activation.is_dynamic
            if node.target in _LINEAR or (node.target in _CONVOLUTIONS and not dynamic):
                done |= _annotate_layer(node, config)
            elif node.target in _BINARY and not dynamic:
                done |= _annotate_binary(node, config, model)
            elif node.target in _STARTS_SHARING and not dynamic:
                _annotate_sharing(node, config.input_activation)
            elif node.target in _SHARING:
                _annotate_sharing(node, None)
        return model

    def validate(self, model: GraphModule) -> None:
        """All that `annotate` writes is legal."""

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
        for kept, config in self.operator_type_config.items():
            if kept in (node.target, getattr(node.target, "overloadpacket", None)):
                return config
        return self.global_config


def _type_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_float(node: Any) -> bool:
    val = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(val, torch.Tensor) and val.dtype is torch.float32


def _only_user(node: Node, targets: set[Any]) -> Node | None:
    user = next(iter(node.users)) if len(node.users) == 1 else None
    return user if user is not None and user.target in targets else None


def _annotate(node: Node, inputs: dict[Any, Any], output: Any) -> None:
    node.meta[_KEY] = QuantizationAnnotation(input_qspec_map=inputs, output_qspec=output, _annotated=True)


def _annotate_layer(node: Node, config: QuantizationConfig) -> set[Node]:
    """A layer with stored weights, with the batch norm and the clamp that follow it."""
    source, weight = node.args[:2]
    if not _is_float(source) or not isinstance(weight, Node) or weight.op not in ("get_attr", "placeholder"):
        return set()
    chain = [node]
    if node.target in _CONVOLUTIONS:
        norm = _only_user(node, _BATCH_NORMS)
        chain += [norm] if norm is not None else []
    clamp = _only_user(chain[-1], _CLAMPS) if config.output_activation is not None else None
    chain += [clamp] if clamp is not None else []
    spec = config.weight
    if "transpose" in str(node.target) and spec is not None and spec.qscheme == torch.per_channel_symmetric:
        # The outputs of a transposed convolution are the second dimension of its weights; a group hides them.
        groups = node.args[6] if len(node.args) > 6 else 1
        if groups != 1:
            return set()
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
    return set(chain)


def _with_axis(spec: QuantizationSpec, axis: int) -> QuantizationSpec:
    return QuantizationSpec(
        dtype=spec.dtype,
        quant_min=spec.quant_min,
        quant_max=spec.quant_max,
        qscheme=spec.qscheme,
        ch_axis=axis,
        observer_or_fake_quant_ctr=spec.observer_or_fake_quant_ctr,
    )


def _annotate_binary(node: Node, config: QuantizationConfig, model: GraphModule) -> set[Node]:
    operands = [arg for arg in node.args[:2] if isinstance(arg, Node)]
    if (
        len(operands) != 2
        or not all(map(_is_float, operands))
        or any(_is_large(arg, model) for arg in operands)
    ):
        return set()
    clamp = _only_user(node, _CLAMPS)
    _annotate(
        node, dict.fromkeys(operands, config.input_activation), None if clamp else config.output_activation
    )
    if clamp is None:
        return {node}
    _annotate(clamp, {}, config.output_activation)
    return {node, clamp}


def _is_large(node: Node, model: GraphModule) -> bool:
    if node.op != "get_attr":
        return False
    tensor = operator.attrgetter(str(node.target))(model)
    return tensor.numel() == 1 and abs(tensor.item()) > _LARGEST


def _annotate_sharing(node: Node, start: QuantizationSpec | None) -> None:
    """One scale for all sources and the result: that of the first source; without one, that of `start`, if given."""
    first, *others = node.all_input_nodes
    if not _is_float(first) or not _is_float(node):
        return
    known = getattr(first.meta.get(_KEY), "output_qspec", None) is not None
    if not known and start is None:
        return
    shared = SharedQuantizationSpec((first, node))
    # What the source gives is observed there: sharing with the node itself would observe it again.
    own = start if others or not known else SharedQuantizationSpec(first)
    _annotate(node, {first: own, **dict.fromkeys(others, shared)}, shared)
