# SPDX-License-Identifier: BSD-3-Clause
# In: a GGUF file, of which nothing is believed. Out: its metadata, its tensors as floats or, where the engine has the same
# form, as whole numbers with their scales, and what transformers calls the model. Needs numpy; torch only for `load`.
"""`File`: a GGUF file; `load`: the model of transformers that is in it."""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

# Name of a configuration's number -> key behind the architecture's name; the first four are always there.
_NUMBERS = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base", "head_dim": "attention.key_length",
}  # fmt: skip
_WINDOW = {"sliding_window": "attention.sliding_window"}
_CAPS = {f"{name}_logit_softcapping": f"{name}_logit_softcapping" for name in ("attn", "final")}
_EXPERTS = {
    "num_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}  # fmt: skip
_GRANITE = {
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
}  # fmt: skip
# Part of a parameter's name in transformers -> in GGUF.
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
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}  # fmt: skip
# Where layers have norms on both sides.
_BOTH_SIDES = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_NONE: Mapping[str, Any] = {}


class _Model(NamedTuple):
    """An architecture's type in transformers, and how it differs from a Llama."""

    type: str
    numbers: Mapping[str, str] = _NONE
    parts: Mapping[str, str] = _NONE
    always: Mapping[str, Any] = _NONE  # of the configuration
    turned: bool = False  # rows of queries and keys are for pairs of neighbours
    shift: float = 0.0  # what was added to the weights of norms


def _layer_norm(name: str) -> dict[str, str]:
    return {name: "attention.layer_norm_epsilon"}


_MODELS = {
    "llama": _Model("llama", turned=True),
    "granite": _Model("granite", _GRANITE, turned=True),
    "qwen2": _Model("qwen2"),
    "qwen3": _Model("qwen3"),
    "qwen2moe": _Model("qwen2_moe", _EXPERTS),
    "qwen3moe": _Model("qwen3_moe", _EXPERTS, always={"norm_topk_prob": True}),
    "olmo2": _Model("olmo2", parts=_BOTH_SIDES),
    "gemma": _Model("gemma", shift=1.0),
    "gemma2": _Model("gemma2", {**_WINDOW, **_CAPS}, _BOTH_SIDES, shift=1.0),
    "gemma3": _Model("gemma3_text", {**_WINDOW, **_CAPS}, _BOTH_SIDES, shift=1.0),
    "phi2": _Model("phi", _layer_norm("layer_norm_eps")),
    "phi3": _Model("phi3", _WINDOW, always={"pad_token_id": None}),
    "stablelm": _Model("stablelm", _layer_norm("layer_norm_eps")),
    "starcoder2": _Model("starcoder2", {**_WINDOW, **_layer_norm("norm_epsilon")}),
    "gpt2": _Model("gpt2", _layer_norm("layer_norm_epsilon")),
}  # fmt: skip


def tensor_name(parameter: str, architecture: str = "llama") -> str:
    """What GGUF calls a parameter of transformers."""
    owner, _, kind = parameter.rpartition(".")
    found = re.fullmatch(r"(?:\w+\.)?(?:layers|h)\.(\d+)\.(.+)", owner)
    block, owner = (f"blk.{found[1]}.", found[2]) if found else ("", owner.rpartition(".")[2])
    names = {**_PARTS, **_MODELS[architecture].parts}
    return f"{block}{names.get(owner, owner)}.{kind}"


def config_of(file: File) -> dict[str, Any]:
    """The configuration that transformers has for the model; the reason where it has none."""
    data = file.metadata
    architecture = data.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _MODELS:
        raise UnsupportedError(
            f"the GGUF file is of architecture {architecture!r}", hints=[f"read are: {', '.join(_MODELS)}"]
        )
    kind = _MODELS[architecture]
    config: dict[str, Any] = {"model_type": kind.type, **kind.always}
    for name, key in {**_NUMBERS, **kind.numbers}.items():
        value = data.get(f"{architecture}.{key}")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1 << 31:
            config[name] = value
        elif value is not None:
            raise FormatError(f"the GGUF file's {architecture}.{key} is {value!r}")
    first = list(_NUMBERS)[:4]
    missing = [_NUMBERS[name] for name in first if not isinstance(config.get(name), int)]
    table = file.tensors.get("token_embd.weight")
    if missing or table is None or len(table.shape) != 2:
        raise FormatError(f"the GGUF file has no {', '.join(missing) or 'matrix token_embd.weight'}")
    last = f"blk.{config['num_hidden_layers'] - 1}."
    if table.shape[1] != config["hidden_size"] or not any(name.startswith(last) for name in file.tensors):
        raise FormatError(
            f"the GGUF file has rows of {table.shape[1]} or no {last}, unlike what its numbers say"
        )
    scaling = data.get(f"{architecture}.rope.scaling.type", "none")
    odd = [name for name in file.tensors if name.startswith("rope_factors")]
    if scaling not in ("none", "linear") or odd:
        raise UnsupportedError(
            f"the GGUF file scales rotary positions as {scaling!r}, which is not read", hints=odd
        )
    if scaling == "linear":
        config["rope_scaling"] = {
            "rope_type": "linear",
            "factor": data.get(f"{architecture}.rope.scaling.factor", 1.0),
        }
    depth = config.get("head_dim", config["hidden_size"] // max(1, config["num_attention_heads"]))
    turns = data.get(f"{architecture}.rope.dimension_count", depth)
    if isinstance(turns, int) and 0 < turns < depth:
        config["partial_rotary_factor"] = turns / depth
    if largest := {"gemma2": 46, "gemma3": 62}.get(
        architecture
    ):  # blocks of the one whose heads are narrower than deep
        narrow = config["hidden_size"] // config["num_attention_heads"]
        config["query_pre_attn_scalar"] = narrow if config["num_hidden_layers"] == largest else depth
    config["vocab_size"] = table.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    for name in ("attention_bias", "use_qkv_bias"):
        config[name] = "blk.0.attn_q.bias" in file.tensors
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
    from transformers.pytorch_utils import Conv1D

    from torchette.llm.quantized import Whole

    file = File(path)
    given = config_of(file)
    architecture = file.metadata["general.architecture"]
    kind = _MODELS[architecture]
    try:
        config = AutoConfig.for_model(**given)
        with _without_weights():
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except (
        ValueError,
        TypeError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
    ) as error:  # numbers that do not fit each other
        raise FormatError(f"{path}: transformers makes no {kind.type} of its numbers: {error}") from None
    turn = {"q_proj": config.num_attention_heads, "k_proj": getattr(config, "num_key_value_heads", None)}

    def oriented(parameter: str, array: np.ndarray) -> np.ndarray:
        heads = turn.get(parameter.split(".")[-2]) if kind.turned else None
        return array if heads is None else _turned(array, heads)

    def floats(stored: str) -> np.ndarray:
        if stored not in file.tensors:
            raise FormatError(f"{path}: {stored} is not there")
        return file.floats(stored)

    state: dict[str, Any] = {}
    transposed = {name for name, part in model.named_modules() if isinstance(part, Conv1D)}
    for name, parameter in model.named_parameters():
        stored = tensor_name(name, architecture)
        if name.endswith(".experts.gate_up_proj"):
            block = stored.partition(".mlp")[0]
            array = np.concatenate([floats(f"{block}.ffn_{one}_exps.weight") for one in ("gate", "up")], 1)
        elif name.endswith(".experts.down_proj"):
            array = floats(f"{stored.partition('.mlp')[0]}.ffn_down_exps.weight")
        else:
            array = oriented(name, floats(stored))
        if name.rpartition(".")[0] in transposed and name.endswith(".weight"):
            array = array.T
        if kind.shift and name.endswith("norm.weight"):
            array = array - np.float32(kind.shift)
        if array.shape != tuple(parameter.shape) and array.shape != tuple(parameter.shape)[1:]:
            raise FormatError(f"{path}: {stored} is {array.shape}, and {tuple(parameter.shape)} is needed")
        state[name] = torch.from_numpy(np.array(array)).reshape(parameter.shape)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    if "rope_freqs.weight" in file.tensors:  # what frequencies are divided by
        for name, buffer in model.named_buffers():
            if name.endswith("inv_freq"):
                factors = floats("rope_freqs.weight")
                if factors.shape != tuple(buffer.shape):
                    raise FormatError(
                        f"{path}: rope_freqs.weight is {factors.shape}, and {tuple(buffer.shape)} is needed"
                    )
                buffer /= torch.from_numpy(np.array(factors))

    def whole(layer: str) -> Whole | None:
        stored = tensor_name(f"{layer}.weight", architecture)
        found = file.whole(stored) if stored in file.tensors else None
        if found is None:
            return None
        numbers, scales = (torch.from_numpy(np.array(oriented(f"{layer}.weight", one))) for one in found)
        return Whole(numbers, scales)

    return model.eval(), whole, _files(file)


@contextmanager
def _without_weights() -> Iterator[None]:
    """Parameters of modules that are made have shapes alone; what else is computed of the configuration is there."""
    import torch

    register = torch.nn.Module.register_parameter

    def registered(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None and not parameter.is_meta:  # one that is there already may be tied
            parameter = torch.nn.Parameter(parameter.data.to("meta"), requires_grad=False)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = registered  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


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


_SPACE = "\u2581"


def _files(file: File) -> dict[str, bytes]:
    """The tokenizer, where it is byte-level BPE or SentencePiece's, and the chat template."""
    data, found = file.metadata, {}
    template = data.get("tokenizer.chat_template")
    if isinstance(template, str):
        found["chat_template.jinja"] = template.encode()
    tokens, kind = data.get("tokenizer.ggml.tokens"), data.get("tokenizer.ggml.model")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens) or not tokens:
        return found
    types = data.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    made = (
        _sentencepiece(data, tokens) if kind == "llama" else _bytes(data, tokens) if kind == "gpt2" else None
    )
    if made is None:
        return found
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": one == 3}
        for i, (token, one) in enumerate(zip(tokens, types, strict=False)) if one in (3, 4)
    ]  # fmt: skip
    begin = data.get("tokenizer.ggml.bos_token_id")
    if (
        data.get("tokenizer.ggml.add_bos_token", kind == "llama")
        and isinstance(begin, int)
        and begin < len(tokens)
    ):
        first = {"SpecialToken": {"id": tokens[begin], "type_id": 0}}
        one, two = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
        made["post_processor"] = {
            "type": "TemplateProcessing", "single": [first, one], "pair": [first, one, first, two],
            "special_tokens": {tokens[begin]: {"id": tokens[begin], "ids": [begin], "tokens": [tokens[begin]]}},
        }  # fmt: skip
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": None,
        **made,
    }
    found["tokenizer.json"] = json.dumps(whole, ensure_ascii=False).encode()
    return found


def _model(tokens: list[str], merges: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges, **more,
    }  # fmt: skip


def _bytes(data: dict[str, Any], tokens: list[str]) -> dict[str, Any] | None:
    """BPE on bytes."""
    merges, name = data.get("tokenizer.ggml.merges"), data.get("tokenizer.ggml.pre", "default")
    if not isinstance(merges, list) or name not in _CUTS:
        return None
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": _CUTS[name]}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]
    if name == "smollm":
        steps.insert(0, {"type": "Digits", "individual_digits": True})
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _model(tokens, merges),
    }


def _sentencepiece(data: dict[str, Any], tokens: list[str]) -> dict[str, Any] | None:
    """Pairs of pieces are put together where the whole is a piece, the likeliest first."""
    scores = data.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        return None
    known = {token: i for i, token in enumerate(tokens)}
    pairs = [
        (-score, -len(token[:at]), -len(token[at:]), known[token[:at]], known[token[at:]])
        for token, score in zip(tokens, scores, strict=True)
        for at in range(1, len(token))
        if token[:at] in known and token[at:] in known
    ]
    merges = [[tokens[left], tokens[right]] for *_, left, right in sorted(pairs)]
    types = data.get("tokenizer.ggml.token_type") or []
    unknown = next((token for token, kind in zip(tokens, types, strict=False) if kind == 2), None)
    prefix = data.get("tokenizer.ggml.add_space_prefix", True)
    spaces = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]  # fmt: skip
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*spaces, replaced]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": _model(tokens, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }
