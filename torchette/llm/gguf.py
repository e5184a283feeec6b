# SPDX-License-Identifier: BSD-3-Clause
# In: a GGUF file, of which nothing is believed. Out: its metadata, its tensors as floats or, where the engine has the same
# form, as whole numbers with their scales, and what transformers calls the model. Needs numpy; torch only for `load`.
"""`File`: a GGUF file; `load`: the model of transformers that is in it."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchette.errors import FormatError, UnsupportedError

# Code of a value's type -> numpy's name.
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MOST = 1 << 24  # elements of a list, tensors, pairs: no file has as many


class Info(NamedTuple):
    """Where a tensor is: its shape, rows first, the code of its type, its first byte in the file."""

    shape: tuple[int, ...]
    type: int
    offset: int


class File:
    """A GGUF file that has been read and checked.

    Attributes:
        metadata: all keys with their values.
        tensors: name -> `Info`, whose bytes are inside of the file.

    Raises:
        FormatError: it is no GGUF file, cut short or damaged; names the place.
        UnsupportedError: a tensor's type is not known.
    """

    def __init__(self, path: str | Path) -> None:
        with open(path, "rb") as file:
            try:
                data: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:  # it is empty
                data = b""
        self._data, self._at, self._name = memoryview(data), 0, str(path)
        if bytes(self._take(4, "the magic")) != b"GGUF":
            raise FormatError(f"{path} is no GGUF file: it does not begin with GGUF")
        version = self._number("<u4", "the version")
        if version not in (2, 3):
            raise FormatError(f"{path} has version {version} of GGUF; 2 and 3 are known")
        tensors, pairs = (self._count(what) for what in ("tensors", "metadata"))
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._string("a key")
            self.metadata[key] = self._value(self._number("<u4", key), key)
        found: dict[str, Info] = {}
        for _ in range(tensors):
            name = self._string("a tensor's name")
            rank = self._number("<u4", name)
            if rank > 4 or name in found:
                raise self._damaged(f"tensor {name} has {rank} dimensions, or is there twice")
            shape = tuple(self._number("<u8", name) for _ in range(rank))[::-1]
            found[name] = Info(shape, self._number("<u4", name), self._number("<u8", name))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise self._damaged(f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        self.tensors = {name: self._checked(name, info, start) for name, info in found.items()}

    def _damaged(self, what: str) -> FormatError:
        return FormatError(f"{self._name} is damaged at byte {self._at}: {what}")

    def _take(self, size: int, what: str) -> memoryview:
        if size > len(self._data) - self._at:
            raise self._damaged(f"{what} needs {size} bytes, of which {len(self._data) - self._at} are there")
        self._at += size
        return self._data[self._at - size : self._at]

    def _number(self, dtype: str, what: str) -> Any:
        kind = np.dtype(dtype)
        return np.frombuffer(self._take(kind.itemsize, what), kind)[0].item()

    def _count(self, what: str) -> int:
        count = self._number("<u8", what)
        if count > _MOST:
            raise self._damaged(f"{count} {what}")
        return count

    def _string(self, what: str) -> str:
        data = bytes(self._take(self._number("<u8", what), what))
        return data.decode("utf-8", "replace")

    def _value(self, code: int, key: str, depth: int = 0) -> Any:
        if code == _STRING:
            return self._string(key)
        if code in _SCALARS:
            return self._number(_SCALARS[code], key)
        if code != _ARRAY or depth > 2:
            raise self._damaged(f"{key} is of type {code}")
        code, count = self._number("<u4", key), self._count(key)
        if code in _SCALARS:
            kind = np.dtype(_SCALARS[code])
            return np.frombuffer(self._take(count * kind.itemsize, key), kind).tolist()
        return [self._value(code, key, depth + 1) for _ in range(count)]

    def _checked(self, name: str, info: Info, start: int) -> Info:
        if info.type not in _TYPES:
            raise UnsupportedError(
                f"{self._name}: tensor {name} is of type {info.type}, which is not read",
                hints=["types that are: " + ", ".join(kind.name for kind in _TYPES.values())],
            )
        kind, elements = _TYPES[info.type], math.prod(info.shape)
        rows = info.shape[-1] if info.shape else 1
        size = elements // kind.block * kind.size
        at = start + info.offset
        if elements == 0 or rows % kind.block or at + size > len(self._data):
            raise self._damaged(
                f"tensor {name} of {info.shape} in {kind.name} has {size} bytes from {at} on, the file {len(self._data)}"
            )
        return Info(info.shape, info.type, at)

    def _blocks(self, name: str) -> tuple[Info, _Type, np.ndarray]:
        info = self.tensors[name]
        kind = _TYPES[info.type]
        count = math.prod(info.shape) // kind.block
        data = np.frombuffer(self._data, np.uint8, count * kind.size, info.offset)
        return info, kind, data.reshape(count, kind.size)

    def floats(self, name: str) -> np.ndarray:
        """A tensor in float32."""
        info, kind, blocks = self._blocks(name)
        return kind.floats(blocks).reshape(info.shape)

    def whole(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """A matrix as int8 [N, K] and scales float32 [N, groups] of the same floats; None where its type has another form."""
        info, kind, blocks = self._blocks(name)
        if kind.whole is None or len(info.shape) != 2:
            return None
        numbers, scales = kind.whole(blocks)
        return numbers.reshape(info.shape), scales.reshape(info.shape[0], -1)


# ---- blocks ----


def _half(b: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(b).view("<f2").astype(np.float32)


def _nibbles(b: np.ndarray) -> np.ndarray:
    """The lower halves of all bytes, then the upper ones."""
    return np.concatenate([b & 15, b >> 4], -1)


def _q4_0(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _nibbles(b[:, 2:]).astype(np.int8) - 8, _half(b[:, :2])


def _q5(b: np.ndarray) -> np.ndarray:
    """32 numbers of 5 bits: the highest ones in 4 bytes, then the others."""
    high = np.unpackbits(b[:, :4], axis=-1, bitorder="little")
    return _nibbles(b[:, 4:]) | high << 4


def _q5_0(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _q5(b[:, 2:]).astype(np.int8) - 16, _half(b[:, :2])


def _q8_0(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return b[:, 2:].view(np.int8), _half(b[:, :2])


def _q6_k(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low, high = b[:, :128].reshape(-1, 2, 64), b[:, 128:192].reshape(-1, 2, 1, 32)
    high = high >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & 3
    numbers = _nibbles(low).reshape(-1, 2, 4, 32) | high << 4
    scales = b[:, 192:208].view(np.int8).astype(np.float32) * _half(b[:, 208:])
    return numbers.reshape(-1, 256).astype(np.int8) - 32, scales


def _affine(numbers: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return scale[..., None] * numbers.astype(np.float32) + shift[..., None]


def _q4_1(b: np.ndarray) -> np.ndarray:
    return _affine(_nibbles(b[:, 4:]), _half(b[:, :2])[:, 0], _half(b[:, 2:4])[:, 0])


def _q5_1(b: np.ndarray) -> np.ndarray:
    return _affine(_q5(b[:, 4:]), _half(b[:, :2])[:, 0], _half(b[:, 2:4])[:, 0])


def _k_scales(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and shifts of 8 groups: 6 bits each, in 12 bytes behind two halves."""
    first, second, mixed = (b[:, i : i + 4] for i in (4, 8, 12))
    scales = np.concatenate([first & 63, mixed & 15 | first >> 6 << 4], -1)
    shifts = np.concatenate([second & 63, mixed >> 4 | second >> 6 << 4], -1)
    return scales.astype(np.float32) * _half(b[:, :2]), shifts.astype(np.float32) * _half(b[:, 2:4])


def _k(b: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    scales, shifts = _k_scales(b)
    return scales[..., None] * numbers.reshape(-1, 8, 32).astype(np.float32) - shifts[..., None]


def _q4_k(b: np.ndarray) -> np.ndarray:
    return _k(b, _nibbles(b[:, 16:].reshape(-1, 4, 32)))


def _q5_k(b: np.ndarray) -> np.ndarray:
    high = b[:, None, 16:48] >> np.arange(8, dtype=np.uint8).reshape(8, 1) & 1
    return _k(b, _nibbles(b[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | high << 4)


class _Type(NamedTuple):
    """How so many elements lie in so many bytes."""

    name: str
    block: int
    size: int
    floats: Callable[[np.ndarray], np.ndarray]
    whole: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None


def _scaled(name: str, block: int, size: int, whole: Callable[..., Any]) -> _Type:
    def floats(b: np.ndarray) -> np.ndarray:
        numbers, scales = whole(b)
        return scales[..., None] * numbers.reshape(*scales.shape, -1).astype(np.float32)

    return _Type(name, block, size, floats, whole)


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

# Architecture -> model type of transformers.
_MODELS = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
# Name of a configuration's number -> key behind the architecture's name.
_NUMBERS = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base", "head_dim": "attention.key_length",
}  # fmt: skip
# Part of a parameter's name in transformers -> in GGUF.
_PARTS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def tensor_name(parameter: str) -> str:
    """What GGUF calls a parameter of transformers."""
    owner, _, kind = parameter.rpartition(".")
    block = ""
    if owner.startswith("model.layers."):
        _, _, number, owner = owner.split(".", 3)
        block = f"blk.{number}."
    return f"{block}{_PARTS.get(owner, owner)}.{kind}"


def config_of(file: File) -> dict[str, Any]:
    """The configuration that transformers has for the model; the reason where it has none."""
    data = file.metadata
    architecture = data.get("general.architecture")
    if architecture not in _MODELS:
        raise UnsupportedError(
            f"the GGUF file is of architecture {architecture!r}", hints=[f"read are: {', '.join(_MODELS)}"]
        )
    config: dict[str, Any] = {"model_type": _MODELS[architecture]}
    for name, key in _NUMBERS.items():
        value = data.get(f"{architecture}.{key}")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1 << 31:
            config[name] = value
        elif value is not None:
            raise FormatError(f"the GGUF file's {architecture}.{key} is {value!r}")
    missing = [_NUMBERS[name] for name in list(_NUMBERS)[:4] if name not in config]
    table = file.tensors.get("token_embd.weight")
    if missing or table is None or len(table.shape) != 2:
        raise FormatError(f"the GGUF file has no {', '.join(missing) or 'matrix token_embd.weight'}")
    if data.get(f"{architecture}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in file.tensors:
        raise UnsupportedError("the GGUF file scales rotary positions, which is not read")
    config["vocab_size"] = table.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    for name in ("bos", "eos"):
        config[f"{name}_token_id"] = data.get(f"tokenizer.ggml.{name}_token_id")
    return config


def _turned(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys, which GGUF has for pairs of neighbours, for halves of a head."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def load(path: str | Path) -> tuple[Any, Callable[[str], Any], dict[str, bytes]]:
    """The model of transformers in float32; name of a layer -> its whole numbers, or None; files that belong to it.

    Raises:
        FormatError, UnsupportedError: as `File`; or the model is none that transformers has.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from torchette.llm.quantized import Whole

    file = File(path)
    given = config_of(file)
    config = AutoConfig.for_model(**given)
    turn = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    turn = turn if given["model_type"] == "llama" else {}

    def oriented(parameter: str, array: np.ndarray) -> np.ndarray:
        heads = turn.get(parameter.split(".")[-2])
        return array if heads is None else _turned(array, heads)

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        stored = tensor_name(name)
        if stored not in file.tensors or file.tensors[stored].shape != tuple(parameter.shape):
            found = file.tensors[stored].shape if stored in file.tensors else "nothing"
            raise FormatError(f"{path}: {stored} is {found}, and {tuple(parameter.shape)} is needed")
        state[name] = torch.from_numpy(np.array(oriented(name, file.floats(stored))))
    model = model.to_empty(device="cpu")
    model.load_state_dict(state, strict=False)
    # What the parameters do not say, such as frequencies, is computed when a model is made.
    fresh = dict(AutoModelForCausalLM.from_config(_shallow(config)).named_buffers())
    for name, buffer in model.named_buffers():
        if name in fresh:
            buffer.copy_(fresh[name])
    model.tie_weights()

    def whole(layer: str) -> Whole | None:
        stored = tensor_name(f"{layer}.weight")
        found = file.whole(stored) if stored in file.tensors else None
        if found is None:
            return None
        numbers, scales = (torch.from_numpy(np.array(oriented(f"{layer}.weight", one))) for one in found)
        return Whole(numbers, scales)

    return model.eval(), whole, _files(file)


def _shallow(config: Any) -> Any:
    """The same model with next to no weights."""
    small = type(config)(
        **{**config.to_dict(), "vocab_size": 1, "num_hidden_layers": 1, "intermediate_size": 1}
    )
    small.pad_token_id = small.bos_token_id = small.eos_token_id = None
    return small


# ---- the tokenizer ----

# What tokenizer.ggml.pre names: how text is cut before merges.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CUTS = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _GPT2,
    "llama-bpe": _LLAMA3,
    "qwen2": _LLAMA3.replace("{1,3}", ""),
}


def _files(file: File) -> dict[str, bytes]:
    """The tokenizer, where it is byte-level BPE, and the chat template."""
    data, found = file.metadata, {}
    template = data.get("tokenizer.chat_template")
    if isinstance(template, str):
        found["chat_template.jinja"] = template.encode()
    tokens, merges = data.get("tokenizer.ggml.tokens"), data.get("tokenizer.ggml.merges")
    cut = _CUTS.get(data.get("tokenizer.ggml.pre", "default"))
    if (
        data.get("tokenizer.ggml.model") != "gpt2"
        or not tokens
        or not isinstance(merges, list)
        or cut is None
    ):
        return found
    types = data.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": kind == 3}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=False)) if kind in (3, 4)
    ]  # fmt: skip
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]
    if data.get("tokenizer.ggml.pre") == "smollm":
        steps.insert(0, {"type": "Digits", "individual_digits": True})
    found["tokenizer.json"] = json.dumps(
        {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": merges,
            },
        },
        ensure_ascii=False,
    ).encode()  # fmt: skip
    return found
