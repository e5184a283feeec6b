# SPDX-License-Identifier: BSD-3-Clause
# In: weights in PyTorch's layout. Out: the same elements in the kernels' layout, and the reverse. Packing happens ahead
# of time; the runtime does not pack weights when it loads a model.
"""The layout of packed weights: panels of 16 outputs, the same for all processors.

A row of a panel fills one AVX-512 register, two AVX2 registers, or four SSE, NEON or WebAssembly registers. Panels are
padded with zero columns after the last output, so that kernels need no tail loop. If the padding would increase the
file size too much, the last panel is cut to the remaining outputs.
"""

from __future__ import annotations

import math

import torch

from torchette.schema.engine import CONSTANTS

PANEL_WIDTH = CONSTANTS["kPanelWidth"]
"""Number of outputs in a panel."""
QUAD = CONSTANTS["kQuad"]
"""Number of adjacent inputs that are stored together for each output in a panel of 8-bit weights."""
OCTET = CONSTANTS["kOctet"]
"""Number of adjacent inputs that are stored together for each output in a panel of 4-bit weights."""

# Maximum ratio of padding columns to outputs. A weight with a higher ratio gets a cut last panel.
_MAX_PADDING = 0.01


def cut_last_panel(packed: torch.Tensor, outputs: int) -> torch.Tensor:
    """[panels, *inner, 16] -> [*inner, outputs]: full panels, then the cut last panel.

    Returns `packed` unchanged if the padding is below the limit `_MAX_PADDING`.
    """
    if -outputs % PANEL_WIDTH <= _MAX_PADDING * outputs:
        return packed
    full, last = (
        packed[: outputs // PANEL_WIDTH],
        packed[outputs // PANEL_WIDTH, ..., : outputs % PANEL_WIDTH],
    )
    return torch.cat([full.flatten(), last.flatten()]).view(*packed.shape[1:-1], outputs)


def restore_last_panel(weight: torch.Tensor, rank: int) -> torch.Tensor:
    """Reverses `cut_last_panel` for panels of rank `rank`: [*inner, outputs] -> [panels, *inner, 16]."""
    if weight.dim() == rank:
        return weight
    *inner, outputs = weight.shape
    full = outputs // PANEL_WIDTH * PANEL_WIDTH
    flat, depth = weight.flatten(), math.prod(inner)
    last = torch.nn.functional.pad(
        flat[full * depth :].view(depth, outputs - full), (0, -outputs % PANEL_WIDTH)
    )
    return torch.cat([flat[: full * depth], last.flatten()]).view(-1, *inner, PANEL_WIDTH)


def pack_linear(weight: torch.Tensor) -> torch.Tensor:
    """[N, K] -> [ceil(N / 16), K, 16]."""
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -weight.shape[0] % PANEL_WIDTH))
    result: torch.Tensor = padded.unflatten(0, (-1, PANEL_WIDTH)).transpose(1, 2).contiguous()
    return result


def unpack_linear(packed: torch.Tensor, outputs: int) -> torch.Tensor:
    """[ceil(N / 16), K, 16] -> [N, K]."""
    return packed.transpose(1, 2).flatten(0, 1)[:outputs]


def pack_pairs(packed: torch.Tensor) -> torch.Tensor:
    """float32 [..., K, 16] with even K -> int32 [..., K / 2, 16]: two bfloat16, of inputs 2 j and 2 j + 1.

    Instructions for bfloat16 multiply pairs of adjacent inputs.
    """
    bits = packed.to(torch.bfloat16).contiguous().view(torch.int16).to(torch.int32)
    return bits[..., ::2, :] & 0xFFFF | bits[..., 1::2, :] << 16


def unpack_pairs(pairs: torch.Tensor) -> torch.Tensor:
    """int32 [..., K / 2, 16] -> float32 [..., K, 16]."""
    return torch.stack([pairs << 16, pairs & -65536], -2).view(torch.float32).flatten(-3, -2)


def pack_convolution(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """[N, C / groups, *kernel] -> [groups, ceil(N / groups / 16), *kernel, C / groups, 16]."""
    outputs, channels, *kernel = weight.shape
    last = weight.view(groups, outputs // groups, channels, -1).transpose(2, 3)  # [groups, N, taps, C]
    panels = [pack_linear(one.reshape(outputs // groups, -1)) for one in last]
    return torch.stack(panels).view(groups, -1, *kernel, channels, PANEL_WIDTH)


def unpack_convolution(packed: torch.Tensor, outputs: int) -> torch.Tensor:
    """[groups, ceil(N / groups / 16), *kernel, C / groups, 16] -> [N, C / groups, *kernel]."""
    groups, panels, *kernel, channels, _ = packed.shape
    rows = [unpack_linear(one.reshape(panels, -1, PANEL_WIDTH), outputs // groups) for one in packed]
    return torch.cat(rows).view(outputs, *kernel, channels).movedim(-1, 1).contiguous()


def pack_transposed_convolution(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """[C, N / groups, *kernel] -> [groups, *kernel, ceil(N / groups / 16), C / groups, 16]."""
    channels, outputs, *kernel = weight.shape
    taps = weight.view(groups, channels // groups, outputs, -1).permute(0, 3, 2, 1)  # [groups, taps, N, C]
    panels = torch.stack([pack_linear(tap) for tap in taps.flatten(0, 1)])
    return panels.view(groups, *kernel, *panels.shape[1:])


def unpack_transposed_convolution(packed: torch.Tensor, outputs: int) -> torch.Tensor:
    """[groups, *kernel, ceil(N / groups / 16), C / groups, 16] -> [C, N / groups, *kernel]."""
    groups, *kernel, panels, channels, _ = packed.shape
    taps = [
        unpack_linear(tap, outputs // groups) for tap in packed.reshape(-1, panels, channels, PANEL_WIDTH)
    ]
    stacked = torch.stack(taps).view(groups, -1, outputs // groups, channels).permute(0, 3, 2, 1)
    return stacked.reshape(groups * channels, outputs // groups, *kernel)


def pack_depthwise(weight: torch.Tensor) -> torch.Tensor:
    """[C, 1, *kernel] -> [ceil(C / 16), *kernel, 16]."""
    channels, _, *kernel = weight.shape
    return pack_linear(weight.reshape(channels, -1)).view(-1, *kernel, PANEL_WIDTH)


def unpack_depthwise(packed: torch.Tensor, channels: int) -> torch.Tensor:
    """[ceil(C / 16), *kernel, 16] -> [C, 1, *kernel]."""
    panels, *kernel, _ = packed.shape
    return unpack_linear(packed.reshape(panels, -1, PANEL_WIDTH), channels).view(channels, 1, *kernel)


def pack_gates(weight: torch.Tensor, gates: int) -> torch.Tensor:
    """[gates * H, K], the layout of torch's recurrent layers -> [ceil(H / 16) * gates, K, 16].

    The panels of all gates of 16 units are adjacent.
    """
    one = [pack_linear(gate) for gate in weight.chunk(gates)]
    return torch.stack(one, 1).flatten(0, 1)


def unpack_gates(packed: torch.Tensor, gates: int, units: int) -> torch.Tensor:
    """[ceil(H / 16) * gates, K, 16] -> [gates * H, K]."""
    return torch.cat([unpack_linear(packed[gate::gates], units) for gate in range(gates)])


def pack_gate_bias(bias: torch.Tensor, gates: int) -> torch.Tensor:
    """[gates * H] -> [ceil(H / 16), gates, 16]."""
    return pack_gates(bias[:, None], gates).view(-1, gates, PANEL_WIDTH)


def unpack_gate_bias(packed: torch.Tensor, units: int) -> torch.Tensor:
    """[ceil(H / 16), gates, 16] -> [gates * H]."""
    return unpack_gates(packed.view(-1, 1, PANEL_WIDTH), packed.shape[1], units)[:, 0]


def pack_quads(weight: torch.Tensor) -> torch.Tensor:
    """[N, K] -> [ceil(N / 16), ceil(K / 4), 16, 4]: the layout for instructions that multiply four bytes at a time."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -inputs % QUAD, 0, -outputs % PANEL_WIDTH))
    panels, quads = padded.shape[0] // PANEL_WIDTH, padded.shape[1] // QUAD
    return padded.view(panels, PANEL_WIDTH, quads, QUAD).transpose(1, 2).contiguous()


def unpack_quads(packed: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """[ceil(N / 16), ceil(K / 4), 16, 4] -> [N, K]."""
    return packed.transpose(1, 2).flatten(0, 1).flatten(1)[:outputs, :inputs]


def pack_nibbles(weight: torch.Tensor) -> torch.Tensor:
    """int8 [N, K] with values in [-8, 7] -> uint8 [ceil(N / 16), ceil(K / 8), 16, 4].

    Of each octet of inputs, byte i stores input i in its low nibble and input i + 4 in its high nibble. The low nibbles
    form one quad, and the high nibbles form the next one.
    """
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -inputs % OCTET, 0, -outputs % PANEL_WIDTH))
    panels, octets = padded.shape[0] // PANEL_WIDTH, padded.shape[1] // OCTET
    halves = padded.view(panels, PANEL_WIDTH, octets, 2, QUAD).transpose(1, 2).to(torch.int16) & 15
    return (halves[..., 0, :] | halves[..., 1, :] << 4).to(torch.uint8).contiguous()


def unpack_nibbles(packed: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """uint8 [ceil(N / 16), ceil(K / 8), 16, 4] -> int8 [N, K]."""
    halves = torch.cat([packed & 15, packed >> 4], -1).to(torch.int8)
    values = torch.where(halves > 7, halves - 16, halves)
    return values.transpose(1, 2).flatten(0, 1).flatten(1)[:outputs, :inputs]


# Bits per value -> the shift of each value within a byte, in order. C++: kernels/quantized.cpp.
_SHIFTS = {4: (4, 0), 2: (0, 2, 4, 6)}


def pack_rows(values: torch.Tensor, bits: int) -> torch.Tensor:
    """int8 [N, K] -> uint8 [N, K bits / 8], with the layout of ExecuTorch's embedding tables. Returns 8-bit tables
    unchanged.

    Values are in [-(2 ** (bits - 1)), 2 ** (bits - 1)).
    """
    if bits == 8:
        return values
    codes = (values.to(torch.int16) + (1 << bits - 1)).unflatten(1, (-1, 8 // bits))
    result: torch.Tensor = sum(codes[..., i] << shift for i, shift in enumerate(_SHIFTS[bits])).to(
        torch.uint8
    )
    return result


def unpack_rows(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Reverses `pack_rows`: uint8 [..., K bits / 8] -> int8 [..., K]."""
    if bits == 8:
        return packed
    parts = [packed >> shift & (1 << bits) - 1 for shift in _SHIFTS[bits]]
    return torch.stack(parts, -1).flatten(-2).to(torch.int8) - (1 << bits - 1)


def requantization_terms(
    weight: torch.Tensor, bias: torch.Tensor | None, scales: torch.Tensor, scale: float, groups: int
) -> torch.Tensor:
    """Returns the terms that convert integer accumulators to quantized results: [groups, 3, 16 ceil(N / groups / 16)].

    The three rows contain, for each output, the sum of the weights, the bias in units of the accumulator, and the ratio
    of the accumulator's scale to the result's scale.

    Args:
        weight: integers [N, K].
        bias: [N].
        scales: float64 [N], the scale of each output's accumulator.
        scale: the scale of the result.
    """
    rows = torch.stack(
        [
            weight.sum(1, dtype=torch.int64).double(),
            torch.zeros_like(scales) if bias is None else bias.double() / scales,
            scales / scale,
        ]
    )
    of_group = rows.view(3, groups, -1).transpose(0, 1).float()
    return torch.nn.functional.pad(of_group, (0, -of_group.shape[2] % PANEL_WIDTH))
