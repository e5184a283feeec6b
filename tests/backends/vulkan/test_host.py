# SPDX-License-Identifier: BSD-3-Clause
# Operators that ExecuTorch's partitioner fuses, in payloads that the tests write. Operators without a shader run on the processor.
from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch.ao.quantization.fx import _decomposed  # noqa: F401 - registers operators
from torch.nn import functional as F

from tests.backends.vulkan.device import on_processor
from torchette.backends.vulkan import VulkanBackend, VulkanPartitioner
from torchette.backends.vulkan.payload import Payload
from torchette.errors import TorchetteError
from torchette.exir import to_edge_transform_and_lower
from torchette.exir.delegation.delegate import PreprocessResult
from torchette.runtime import Method, Runtime


class Kept(NamedTuple):
    """A constant of the payload; every other tensor is an input."""

    tensor: torch.Tensor


class Zeros(torch.nn.Module):
    """A module with the inputs and results of the payload."""

    def __init__(self, results: list[torch.Tensor]) -> None:
        super().__init__()
        self.results = [(one.shape, one.dtype) for one in results]

    def forward(self, *inputs):
        zero = sum(one.float().sum() for one in inputs) * 0
        quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
        return tuple(
            quantize(torch.zeros(shape) + zero, 1.0, 0, -128, 127, dtype)
            if dtype is torch.int8
            else (torch.zeros(shape) + zero).to(dtype)
            for shape, dtype in self.results
        )


def load(
    calls: list[tuple[str, list[Any], list[torch.Tensor]]], monkeypatch
) -> tuple[Method, list[torch.Tensor]]:
    """Returns a method with these calls: the operator, its arguments, the expected results. Equal arguments are one value."""
    inputs_by_id: dict[int, tuple[int, torch.Tensor]] = {}
    results: list[tuple[int, torch.Tensor]] = []
    payload = Payload()
    constants: dict[int, int] = {}

    def value(argument: Any) -> int:
        if isinstance(argument, Kept):
            tensor = argument.tensor
            return constants.setdefault(id(tensor), payload.tensor(tensor.shape, tensor.dtype, tensor))
        if isinstance(argument, torch.Tensor):
            if id(argument) not in inputs_by_id:
                inputs_by_id[id(argument)] = (payload.tensor(argument.shape, argument.dtype), argument)
            return inputs_by_id[id(argument)][0]
        return payload.numbers(argument) if isinstance(argument, list) else payload.scalar(argument)

    for name, arguments, expected in calls:
        numbers = [value(one) for one in arguments]
        outputs = [payload.tensor(one.shape, one.dtype) for one in expected]
        results += zip(outputs, expected, strict=True)
        payload.call(name, [*numbers, outputs[0] if len(outputs) == 1 else payload.list(outputs)], 0)

    def preprocess(program, specs):
        processed, named = payload.finish(
            [one for one, _ in inputs_by_id.values()], [one for one, _ in results]
        )
        return PreprocessResult(processed, data_store_output=named)

    monkeypatch.setattr(VulkanBackend, "preprocess", staticmethod(preprocess))
    inputs = [one for _, one in inputs_by_id.values()]
    exported = torch.export.export(Zeros([one for _, one in results]), tuple(inputs))
    edge = to_edge_transform_and_lower(exported, partitioner=VulkanPartitioner())
    assert not [(item.op, item.reasons) for item in edge.delegation().placements if item.backend is None]
    program = Runtime.get().load_program(edge.to_executorch().buffer)
    with on_processor():
        return program.load_method("forward"), inputs


def _signed(*shape: int, most: int = 127) -> torch.Tensor:
    return torch.randint(-most, most + 1, shape, dtype=torch.int8)


def _numbers(x: torch.Tensor, scale: Any, zero: Any) -> torch.Tensor:
    return (x.float() - zero) * scale


def _whole(x: torch.Tensor, scale: Any, zero: Any) -> torch.Tensor:
    return (torch.round(x / scale) + zero).clamp(-128, 127).to(torch.int8)


def _pairs(x, cos, sin):
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def _halves(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]


def _convolution(kind: str) -> tuple[str, list[Any], list[torch.Tensor]]:
    x, groups = _signed(1, 4, 5, 6), {"dw": 4, "pw": 1}.get(kind, 2)
    size = 1 if kind == "pw" else 3
    w, scales, bias = _signed(4, 4 // groups, size, size), torch.rand(4) / 100, torch.randn(4)
    if kind == "transposed":  # all groups have the scales of the first
        scales[2:] = scales[:2]
        turned = (w * scales[:, None, None, None]).unflatten(0, (2, 2)).transpose(1, 2).flatten(0, 1)
        y = F.conv_transpose2d(_numbers(x, 0.02, 3), turned, bias, 2, 1, 1, groups)
        geometry = [[2, 2], [1, 1], [1, 1], [1, 1]]
    else:
        y = F.conv2d(_numbers(x, 0.02, 3), w * scales[:, None, None, None], bias, 1, 1, 1, groups)
        geometry = [[1, 1], [1, 1], [1, 1]]
    rows = w[:, 0].permute(1, 2, 0) if kind == "dw" else F.pad(w.flatten(1), (0, 2))
    stored = [Kept(rows.contiguous()), Kept(torch.zeros(4, dtype=torch.int32)), Kept(scales)]
    name = f"et_vk.q8ta_conv2d{'_' * bool(kind)}{kind}.default"
    arguments = [x, 0.02, 3, *stored, 0.05, -4, Kept(bias), [size, size], *geometry, groups, "relu"]
    return name, arguments, [_whole(y.relu(), 0.05, -4)]


def cases() -> dict[str, tuple[str, list[Any], list[torch.Tensor]]]:
    torch.manual_seed(0)
    a, b, x = _signed(2, 8, 3), _signed(2, 8, 3), torch.randn(2, 5, 4, 8)
    case_rows: list[tuple[str, list[Any], list[torch.Tensor]]] = []
    x8, w8, s8, bias8 = torch.randn(3, 32), _signed(6, 32), torch.rand(6) / 50, torch.randn(6)
    x4, codes, s4, bias4 = (
        torch.randn(3, 32),
        torch.randint(0, 16, (6, 32)),
        torch.rand(2, 6) / 5,
        torch.randn(6),
    )
    w4 = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
    w4float = (codes - 8) * s4.t().repeat_interleave(16, 1)
    sums = Kept(torch.zeros(6, dtype=torch.int32))
    weights, scales, bias = Kept(w8), Kept(s8), Kept(bias8)
    result = F.linear(_numbers(_whole(x8, 0.03, 7), 0.03, 7), w8 * s8[:, None], bias8)
    padded = Kept(F.pad(bias8, (0, 2)))
    case_rows.append(
        ("et_vk.linear_q8ta_q8csw.default", [x8, 0.03, 7, weights, sums, scales, padded], [result])
    )
    rows, zeros = torch.rand(3) / 50, torch.tensor([0, 3, -9], dtype=torch.int32)
    by_row = (rows[:, None], zeros[:, None])
    result = F.linear(_numbers(_whole(x4, *by_row), *by_row), w4float, bias4)
    arguments = [x4, rows, zeros, Kept(w4), sums, Kept(s4), 16, Kept(bias4)]
    case_rows.append(("et_vk.linear_dq8ca_q4gsw.default", arguments, [result]))
    integers = _signed(3, 32)
    y = F.linear(_numbers(integers, 0.02, 3), w8 * s8[:, None], bias8).relu()
    arguments = [integers, 0.02, 3, weights, sums, scales, 0.1, -5, bias, "relu"]
    case_rows.append(("et_vk.q8ta_linear.default", arguments, [_whole(y, 0.1, -5)]))
    case_rows.append(("et_vk.q8ta_linear_gemv.default", arguments, [_whole(y, 0.1, -5)]))
    case_rows += [_convolution(kind) for kind in ("", "pw", "dw", "transposed")]
    total = _numbers(a, 0.1, 2) + 0.5 * _numbers(b, 0.2, -3)
    case_rows.append(
        ("et_vk.q8ta_add.default", [a, b, 0.1, 2, 0.2, -3, 0.15, 4, 0.5], [_whole(total, 0.15, 4)])
    )
    case_rows.append(
        ("et_vk.q8ta_relu.default", [a, 0.1, 2, 0.15, 4], [_whole(_numbers(a, 0.1, 2).relu(), 0.15, 4)])
    )
    image = _signed(1, 8, 2, 3)
    shuffled = F.pixel_shuffle(_numbers(image, 0.1, 2), 2)
    case_rows.append(
        ("et_vk.q8ta_pixel_shuffle.default", [image, 0.1, 2, 1 / 0.15, 4, 2], [_whole(shuffled, 0.15, 4)])
    )
    table, places = torch.randint(0, 16, (7, 32)), torch.tensor([[3, 0, 6]])
    packed, parts = (table[:, 1::2] | table[:, ::2] << 4).to(torch.uint8), torch.rand(7, 2)
    want = ((table - 8) * parts.repeat_interleave(16, 1))[places]
    case_rows.append(
        ("et_vk.embedding_q4gsw.default", [Kept(packed), Kept(parts), 16, places, False], [want])
    )
    cos, sin = torch.randn(5, 4), torch.randn(5, 4)
    y_heads = torch.randn(2, 5, 2, 8)
    turned = [_pairs(one, cos, sin) for one in (x, y_heads)]
    case_rows.append(("et_vk.apply_rotary_emb.default", [x, y_heads, cos, sin], turned))
    cos, sin = torch.randn(9, 8), torch.randn(9, 8)
    turned = [_halves(one, cos[2:7], sin[2:7]) for one in (x, y_heads)]
    case_rows.append(("et_vk.apply_rotary_emb_hf.default", [x, y_heads, cos, sin, 2], turned))
    flat, angles = torch.randn(2, 5, 8), torch.randn(5, 4, 2)
    turned = [_pairs(flat[:, :, None], angles[..., 0], angles[..., 1])[:, :, 0]]
    case_rows.append(("et_vk.apply_rotary_emb_interleaved.default", [flat, angles], turned))
    grid = torch.stack([(torch.arange(6) % 3 + 0.5) * 8, (torch.arange(6) // 3 + 0.5) * 8], -1)
    case_rows.append(("et_vk.grid_priors.default", [torch.randn(1, 2, 2, 3), 8, 0.5], [grid]))
    low, high = x8.min(), x8.max()
    scale = (high - low) / 255
    zero = (-128 - torch.round(low / scale)).clamp(-128, 127).to(torch.int32)
    case_rows.append(
        (
            "quantized_decomposed.choose_qparams.tensor",
            [x8, -128, 127, 1e-7, None],
            [scale.view(1), zero.view(1)],
        )
    )
    scale = (x8.amax(1, keepdim=True) - x8.amin(1, keepdim=True)) / 255
    zero = (-128 - torch.round(x8.amin(1, keepdim=True) / scale)).clamp(-128, 127).to(torch.int32)
    name = "quantized_decomposed.choose_qparams_per_token_asymmetric.default"
    case_rows.append((name, [x8, None], [scale, zero]))
    quantized = (torch.round(x8 * (1 / scale)) + zero).clamp(-128, 127).to(torch.int8)
    name = "quantized_decomposed.quantize_per_token.default"
    case_rows.append((name, [x8, scale, zero, -128, 127, None], [quantized]))
    name = "quantized_decomposed.dequantize_per_token.default"
    case_rows.append((name, [quantized, scale, zero, -128, 127, None, None], [(quantized - zero) * scale]))
    return {name: (name, arguments, results) for name, arguments, results in case_rows}


def test_fused_operators(monkeypatch):
    all_cases = cases()
    method, inputs = load(list(all_cases.values()), monkeypatch)
    expected = [(name, want) for name, (_, _, results) in all_cases.items() for want in results]
    for _ in range(2):  # constant calls run only once
        for got, (name, want) in zip(map(torch.as_tensor, method.execute(inputs)), expected, strict=True):
            if want.dtype is torch.int8:  # a tie may be rounded to either integer
                difference = (got.int() - want.int()).abs()
                assert difference.max() <= 1 and difference.float().mean() < 0.1, name
            else:
                torch.testing.assert_close(
                    got, want, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
                )


@pytest.mark.parametrize("fused", [True, False])
def test_kv_cache_persists_between_calls(fused, monkeypatch):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 2, 8), torch.randn(1, 2, 2, 8)
    keys, values = torch.randn(1, 6, 2, 8), torch.randn(1, 6, 2, 8)
    first = (Kept(keys), Kept(values))
    nothing, y = torch.zeros(1), torch.zeros(1, 2, 4, 8)
    if fused:
        calls = [("llama.sdpa_with_kv_cache.default", [q, k, v, *first, 3, 2, None, 0.0, True, None], [y])]
    else:
        calls = [
            ("llama.update_cache.default", [k, first[0], 3], [nothing]),
            ("llama.update_cache.default", [v, first[1], 3], [nothing]),
            ("llama.custom_sdpa.default", [q, *first, 3, None, 0.0, True, None], [y]),
        ]
    method, inputs = load(calls, monkeypatch)
    for again in range(2):
        new = inputs if fused else [inputs[2], *inputs[:2]]
        keys[:, 3:5], values[:, 3:5] = new[1:]
        mask = torch.arange(5)[None] <= torch.arange(3, 5)[:, None]
        q, k, v = (one.transpose(1, 2) for one in (new[0], keys[:, :5], values[:, :5]))
        want = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2)
        got = torch.as_tensor(method.execute(inputs)[-1])
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        inputs = [one * (again + 2) for one in inputs]


def test_unknown_operator_is_named(monkeypatch):
    x = torch.randn(2, 3)
    with pytest.raises(
        TorchetteError,
        match=r"cannot run the Vulkan operator aten\.nothing\.default: this build does not have its kernel",
    ):
        load([("aten.nothing.default", [x], [x])], monkeypatch)
