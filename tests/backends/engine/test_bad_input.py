# SPDX-License-Identifier: BSD-3-Clause
# Kernels of the engine refuse arguments of damaged files with an error that contains their name, on every level.

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchette.backends.engine.pack import pack_convolution, pack_depthwise, pack_linear
from torchette.errors import InputError
from torchette.runtime import Runtime, _native, kernel_levels

X, IMAGE = torch.ones(3, 8), torch.ones(1, 5, 5, 4)
LINEAR = [X, pack_linear(torch.ones(20, 8)), torch.ones(20), torch.ones(3, 20), 20, "relu"]
CONVOLUTION = [
    IMAGE, pack_convolution(torch.ones(20, 4, 3, 3), 1), torch.ones(20), torch.ones(1, 3, 3, 20), [1, 1], [0, 0], [1, 1], 20, "none",
]  # fmt: skip
DEPTHWISE = [
    IMAGE, pack_depthwise(torch.ones(4, 1, 3, 3)), torch.ones(4), torch.ones(1, 3, 3, 4), [1, 1], [0, 0], [1, 1], "none",
]  # fmt: skip
CONVOLUTION_INTO = [torch.ones(1, 3, 3, 24), *CONVOLUTION[:3], *CONVOLUTION[4:], 2, 24]
DEPTHWISE_INTO = [
    None, torch.ones(1, 5, 5, 5), *DEPTHWISE[1:3], *DEPTHWISE[4:7], 4, 1, "none", 2, 6,
]  # fmt: skip
ATTENTION = [torch.ones(1, 3, 2, 8), torch.ones(1, 5, 2, 8), torch.ones(1, 5, 2, 8), None, 1.0, False, False]
CACHED = [
    torch.ones(1, 3, 4, 8), torch.ones(9, 2, 8), torch.ones(9, 2, 8), torch.tensor([6]), torch.ones(4), 1.0, 0, 0.0,
]  # fmt: skip
BYTES = torch.ones(9, 2, 8).char()
INT8_CACHED = [CACHED[0], BYTES, BYTES, torch.ones(9, 2, 2), torch.ones(9, 2, 2), *CACHED[3:]]
RECURRENCE = [
    *(torch.ones(3, 2, 5) for _ in range(2)), torch.ones(3, 4, 8), torch.ones(3, 4, 1), torch.ones(3, 4), torch.ones(4, 5, 8),
]  # fmt: skip
SCAN = [
    *(torch.ones(3, 8) for _ in range(2)),
    torch.ones(8, 5),
    *(torch.ones(3, 5) for _ in range(2)),
    torch.ones(8, 5),
]
SCALED = [torch.ones(1, 2, 16, 4).byte(), torch.ones(1, 2, 16), torch.tensor([0, 8]), 9, 16]
NORM = [X, torch.ones(8), torch.ones(8), [8], 1e-5]
EMBEDDING = [torch.ones(5, 4).byte(), torch.ones(5, 2), None, 4, torch.tensor([0, 4])]
OUT = {
    "linear": torch.empty(3, 20), "convolution": torch.empty(1, 3, 3, 20), "depthwise": torch.empty(1, 3, 3, 4),
    "convolution_into": torch.empty(1, 3, 3, 24), "depthwise_into": torch.empty(1, 3, 3, 6),
    "attention": torch.empty(1, 3, 2, 8), "cached_attention": torch.empty(1, 3, 4, 8),
    "linear_recurrence": (torch.empty(3, 4, 8), torch.empty(4, 5, 8)),
    "selective_scan": (torch.empty(3, 8), torch.empty(8, 5)),
    "int8_cached_attention": torch.empty(1, 3, 4, 8), "layer_norm": torch.empty(3, 8),
    "weight_only_embedding": torch.empty(2, 8), "scaled_embedding": torch.empty(2, 16),
}  # fmt: skip

# Operator, valid arguments, the index of one argument and its wrong value, the message.
FAULTS: list[tuple[str, list[Any], int, Any, str]] = [
    ("linear", LINEAR, 1, torch.ones(1, 8, 16), "linear: a weight"),
    ("linear", LINEAR, 1, torch.ones(3, 8, 16), "linear: a weight"),
    ("linear", LINEAR, 1, torch.ones(2, 7, 16), "linear: a weight"),
    ("linear", LINEAR, 1, torch.ones(2, 16, 8), "linear: a weight"),
    ("linear", LINEAR, 1, torch.ones(20, 8), "linear: a weight"),
    ("linear", LINEAR, 1, torch.ones(2, 8, 16).int(), "linear: a weight"),
    ("linear", LINEAR, 1, torch.ones(8, 20).int(), "linear: a weight"),
    ("linear", LINEAR, 1, torch.ones(2, 3, 16).int(), "linear: a weight"),
    ("convolution", CONVOLUTION, 1, torch.ones(1, 2, 3, 3, 4, 16).int(), "convolution: a weight"),
    ("convolution", CONVOLUTION, 1, torch.ones(1, 3, 3, 2, 20).int(), "convolution: a weight"),
    ("linear", LINEAR, 1, torch.ones(2, 8, 16).double(), "linear: weight is of type"),
    ("linear", LINEAR, 1, torch.ones(2, 7, 16).half(), "linear: a weight"),
    ("linear", LINEAR, 0, torch.ones(3, 8).half(), "linear: input is of type"),
    ("linear", LINEAR, 2, torch.ones(19), "linear: bias"),
    ("linear", LINEAR, 2, torch.ones(20).double(), "linear: bias is of type"),
    ("linear", LINEAR, 3, torch.ones(2, 20), "linear: residual"),
    ("linear", LINEAR, 3, torch.ones(20), "linear: residual"),
    ("linear", LINEAR, 4, -1, "linear: a weight"),
    ("linear", LINEAR, 4, 2**40, "linear: a weight"),
    ("linear", LINEAR, 5, "swish", "unknown activation swish"),
    ("linear", LINEAR, 5, "", "unknown activation"),
    ("convolution", CONVOLUTION, 1, torch.ones(1, 1, 3, 3, 4, 16), "convolution: a weight of 1 groups"),
    ("convolution", CONVOLUTION, 1, torch.ones(1, 2, 3, 3, 5, 16), "convolution: a weight"),
    ("convolution", CONVOLUTION, 1, torch.ones(0, 2, 3, 3, 4, 16), "convolution: a weight of 0 groups"),
    ("convolution", CONVOLUTION, 1, torch.ones(1, 2, 3, 3, 4, 8), "convolution: a weight"),
    ("convolution", CONVOLUTION, 1, torch.ones(1, 2, 3, 4, 16), "convolution: a weight"),
    ("convolution", CONVOLUTION, 1, torch.ones(1, 2, 9, 9, 4, 16), "convolution: a window of 9 exceeds 5"),
    ("convolution", CONVOLUTION, 3, torch.ones(1, 3, 3, 19), "convolution: residual"),
    ("convolution", CONVOLUTION, 4, [-1, 1], "convolution: kernel 3, stride -1"),
    ("convolution", CONVOLUTION, 4, [0, 1], "convolution: kernel 3, stride 0"),
    ("convolution", CONVOLUTION, 4, [1], "convolution: stride, padding and dilation have 1, 2 and 2"),
    ("convolution", CONVOLUTION, 5, [0, -1], "padding -1"),
    ("convolution", CONVOLUTION, 6, [2**40, 1], "dilation"),
    ("convolution", CONVOLUTION, 7, 21, "convolution: "),
    ("convolution", CONVOLUTION, 8, "relu7", "unknown activation relu7"),
    ("depthwise", DEPTHWISE, 1, torch.ones(2, 3, 3, 16), "depthwise: a weight of 2 times 16 does not fit 4 channels"),
    ("depthwise", DEPTHWISE, 1, torch.ones(1, 3, 3, 4), "depthwise: a weight"),
    ("depthwise", DEPTHWISE, 1, torch.ones(1, 3, 16), "depthwise: a weight"),
    ("convolution_into", CONVOLUTION_INTO, 0, torch.ones(1, 3, 3, 23), "convolution: into has 4 dimensions and 207 elements"),
    ("convolution_into", CONVOLUTION_INTO, 0, torch.ones(1, 3, 3, 24).half(), "convolution: into is of type"),
    ("convolution_into", CONVOLUTION_INTO, 9, 5, "convolution: channels 5 to 25 are not in a result of 24 channels"),
    ("convolution_into", CONVOLUTION_INTO, 9, -1, "convolution: channels -1 to 19"),
    ("convolution_into", CONVOLUTION_INTO, 9, 2**62, "convolution: channels 4611686018427387904"),
    ("depthwise_into", DEPTHWISE_INTO, 1, None, "depthwise: input is missing"),
    ("depthwise_into", DEPTHWISE_INTO, 7, 7, "depthwise: channels 1 to 8 are not in an input of 5 channels"),
    ("depthwise_into", DEPTHWISE_INTO, 8, -1, "depthwise: channels -1 to 3"),
    ("depthwise_into", DEPTHWISE_INTO, 8, 2**62, "depthwise: channels 4611686018427387904"),
    ("depthwise_into", DEPTHWISE_INTO, 10, 3, "depthwise: channels 3 to 7 are not in a result of 6 channels"),
    ("depthwise", DEPTHWISE, 3, torch.ones(1, 4, 3, 3), "depthwise: residual"),
    ("depthwise", DEPTHWISE, 4, [1, -2], "depthwise: kernel 3, stride -2"),
    ("depthwise", DEPTHWISE, 7, "none ", "unknown activation none "),
    ("attention", ATTENTION, 1, torch.ones(1, 5, 2, 7), "attention: query has 2 heads of 8, key 2 heads of 7"),
    ("attention", ATTENTION, 1, torch.ones(1, 5, 0, 8), "attention: query has 2 heads"),
    ("attention", ATTENTION, 2, torch.ones(1, 4, 2, 8), "attention: query has 2 heads"),
    ("attention", ATTENTION, 3, torch.ones(4, 5), "attention: mask has 4 elements, expected 3"),
    ("attention", ATTENTION, 3, torch.ones(3, 5).int(), "attention: mask is of type"),
    ("cached_attention", CACHED, 0, torch.ones(3, 4, 8), "cached_attention: query has 3 dimensions, expected 4"),
    ("cached_attention", CACHED, 0, torch.ones(2, 3, 4, 8), "cached_attention: query has batch 2"),
    ("cached_attention", CACHED, 0, torch.ones(1, 3, 3, 8), "cached_attention: query has batch 1 and 3 heads"),
    ("cached_attention", CACHED, 1, torch.ones(9, 2, 7), "key of 7"),
    ("cached_attention", CACHED, 1, torch.ones(9, 0, 8), "key and value have 9 and 9 positions, 0 and 2 heads"),
    ("cached_attention", CACHED, 2, torch.ones(8, 2, 8), "key and value have 9 and 8 positions"),
    ("cached_attention", CACHED, 2, torch.ones(9, 2, 8).half(), "cached_attention: value is of type"),
    ("cached_attention", CACHED, 3, torch.tensor([7]), "3 tokens from position 7 do not fit into 9 positions"),
    ("cached_attention", CACHED, 3, torch.tensor([-1]), "3 tokens from position -1"),
    ("cached_attention", CACHED, 3, torch.tensor([2**62]), "cached_attention: 3 tokens"),
    ("cached_attention", CACHED, 3, torch.tensor([6, 6]), "cached_attention: start has 2 elements"),
    ("cached_attention", CACHED, 3, torch.tensor([6]).int(), "cached_attention: start has 1 elements of type"),
    ("cached_attention", CACHED, 4, torch.ones(3), "cached_attention: sinks"),
    ("cached_attention", CACHED, 6, -(2**63), "cached_attention: the window has no absolute value"),
    ("cached_attention", CACHED, 7, -2.0, "cached_attention: the cap is -2.000000, it must be at least 0"),
    ("cached_attention", CACHED, 1, BYTES, "cached_attention: key is of type 1"),
    ("cached_attention", CACHED, 1, torch.ones(9, 2, 8).half(), "cached_attention: value is of type 6, expected contiguous elements of type 5"),
    ("linear_recurrence", RECURRENCE, 0, torch.ones(3, 1, 5), "linear_recurrence: query has 3 dimensions and 15 elements"),
    ("linear_recurrence", RECURRENCE, 1, torch.ones(3, 3, 5), "linear_recurrence: key has 3 tokens and 3 heads, value 3 tokens and 4 heads"),
    ("linear_recurrence", RECURRENCE, 1, torch.ones(3, 0, 5), "linear_recurrence: key has 3 tokens and 0 heads"),
    ("linear_recurrence", RECURRENCE, 1, torch.ones(2, 2, 5), "linear_recurrence: key has 2 tokens"),
    ("linear_recurrence", RECURRENCE, 2, torch.ones(3, 4, 8).half(), "linear_recurrence: value is of type 5"),
    ("linear_recurrence", RECURRENCE, 2, torch.ones(4, 8), "linear_recurrence: value has 2 dimensions, expected 3"),
    ("linear_recurrence", RECURRENCE, 3, torch.ones(3, 4, 2), "linear_recurrence: decay has 3 tokens and 4 heads of 2, expected 3, 4 and 1 or 5"),
    ("linear_recurrence", RECURRENCE, 3, torch.ones(3, 1, 1), "linear_recurrence: decay has 3 tokens and 1 heads"),
    ("linear_recurrence", RECURRENCE, 4, torch.ones(3, 2), "linear_recurrence: beta has 2 dimensions and 6 elements"),
    ("linear_recurrence", RECURRENCE, 5, torch.ones(4, 5, 7), "linear_recurrence: state has 3 dimensions and 140 elements"),
    ("selective_scan", SCAN, 0, torch.ones(3, 8).half(), "selective_scan: x is of type 5"),
    ("selective_scan", SCAN, 0, torch.ones(8), "selective_scan: x and state have 1 and 2 dimensions, expected 2"),
    ("selective_scan", SCAN, 1, torch.ones(3, 7), "selective_scan: dt has 2 dimensions and 21 elements"),
    ("selective_scan", SCAN, 2, torch.ones(8, 4), "selective_scan: rates has 2 dimensions and 32 elements"),
    ("selective_scan", SCAN, 3, torch.ones(2, 5), "selective_scan: b has 2 dimensions and 10 elements"),
    ("selective_scan", SCAN, 4, torch.ones(3, 4), "selective_scan: c has 2 dimensions and 12 elements"),
    ("selective_scan", SCAN, 5, torch.ones(7, 5), "selective_scan: state has 2 dimensions and 35 elements"),
    ("int8_cached_attention", INT8_CACHED, 0, torch.ones(1, 3, 4, 8).half(), "query is of type 5"),
    ("int8_cached_attention", INT8_CACHED, 1, torch.ones(9, 2, 8), "int8_cached_attention: key is of type 6, expected contiguous elements of type 1"),
    ("int8_cached_attention", INT8_CACHED, 2, BYTES[:8], "key and value have 9 and 8 positions"),
    ("int8_cached_attention", INT8_CACHED, 3, torch.ones(9, 2, 1), "int8_cached_attention: key_scales has 3 dimensions"),
    ("int8_cached_attention", INT8_CACHED, 4, torch.ones(8, 2, 2), "int8_cached_attention: value_scales has 3"),
    ("int8_cached_attention", INT8_CACHED, 4, torch.ones(9, 2, 2).half(), "value_scales is of type 5"),
    ("int8_cached_attention", INT8_CACHED, 5, torch.tensor([7]), "3 tokens from position 7"),
    ("scaled_embedding", SCALED, 0, torch.ones(1, 2, 16, 4), "scaled_embedding: a weight of type 6"),
    ("scaled_embedding", SCALED, 0, torch.ones(1, 3, 16, 4).byte(), "scaled_embedding: a weight"),
    ("scaled_embedding", SCALED, 1, torch.ones(1, 3, 16), "scaled_embedding: scales"),
    ("scaled_embedding", SCALED, 2, torch.tensor([0, 9]), "scaled_embedding: index 9 is out of range for 9 rows"),
    ("scaled_embedding", SCALED, 2, torch.tensor([-1, 0]), "scaled_embedding: index -1"),
    ("scaled_embedding", SCALED, 2, torch.ones(2), "scaled_embedding: indices are of type"),
    ("scaled_embedding", SCALED, 3, -1, "scaled_embedding: a weight"),
    ("scaled_embedding", SCALED, 4, -1, "scaled_embedding: depth -1"),
    ("scaled_embedding", SCALED, 4, 17, "scaled_embedding: a weight"),
    ("layer_norm", NORM, 1, torch.ones(7), "layer_norm: weight"),
    ("layer_norm", NORM, 3, [7], "layer_norm: dimension 1 of input has 8 elements, expected 7"),
    ("layer_norm", NORM, 3, [], "layer_norm: shape has 0 dimensions"),
    ("weight_only_embedding", EMBEDDING, 3, 3, "weight_only_embedding: bits is 3, expected 8, 4 or 2"),
    ("weight_only_embedding", EMBEDDING, 4, torch.tensor([0, 5]), "index 5 is out of range for 5 rows"),
    ("weight_only_embedding", EMBEDDING, 1, torch.ones(5, 3), "15 scales"),
    ("weight_only_embedding", EMBEDDING, 0, torch.ones(5, 4).char(), "weight has 2 dimensions and is of type 1"),
]  # fmt: skip


@pytest.mark.parametrize("level", kernel_levels())
def test_kernels_refuse_by_name(level: str) -> None:
    for name, right, place, wrong, message in FAULTS:
        outs = OUT[name] if isinstance(OUT[name], tuple) else (OUT[name],)
        _native.call_kernel(f"cpu::{name}.out", *right, *outs, level=level)
        with pytest.raises(RuntimeError) as caught:
            _native.call_kernel(
                f"cpu::{name}.out", *right[:place], wrong, *right[place + 1 :], *outs, level=level
            )
        assert message in str(caught.value), f"{name}, argument {place}: {caught.value}"


def test_no_threads_are_refused() -> None:
    before = Runtime.get().num_threads
    with pytest.raises(InputError, match="0"):
        Runtime.get().set_num_threads(0)
    assert Runtime.get().num_threads == before


@pytest.mark.parametrize("level", kernel_levels())
def test_distance_of_taps_does_not_overflow_the_scratch_memory(level: str) -> None:
    """The padded lines of this int8 convolution would have 2**64 bytes. All taps are outside of the image."""
    channels, distance = 65536, 2**24 - 1
    image, out = torch.ones(1, 1, 1, channels).char(), torch.zeros(1, 2, 2, 16).char()
    weight = torch.ones(1, 1, channels, 16, 4).char()
    terms = torch.cat(
        [torch.full((1, 1, 16), 4.0 * channels), torch.full((1, 1, 16), 5.0), torch.ones(1, 1, 16)], 1
    )
    where = [[2, 2], [1, 1], [(distance + 1) // 2] * 2, [distance] * 2]
    arguments = [image, weight, terms.contiguous(), 0, *where, 16, 0, -128, 127]
    _native.call_kernel("cpu::quantized_convolution.out", *arguments, out, level=level)
    assert torch.equal(out, torch.full_like(out, 5))


@pytest.mark.parametrize("level", kernel_levels())
@pytest.mark.parametrize(
    "residual, zero",
    [
        (torch.zeros(1, 3, 3, 15).char(), 0),
        (torch.zeros(1, 3, 4, 16).char(), 0),
        (torch.zeros(1, 3, 3, 16).byte(), 0),
        (torch.zeros(1, 3, 3, 16), 0),
        (torch.zeros(1, 3, 3, 16).char(), 128),
    ],
)
def test_residual_of_a_convolution_must_match_its_result(
    residual: torch.Tensor, zero: int, level: str
) -> None:
    image, out = torch.ones(1, 3, 3, 4).char(), torch.zeros(1, 3, 3, 16).char()
    weight, terms = torch.ones(1, 1, 1, 16, 4).char(), torch.ones(1, 3, 16)
    geometry = [[1, 1], [1, 1], [0, 0], [1, 1]]
    schemes = [0.5, 0, -128, 127, 0.5, zero, 1.0, 0, -128, 127]
    arguments = [image, weight, terms, residual, 0, *geometry, 16, *schemes]
    with pytest.raises(RuntimeError, match="residual"):
        _native.call_kernel("cpu::quantized_convolution_add.out", *arguments, out, level=level)
