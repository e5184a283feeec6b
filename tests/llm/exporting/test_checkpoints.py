# SPDX-License-Identifier: BSD-3-Clause
# In: folders of a small model with weights in each format, packed here according to the formats' definitions. Out: the
# dequantized floats, the same integers, the tokens of transformers, and errors that name the problem.
"""`torchette.llm.exporting.checkpoints`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.llm import families
from tests.llm.exporting.test_export import expected, greedy, small_llama
from tests.sweep import sweep
from torchette.errors import FormatError, UnsupportedError

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from torchette import llm  # noqa: E402
from torchette.llm.exporting import checkpoints  # noqa: E402

Parts = dict[str, torch.Tensor]


def words(numbers: torch.Tensor, bits: int, dim: int, order: Any = None) -> torch.Tensor:
    """Packs integers into 32-bit words along a dimension; the value at `order[i]` of each word is at position i."""
    each = 32 // bits
    numbers = numbers.movedim(dim, -1).unflatten(-1, (-1, each)).long()
    numbers = numbers[..., order] if order else numbers
    packed = sum(numbers[..., i] << bits * i for i in range(each))
    return (packed - (packed >> 31 << 32)).to(torch.int32).movedim(-1, dim).contiguous()


def grouped(weight: torch.Tensor, bits: int, group: int, shifted: bool) -> tuple[torch.Tensor, ...]:
    """Quantizes a weight; returns unsigned integers [N, K], scales and zero points [N, groups]."""
    parts = weight.unflatten(1, (-1, group))
    low, high = parts.amin(2), parts.amax(2)
    top = (1 << bits) - 1
    if shifted:
        scale = ((high - low) / top).half().float()
        zero = (-low / scale).round().clamp(0, top)
    else:
        scale = (parts.abs().amax(2) / (top // 2)).half().float()
        zero = torch.full_like(scale, (top + 1) // 2)
    numbers = (parts / scale.unsqueeze(2) + zero.unsqueeze(2)).round().clamp(0, top)
    return numbers.flatten(1).int(), scale, zero.int()


def dequantized(numbers: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return ((numbers.unflatten(1, (scale.shape[1], -1)) - zero.unsqueeze(2)) * scale.unsqueeze(2)).flatten(1)


def gptq(weight: torch.Tensor, bits: int = 4, ordered: bool = True) -> tuple[Parts, torch.Tensor]:
    order = torch.arange(weight.shape[1]) // 32
    if not ordered:  # the inputs of a group are not adjacent
        order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(1))]
        weight = weight[:, order.argsort(stable=True)]
    numbers, scale, zero = grouped(weight, bits, 32, False)
    floats = dequantized(numbers, scale, zero)
    back = order.argsort(stable=True).argsort()
    parts = {
        "qweight": words(numbers[:, back].t(), bits, 0), "scales": scale.t().half().contiguous(),
        "qzeros": words(zero.t() - 1, bits, 1), "g_idx": order.int(),
    }  # fmt: skip
    return parts, floats[:, back]


def awq(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    numbers, scale, zero = grouped(weight, 4, 32, True)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    parts = {
        "qweight": words(numbers.t(), 4, 1, order), "qzeros": words(zero.t(), 4, 1, order),
        "scales": scale.t().half().contiguous(),
    }  # fmt: skip
    return parts, dequantized(numbers, scale, zero)


def packed(weight: torch.Tensor, bits: int = 4, shifted: bool = False) -> tuple[Parts, torch.Tensor]:
    """Packs a weight in the format of compressed-tensors."""
    numbers, scale, zero = grouped(weight, bits, 32, shifted)
    parts = {
        "weight_packed": words(numbers, bits, 1), "weight_scale": scale.half(), "weight_shape": torch.tensor(weight.shape),
    }  # fmt: skip
    if shifted:
        parts["weight_zero_point"] = words(zero, bits, 0)
    return parts, dequantized(numbers, scale, zero)


def eight_bits(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    numbers = (weight / scale.float()).round().clamp(-128, 127)
    return {"weight": numbers.to(torch.int8), "weight_scale": scale}, numbers * scale.float()


def blocks(weight: torch.Tensor, size: int = 24) -> tuple[Parts, torch.Tensor]:
    """8-bit floats with one scale per block; the last blocks are smaller."""
    rows, columns = (-(-n // size) for n in weight.shape)
    scale = torch.rand(rows, columns, generator=torch.Generator().manual_seed(2)) + 0.5
    each = scale.repeat_interleave(size, 0)[: weight.shape[0]].repeat_interleave(size, 1)[
        :, : weight.shape[1]
    ]
    stored = (weight / each).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale_inv": scale}, stored.float() * each


def rows(weight: torch.Tensor) -> tuple[Parts, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    stored = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale": scale, "input_scale": torch.ones(1)}, stored.float() * scale


# Name -> settings of the folder, function that packs a matrix, whether its integers are kept.
FORMATS: dict[str, tuple[dict[str, Any], Any, bool]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq, True),
    "gptq of 8 bits": ({"quant_method": "gptq", "bits": 8}, lambda w: gptq(w, 8), True),
    "gptq by order": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, lambda w: gptq(w, 4, False), False),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, awq, True),
    "packed": ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, packed, True),
    "packed with zeros": ({"quant_method": "compressed-tensors"}, lambda w: packed(w, 4, True), True),
    "int8": ({"quant_method": "compressed-tensors", "format": "int-quantized"}, eight_bits, True),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [24, 24]}, blocks, False),
    "fp8 by rows": ({"quant_method": "compressed-tensors", "format": "float-quantized"}, rows, False),
}  # fmt: skip


def folder_of(model: Any, folder: Path, settings: dict[str, Any], store: Any) -> None:
    """Writes the folder of a model with packed layers, and sets the weights of the model to their dequantized floats."""
    model.save_pretrained(folder)
    tensors: Parts = {}
    for name, parameter in model.named_parameters():
        if name.endswith("_proj.weight"):
            parts, floats = store(parameter.detach())
            parameter.data.copy_(floats)
            tensors |= {f"{name.removesuffix('.weight')}.{kind}": part for kind, part in parts.items()}
        else:
            tensors[name] = parameter.detach().half() if parameter.dim() > 1 else parameter.detach()
            parameter.data.copy_(tensors[name])
    safetensors.save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))


@pytest.mark.parametrize("name", FORMATS)
def test_floats_and_integers_equal_the_stored_ones(name: str, tmp_path: Path) -> None:
    settings, store, is_integer = FORMATS[name]
    model = small_llama()
    folder_of(model, tmp_path, settings, store)
    state, integer_weight = checkpoints.read(tmp_path, settings)
    assert set(state) == {one for one, _ in model.named_parameters()}
    for one, parameter in model.named_parameters():
        torch.testing.assert_close(state[one].float(), parameter.data, rtol=0, atol=0, msg=one)
        weight = integer_weight(one.removesuffix(".weight"))
        assert (weight is not None) == (is_integer and one.endswith("_proj.weight")), one
        if weight is not None:
            scales = weight.scales.repeat_interleave(parameter.shape[1] // weight.scales.shape[1], 1)
            assert torch.equal(weight.values * scales, parameter.data)


@pytest.mark.parametrize("name", sweep(["awq", "gptq", "packed", "int8", "fp8"], "awq"))
def test_folder_has_the_tokens_of_its_dequantized_weights(name: str, tmp_path: Path) -> None:
    settings, store, is_integer = FORMATS[name]
    model = families.build("llama3")
    folder_of(model, tmp_path, settings, store)
    program = llm.export(tmp_path, max_context=300, max_prefill=16)
    assert ("cpu::weight_only_linear.out" in program.program.operators()) == is_integer
    assert "generation_config.json" in program.program.named_data
    prompt = [5, 17, 3]
    assert greedy(program, prompt, 256 if name != "awq" else 64) == expected(
        model, prompt, 256 if name != "awq" else 64
    )


@pytest.mark.parametrize("dtype", sweep(["bfloat16", "float16"], "bfloat16"))
def test_16_bit_folders(dtype: str, tmp_path: Path) -> None:
    model = small_llama().to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    program = llm.export(tmp_path, max_context=64, max_prefill=8)
    assert greedy(program, [5, 17, 3], 32) == expected(model.float(), [5, 17, 3], 32)


@pytest.mark.slow
def test_4_bit_experts(tmp_path: Path) -> None:
    """Experts in the format of gpt-oss."""
    model = families.build("gpt_oss")
    model.save_pretrained(tmp_path)
    tensors = dict(safetensors.load_file(tmp_path / "model.safetensors"))
    random = torch.Generator().manual_seed(4)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = parameter.shape
            halves = torch.randint(0, 16, (experts, outputs, inputs // 32, 32), generator=random)
            powers = torch.randint(120, 126, halves.shape[:3], generator=random)
            floats = values[halves] * 2.0 ** (powers - 127).unsqueeze(3)
            parameter.data.copy_(floats.flatten(2).transpose(1, 2))
            del tensors[name]
            tensors[f"{name}_blocks"] = (halves[..., ::2] | halves[..., 1::2] << 4).to(torch.uint8)
            tensors[f"{name}_scales"] = powers.to(torch.uint8)
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    state, _ = checkpoints.read(tmp_path, {"quant_method": "mxfp4"})
    for name, parameter in model.named_parameters():
        assert torch.equal(state[name], parameter.data), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "family"), [("fp8", "qwen3_moe"), ("gptq", "mixtral"), ("fp8", "deepseek_v3")]
)
def test_experts_in_separate_tensors(name: str, family: str, tmp_path: Path) -> None:
    """Experts in separate tensors, which transformers stacks; the model is that of a folder with the same floats."""
    from torchette.llm.exporting.export import _load_folder

    settings, store, _ = FORMATS[name]
    model = families.build(family)
    for kind in ("stored", "floats"):
        model.save_pretrained(tmp_path / kind)
    tensors, floats = safetensors.load_file(tmp_path / "stored" / "model.safetensors"), {}
    for one in [one for one in tensors if one.endswith(".weight") and ".experts." in one]:
        parts, floats[one] = store(tensors.pop(one))
        tensors |= {
            f"{one.removesuffix('.weight')}.{kind}": part.contiguous() for kind, part in parts.items()
        }
    assert len(floats) >= 12
    safetensors.save_file(tensors, tmp_path / "stored" / "model.safetensors")
    stored = safetensors.load_file(tmp_path / "floats" / "model.safetensors")
    safetensors.save_file({**stored, **floats}, tmp_path / "floats" / "model.safetensors")
    config = json.loads((tmp_path / "stored" / "config.json").read_text())
    (tmp_path / "stored" / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    ours, theirs = (_load_folder(tmp_path / kind, None)[0].state_dict() for kind in ("stored", "floats"))
    assert ours.keys() == theirs.keys()
    for one, tensor in theirs.items():
        assert torch.equal(ours[one], tensor), one


@pytest.mark.slow
@pytest.mark.parametrize("name", ["packed", "packed with zeros", "int8"])
def test_compressed_tensors_reads_the_same_weights(name: str) -> None:
    package = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    parts, _ = FORMATS[name][1](weight)
    if "weight_packed" in parts:
        theirs = package.unpack_from_int32(
            parts["weight_packed"], 4, torch.Size(parts["weight_shape"].tolist())
        )
        numbers, _, zero = grouped(weight, 4, 32, name.endswith("zeros"))
        assert torch.equal(theirs.int(), numbers - 8)
        if "weight_zero_point" in parts:
            theirs = package.unpack_from_int32(
                parts["weight_zero_point"], 4, torch.Size(zero.shape), packed_dim=0
            )
            assert torch.equal(theirs.int(), zero - 8)


def test_unsupported_formats_are_named(tmp_path: Path) -> None:
    folder_of(small_llama(), tmp_path, {"quant_method": "bitsandbytes", "load_in_4bit": True}, packed)
    with pytest.raises(UnsupportedError, match="have the format bitsandbytes"):
        llm.export(tmp_path)
    with pytest.raises(UnsupportedError, match="3-bit gptq weights"):
        folder_of(small_llama(), tmp_path, {}, gptq)
        checkpoints.read(tmp_path, {"quant_method": "gptq", "bits": 3})
    tensors = dict(safetensors.load_file(tmp_path / "model.safetensors"))
    del tensors["model.layers.1.mlp.up_proj.scales"]
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=r"layers\.1\.mlp\.up_proj in .* are not valid gptq weights"):
        checkpoints.read(tmp_path, {"quant_method": "gptq", "bits": 4})
    (tmp_path / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(FormatError, match="cannot read the weights of"):
        checkpoints.read(tmp_path, {"quant_method": "fp8"})
    tensors = {k: v for k, v in small_llama().state_dict().items() if "up_proj" not in k}
    safetensors.save_file({k: v.clone() for k, v in tensors.items()}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        FormatError, match=r"no weights for 2 parameters: model\.layers\.0\.mlp\.up_proj\.weight, "
    ):
        llm.export(tmp_path)
