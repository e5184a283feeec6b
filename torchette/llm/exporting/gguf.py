# SPDX-License-Identifier: BSD-3-Clause
# Reads untrusted GGUF files: metadata, and tensors as float32 or as quantized weights of the engine. Only `load` needs torch.
"""`File`: a GGUF file; `load`: the file as a model of transformers."""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchette.errors import FormatError, UnsupportedError
from torchette.llm.exporting import named_data
from torchette.llm.exporting.vocabularies import END_TEXTS, tokenizer_json

# Type code of a metadata value -> numpy dtype.
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MAX_COUNT = 1 << 24  # limit of list elements, tensors and metadata pairs; no valid file reaches it


class TensorInfo(NamedTuple):
    """A tensor: its shape in torch's order of dimensions, type code, and offset in the file."""

    shape: tuple[int, ...]
    type: int
    offset: int


class File:
    """A GGUF file that has been read and checked.

    Attributes:
        name: the path.
        metadata: key -> value.
        tensors: name -> `Info`; the bytes of each tensor are within the file.

    Raises:
        FormatError: the file is not a GGUF file, or is damaged; the message states the offset.
        UnsupportedError: the type of a tensor is unknown.
    """

    def __init__(self, path: str | Path) -> None:
        with open(path, "rb") as file:
            try:
                data: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:  # raised for an empty file
                data = b""
        self._data, self._at, self.name = memoryview(data), 0, str(path)
        if bytes(self._take(4, "the magic")) != b"GGUF":
            raise FormatError(f"{path} is not a GGUF file: its first 4 bytes are not 'GGUF'")
        version = self._number("<u4", "the version")
        if version not in (2, 3):
            raise FormatError(f"{path} has GGUF version {version}; versions 2 and 3 are supported")
        tensors, pairs = (self._count(label) for label in ("tensors", "metadata"))
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._string("a key")
            self.metadata[key] = self._value(self._number("<u4", key), key)
        infos: dict[str, TensorInfo] = {}
        for _ in range(tensors):
            name = self._string("a tensor name")
            rank = self._number("<u4", name)
            if rank > 4 or name in infos:
                raise self._damaged(f"tensor {name} is a duplicate, or has more than 4 dimensions: {rank}")
            shape = tuple(self._number("<u8", name) for _ in range(rank))[::-1]
            infos[name] = TensorInfo(shape, self._number("<u4", name), self._number("<u8", name))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise self._damaged(f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        self.tensors = {name: self._checked(name, info, start) for name, info in infos.items()}

    def _damaged(self, problem: str) -> FormatError:
        return FormatError(f"{self.name} is damaged at byte {self._at}: {problem}")

    def _take(self, size: int, label: str) -> memoryview:
        if size > len(self._data) - self._at:
            raise self._damaged(f"{label} needs {size} bytes; {len(self._data) - self._at} bytes are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def _number(self, dtype: str, label: str) -> Any:
        kind = np.dtype(dtype)
        return np.frombuffer(self._take(kind.itemsize, label), kind)[0].item()

    def _count(self, label: str) -> int:
        count: int = self._number("<u8", label)
        if count > _MAX_COUNT:
            raise self._damaged(f"{label} has {count} entries; the limit is {_MAX_COUNT}")
        return count

    def _string(self, label: str) -> str:
        data = bytes(self._take(self._number("<u8", label), label))
        return data.decode("utf-8", "replace")

    def _value(self, code: int, key: str, depth: int = 0) -> Any:
        if code == _STRING:
            return self._string(key)
        if code in _SCALARS:
            return self._number(_SCALARS[code], key)
        if code != _ARRAY or depth > 2:
            raise self._damaged(f"{key} has the unknown type {code}, or its lists are nested too deeply")
        code, count = self._number("<u4", key), self._count(key)
        if code in _SCALARS:
            kind = np.dtype(_SCALARS[code])
            return np.frombuffer(self._take(count * kind.itemsize, key), kind).tolist()
        return [self._value(code, key, depth + 1) for _ in range(count)]

    def _checked(self, name: str, info: TensorInfo, start: int) -> TensorInfo:
        if info.type not in _TYPES:
            raise UnsupportedError(
                f"{self.name}: tensor {name} has type {info.type}, which is not supported",
                hints=["supported types: " + ", ".join(kind.name for kind in _TYPES.values())],
            )
        kind, elements = _TYPES[info.type], math.prod(info.shape)
        rows = info.shape[-1] if info.shape else 1
        size = elements // kind.block * kind.size
        at = start + info.offset
        if elements == 0 or rows % kind.block or at + size > len(self._data):
            raise self._damaged(
                f"tensor {name} {info.shape} {kind.name} is invalid: {size} bytes at offset {at}; the file has {len(self._data)}"
            )
        return TensorInfo(info.shape, info.type, at)

    def _blocks(self, name: str) -> tuple[TensorInfo, _Type, np.ndarray]:
        info = self.tensors[name]
        kind = _TYPES[info.type]
        count = math.prod(info.shape) // kind.block
        data = np.frombuffer(self._data, np.uint8, count * kind.size, info.offset)
        return info, kind, data.reshape(count, kind.size)

    def floats(self, name: str) -> np.ndarray:
        """Returns a tensor as float32."""
        info, kind, blocks = self._blocks(name)
        return kind.floats(blocks).reshape(info.shape)

    def integers(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns a matrix as int8 [N, K] and float32 scales [N, groups], or None if its type is not a scaled integer."""
        info, kind, blocks = self._blocks(name)
        if kind.integers is None or len(info.shape) != 2:
            return None
        values, scales = kind.integers(blocks)
        return values.reshape(info.shape), scales.reshape(info.shape[0], -1)


# ---- blocks ----


def _half(b: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(b).view("<f2").astype(np.float32)


def _nibbles(b: np.ndarray) -> np.ndarray:
    """Returns the low nibbles followed by the high nibbles."""
    return np.concatenate([b & 15, b >> 4], -1)


def _q4_0(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _nibbles(b[:, 2:]).astype(np.int8) - 8, _half(b[:, :2])


def _q5(b: np.ndarray) -> np.ndarray:
    """Unpacks 32 5-bit values: their high bits are in the first 4 bytes, their low bits follow."""
    high = np.unpackbits(b[:, :4], axis=-1, bitorder="little")
    result: np.ndarray = _nibbles(b[:, 4:]) | high << 4
    return result


def _q5_0(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _q5(b[:, 2:]).astype(np.int8) - 16, _half(b[:, :2])


def _q8_0(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return b[:, 2:].view(np.int8), _half(b[:, :2])


def _q6_k(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = b[:, :128].reshape(-1, 2, 64), b[:, 128:192].reshape(-1, 2, 1, 32)
    high = high >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3
    values = _nibbles(low).reshape(-1, 2, 4, 32) | high << 4
    scales = b[:, 192:208].view(np.int8).astype(np.float32) * _half(b[:, 208:])
    return values.reshape(-1, 256).astype(np.int8) - 32, scales


def _affine(values: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    result: np.ndarray = scale[..., None] * values.astype(np.float32) + shift[..., None]
    return result


def _q4_1(b: np.ndarray) -> np.ndarray:
    return _affine(_nibbles(b[:, 4:]), _half(b[:, :2])[:, 0], _half(b[:, 2:4])[:, 0])


def _q5_1(b: np.ndarray) -> np.ndarray:
    return _affine(_q5(b[:, 4:]), _half(b[:, :2])[:, 0], _half(b[:, 2:4])[:, 0])


def _k_scales(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns scales and shifts of 8 groups: 6-bit values in the 12 bytes after two float16 factors."""
    first, second, mixed = (b[:, i : i + 4] for i in (4, 8, 12))
    scales = np.concatenate([first & 63, mixed & 15 | first >> 6 << 4], -1)
    shifts = np.concatenate([second & 63, mixed >> 4 | second >> 6 << 4], -1)
    return scales.astype(np.float32) * _half(b[:, :2]), shifts.astype(np.float32) * _half(b[:, 2:4])


def _k(b: np.ndarray, values: np.ndarray) -> np.ndarray:
    scales, shifts = _k_scales(b)
    result: np.ndarray = scales[..., None] * values.reshape(-1, 8, 32).astype(np.float32) - shifts[..., None]
    return result


def _q4_k(b: np.ndarray) -> np.ndarray:
    return _k(b, _nibbles(b[:, 16:].reshape(-1, 4, 32)))


def _q5_k(b: np.ndarray) -> np.ndarray:
    high = b[:, None, 16:48] >> np.arange(8, dtype=np.uint8).reshape(8, 1) & 1
    return _k(b, _nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | high << 4)


class _Type(NamedTuple):
    """A tensor type.

    Attributes:
        block: elements of a block.
        size: bytes of a block.
        floats: dequantizes blocks.
        integers: returns the integers and the scales of blocks; None if the type is not a scaled integer.
    """

    name: str
    block: int
    size: int
    floats: Callable[[np.ndarray], np.ndarray]
    integers: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None


def _scaled(name: str, block: int, size: int, integers: Callable[..., Any]) -> _Type:
    def floats(b: np.ndarray) -> np.ndarray:
        values, scales = integers(b)
        result: np.ndarray = scales[..., None] * values.reshape(*scales.shape, -1).astype(np.float32)
        return result

    return _Type(name, block, size, floats, integers)


_TYPES = {
    0: _Type("F32", 1, 4, lambda b: b.view("<f4")),
    1: _Type("F16", 1, 2, _half),
    2: _scaled("Q4_0", 32, 18, _q4_0),
    3: _Type("Q4_1", 32, 20, _q4_1),
    6: _scaled("Q5_0", 32, 22, _q5_0),
    7: _Type("Q5_1", 32, 24, _q5_1),
    8: _scaled("Q8_0", 32, 34, _q8_0),
    12: _Type("Q4_K", 256, 144, _q4_k),
    13: _Type("Q5_K", 256, 176, _q5_k),
    14: _scaled("Q6_K", 256, 210, _q6_k),
    30: _Type("BF16", 1, 2, lambda b: (b.view("<u2").astype(np.uint32) << 16).view(np.float32)),
}


# ---- the model ----

# Field of a configuration -> GGUF key without the architecture's name. The first four are required.
_CONFIG_KEYS = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base", "head_dim": "attention.key_length",
}  # fmt: skip
_WINDOW = {"sliding_window": "attention.sliding_window"}
_CAPS = {f"{name}_logit_softcapping": f"{name}_logit_softcapping" for name in ("attn", "final")}
_LOCAL_EXPERTS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_EXPERTS = {
    "num_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}  # fmt: skip
_GRANITE = {
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
}  # fmt: skip
# Module name in transformers -> name in GGUF.
_PARTS = {
    "embed_tokens": "token_embd", "wte": "token_embd", "wpe": "position_embd", "norm": "output_norm", "ln_f": "output_norm",
    "final_layernorm": "output_norm", "lm_head": "output", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.dense": "attn_output",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.router": "ffn_gate_inp", "block_sparse_moe.router": "ffn_gate_inp",
    "word_embeddings": "token_embd", "embed_in": "token_embd", "final_layer_norm": "output_norm",
    "self_attention.query_key_value": "attn_qkv", "attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output", "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down", "ln_mlp": "attn_norm", "ln_attn": "attn_norm_2",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
    "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
}  # fmt: skip
# The same for T5, without the indices of blocks and layers.
_T5 = {
    "SelfAttention.relative_attention_bias": "attn_rel_b", "EncDecAttention.o": "cross_attn_o", "DenseReluDense.wi": "ffn_up",
    "DenseReluDense.wi_0": "ffn_gate", "DenseReluDense.wi_1": "ffn_up", "DenseReluDense.wo": "ffn_down",
    **{f"{long}.{one}": f"{short}_{one}" for one in "qkvo" for long, short in (("SelfAttention", "attn"), ("EncDecAttention", "cross_attn"))},
}  # fmt: skip
_T5_NORMS = {"encoder": ("attn_norm", "ffn_norm"), "decoder": ("attn_norm", "cross_attn_norm", "ffn_norm")}
# Names in models with norms before and after each layer.
_NORMS_ON_BOTH_SIDES = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_NONE: Mapping[str, Any] = {}


class _Model(NamedTuple):
    """A model type of transformers and its differences from Llama.

    Attributes:
        config_keys: further fields of the configuration -> GGUF keys.
        parts: further module names -> names in GGUF.
        constants: fields of the configuration with a fixed value.
        is_rope_interleaved: rows of query and key weights are stored in adjacent pairs for rotary embeddings.
        norm_shift: constant that GGUF adds to the weights of norms.
        has_grouped_qkv: query, key and value rows of each group of heads are adjacent in transformers.
    """

    type: str
    config_keys: Mapping[str, str] = _NONE
    parts: Mapping[str, str] = _NONE
    constants: Mapping[str, Any] = _NONE
    is_rope_interleaved: bool = False
    norm_shift: float = 0.0
    has_grouped_qkv: bool = False


def _layer_norm(name: str) -> dict[str, str]:
    return {name: "attention.layer_norm_epsilon"}


_MODELS = {
    "llama": _Model("llama", is_rope_interleaved=True),
    "llama of experts": _Model("mixtral", _LOCAL_EXPERTS, is_rope_interleaved=True),
    "smollm3": _Model("smollm3", is_rope_interleaved=True),
    "arcee": _Model("arcee", is_rope_interleaved=True),
    "olmo": _Model("olmo", {"clip_qkv": "attention.clamp_kqv"}, is_rope_interleaved=True),
    "granitemoe": _Model("granitemoe", {**_GRANITE, **_LOCAL_EXPERTS}, is_rope_interleaved=True),
    "olmoe": _Model("olmoe", _EXPERTS),
    "gpt-oss": _Model(
        "gpt_oss", {**_WINDOW, **_LOCAL_EXPERTS, "intermediate_size": "expert_feed_forward_length"},
        {"post_attention_layernorm": "post_attention_norm"}, {"rope_scaling": {"rope_type": "default"}},
    ),
    "exaone4": _Model("exaone4", _WINDOW, _NORMS_ON_BOTH_SIDES, {"sliding_window": None}),
    "glm4": _Model("glm4"),
    "ernie4_5": _Model("ernie4_5"),
    "hunyuan-dense": _Model("hunyuan_v1_dense"),
    "seed_oss": _Model("seed_oss", parts={"post_attention_layernorm": "post_attention_norm"}),
    "command-r": _Model("cohere", {**_layer_norm("layer_norm_eps"), "logit_scale": "logit_scale"}),
    "cohere2": _Model("cohere2", {**_WINDOW, **_layer_norm("layer_norm_eps"), "logit_scale": "logit_scale"}),
    "nemotron": _Model("nemotron", _layer_norm("norm_eps"), norm_shift=1.0),
    "falcon": _Model(
        "falcon",
        {**_layer_norm("layer_norm_epsilon"), "num_kv_heads": "attention.head_count_kv", "ffn_hidden_size": "feed_forward_length"},
        constants={"alibi": False, "parallel_attn": True}, has_grouped_qkv=True,
    ),
    "gptneox": _Model("gpt_neox", _layer_norm("layer_norm_eps"), has_grouped_qkv=True),
    "t5": _Model(
        "t5",
        {
            **_layer_norm("layer_norm_epsilon"), "d_model": "embedding_length", "d_ff": "feed_forward_length",
            "d_kv": "attention.key_length", "num_heads": "attention.head_count", "num_layers": "block_count",
            "num_decoder_layers": "decoder_block_count", "relative_attention_num_buckets": "attention.relative_buckets_count",
            "decoder_start_token_id": "decoder_start_token_id",
        },
        constants={"decoder_start_token_id": 0},
    ),
    "granite": _Model("granite", _GRANITE, is_rope_interleaved=True),
    "qwen2": _Model("qwen2"),
    "qwen3": _Model("qwen3"),
    "qwen2moe": _Model("qwen2_moe", _EXPERTS),
    "qwen3moe": _Model("qwen3_moe", _EXPERTS, constants={"norm_topk_prob": True}),
    "olmo2": _Model("olmo2", parts=_NORMS_ON_BOTH_SIDES),
    "gemma": _Model("gemma", norm_shift=1.0),
    "gemma2": _Model("gemma2", {**_WINDOW, **_CAPS}, _NORMS_ON_BOTH_SIDES, norm_shift=1.0),
    "gemma3": _Model("gemma3_text", {**_WINDOW, **_CAPS}, _NORMS_ON_BOTH_SIDES, norm_shift=1.0),
    "phi2": _Model("phi", _layer_norm("layer_norm_eps")),
    "phi3": _Model("phi3", _WINDOW),
    "stablelm": _Model("stablelm", _layer_norm("layer_norm_eps")),
    "starcoder2": _Model("starcoder2", {**_WINDOW, **_layer_norm("norm_epsilon")}),
    "gpt2": _Model("gpt2", _layer_norm("layer_norm_epsilon")),
}  # fmt: skip


def tensor_name(parameter: str, architecture: str = "llama") -> str:
    """Returns the GGUF name of a parameter of transformers."""
    owner, _, kind = parameter.rpartition(".")
    if architecture == "t5":
        side, _, path = owner.partition(".")
        layer = re.fullmatch(r"block\.(\d+)\.layer\.(\d)\.(.+)", path)
        if layer is None:
            shared = {"shared": "token_embd", "lm_head": "output"}
            return f"{shared.get(owner) or side[:3] + '.output_norm'}.{kind}"
        norm = _T5_NORMS[side][int(layer[2])] if layer[3] == "layer_norm" else _T5[layer[3]]
        return f"{side[:3]}.blk.{layer[1]}.{norm}.{kind}"
    match = re.fullmatch(r"(?:\w+\.)?(?:layers|h)\.(\d+)\.(.+)", owner)
    block, owner = (f"blk.{match[1]}.", match[2]) if match else ("", owner.rpartition(".")[2])
    names = {**_PARTS, **_MODELS[architecture].parts}
    if owner.endswith(".experts"):
        kind, _, bias = kind.partition("_proj")
        return f"{block}ffn_{kind}_exps.{bias[1:] or 'weight'}"
    if kind == "sinks":
        return f"{block}attn_sinks.weight"
    return f"{block}{names.get(owner, owner)}.{kind}"


def config_of(file: File) -> dict[str, Any]:
    """Returns the configuration of transformers for a file.

    Raises:
        UnsupportedError: the architecture is unknown.
        FormatError: a field is missing or invalid.
    """
    data = file.metadata
    architecture = data.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _MODELS:
        raise UnsupportedError(
            f"the GGUF file has the unsupported architecture {architecture!r}",
            hints=[f"supported architectures: {', '.join(_MODELS)}"],
        )
    kind = _MODELS[_model_key(file)]
    config: dict[str, Any] = {"model_type": kind.type, "pad_token_id": None, **kind.constants}
    for name, key in {**_CONFIG_KEYS, **kind.config_keys}.items():
        value = data.get(f"{architecture}.{key}")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1 << 31:
            config[name] = value
        elif value is not None and not (value == 0 and name == "decoder_start_token_id"):
            raise FormatError(f"the GGUF file has the invalid value {value!r} in {architecture}.{key}")
    first = list(_CONFIG_KEYS)[:4]
    missing = [_CONFIG_KEYS[name] for name in first if not isinstance(config.get(name), int)]
    table = file.tensors.get("token_embd.weight")
    if missing or table is None or len(table.shape) != 2:
        raise FormatError(f"the GGUF file has no {', '.join(missing) or 'matrix token_embd.weight'}")
    last = f"blk.{config['num_hidden_layers'] - 1}."
    if table.shape[1] != config["hidden_size"] or not any(last in name for name in file.tensors):
        raise FormatError(
            f"the GGUF file does not match its metadata: embeddings have {table.shape[1]} elements, expected"
            f" {config['hidden_size']}, or there are no tensors {last}*"
        )
    if scaling := _rope_scaling(file, architecture):
        config["rope_scaling"] = scaling
        config["original_max_position_embeddings"] = scaling.get("original_max_position_embeddings")
    depth = config.get("head_dim", config["hidden_size"] // max(1, config["num_attention_heads"]))
    turns = data.get(f"{architecture}.rope.dimension_count", depth)
    if isinstance(turns, int) and 0 < turns < depth:
        config["partial_rotary_factor"] = turns / depth
    if largest := {"gemma2": 46, "gemma3": 62}.get(
        architecture
    ):  # number of layers of the variant that scales queries by hidden_size / heads instead of head_dim
        narrow = config["hidden_size"] // config["num_attention_heads"]
        config["query_pre_attn_scalar"] = narrow if config["num_hidden_layers"] == largest else depth
    config["vocab_size"] = table.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    for name in ("attention_bias", "use_qkv_bias", "bias"):
        config[name] = not {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"}.isdisjoint(file.tensors)
    if architecture == "falcon":
        groups, two = (
            config.get("num_kv_heads", config["num_attention_heads"]),
            "blk.0.attn_norm_2.weight" in file.tensors,
        )
        config |= {"multi_query": groups == 1, "new_decoder_architecture": two or groups > 1}
        config["num_ln_in_parallel_attn"] = 2 if two else 1
        config.pop("head_dim", None)  # transformers derives it
    if architecture == "t5" and "enc.blk.0.ffn_gate.weight" in file.tensors:
        config["feed_forward_proj"] = "gated-gelu"
    for name in ("bos", "eos"):
        config[f"{name}_token_id"] = data.get(f"tokenizer.ggml.{name}_token_id")
    return config


def _model_key(file: File) -> str:
    """Returns the key of `_MODELS` for a file."""
    name = file.metadata["general.architecture"]
    return "llama of experts" if name == "llama" and file.metadata.get("llama.expert_count") else name


def _rope_scaling(file: File, architecture: str) -> dict[str, Any] | None:
    """Returns the `rope_scaling` of transformers, or None if rotary embeddings are not scaled."""
    known = {name: file.metadata.get(f"{architecture}.rope.scaling.{name}") for name in (
        "type", "factor", "original_context_length", "attn_factor", "yarn_beta_fast", "yarn_beta_slow",
    )}  # fmt: skip
    kind, factor, attention = known["type"], known["factor"] or 1.0, known["attn_factor"] or 1.0
    if any(not isinstance(one, (int, float, str, type(None))) for one in known.values()):
        raise FormatError(f"the GGUF file has invalid values in {architecture}.rope.scaling: {known}")
    original = {"original_max_position_embeddings": known["original_context_length"]}
    factors = {name: f"rope_factors_{name}.weight" for name in ("short", "long")}
    if all(one in file.tensors for one in factors.values()):
        lists = {f"{name}_factor": file.floats(one).tolist() for name, one in factors.items()}
        return {"rope_type": "longrope", **lists, **original, "attention_factor": attention}
    if kind in (None, "none"):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UnsupportedError(f"the GGUF file scales rotary embeddings by {kind!r}, which is not supported")
    return {
        "rope_type": "yarn", "factor": factor, **original, "beta_fast": known["yarn_beta_fast"] or 32.0,
        "beta_slow": known["yarn_beta_slow"] or 1.0, "attention_factor": attention * (0.1 * math.log(factor) + 1),
        "truncate": architecture != "gpt-oss",
    }  # fmt: skip


def _deinterleave_rope(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorders rows of query or key weights from adjacent pairs to the two halves of a head."""
    result: np.ndarray = rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    return result


def _group_qkv(rows: np.ndarray, heads: int, groups: int) -> np.ndarray:
    """Reorders rows from [all queries, all keys, all values] to the queries, keys and values of each group."""
    parts = rows.reshape(heads + 2 * groups, -1, *rows.shape[1:])
    kinds = np.split(parts, [heads, heads + groups])
    return np.concatenate([one.reshape(groups, -1, *rows.shape[1:]) for one in kinds], 1).reshape(rows.shape)


def load(
    path: str | Path, tokenizer: bytes | None = None
) -> tuple[Any, Callable[[str], Any], dict[str, bytes]]:
    """Reads a GGUF file as a model of transformers.

    Args:
        path: the file.
        tokenizer: the contents of a tokenizer.json, which replaces the file's own tokenizer.

    Returns:
        The model in float32, a function that returns a layer's integers or None, and the named data.

    Raises:
        FormatError: the file is damaged, or its metadata and tensors do not match.
        UnsupportedError: a tensor type or the architecture is not supported.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.pytorch_utils import Conv1D

    from torchette.llm.exporting.quantized import QuantizedWeight

    file = File(path)
    model_config = config_of(file)
    architecture = _model_key(file)
    kind = _MODELS[architecture]
    try:
        config = AutoConfig.for_model(**model_config)
        with _without_weights():
            auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
            model = auto.from_config(config, dtype=torch.float32)
    except (
        ValueError,
        TypeError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
    ) as error:  # inconsistent metadata
        raise FormatError(
            f"{path}: transformers cannot create a {kind.type} model from the metadata: {error}"
        ) from None
    turn = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", None)}

    def oriented(parameter: str, array: np.ndarray) -> np.ndarray:
        if kind.has_grouped_qkv and ".query_key_value." in parameter:
            heads = config.num_attention_heads
            return _group_qkv(array, heads, model_config.get("num_key_value_heads", heads))
        heads = turn.get(parameter.split(".")[-2]) if kind.is_rope_interleaved else None
        return array if heads is None else _deinterleave_rope(array, heads)

    def floats(stored: str) -> np.ndarray:
        if stored not in file.tensors:
            raise FormatError(f"{path} has no tensor {stored}")
        return file.floats(stored)

    state: dict[str, Any] = {}
    transposed = {name for name, part in model.named_modules() if isinstance(part, Conv1D)}
    for name, parameter in model.named_parameters():
        stored = tensor_name(name, architecture)
        if "ffn_gate_up_exps" in stored:
            both = [floats(stored.replace("gate_up", one)) for one in ("gate", "up")]
            if kind.type == "gpt_oss":  # its rows alternate between gate and up
                array = np.stack(both, 2).reshape(len(both[0]), -1, *both[0].shape[2:])
            else:
                array = np.concatenate(both, 1)
        else:
            array = oriented(name, floats(stored))
        if kind.type == "gpt_oss" and array.ndim == 3:
            array = array.swapaxes(1, 2)
        if name.rpartition(".")[0] in transposed and name.endswith(".weight"):
            array = array.T
        if kind.norm_shift and name.endswith("norm.weight"):
            array = array - np.float32(kind.norm_shift)
        if array.shape != tuple(parameter.shape) and array.shape != tuple(parameter.shape)[1:]:
            raise FormatError(f"{path}: {stored} has shape {array.shape}, expected {tuple(parameter.shape)}")
        state[name] = torch.from_numpy(np.array(array)).reshape(parameter.shape)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    if (
        config.is_encoder_decoder and "output.weight" in file.tensors
    ):  # transformers ties lm_head to the embedding table
        model.lm_head.weight = torch.nn.Parameter(torch.from_numpy(np.array(floats("output.weight"))))
        config.tie_word_embeddings = False
    if "rope_freqs.weight" in file.tensors:  # divisors of the rotary frequencies
        for name, buffer in model.named_buffers():
            if name.endswith("inv_freq"):
                factors = floats("rope_freqs.weight")
                if factors.shape != tuple(buffer.shape):
                    raise FormatError(
                        f"{path}: rope_freqs.weight has shape {factors.shape}, expected {tuple(buffer.shape)}"
                    )
                buffer /= torch.from_numpy(np.array(factors))

    def integers_of(layer: str) -> QuantizedWeight | None:
        stored = tensor_name(f"{layer}.weight", architecture)
        integers = file.integers(stored) if stored in file.tensors else None
        if integers is None:
            return None
        values, scales = (torch.from_numpy(np.array(oriented(f"{layer}.weight", one))) for one in integers)
        return QuantizedWeight(values, scales)

    if model.generation_config is not None:
        model.generation_config.eos_token_id = end_tokens(file.metadata) or None
        if suppressed := file.metadata.get("tokenizer.ggml.suppress_tokens"):
            model.generation_config.suppress_tokens = suppressed
    return model.eval(), integers_of, _named_data(file, tokenizer)


@contextmanager
def _without_weights() -> Iterator[None]:
    """Creates parameters on the meta device, and buffers on the CPU."""
    import torch

    register = torch.nn.Module.register_parameter

    def registered(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:  # a parameter on the meta device may be tied
            parameter = torch.nn.Parameter(parameter.data.to("meta"), requires_grad=False)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = registered  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


# GGUF keys of tokens that end a text. Chat templates receive the first.
_END_TOKEN_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


def end_tokens(data: Mapping[str, Any]) -> list[int]:
    """Returns the tokens that end a text: those of `_END_KEYS`, EOS first, and the tokens with a text of `END_TEXTS`."""
    tokens = data.get("tokenizer.ggml.tokens")
    texts = tokens if isinstance(tokens, list) else []
    ends = [data.get(f"tokenizer.ggml.{name}_token_id") for name in _END_TOKEN_KEYS]
    end_ids = [one for one in ends if isinstance(one, int) and 0 <= one < (len(texts) or 1 << 31)]
    end_ids += [i for i, text in enumerate(texts) if text in END_TEXTS]
    has = {texts[one] for one in end_ids if one < len(texts)}
    no_ends = (
        {"</s>"} if "<|tool_response>" in has else set()
    )  # in such vocabularies </s> is an ordinary token
    for also in ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|call|>"}, {"<|flush|>", "<|calls|>"}):
        no_ends |= (
            {"<|end|>"} if has >= also else set()
        )  # in such vocabularies <|end|> ends one of several messages
    return list(dict.fromkeys(one for one in end_ids if one >= len(texts) or texts[one] not in no_ends))


# Name of a special token in chat templates -> name in GGUF keys.
_SPECIAL = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "mask": "mask",
}


def _named_data(file: File, tokenizer: bytes | None = None) -> dict[str, bytes]:
    """Returns the named data of a file: tokenizer, chat templates and special tokens."""
    data = file.metadata
    if tokenizer is None and (tokenizer_bytes := tokenizer_json(data)) is not None:
        tokenizer = named_data.checked(file.name, tokenizer_bytes)
    named = {} if tokenizer is None else {named_data.TOKENIZER: tokenizer}
    key = "tokenizer.chat_template"
    for name, template in data.items():
        if isinstance(template, str) and (name == key or name.startswith(f"{key}.")):
            named[named_data.template_name(name[len(key) + 1 :] or "default")] = template.encode()
    tokens = data.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        ids = {name: data.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL.items()}
        special = named_data.special_tokens(
            {
                f"{name}_token": tokens[i]
                for name, i in ids.items()
                if isinstance(i, int) and 0 <= i < len(tokens)
            }
        )
        named |= {} if special is None else {named_data.SPECIAL_TOKENS: special}
    return named
