# SPDX-License-Identifier: BSD-3-Clause
# In: GGUF files that are written here, valid and damaged. Out: the floats of the `gguf` package, bit for bit, the model that was
# written, and errors that name the problem.
"""`torchette.llm.exporting.gguf`."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.llm import double, families
from tests.llm.exporting.test_export import expected, greedy, small_llama
from torchette.errors import FormatError, TorchetteError, UnsupportedError
from torchette.llm.exporting import gguf
from torchette.runtime import _native

transformers = pytest.importorskip("transformers")

# Type -> code, bytes of a block, offsets of the upper bytes of its float16 values, and the first half of the SHA-256 of the floats
# that gguf 0.19.0 computes from the bytes of seed 7.
BLOCKS = {
    "Q4_0": (2, 18, (1,), "d745d26fcc1cf31f"),
    "Q4_1": (3, 20, (1, 3), "6fe108901b8cbccb"),
    "Q5_0": (6, 22, (1,), "0d95528f2a5a201d"),
    "Q5_1": (7, 24, (1, 3), "c21479c673e8508a"),
    "Q8_0": (8, 34, (1,), "9bf2584f16028e0f"),
    "Q4_K": (12, 144, (1, 3), "4314e21c0d1af605"),
    "Q5_K": (13, 176, (1, 3), "1c4e88b9ca295fc2"),
    "Q6_K": (14, 210, (209,), "2fba3d91e45122d3"),
}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, value: Any) -> bytes:
    def typed(value: Any) -> tuple[int, bytes]:
        if isinstance(value, str):
            return 8, text(value)
        if isinstance(value, list):
            code = typed(value[0])[0]
            return 9, struct.pack("<IQ", code, len(value)) + b"".join(typed(one)[1] for one in value)
        if isinstance(value, bool):
            return 7, struct.pack("<?", value)
        return (6, struct.pack("<f", value)) if isinstance(value, float) else (4, struct.pack("<I", value))

    code, data = typed(value)
    return text(key) + struct.pack("<I", code) + data


def write(
    path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[int, tuple[int, ...], bytes]]
) -> Path:
    """Name -> (type, shape, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(pair(key, value) for key, value in metadata.items())
    data = b""
    for name, (code, shape, stored) in tensors.items():
        data += bytes(-len(data) % 32)
        head += (
            text(name)
            + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
            + struct.pack("<IQ", code, len(data))
        )
        data += stored
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return path


def q8_0(weight: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Returns the blocks of a matrix and their dequantized floats."""
    grouped = weight.reshape(-1, 32)
    scale = (np.abs(grouped).max(1, keepdims=True) / 127).astype(np.float16)
    numbers = np.round(grouped / scale.astype(np.float32)).astype(np.int8)
    blocks = np.concatenate([scale.view(np.uint8), numbers.view(np.uint8)], 1)
    return blocks.tobytes(), (numbers * scale.astype(np.float32)).reshape(weight.shape)


def llama_file(
    path: Path, model: Any = None, more: Any = None, tokenizer: Any = None, templates: Any = None
) -> tuple[Path, Any]:
    """Writes a file like llama.cpp's converter, in Q8_0, F16 and F32; returns it with a model that has the dequantized weights."""
    model = small_llama() if model is None else model
    config, tensors = model.config, dict(more or {})
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for number, (name, parameter) in enumerate(model.named_parameters()):
        weight = parameter.detach().numpy().copy()
        stored = weight
        if name.split(".")[-2] in heads:  # the halves of a head become adjacent pairs
            stored = weight.reshape(heads[name.split(".")[-2]], 2, -1, weight.shape[1]).swapaxes(1, 2)
            stored = np.ascontiguousarray(stored.reshape(weight.shape))
        if weight.ndim == 1:
            code, data = 0, stored.tobytes()
        elif number % 5 == 4:
            code, data = 1, stored.astype(np.float16).tobytes()
            weight = weight.astype(np.float16).astype(np.float32)
        else:
            code, (data, _) = 8, q8_0(stored)
            weight = q8_0(weight)[1]
        parameter.data.copy_(torch.from_numpy(weight))
        tensors[gguf.tensor_name(name)] = code, weight.shape, data
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.context_length": config.max_position_embeddings,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "c", "Ġ", "ab", "Ġab"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b", "Ġ ab"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ messages }}",
        **{f"tokenizer.ggml.{name}": value for name, value in (tokenizer or {}).items()},
        **{f"tokenizer.chat_template.{name}": value for name, value in (templates or {}).items()},
    }
    return write(path, metadata, tensors), model


@pytest.mark.parametrize("name", BLOCKS)
def test_floats_are_those_of_the_gguf_package(name: str, tmp_path: Path) -> None:
    code, size, uppers, digest = BLOCKS[name]
    blocks = np.random.default_rng(7).integers(0, 256, (200, size), dtype=np.uint8)
    blocks[:, uppers] &= 0xBF  # no float16 value is infinite
    elements = 32 if size < 100 else 256
    path = write(tmp_path / "x.gguf", {}, {"x": (code, (200, elements), blocks.tobytes())})
    file = gguf.File(path)
    floats = file.floats("x")
    assert hashlib.sha256(floats.tobytes()).hexdigest()[:16] == digest
    if (integers := file.integers("x")) is not None:
        numbers, scales = integers
        again = scales[..., None] * numbers.reshape(*scales.shape, -1).astype(np.float32)
        assert again.tobytes() == floats.tobytes()


def test_quantized_model_has_the_tokens_of_its_dequantized_weights(tmp_path: Path) -> None:
    from torchette import llm

    path, model = llama_file(tmp_path / "llama.gguf")
    loaded, integer_weight, _ = gguf.load(path)
    for (name, theirs), ours in zip(model.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(theirs, ours), name
    assert integer_weight("lm_head") is not None
    program = llm.export(path, max_context=200, max_prefill=16)
    assert "cpu::weight_only_linear.out" in program.program.operators()
    assert {"tokenizer.json", "chat_template.jinja", "config.json"} <= set(program.program.named_data)
    prompt = [5, 17, 3]
    assert greedy(program, prompt, 128) == expected(model, prompt, 128)


def test_tokenizer_divides_and_merges(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    _, _, files = gguf.load(llama_file(tmp_path / "llama.gguf")[0])
    tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    assert tokenizer.encode("ab ab c<|end|>").tokens == ["ab", "Ġab", "Ġ", "c", "<|end|>"]
    assert tokenizer.decode([5, 6]) == "ab ab"


def vocabulary(*tokens: str, **ids: int) -> dict[str, Any]:
    return {
        "tokenizer.ggml.tokens": ["a", *tokens],
        **{f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items()},
    }


@pytest.mark.parametrize(
    ("metadata", "ends"),
    [
        (vocabulary("x", "y", "z", eos=2, eot=3, eom=1), [2, 3, 1]),
        (vocabulary("x", "y", eos=2, eot=2), [2]),
        (vocabulary("x", eos=9, eot=1), [1]),  # 9 is beyond the vocabulary
        (vocabulary("x", fim_pad=1, fim_rep=0), [1, 0]),
        (vocabulary("<|im_end|>", "<|endoftext|>", eos=2), [2, 1]),  # Qwen 2 as a base model
        (vocabulary("<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", eos=1), [1, 2, 3]),  # Llama 3
        (vocabulary("<eos>", "<end_of_turn>", eos=1), [1, 2]),  # Gemma
        (vocabulary("<|end|>", "<|endoftext|>", eos=2), [2, 1]),  # Phi 3
        (vocabulary("<|end|>", "<|return|>", "<|call|>", eos=2), [2, 3]),  # gpt-oss
        (vocabulary("<|end|>", "<|flush|>", "<|calls|>", eos=2), [2, 3]),  # Solar Open
        (vocabulary("<|end|>", "<|return|>", eos=2), [2, 1]),
        (vocabulary("</s>", "<turn|>", "<|tool_response>", eos=2), [2, 3]),  # Gemma 4
        ({"tokenizer.ggml.eos_token_id": 7}, [7]),  # no vocabulary
        ({}, []),
    ],
)
def test_ends_of_answers_are_those_of_llama_cpp(metadata: dict[str, Any], ends: list[int]) -> None:
    assert gguf.end_tokens(metadata) == ends


def test_a_token_that_ends_answers_is_special_whatever_its_type(tmp_path: Path) -> None:
    """In older files <end_of_turn> is an ordinary token, which no merge would form."""
    path, _ = llama_file(
        tmp_path / "x.gguf",
        tokenizer={
            "tokens": ["<|end|>", "a", "b", "c", "Ġ", "ab", "Ġab", "<end_of_turn>"],
            "token_type": [3] + 7 * [1],
        },
    )
    tokenizer = _native.llm.Tokenizer(gguf._named_data(gguf.File(path))["tokenizer.json"])
    assert tokenizer.encode("ab<end_of_turn>a", False) == [5, 7, 1]
    assert tokenizer.bytes_of(8)[7] == b""


def test_programs_have_the_ends_templates_and_special_tokens_of_a_file(tmp_path: Path) -> None:
    from torchette import llm

    more = {"eot_token_id": 3, "bos_token_id": 1, "unknown_token_id": 2, "suppress_tokens": [4, 5]}
    path, _ = llama_file(
        tmp_path / "x.gguf", tokenizer=more, templates={"tool_use": "tools", "rag": "{{ documents }}"}
    )
    program = llm.export(path, max_context=16, max_prefill=4)
    assert list(program.get_eos_ids()) == [0, 3] and program.get_bos_id() == 1
    named = {name: bytes(data) for name, data in program.program.named_data.items()}
    assert named["chat_template.jinja"] == b"{{ messages }}"
    assert (
        named["chat_template.tool_use.jinja"] == b"tools"
        and named["chat_template.rag.jinja"] == b"{{ documents }}"
    )
    special = {"bos_token": "a", "eos_token": "<|end|>", "unk_token": "b"}
    assert json.loads(named["special_tokens_map.json"]) == special
    generation = json.loads(named["generation_config.json"])
    assert generation["eos_token_id"] == [0, 3] and generation["suppress_tokens"] == [4, 5]


def test_an_unknown_pre_tokenizer_is_refused_unless_a_tokenizer_is_given(tmp_path: Path) -> None:
    from torchette import llm

    path, _ = llama_file(tmp_path / "x.gguf", tokenizer={"pre": "marvin"})
    with pytest.raises(UnsupportedError, match="marvin"):
        llm.export(path, max_context=16, max_prefill=4)
    (tmp_path / "tokenizer.json").write_bytes(double.tokenizer_json())
    program = llm.export(path, max_context=16, max_prefill=4, tokenizer=tmp_path / "tokenizer.json")
    assert bytes(program.program.named_data["tokenizer.json"]) == double.tokenizer_json()


def test_damaged_files_are_named_errors(tmp_path: Path) -> None:
    content = llama_file(tmp_path / "llama.gguf")[0].read_bytes()
    head = content.index(b"blk.1.ffn_down.weight") + 80
    random, path, refused = np.random.default_rng(3), tmp_path / "damaged.gguf", 0
    for trial in range(400):
        data = bytearray(content)
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(head))
            data[at] = random.integers(256)
        if trial % 4 == 0:
            data = data[: random.integers(len(data))]
        path.write_bytes(data)
        try:
            gguf.config_of(gguf.File(path))
        except TorchetteError:
            refused += 1
    assert refused > 100


def test_unsupported_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"")
    with pytest.raises(FormatError, match=r"damaged at byte 0: the magic"):
        gguf.File(path)
    path.write_bytes(b"GGML" + bytes(40))
    with pytest.raises(FormatError, match="its first 4 bytes are not 'GGUF'"):
        gguf.File(path)
    with pytest.raises(UnsupportedError, match="tensor x has type 21"):
        gguf.File(write(path, {}, {"x": (21, (4,), bytes(16))}))
    with pytest.raises(FormatError, match=r"tensor x \(4,\) F32 is invalid: 16 bytes"):
        gguf.File(write(path, {}, {"x": (0, (4,), bytes(8))}))
    numbers = {f"llama.{key}": 1 for key in gguf._CONFIG_KEYS.values()}
    hostile = {"general.architecture": "llama", **numbers, "llama.block_count": 1 << 30}
    with pytest.raises(FormatError, match=r"no tensors blk\.1073741823"):
        gguf.config_of(gguf.File(write(path, hostile, {"token_embd.weight": (0, (2, 1), bytes(8))})))
    with pytest.raises(UnsupportedError, match="architecture 'mamba'"):
        gguf.config_of(gguf.File(write(path, {"general.architecture": "mamba"}, {})))


# Architecture -> family of tests/llm/families.py, and further fields of its configuration.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen2moe": ("qwen2_moe", {}),
    "qwen3moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "granite": ("granite", {}),
    "olmo2": ("olmo2", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 16}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "layer_types": None}),
    "phi2": ("phi", {}),
    "phi3": ("phi3", {}),
    "stablelm": ("stablelm", {}),
    "starcoder2": ("starcoder2", {}),
    "gpt2": ("gpt2", {}),
    "llama of experts": ("mixtral", {}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layers": None}),
    "arcee": ("arcee", {}),
    "olmo": ("olmo", {}),
    "granitemoe": ("granitemoe", {}),
    "olmoe": ("olmoe", {"moe_intermediate_size": 64}),
    "gpt-oss": ("gpt_oss", {}),
    "exaone4": ("exaone4", {"num_hidden_layers": 5, "layer_types": None}),
    "glm4": ("glm4", {}),
    "ernie4_5": ("ernie4_5", {}),
    "hunyuan-dense": ("hunyuan", {}),
    "seed_oss": ("seed_oss", {}),
    "command-r": ("cohere", {}),
    "cohere2": ("cohere2", {"num_hidden_layers": 5, "layer_types": None}),
    "nemotron": ("nemotron", {}),
    "falcon": ("falcon", {}),
    "falcon of groups": ("falcon_groups", {}),
    "gptneox": ("gpt_neox", {}),
}


def numbers_of(model: Any, architecture: str) -> dict[str, Any]:
    """Returns metadata in the form of llama.cpp's converter."""
    config, kind = model.config, gguf._MODELS[architecture]
    name = "llama" if architecture == "llama of experts" else architecture
    metadata: dict[str, Any] = {"general.architecture": name, f"{name}.vocab_size": families.VOCABULARY}
    for ours, key in {**gguf._CONFIG_KEYS, **kind.config_keys}.items():
        value = getattr(config, ours, None)
        if ours == "intermediate_size" and value is None:
            value = 4 * config.hidden_size
        if isinstance(value, (int, float)) and value:
            metadata[f"{name}.{key}"] = value
    if name == "falcon":
        groups = config.num_kv_heads if config.new_decoder_architecture else 1
        metadata |= {"falcon.attention.head_count_kv": groups}
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if "rope_theta" not in config.to_dict():
        metadata |= {f"{name}.rope.freq_base": rope["rope_theta"]} if "rope_theta" in rope else {}
        if factor := rope.get("partial_rotary_factor"):
            depth = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            metadata[f"{name}.rope.dimension_count"] = int(depth * factor)
    if rope.get("rope_type") == "yarn":
        metadata |= {
            f"{name}.rope.scaling.type": "yarn", f"{name}.rope.scaling.factor": rope["factor"],
            f"{name}.rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }  # fmt: skip
    return metadata


def stored_as(model: Any, architecture: str, name: str, weight: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the tensors of a parameter in the file: several matrices if its parts have separate names."""
    config, kind = model.config, gguf._MODELS[architecture]
    stored = gguf.tensor_name(name, architecture)
    heads = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", 0)}
    if name.endswith("norm.weight") and kind.norm_shift:
        weight = weight + 1
    elif architecture == "gpt2" and ".c_" in name and name.endswith("weight"):
        weight = weight.T
    elif kind.is_rope_interleaved and name.split(".")[-2] in heads:
        weight = (
            weight.reshape(heads[name.split(".")[-2]], 2, -1, *weight.shape[1:])
            .swapaxes(1, 2)
            .reshape(weight.shape)
        )
    elif ".query_key_value." in name:
        count = config.num_attention_heads
        groups = count
        if architecture.startswith("falcon"):
            groups = config.num_kv_heads if config.new_decoder_architecture else 1
        parts = weight.reshape(groups, count // groups + 2, -1, *weight.shape[1:])
        parts = [one.reshape(-1, *weight.shape[1:]) for one in (parts[:, :-2], parts[:, -2], parts[:, -1])]
        weight = np.concatenate(parts)
    if ".experts." in name:
        if architecture == "gpt-oss":
            weight = weight.swapaxes(1, 2) if weight.ndim == 3 else weight
            parts = weight[:, ::2], weight[:, 1::2]
        else:
            parts = np.split(weight, 2, 1)
        if "gate_up" in name:
            return {
                stored.replace("gate_up", one): part for one, part in zip(("gate", "up"), parts, strict=True)
            }
    return {stored: weight}


def model_file(
    path: Path, architecture: str, writer: Any = write, code: Any = lambda name: 0
) -> tuple[Path, Any, dict[str, str]]:
    """Writes a file like llama.cpp's converter, in F32; returns it with its model and the names of its parameters."""
    family, more = ARCHITECTURES[architecture]
    architecture = architecture.replace(" of groups", "")
    model = families.build(family, **more)
    tensors: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        parts = stored_as(model, architecture, name, parameter.detach().numpy())
        if len(parts) == 1 and ".experts." not in name and "sinks" not in name:
            names[name] = next(iter(parts))
        for one, array in parts.items():
            array = np.ascontiguousarray(array, np.float32)
            tensors[one] = 0, array.shape, array.tobytes()
    return writer(path, numbers_of(model, architecture), tensors), model, names


@pytest.mark.parametrize(
    "architecture",
    # The largest differences from Llama: norms and caps; experts; interleaved experts, sinks and scaled positions; fused matrices.
    [
        n if n in ("gemma3", "qwen2moe", "gpt-oss", "falcon") else pytest.param(n, marks=pytest.mark.slow)
        for n in ARCHITECTURES
    ],
)
def test_architectures(architecture: str, tmp_path: Path) -> None:
    path, model, _ = model_file(tmp_path / "x.gguf", architecture)
    loaded, _, _ = gguf.load(path)
    tokens = torch.randint(0, 101, (1, 60), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["qwen2", "gemma2", "gemma3"])
def test_transformers_reads_the_same_weights(architecture: str, tmp_path: Path) -> None:
    """The weights are those of the reader in transformers, which assumes fixed sizes for other architectures."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    path, _, _ = model_file(tmp_path / "x.gguf", architecture)
    ours, _, _ = gguf.load(path)
    theirs = dict(
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="x.gguf").named_parameters()
    )
    compared = 0
    for name, parameter in ours.named_parameters():
        if name in theirs and theirs[name].shape == parameter.shape:
            torch.testing.assert_close(parameter, theirs[name].float(), msg=name)
            compared += 1
    assert compared == len(theirs)


def write_by_package(path: Path, metadata: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """The same with a file of the `gguf` package; matrices with rows of 32 are in Q8_0."""
    package = pytest.importorskip("gguf")
    writer = package.GGUFWriter(path, metadata["general.architecture"])
    add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in metadata.items():
        if key != "general.architecture":
            add.get(type(value), writer.add_array)(key, value)
    for name, (_, shape, data) in tensors.items():
        array, kind = np.frombuffer(data, np.float32).reshape(shape), None
        if len(shape) > 1 and shape[-1] % 32 == 0:
            kind = package.GGMLQuantizationType.Q8_0
            array = package.quantize(array, kind)
        writer.add_tensor(name, array, raw_dtype=kind)
    for step in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        step()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_files_of_the_gguf_package_are_read_without_loss(architecture: str, tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    path, model, _ = model_file(tmp_path / "x.gguf", architecture, write_by_package)
    theirs = {
        one.name: package.dequantize(one.data, one.tensor_type) for one in package.GGUFReader(path).tensors
    }
    loaded, integer_weight, _ = gguf.load(path)
    name = architecture.replace(" of groups", "")
    state = dict(model.named_parameters())
    compared = 0
    for one, parameter in loaded.named_parameters():
        for stored, array in stored_as(loaded, name, one, parameter.detach().numpy()).items():
            assert np.array_equal(array.reshape(theirs[stored].shape), theirs[stored]), stored
            compared += 1
        state[one].data.copy_(parameter)
    assert compared == len(theirs)
    assert any(integer_weight(one) is not None for one, _ in loaded.named_modules())
    tokens = torch.randint(0, 101, (1, 60), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_names_are_those_of_the_gguf_package(architecture: str, tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    name = architecture.partition(" of ")[0]
    number = next(one for one, known in package.MODEL_ARCH_NAMES.items() if known == name)
    table = package.get_tensor_name_map(number, 6)
    _, _, names = model_file(tmp_path / "x.gguf", architecture)
    for ours, stored in names.items():
        ours = ours.replace("router.weight", "router.layer.weight") if name == "granitemoe" else ours
        assert table.get_name(ours, try_suffixes=(".weight", ".bias")) == stored, ours


def test_rotary_frequencies_are_divided_by_the_factors_of_the_file(tmp_path: Path) -> None:
    """As in files of Llama 3.1 and later."""
    model = families.build("llama3")
    plain = type(model)(
        type(model.config)(**{**model.config.to_dict(), "rope_parameters": None, "rope_theta": 10000.0})
    )
    factors = plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq
    path, _ = llama_file(
        tmp_path / "x.gguf", model, {"rope_freqs.weight": (0, (len(factors),), factors.numpy().tobytes())}
    )
    loaded, _, _ = gguf.load(path)
    tokens = torch.randint(0, 101, (1, 200), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ["yarn", pytest.param("longrope", marks=pytest.mark.slow)])
def test_rotary_positions_are_scaled_as_the_file_says(architecture: str, tmp_path: Path) -> None:
    if architecture == "yarn":
        scaling: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        model, name, more = (
            families.build("qwen2", rope_scaling=scaling, max_position_embeddings=256),
            "qwen2",
            {},
        )
    else:
        lists = {"short": [1.0 + 0.1 * i for i in range(8)], "long": [2.0 + 0.3 * i for i in range(8)]}
        scaling = {"rope_type": "longrope", **{f"{one}_factor": values for one, values in lists.items()}}
        model = families.build("phi3", rope_scaling=scaling, original_max_position_embeddings=64)
        name, more = (
            "phi3",
            {f"rope_factors_{one}.weight": np.array(v, np.float32) for one, v in lists.items()},
        )
    metadata = numbers_of(model, name)
    if more:
        metadata |= {f"{name}.rope.scaling.original_context_length": 64}
        metadata |= {f"{name}.rope.scaling.attn_factor": float(model.model.rotary_emb.attention_scaling)}
    tensors = {one: (0, array.shape, array.tobytes()) for one, array in more.items()}
    for parameter, weight in model.named_parameters():
        for one, array in stored_as(model, name, parameter, weight.detach().numpy()).items():
            tensors[one] = 0, array.shape, np.ascontiguousarray(array).tobytes()
    loaded, _, _ = gguf.load(write(tmp_path / "x.gguf", metadata, tensors))
    for count in (50, 200):
        tokens = torch.randint(0, 101, (1, count), generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
def test_an_encoder_decoder(kind: str, tmp_path: Path) -> None:
    """T5, and Flan-T5, which has a separate last layer."""
    from torchette import llm

    torch.manual_seed(0)
    tied = kind == "relu"
    config = transformers.T5Config(
        vocab_size=101, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, feed_forward_proj=kind,
        tie_word_embeddings=tied, pad_token_id=0, decoder_start_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(torch.randn(101, 64) * 0.3)
    metadata = {
        "general.architecture": "t5", "t5.embedding_length": 64, "t5.feed_forward_length": 96, "t5.block_count": 2,
        "t5.decoder_block_count": 2, "t5.attention.head_count": 4, "t5.attention.key_length": 16, "t5.context_length": 512,
        "t5.attention.layer_norm_epsilon": 1e-6, "t5.attention.relative_buckets_count": 32, "t5.decoder_start_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }  # fmt: skip
    tensors = {}
    package = pytest.importorskip("gguf")
    table = package.get_tensor_name_map(package.MODEL_ARCH.T5, 2)
    for name, parameter in model.named_parameters():
        stored = gguf.tensor_name(name, "t5")
        assert stored == table.get_name(name, try_suffixes=(".weight",)), name
        tensors[stored] = 0, tuple(parameter.shape), parameter.detach().numpy().tobytes()
    path = write_by_package(tmp_path / "x.gguf", metadata, tensors)
    loaded, integer_weight, _ = gguf.load(path)
    ours = dict(loaded.named_parameters())
    for name, parameter in model.named_parameters():
        parameter.data.copy_(ours[name])
    session = llm.Session(llm.export(path, max_context=100, max_prefill=16))
    prompt = [5, 17, 3, 99, 42, 7, 8, 1]
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=60, do_sample=False, eos_token_id=None)[
        0
    ].tolist()
    answer = session.generate(prompt, max_tokens=60, ignore_end=True, temperature=0).run()
    assert answer.tokens == expected[1:] and len(set(expected)) > 4
    assert integer_weight("decoder.block.0.layer.1.EncDecAttention.q") is not None


@pytest.mark.parametrize("prefix", [True, False])
def test_a_tokenizer_of_sentencepiece(prefix: bool, tmp_path: Path) -> None:
    """The tokens are those of SentencePiece."""
    sentencepiece = pytest.importorskip("sentencepiece")
    tokenizers = pytest.importorskip("tokenizers")
    text = [
        "The quick brown fox jumps over the lazy dog.",
        "Größe und Länge, naïve café",
        "日本語 の テキスト 123",
    ]
    (tmp_path / "text").write_text("\n".join(text * 9))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), model_type="bpe", vocab_size=350, byte_fallback=True,
        add_dummy_prefix=prefix, remove_extra_whitespaces=False, normalization_rule_name="identity",
        user_defined_symbols=["<tool>"], minloglevel=2,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    size = theirs.get_piece_size()
    kinds = [
        2
        if theirs.is_unknown(i)
        else 3
        if theirs.is_control(i)
        else 6
        if theirs.is_byte(i)
        else 4
        if theirs.id_to_piece(i) == "<tool>"
        else 1
        for i in range(size)
    ]
    metadata = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [theirs.id_to_piece(i) for i in range(size)],
        "tokenizer.ggml.scores": [float(theirs.get_score(i)) for i in range(size)], "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": theirs.bos_id(), "tokenizer.ggml.add_space_prefix": prefix,
    }  # fmt: skip
    files = gguf._named_data(gguf.File(write(tmp_path / "x.gguf", metadata, {})))
    ours = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    for one in (*text, "fox  dogs", "emoji 🙂 ß", " leading", "the the the", "x"):
        assert ours.encode(one).ids == [theirs.bos_id(), *theirs.encode(one)], one
        assert ours.decode(ours.encode(one).ids) == one
