# SPDX-License-Identifier: BSD-3-Clause
# In: the folder of a model with quantized weights (integers, or floats of 4 or 8 bits). Out: float weights under the names of
# transformers, and the integers and scales of each layer, which the engine uses without a second quantization.
"""`read`: model folders with fp8, GPTQ, AWQ, compressed-tensors and MXFP4 weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from torchette.errors import FormatError, UnsupportedError
from torchette.llm.exporting.quantized import QuantizedWeight

METHODS = ("fp8", "fbgemm_fp8", "gptq", "awq", "compressed-tensors", "mxfp4")
# The last parts of the names of the tensors that store a quantized matrix.
_PARTS = (
    "weight", "qweight", "weight_packed", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point",
    "weight_g_idx", "qzeros", "scales", "g_idx",
)  # fmt: skip
_UNUSED = ("input_scale", "input_scale_ub", "input_zero_point", "activation_scale", "k_scale", "v_scale")
_FLOAT4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # position of each of eight columns in a 32-bit word


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    index = folder / "model.safetensors.index.json"
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values()) if index.is_file() else None
        for path in sorted(folder / one for one in names or ["model.safetensors"]):
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118
                    yield name, file.get_tensor(name)
    except (OSError, SafetensorError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise FormatError(f"cannot read the weights of {folder}: {error}") from None


def _unpack(words: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """Unpacks the `bits`-bit integers of 32-bit words along `dim`, lowest bits first."""
    words = words.movedim(dim, -1).unsqueeze(-1)
    integers = words >> torch.arange(32 // bits, dtype=torch.int32) * bits & (1 << bits) - 1
    return integers.flatten(-2).movedim(-1, dim)


def _read_integers(
    parts: Mapping[str, torch.Tensor], settings: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Returns integers [N, K], scales [N, groups] and the group of each column [K], or None for a matrix of floats."""
    zero: torch.Tensor | None
    if "qweight" in parts:
        awq, bits = settings["quant_method"] == "awq", settings.get("bits", 4)
        integers, zero = _unpack(parts["qweight"], bits, int(awq)), _unpack(parts["qzeros"], bits, 1)
        if awq:
            integers, zero = (
                one.unflatten(1, (-1, 8))[..., _AWQ_ORDER].flatten(1) for one in (integers, zero)
            )
        elif settings.get("checkpoint_format", "gptq") == "gptq":  # the file stores zero_point - 1
            zero = zero + 1
        integers, zero, scales, order = integers.t(), zero.t(), parts["scales"].t(), parts.get("g_idx")
    elif "weight_packed" in parts:
        rows, columns = parts["weight_shape"].tolist()
        bits = 32 // -(-columns // parts["weight_packed"].shape[1])
        midpoint = 1 << bits - 1
        integers = _unpack(parts["weight_packed"], bits, 1)[:, :columns] - midpoint
        zero, scales, order = parts.get("weight_zero_point"), parts["weight_scale"], parts.get("weight_g_idx")
        zero = None if zero is None else _unpack(zero, bits, 0)[:rows] - midpoint
    elif parts["weight"].dtype == torch.int8:
        integers, scales, order = parts["weight"].int(), parts["weight_scale"], None
        zero = parts.get("weight_zero_point")
    else:
        return None
    count = len(integers)
    scales = scales.float().reshape(-1, scales.shape[-1] if scales.dim() > 1 else 1).expand(count, -1)
    groups = scales.shape[1]
    group = (
        torch.arange(integers.shape[1]) // -(-integers.shape[1] // groups) if order is None else order.long()
    )
    if zero is not None:
        integers = integers - zero.int().reshape(-1, groups).expand(count, -1)[:, group]
    return integers, scales, group


def _dequantize_float8(parts: Mapping[str, torch.Tensor], settings: Mapping[str, Any]) -> torch.Tensor:
    """Dequantizes a matrix of 8-bit floats with one scale per tensor, row, group of rows, or block."""
    weight, scales = parts["weight"].float(), parts.get("weight_scale_inv", parts.get("weight_scale"))
    if scales is None:
        return weight
    scales, block = scales.float(), settings.get("weight_block_size")
    scales = scales.reshape(-1, 1) if scales.dim() < 2 else scales
    for dim, size in enumerate(weight.shape):
        if 1 < scales.shape[dim] < size:
            each = block[dim] if block else -(-size // scales.shape[dim])
            scales = scales.repeat_interleave(each, dim).narrow(dim, 0, size)
    return weight * scales


def _dequantize_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Dequantizes MXFP4: 4-bit floats [experts, N, groups, 16 bytes] with power-of-two scales become [experts, K, N]."""
    halves = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    values = _FLOAT4_VALUES[halves & 7] * (1 - 2 * (halves >> 3))
    return torch.ldexp(values, scales.int().unsqueeze(-1) - 127).flatten(2).transpose(1, 2).contiguous()


def read(
    folder: Path, settings: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], Callable[[str], QuantizedWeight | None]]:
    """Reads the weights of a model folder.

    Args:
        folder: contains the safetensors files.
        settings: `quantization_config` of the folder's config.json.

    Returns:
        The float tensors by name, and a function that returns the integers of a layer, or None if it has none.

    Raises:
        UnsupportedError: the format is unknown; the message names it.
        FormatError: a file is missing or damaged.
    """
    method = settings.get("quant_method")
    if method not in METHODS or settings.get("format") in ("nvfp4-pack-quantized", "marlin-24"):
        raise UnsupportedError(
            f"the weights of {folder} have the format {method} {settings.get('format', '')}, which is not supported",
            hints=[
                f"supported formats: {', '.join(METHODS)}",
                "use a folder with float weights, or a GGUF file, of the same model",
            ],
        )
    if settings.get("bits", 4) not in (4, 8):
        raise UnsupportedError(
            f"{folder} has {settings['bits']}-bit {method} weights; 4-bit and 8-bit weights are supported"
        )
    state: dict[str, torch.Tensor] = {}
    layers: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in _tensors(folder):
        owner, _, kind = name.rpartition(".")
        if kind in _PARTS:
            layers.setdefault(owner, {})[kind] = tensor
        elif name.endswith(("_blocks", "_scales")) and method == "mxfp4":
            layers.setdefault(name[:-7], {})[name[-6:]] = tensor
        elif kind not in _UNUSED:
            state[name] = tensor
    quantized_layers: dict[str, QuantizedWeight] = {}
    for owner, parts in layers.items():
        try:
            if "blocks" in parts:
                state[owner] = _dequantize_mxfp4(parts["blocks"], parts["scales"])
            elif (quantized := _read_integers(parts, settings)) is None:
                state[f"{owner}.weight"] = _dequantize_float8(parts, settings)
            else:
                integers, scales, group = quantized
                state[f"{owner}.weight"] = integers * scales[:, group]
                is_ordered = bool((group.diff() >= 0).all()) and integers.shape[1] % scales.shape[1] == 0
                if is_ordered and int(integers.min()) >= -128 and int(integers.max()) < 128:
                    quantized_layers[owner] = QuantizedWeight(integers.to(torch.int8), scales.contiguous())
        except (KeyError, RuntimeError, ValueError, IndexError) as error:  # noqa: PERF203
            raise FormatError(
                f"the weights of {owner} in {folder} are not valid {method} weights: {error}"
            ) from None
    return state, quantized_layers.get
