# SPDX-License-Identifier: BSD-3-Clause
"""XNNPACK payloads on our kernels: nodes that no partitioner writes, refused payloads, and the kernels that a build selects.

The tests write payloads themselves. Tests without the mark `ours` also run on XNNPACK's library.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import export
from torch.nn import functional as F

import torchette
from tests.backends.xnnpack_cases import HAS_LIBRARY
from torchette.backends.xnnpack import XnnpackBackend, XnnpackPartitioner, configs
from torchette.backends.xnnpack.operators import OPERATORS
from torchette.backends.xnnpack.payload import DYNAMIC, FLOATS, FP32, NONE, Element, Payload
from torchette.backends.xnnpack.payload import T as RECORDS
from torchette.build import delegates, kernels, selection
from torchette.compat.partitioners import AllNodePartitioner
from torchette.errors import DelegationWarning, InputError, RuntimeLoadError, TorchetteError
from torchette.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from torchette.exir.delegation.delegate import PreprocessResult
from torchette.runtime import Method, Runtime
from torchette.schema.xnnpack import BINARY, INTEGER_KERNELS, KERNELS, UNARY, Elementwise

ROOT = Path(__file__).parents[2]
POOL = (
    "pooling_height",
    "pooling_width",
    "stride_height",
    "stride_width",
    "dilation_height",
    "dilation_width",
)
ours = pytest.mark.skipif(HAS_LIBRARY, reason="this build has XNNPACK's library")

Graph = Callable[[Payload, list[int], list[int]], None]


def program_of_graph(monkeypatch, graph: Graph, inputs: list, shapes: list) -> bytes:
    """Returns a program that is one call of this graph. `inputs`: the shapes of its inputs; `shapes`: of its results."""

    def preprocess(program, specs) -> PreprocessResult:
        payload = Payload(len(inputs) + len(shapes))
        inputs_of_graph = [payload.value(shape, FP32, argument=i) for i, shape in enumerate(inputs)]
        outputs_of_graph = [
            payload.value(shape, FP32, argument=len(inputs) + i, output=True)
            for i, shape in enumerate(shapes)
        ]
        graph(payload, inputs_of_graph, outputs_of_graph)
        data, named = payload.finish()
        return PreprocessResult(data, data_store_output=named)

    class Shaped(nn.Module):
        def forward(self, *args):
            total = sum(arg.sum() for arg in args)
            return tuple(total + torch.full(shape, i) for i, shape in enumerate(shapes))

    monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(preprocess))
    program = export(Shaped(), tuple(torch.zeros(shape) for shape in inputs))
    edge = to_edge_transform_and_lower(program, partitioner=AllNodePartitioner("XnnpackBackend", []))
    return edge.to_executorch().buffer


def _method(monkeypatch, graph: Graph, inputs: list, shapes: list) -> Method:
    """Returns a method that is one call of this graph."""
    program = Runtime.get().load_program(program_of_graph(monkeypatch, graph, inputs, shapes))
    return program.load_method("forward")


def _same(method: Method, args: list[torch.Tensor], *expected: torch.Tensor) -> None:
    for _ in range(2):  # the second execution uses the memory of the first
        for got, reference in zip(method.execute(args), expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(got), reference, rtol=1e-4, atol=1e-5)


def _window(**changes: int) -> dict[str, int]:
    names = "padding_top padding_right padding_bottom padding_left adjustment_height adjustment_width"
    ones = "subsampling_height subsampling_width dilation_height dilation_width groups"
    return {**dict.fromkeys(names.split(), 0), **dict.fromkeys(ones.split(), 1), **changes}


def _linear(payload: Payload, source: int, filters: int, result: int) -> None:
    """Adds a linear layer without a bias."""
    ids = {"input1_id": source, "filter_id": filters, "bias_id": NONE, "output_id": result}
    payload.node("XNNFullyConnected", 0, **ids, flags=0)


def test_prelu_with_a_slope_for_each_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    x, slope = torch.randn(2, 3, 4, 5), torch.tensor([0.1, -2.0, 0.0, 1.0, 3.0])
    x[0, 0, 0] = torch.tensor([torch.inf, torch.nan, -1.0, -0.0, 5.0])

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        fields = {
            "input1_id": inputs[0],
            "input2_id": payload.constant(slope),
            "output_id": outputs[0],
            "flags": 0,
        }
        payload.node("XNNPReLU", 0, **fields)

    method = _method(monkeypatch, graph, [x.shape], [x.shape])
    expected = torch.where(x > 0, x, x * slope)
    got = torch.as_tensor(method.execute([x])[0])
    torch.testing.assert_close(got, expected, equal_nan=True)


def test_attention_as_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 6)
    scale, mask = torch.rand(8), torch.randn(5, 7)

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        names = ("query_id", "key_id", "value_id")
        fields = dict(zip(names, inputs, strict=True))
        fields |= {"scale_id": payload.constant(scale), "mask_id": payload.constant(mask)}
        payload.node("XNNScaledDotProductAttention", 0, **fields, output_id=outputs[0], flags=0)

    method = _method(monkeypatch, graph, [query.shape, key.shape, value.shape], [(2, 3, 5, 6)])
    expected = F.scaled_dot_product_attention(query * scale, key, value, mask, scale=1.0)
    _same(method, [query, key, value], expected)


@pytest.mark.parametrize("multiplier", [1, 3, 17])
def test_depthwise_convolution_with_a_multiplier(multiplier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias, x = (
        torch.randn(5 * multiplier, 1, 3, 2),
        torch.randn(5 * multiplier),
        torch.randn(2, 5, 7, 8),
    )
    expected = F.conv2d(F.pad(x, (1, 0, 2, 1)), weight, bias, (2, 1), groups=5).clamp(-0.5, 1.5)

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        window = _window(padding_top=2, padding_left=1, padding_bottom=1, subsampling_height=2, groups=5)
        window |= {"kernel_height": 3, "kernel_width": 2, "group_input_channels": 1}
        payload.node(
            "XNNDepthwiseConv2d", 0, (-0.5, 1.5), **window, group_output_channels=multiplier, input1_id=inputs[0],
            filter_id=payload.constant(weight.permute(1, 2, 3, 0)), bias_id=payload.constant(bias),
            output_id=outputs[0], flags=0,
        )  # fmt: skip

    shape = expected.permute(0, 2, 3, 1).shape
    method = _method(monkeypatch, graph, [(2, 7, 8, 5)], [shape])
    _same(method, [x.permute(0, 2, 3, 1).contiguous()], expected.permute(0, 2, 3, 1))


def test_pool_with_padding_of_more_than_half_of_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 4, 5, 6)

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        sides = {"padding_top": 2, "padding_right": 1, "padding_bottom": 0, "padding_left": 2}
        numbers = dict(zip(POOL, (3, 3, 2, 1, 1, 1), strict=True))
        payload.node(
            "XNNMaxPooling2d", 0, **sides, **numbers, input_id=inputs[0], output_id=outputs[0], flags=0
        )

    wide = F.pad(x, (2, 1, 2, 0), value=-torch.inf)
    expected = F.max_pool2d(wide, 3, (2, 1)).permute(0, 2, 3, 1)
    _same(
        _method(monkeypatch, graph, [(1, 5, 6, 4)], [expected.shape]),
        [x.permute(0, 2, 3, 1).contiguous()],
        expected,
    )


def test_values_with_shared_memory_keep_their_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reshaped value shares the memory of its source, so the source must live as long. Nodes may also read results."""
    x = torch.randn(4, 6)

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        def unary(kind: str, source: int, to: int | None = None, shape: tuple[int, ...] = (4, 6)) -> int:
            to = payload.value(shape, FP32) if to is None else to
            payload.node(kind, 0, input_id=source, output_id=to, flags=0)
            return to

        once = unary("XNNAbs", inputs[0])
        flat = payload.value((24,), FP32)
        payload.node("XNNStaticReshape", 0, num_dims=1, new_shape=[0], input_id=once, output_id=flat, flags=0)
        last = inputs[0]
        for _ in range(3):  # values that could reuse the memory of `once`
            last = unary("XNNNegate", unary("XNNSquare", last))
        unary("XNNNegate", flat, outputs[0], (24,))
        unary("XNNNegate", last, outputs[1])
        payload.node("XNNAdd", 0, input1_id=outputs[0], input2_id=flat, output_id=outputs[2], flags=0)

    method = _method(monkeypatch, graph, [(4, 6)], [(24,), (4, 6), (24,)])
    flat = -x.abs().flatten()
    got = [torch.as_tensor(each) for each in method.execute([x])]
    for each, expected in zip(got, (flat, x**8, torch.zeros(24)), strict=True):
        torch.testing.assert_close(each, expected, equal_nan=True)


def test_layer_without_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.randn(6, 35), torch.randn(2, 3, 6)

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        fields = {"input1_id": inputs[0], "filter_id": payload.constant(weight), "bias_id": NONE}
        payload.node(
            "XNNFullyConnected", 0, (0.0, 6.0), **fields, output_id=outputs[0], flags=1
        )  # [inputs, outputs]

    method = _method(monkeypatch, graph, [(2, 3, 6)], [(2, 3, 35)])
    _same(method, [x], F.relu6(x @ weight))


def _real(integers: torch.Tensor, element: Element) -> torch.Tensor:
    return (integers.float() - element.zero_point) * element.scale


def _whole(x: torch.Tensor, element: Element) -> torch.Tensor:
    """Quantizes to int8 or uint8."""
    least = 0 if element.type == "quint8" else -128
    return (torch.round(x / element.scale) + element.zero_point).clamp(least, least + 255)


def _convert(
    payload: Payload, source: int, shape: tuple[int, ...], element: Element, to: int | None = None
) -> int:
    to = payload.value(shape, element) if to is None else to
    payload.node("XNNConvert", 0, input_id=source, output_id=to, flags=0)
    return to


A, B, C = Element("qint8", 0.05, -3), Element("qint8", 0.04, 5), Element("qint8", 0.1, 7)
UNSIGNED = Element("quint8", 0.03, 128)
SHAPE = (3, 5, 7, 20)


@pytest.mark.parametrize("limits", [None, (-0.5, 1.0)])
@pytest.mark.parametrize(
    ("kind", "function", "elements"),
    [
        ("XNNAdd", torch.add, (A, B, C)),
        ("XNNSubtract", torch.sub, (A, B, C)),
        ("XNNMultiply", torch.mul, (A, B, C)),
        ("XNNAdd", torch.add, (UNSIGNED, UNSIGNED, UNSIGNED)),
    ],
)
def test_integer_binary_operators(
    kind: str, function: Callable, elements: tuple, limits, monkeypatch
) -> None:
    args = [torch.randn(SHAPE), torch.randn(SHAPE)]

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        a, b = (_convert(payload, at, SHAPE, element) for at, element in zip(inputs, elements, strict=False))
        out = payload.value(SHAPE, elements[2])
        payload.node(kind, 0, limits, input1_id=a, input2_id=b, output_id=out, flags=0)
        _convert(payload, out, SHAPE, FP32, outputs[0])

    held = [_real(_whole(x, element), element) for x, element in zip(args, elements, strict=False)]
    expected = function(*held).clamp(*(limits or (-1e9, 1e9)))
    _near(_method(monkeypatch, graph, [SHAPE, SHAPE], [SHAPE]), args, expected, elements[2])


def _near(method: Method, args: list[torch.Tensor], expected: torch.Tensor, element: Element) -> None:
    """Compares with a tolerance of one quantization step, since XNNPACK rounds accumulators differently."""
    got = torch.as_tensor(method.execute(args)[0])
    rounded = _real(_whole(expected, element), element)
    torch.testing.assert_close(got, rounded, rtol=0, atol=element.scale * 1.01)
    assert HAS_LIBRARY or (got - rounded).abs().lt(element.scale / 2).float().mean() > 0.99


@ours
@pytest.mark.parametrize("rank", [4, 1])
def test_integer_multiplication_broadcasts(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (20,) if rank == 1 else (3, 1, 1, 20)
    args = [torch.randn(shape), torch.randn(SHAPE)]

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        a, b = _convert(payload, inputs[0], shape, A), _convert(payload, inputs[1], SHAPE, B)
        out = payload.value(SHAPE, C)
        payload.node("XNNMultiply", 0, input1_id=a, input2_id=b, output_id=out, flags=0)
        _convert(payload, out, SHAPE, FP32, outputs[0])

    expected = _real(_whole(args[0], A), A) * _real(_whole(args[1], B), B)
    _near(_method(monkeypatch, graph, [shape, SHAPE], [SHAPE]), args, expected, C)


@ours
@pytest.mark.parametrize(("source", "target"), [(A, C), (UNSIGNED, B), (A, FP32), (FP32, C)])
@pytest.mark.parametrize(
    ("kind", "function"),
    [("XNNSigmoid", torch.sigmoid), ("XNNTanh", torch.tanh), ("XNNConvert", lambda x: x)],
)
def test_integer_unary_operators(
    kind: str, function: Callable, source: Element, target: Element, monkeypatch
) -> None:
    x = torch.randn(SHAPE)

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        held = inputs[0] if source is FP32 else _convert(payload, inputs[0], SHAPE, source)
        out = outputs[0] if target is FP32 else payload.value(SHAPE, target)
        payload.node(kind, 0, input_id=held, output_id=out, flags=0)
        if target is not FP32:
            _convert(payload, out, SHAPE, FP32, outputs[0])

    expected = function(x if source is FP32 else _real(_whole(x, source), source))
    method = _method(monkeypatch, graph, [SHAPE], [SHAPE])
    if target is FP32:
        _same(method, [x], expected)
    else:
        _near(method, [x], expected, target)


@ours
def test_concatenation_of_integers_with_different_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    args = [torch.randn(SHAPE), torch.randn(SHAPE)]
    shape = (3, 5, 14, 20)

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        a, b = _convert(payload, inputs[0], SHAPE, A), _convert(payload, inputs[1], SHAPE, B)
        out = payload.value(shape, C)
        payload.node("XNNConcatenate2", 0, axis=2, input1_id=a, input2_id=b, output_id=out, flags=0)
        _convert(payload, out, shape, FP32, outputs[0])

    expected = torch.cat([_real(_whole(args[0], A), A), _real(_whole(args[1], B), B)], 2)
    _near(_method(monkeypatch, graph, [SHAPE, SHAPE], [shape]), args, expected, C)


@ours
def test_moved_integers_stay_8_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pad, slice, transpose, reshape and maximum pool."""
    x = torch.randn(2, 6, 6, 4)

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        def moved(kind: str, source: int, shape: tuple[int, ...], **fields) -> int:
            to = payload.value(shape, A)
            payload.node(kind, 0, input_id=source, output_id=to, flags=0, **fields)
            return to

        at = _convert(payload, inputs[0], (2, 6, 6, 4), A)
        at = moved(
            "XNNStaticConstantPad",
            at,
            (2, 7, 8, 4),
            pre_paddings=[0, 0, 1, 0],
            post_paddings=[0, 1, 1, 0],
            padding_value=0.5,
        )
        window = {"padding_top": 1, "padding_right": 0, "padding_bottom": 0, "padding_left": 1}
        at = moved(
            "XNNMaxPooling2d", at, (2, 4, 4, 4), **window, **dict(zip(POOL, (2, 2, 2, 2, 1, 1), strict=True))
        )
        at = moved("XNNStaticSlice", at, (2, 3, 2, 4), num_dims=4, offsets=[0, 1, 2, 0], sizes=[0, 3, 2, 0])
        at = moved("XNNStaticTranspose", at, (2, 4, 3, 2), num_dims=4, perm=[0, 3, 1, 2])
        at = moved("XNNStaticReshape", at, (8, 6), num_dims=2, new_shape=[8, 6])
        at = moved("XNNCopy", at, (8, 6))
        _convert(payload, at, (8, 6), FP32, outputs[0])

    held = F.pad(_real(_whole(x, A), A), (0, 0, 1, 1, 0, 1), value=0.5)
    pooled = F.max_pool2d(F.pad(held.permute(0, 3, 1, 2), (1, 0, 1, 0), value=-torch.inf), 2, 2)
    expected = pooled[:, :, 1:, 2:].reshape(8, 6)
    method = _method(monkeypatch, graph, [x.shape], [(8, 6)])
    _same(method, [x], expected)


@ours
@pytest.mark.parametrize(
    ("groups", "inputs", "outputs", "unsigned"),
    [(1, 5, 19, False), (3, 2, 4, False), (6, 1, 2, False), (1, 5, 19, True)],
)
def test_integer_convolution(groups: int, inputs: int, outputs: int, unsigned: bool, monkeypatch) -> None:
    """Has different paddings on all sides. uint8 values have float weights."""
    dice = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, 8, groups * inputs, generator=dice)
    weight = torch.randint(-127, 128, (groups * outputs, 3, 2, inputs), generator=dice, dtype=torch.int8)
    scales = torch.rand(groups * outputs, generator=dice) * 1e-2 + 1e-3
    bias = torch.randint(-3000, 3000, (groups * outputs,), generator=dice, dtype=torch.int32)
    source = UNSIGNED if unsigned else A
    shape = (2, 5, 8, groups * outputs)

    def graph(payload: Payload, input_ids: list[int], output_ids: list[int]) -> None:
        at, out = _convert(payload, input_ids[0], tuple(x.shape), source), payload.value(shape, C)
        window = _window(padding_top=2, padding_left=1, subsampling_height=2, padding_bottom=1, groups=groups)
        window |= {
            "kernel_height": 3,
            "kernel_width": 2,
            "group_input_channels": inputs,
            "group_output_channels": outputs,
        }
        filters, offsets = (
            payload.channelwise(weight, scales, 0),
            payload.channelwise(bias, scales * source.scale, 0),
        )
        payload.node(
            "XNNConv2d",
            0,
            (-2.0, 3.0),
            **window,
            input1_id=at,
            filter_id=filters,
            bias_id=offsets,
            output_id=out,
            flags=0,
        )
        _convert(payload, out, shape, FP32, output_ids[0])

    image = F.pad(_real(_whole(x, source), source).permute(0, 3, 1, 2), (1, 0, 2, 1))
    filters = (weight.float() * scales[:, None, None, None]).permute(0, 3, 1, 2)
    expected = F.conv2d(image, filters, bias * scales * source.scale, (2, 1), groups=groups).clamp(-2, 3)
    _near(_method(monkeypatch, graph, [x.shape], [shape]), [x], expected.permute(0, 2, 3, 1), C)


@ours
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("source", [DYNAMIC, FP32, A])
def test_8_bit_and_4_bit_weights(bits: int, source: Element, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have an odd number of weights. The source is in float32, quantized at run time, or quantized with a constant scale."""
    dice = torch.Generator().manual_seed(0)
    x, scales = torch.randn(5, 33, generator=dice), torch.rand(21, generator=dice) * 1e-2 + 1e-3
    weight = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (21, 33), generator=dice, dtype=torch.int8)
    bias = torch.randn(21, generator=dice)

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        at = inputs[0] if source is FP32 else _convert(payload, inputs[0], (5, 33), source)
        filters = payload.channelwise(weight, scales, 0) if bits == 8 else payload.four_bits(weight, scales)
        payload.node(
            "XNNFullyConnected",
            0,
            (-1.0, 2.0),
            input1_id=at,
            filter_id=filters,
            bias_id=payload.constant(bias),
            output_id=outputs[0],
            flags=0,
        )

    held = x
    if source is DYNAMIC:  # torch and XNNPACK choose the scale by the same rule
        least, most = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
        scale = (most - least) / 255
        zero = torch.where(
            -128 + least / scale + 127 + most / scale > 0, -128 - least / scale, 127 - most / scale
        ).round()
        held = ((x / scale).round() + zero).clamp(-128, 127).sub(zero) * scale
    elif source is A:
        held = _real(_whole(x, A), A)
    expected = F.linear(held, weight.float() * scales[:, None], bias).clamp(-1, 2)
    _same(_method(monkeypatch, graph, [(5, 33)], [(5, 21)]), [x], expected)


@ours
def test_row_with_infinity_or_nan_becomes_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 8)
    x[1, 2], x[3, 0] = torch.inf, torch.nan
    weight = torch.ones(2, 8, dtype=torch.int8)

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        at, filters = (
            _convert(payload, inputs[0], (4, 8), DYNAMIC),
            payload.channelwise(weight, torch.ones(2), 0),
        )
        _linear(payload, at, filters, outputs[0])

    got = torch.as_tensor(_method(monkeypatch, graph, [(4, 8)], [(4, 2)]).execute([x])[0])
    assert got.isnan().all(1).tolist() == [False, True, False, True]


WRONG = {
    "a scale of 0": (lambda q: setattr(q, "scale", 0.0), "scale 0 "),
    "an infinite scale": (lambda q: setattr(q, "scale", float("inf")), "scale inf"),
    "a NaN scale": (lambda q: setattr(q, "scale", float("nan")), "scale -?nan"),
    "a negative scale": (lambda q: setattr(q, "scale", -1.0), "scale -1"),
    "a zero point beyond 8 bits": (lambda q: setattr(q, "zero_point", 128), "zero point 128"),
}
WRONG_WEIGHTS = {
    "channels in a dimension that does not exist": (
        lambda q: setattr(q, "channel_dim", 2),
        "channels in dimension 2",
    ),
    "a group size that does not divide the inputs": (lambda q: setattr(q, "group_size", 24), "groups of 24"),
    "groups of 0 elements": (lambda q: setattr(q, "group_size", 0), "groups of 0"),
    "scales outside of the payload": (lambda q: setattr(q, "scale_buffer_idx", 0), "constant 0 is outside"),
}


@ours
@pytest.mark.parametrize("name", [*WRONG, *WRONG_WEIGHTS, "a scale of weights", "computed weights"])
def test_invalid_quantization_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, scales = torch.ones(3, 64, dtype=torch.int8), torch.ones(3, 2)
    words = {**WRONG, **WRONG_WEIGHTS}.get(
        name, (None, "scale 0" if name == "a scale of weights" else "for constants")
    )[1]
    if name == "a scale of weights":
        scales[1, 1] = 0.0

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        at = _convert(payload, inputs[0], (2, 64), A)
        filters = payload.four_bits(weight, scales)
        values = payload._graph.xvalues
        if name in WRONG:
            WRONG[name][0](values[at].xvalue_union.quant_params)
        if name in WRONG_WEIGHTS:
            WRONG_WEIGHTS[name][0](values[filters].xvalue_union.quant_params)
        if name == "computed weights":
            values[at].xvalue_union.tensor_value.datatype = RECORDS["XNNDatatype"]["xnn_datatype_qint32"]
            values[at].xvalue_union.quant_params.zero_point = 0
        _linear(payload, at, filters, outputs[0])

    with pytest.raises(RuntimeLoadError, match=words):
        _method(monkeypatch, graph, [(2, 64)], [(2, 3)])


def _lowered(model: nn.Module, x: torch.Tensor, **config: bool):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        edge = to_edge_transform_and_lower(export(model.eval(), (x,)), partitioner=XnnpackPartitioner())
    return edge.to_executorch(ExecutorchBackendConfig(**config)).buffer


@ours
def test_unsupported_type_is_refused_by_name_and_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Tanh(), nn.Sigmoid()), torch.randn(3, 8)
    monkeypatch.setitem(FLOATS, torch.float32, Element("bf16"))  # a type that our partitioner does not write
    with pytest.raises(RuntimeLoadError, match="has type bf16; kernels run fp32") as refused:
        Runtime.get().load_program(_lowered(model, x)).load_method("forward")
    assert "portable_fallback=True" in str(refused.value)
    program = Runtime.get().load_program(_lowered(model, x, portable_fallback=True))
    with pytest.warns(RuntimeWarning, match="portable"):
        method = program.load_method("forward")
    torch.testing.assert_close(torch.as_tensor(method.execute([x])[0]), model(x), rtol=1e-2, atol=1e-3)


@ours
def test_float16_is_computed_in_float32(tmp_path: Path) -> None:
    """Intermediate values are float32, so a sum that exceeds the range of float16 is exact. A node also reads a result."""

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            y = self.mix(x)
            return y, torch.tanh(y), x.reshape(-1) * 4096 * 64 * (1 / 4096)

    torch.manual_seed(0)
    model, x = Sums().half(), torch.randn(3, 8).half()
    file = _lowered(model, x)
    got = [
        torch.as_tensor(result)
        for result in Runtime.get().load_program(file).load_method("forward").execute([x])
    ]
    assert all(result.dtype is torch.float16 for result in got)
    wide = model.float()(x.float())
    for mine, expected in zip(got[:2], wide[:2], strict=True):
        torch.testing.assert_close(mine.float(), expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(got[2], x.reshape(-1) * 64)
    (tmp_path / "model.pte").write_bytes(file)
    chosen = selection.of_file(tmp_path / "model.pte")
    assert "aten::_to_copy.out" in chosen.operators and chosen.dtypes >= {"float16", "float32"}


@ours
def test_kernels_have_only_the_option_library() -> None:
    registry = Runtime.get().backend_registry
    assert registry.get_option("XnnpackBackend", "library") is False
    with pytest.raises(InputError, match="num_threads"):
        registry.set_option("XnnpackBackend", num_threads=1)


@ours
def test_events_of_a_delegate_have_the_names_of_kernels() -> None:
    model, x = nn.Sequential(nn.Linear(256, 128), nn.Sigmoid()), torch.randn(32, 256)
    method = Runtime.get().load_program(_lowered(model, x)).load_method("forward", tracing=True)
    method.execute([x])
    events = method.take_events()
    inner_events = [event for event in events if event.in_delegate]
    assert [event.name for event in inner_events] == ["cpu::linear.out", "aten::sigmoid.out"]
    assert inner_events[0].part is not None and inner_events[0].part != inner_events[1].part
    (call,) = (event for event in events if event.name == "DELEGATE_CALL")
    assert (
        call.begin
        <= inner_events[0].begin
        < inner_events[0].end
        <= inner_events[1].begin
        < inner_events[1].end
        <= call.end
    )


@ours
def test_views_and_images_of_values_and_arguments() -> None:
    """A view shares the memory of its tensor. A view of an argument with another dim order is a copy."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.mix = nn.ConvTranspose2d(3, 3, 2, 2), nn.Conv2d(3, 3, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            inner = self.mix(x)
            resized = [
                nn.functional.interpolate(image, scale_factor=2, mode="bilinear", align_corners=True)
                for image in (x, inner)
            ]
            return *resized, self.up(x), self.up(inner), x.reshape(-1, 12), inner.reshape(4, -1) + 1

    model = Views().eval()
    x = torch.randn(2, 3, 4, 6).to(memory_format=torch.channels_last)
    method = Runtime.get().load_program(_lowered(model, x)).load_method("forward")
    for _ in range(2):  # the second execution starts with the sizes and addresses of the first
        for actual, expected in zip(method.execute([x]), model(x), strict=True):
            torch.testing.assert_close(torch.as_tensor(actual), expected, rtol=1e-4, atol=1e-5)


def test_every_kind_of_node_has_kernels_that_exist() -> None:
    union = {name for name in RECORDS if name.startswith("XNN")}
    assert KERNELS.keys() <= union
    assert INTEGER_KERNELS.keys() < KERNELS.keys()
    assert {name for row in (*KERNELS.values(), *INTEGER_KERNELS.values()) for name in row} <= (
        kernels.library().keys()
    )


@pytest.mark.parametrize("row", [*UNARY, *BINARY], ids=lambda row: row.kind)
def test_a_table_row_defines_an_elementwise_operator_everywhere(row: Elementwise) -> None:
    target = getattr(getattr(torch.ops.aten, row.name), row.overload)
    assert target in OPERATORS
    assert getattr(configs, row.config).target_name == row.target
    assert KERNELS[row.kind] == (f"aten::{row.name}.out",)
    includes = '#include "torchette/schema/xnnpack.def"'
    # the library's table and the table of our kernels
    for file in (
        "library/nodes.cpp",
        "kernels/nodes.cpp",
    ):
        assert includes in (ROOT / "torchette" / "backends" / "xnnpack" / file).read_text()


@pytest.mark.parametrize("row", [UNARY[0], BINARY[0]], ids=lambda row: row.kind)
def test_a_row_runs_from_the_partitioner_to_the_kernel(row: Elementwise) -> None:
    class One(nn.Module):
        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            return getattr(getattr(torch.ops.aten, row.name), row.overload)(*args)

    args = (torch.rand(3, 4),) if row in UNARY else (torch.rand(3, 4), torch.rand(3, 4))
    chosen = XnnpackPartitioner(configs=[getattr(configs, row.config)])
    edge = to_edge_transform_and_lower(export(One(), args), partitioner=[chosen])
    payload = edge.exported_program().graph_module.lowered_module_0.processed_bytes
    assert KERNELS[row.kind][0] in delegates.operators("XnnpackBackend", memoryview(payload))
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    torch.testing.assert_close(torch.as_tensor(method.execute(list(args))[0]), One()(*args))


def test_build_for_a_file_selects_the_kernels_of_its_nodes(tmp_path: Path) -> None:
    (tmp_path / "model.pte").write_bytes(
        _lowered(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh()), torch.randn(1, 2, 5, 5))
    )
    chosen = selection.of_file(tmp_path / "model.pte")
    assert chosen.backends == {"XnnpackBackend"}
    assert chosen.operators >= {"cpu::convolution.out", "aten::tanh.out", "aten::permute_copy.out"}
    view = _lowered(nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Tanh()), torch.randn(1, 2, 5))
    (tmp_path / "view.pte").write_bytes(view)
    assert "executorch_prim::et_view.default" in selection.of_file(tmp_path / "view.pte").operators
    assert not chosen.operators & {"aten::bmm.out", "cpu::linear.out", "cpu::quantized_convolution.out"}
    assert delegates.operators("XnnpackBackend", memoryview(b"no payload")) == frozenset()


def test_dynamic_batch_and_damaged_sizes() -> None:
    """Each call compares the sizes of its tensors with the sizes of the payload."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).eval()
    x = torch.randn(4, 2, 5, 5)
    compiled = torchette.compile(
        model, (x,), dynamic_shapes=({0: torch.export.Dim("n", max=8)},), backend="xnnpack"
    )
    for count in (1, 8, 3, 0):
        some = torch.randn(count, 2, 5, 5)
        torch.testing.assert_close(compiled(some), model(some), rtol=1e-4, atol=1e-5)
    with pytest.raises(TorchetteError):
        compiled(torch.randn(9, 2, 5, 5))


def test_weights_of_several_nodes_are_read_again_after_packing(tmp_path: Path) -> None:
    """A node that packs weights frees their bytes."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(256, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mix(self.mix(x)) + self.mix.weight

    torch.manual_seed(0)
    model, x = Tied().eval(), torch.randn(256, 256)
    path = tmp_path / "tied.pte"
    path.write_bytes(_lowered(model, x))
    (result,) = Runtime.get().load_program(path).load_method("forward").execute([x])
    torch.testing.assert_close(torch.as_tensor(result), model(x), rtol=1e-4, atol=1e-4)


@ours
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_load_keeps_one_copy_of_the_weights(tmp_path: Path) -> None:
    """Weights are packed into memory one layer at a time, and the pages of a packed layer leave the process."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12)))
    path = tmp_path / "deep.pte"
    path.write_bytes(_lowered(model, torch.randn(1, 1024)))
    script = """
import re, sys
from torchette.runtime import Runtime
def peak(): return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
runtime = Runtime.get()
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
before = peak()
method = runtime.load_program(sys.argv[1]).load_method("forward")
print(peak() - before)
"""
    command = [sys.executable, "-c", script, str(path)]
    grown = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout)
    assert grown < 1.5 * path.stat().st_size


def test_delegate_with_large_maximum_sizes_allocates_by_the_sizes_of_a_call() -> None:
    """24 tensors of at most 4 GB each live at the same time: the delegate plans none of them."""

    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = [x]
            for _ in range(24):
                parts.append(torch.tanh(parts[-1].reshape(x.shape[0], -1) + 1).reshape(x.shape))
            total = parts[-1]
            for part in reversed(parts[:-1]):
                total = torch.sigmoid(total) + part
            return total

    model = Sums()
    sizes = {dim: torch.export.Dim(f"size{dim}", max=1000) for dim in range(3)}
    compiled = torchette.compile(model, (torch.rand(2, 3, 4),), dynamic_shapes=(sizes,), backend="xnnpack")
    for shape in ((2, 3, 4), (5, 1, 7), (1, 1, 1), (3, 0, 2), (40, 30, 20)):
        x = torch.rand(shape)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@ours
def test_delegates_of_a_method_plan_at_most_1_gib_together() -> None:
    """Each of the 4 delegates would plan tensors of 0.25 GB."""

    class Parts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = torch.sigmoid(torch.tanh(x) + torch.sigmoid(x)).sort(0).values
            return x

    model = Parts()
    sizes = {dim: torch.export.Dim(f"size{dim}", max=400) for dim in range(3)}
    compiled = torchette.compile(model, (torch.rand(2, 3, 4),), dynamic_shapes=(sizes,), backend="xnnpack")
    method = Runtime.get().load_program(bytes(compiled)).load_method("forward")
    assert 1 << 28 < method.method_bytes < 1 << 30
    for shape in ((2, 3, 4), (5, 1, 7), (3, 0, 2), (40, 30, 20)):
        x = torch.rand(shape)
        torch.testing.assert_close(method.execute([x])[0], model(x), rtol=1e-4, atol=1e-5)
