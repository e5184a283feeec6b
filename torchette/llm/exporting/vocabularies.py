# SPDX-License-Identifier: BSD-3-Clause
# In: a vocabulary in the words of GGUF's metadata, or a file of SentencePiece or tiktoken. Out: the same as tokenizer.json, which
# is all that programs carry.
"""`tokenizer_json` and `converted`: vocabularies of other formats."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torchette.errors import FormatError

# What tokenizer.ggml.pre names: how text is cut before merges.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA = "llama-bpe"
_CUTS = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _GPT2,
    _LLAMA: _LLAMA3,
    "qwen2": _LLAMA3.replace("{1,3}", ""),
}


_SPACE = "\u2581"


def tokenizer_json(data: Mapping[str, Any]) -> bytes | None:
    """The tokenizer of GGUF's keys: byte-level BPE ("gpt2"), or SentencePiece's pairs ("llama") or unigrams ("t5"); None: another."""
    tokens, kind = data.get("tokenizer.ggml.tokens"), data.get("tokenizer.ggml.model")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens) or not tokens:
        return None
    types = data.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    make = {"llama": _sentencepiece, "t5": _sentencepiece, "gpt2": _bytes}.get(str(kind))
    made = None if make is None else make(data, tokens)
    if made is None:
        return None
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": one == 3}
        for i, (token, one) in enumerate(zip(tokens, types, strict=False)) if one in (3, 4)
    ]  # fmt: skip
    ends = {}
    for name, default in (("bos", kind == "llama"), ("eos", kind == "t5")):
        number = data.get(f"tokenizer.ggml.{name}_token_id")
        if (
            data.get(f"tokenizer.ggml.add_{name}_token", default)
            and isinstance(number, int)
            and 0 <= number < len(tokens)
        ):
            ends[name] = number
    if ends:
        special = {
            name: {"SpecialToken": {"id": tokens[number], "type_id": 0}} for name, number in ends.items()
        }
        one, two = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
        first, last = ([special[name]] if name in special else [] for name in ("bos", "eos"))
        made["post_processor"] = {
            "type": "TemplateProcessing", "single": [*first, one, *last], "pair": [*first, one, *last, *first, two, *last],
            "special_tokens": {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in ends.values()},
        }  # fmt: skip
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": None,
        **made,
    }
    return json.dumps(whole, ensure_ascii=False).encode()


def _model(tokens: list[str], merges: object, **more: object) -> dict[str, Any]:
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges, **more,
    }  # fmt: skip


def _bytes(data: Mapping[str, Any], tokens: list[str]) -> dict[str, Any] | None:
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
        "model": _model(tokens, merges, ignore_merges=name == _LLAMA),
    }


def _sentencepiece(data: Mapping[str, Any], tokens: list[str]) -> dict[str, Any] | None:
    """Pieces with scores, and how texts are made even before they are cut."""
    scores = data.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        return None
    types = data.get("tokenizer.ggml.token_type") or []
    unknown = next((i for i, kind in enumerate(types[: len(tokens)]) if kind == 2), None)
    prefix = data.get("tokenizer.ggml.add_space_prefix", True)
    normal: list[dict[str, Any]] = []
    if charsmap := data.get("tokenizer.ggml.precompiled_charsmap"):
        normal.append(
            {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(charsmap)).decode()}
        )
    if data.get("tokenizer.ggml.remove_extra_whitespaces", False):
        normal.append({"type": "Strip", "strip_left": True, "strip_right": True})
        normal.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if prefix:
        normal.append({"type": "Prepend", "prepend": _SPACE})
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]  # fmt: skip
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    normal.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    if data["tokenizer.ggml.model"] == "t5":
        fallback = any(kind == 6 for kind in types)
        vocabulary = [[token, float(score)] for token, score in zip(tokens, scores, strict=True)]
        model = {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": fallback}
    else:
        name = None if unknown is None else tokens[unknown]
        model = _model(tokens, _pairs(tokens, scores), unk_token=name, fuse_unk=True, byte_fallback=True)
    return {
        "normalizer": {"type": "Sequence", "normalizers": normal},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": model,
    }


def _pairs(tokens: Sequence[str], scores: Sequence[float]) -> list[list[str]]:
    """Merges: pairs of pieces that form a piece, most likely first."""
    known = {token: i for i, token in enumerate(tokens)}
    pairs = [
        (-score, -len(token[:at]), -len(token[at:]), known[token[:at]], known[token[at:]])
        for token, score in zip(tokens, scores, strict=True)
        for at in range(1, len(token))
        if token[:at] in known and token[at:] in known
    ]
    return [[tokens[left], tokens[right]] for *_, left, right in sorted(pairs)]


# ---- files ----


def converted(data: bytes, said: Mapping[str, Any] | None = None) -> bytes:
    """A file of SentencePiece (unigrams or pairs) or tiktoken as tokenizer.json.

    Args:
        said: a tokenizer_config.json, for added tokens and those at the ends of texts. Without it, 128,000 tokens of
            tiktoken are followed by the special ones of Llama 3.

    Raises:
        FormatError: it is neither, or damaged; code "unknown-tokenizer".
    """
    said = said or {}
    try:
        words = (_pieces if data[:1] == b"\n" else _tiktoken)(data)
        tokens, types = words["tokens"], words["token_type"]
        added = {
            int(number): (one["content"], one.get("special"))
            for number, one in said.get("added_tokens_decoder", {}).items()
        }
        if words["model"] == "gpt2" and not added and len(tokens) == 128_000:
            added = {128_000 + i: (name, True) for i, name in enumerate(_llama3())}
        for number, (name, special) in sorted(added.items()):
            new = range(len(tokens), min(number, 2 * len(tokens) + 1000) + 1)
            tokens += [f"<|unused {i}|>" for i in new]
            types += [3] * len(new)
            words["scores"] += [-1e4] * len(new)
            tokens[number], types[number] = name, 3 if special else 4
        names = {name: number for number, name in enumerate(tokens)}
        for name, default in (("bos", "<|begin_of_text|>"), ("eos", "<|end_of_text|>")):
            named = said.get(f"{name}_token") or default
            named = named.get("content") if isinstance(named, Mapping) else named
            words.setdefault(f"{name}_token_id", names.get(named))
            if isinstance(said.get(f"add_{name}_token"), bool):
                words[f"add_{name}_token"] = said[f"add_{name}_token"]
        made = tokenizer_json({f"tokenizer.ggml.{name}": value for name, value in words.items()})
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error) as error:
        made, why = None, f": {error}"
    else:
        why = ""
    if made is None:
        raise FormatError(
            f"this is no tokenizer.json, and none of SentencePiece or tiktoken{why}", code="unknown-tokenizer"
        )
    return made


def _llama3() -> list[str]:
    names = ["begin_of_text", "end_of_text", *(f"reserved_special_token_{i}" for i in range(247))]
    headers = ("start_header_id", "end_header_id")
    names[4:4] = ["finetune_right_pad_id", "step_id", *headers, "eom_id", "eot_id", "python_tag"]
    return [f"<|{name}|>" for name in names]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protocol buffer."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = data[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"a field of type {kind} at byte {at}")
        size = varint() if kind == 2 else 8 if kind == 1 else 4
        part, at = data[at : at + size], at + size
        if len(part) < size:
            raise ValueError(f"{at - len(data)} bytes are missing")
        yield key >> 3, struct.unpack("<f", part)[0] if kind == 5 else part


def _pieces(data: bytes) -> dict[str, Any]:
    """A model of SentencePiece, in GGUF's words."""
    pieces, trained, normal = [], dict[int, Any](), dict[int, Any]()
    for number, part in _fields(data):
        if number == 1:
            fields = dict(_fields(part))
            pieces.append((fields.get(1, b"").decode(), fields.get(2, 0.0), fields.get(3, 1)))
        elif number in (2, 3):
            (trained if number == 2 else normal).update(_fields(part))
    kind = {1: "t5", 2: "llama"}.get(trained.get(3, 1))
    if kind is None or trained.get(24):
        raise ValueError("a model of words or characters, or with spaces behind words, is not read")
    return {
        "model": kind, "tokens": [one for one, *_ in pieces], "scores": [score for _, score, _ in pieces],
        "token_type": [one for *_, one in pieces], "bos_token_id": trained.get(41, 1), "eos_token_id": trained.get(42, 2),
        "add_space_prefix": bool(normal.get(3, 1)), "remove_extra_whitespaces": bool(normal.get(4, 1)),
        "precompiled_charsmap": normal.get(2, b""),
    }  # fmt: skip


def _tiktoken(data: bytes) -> dict[str, Any]:
    """Bytes of tokens in base64 with their ranks, in GGUF's words."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        written, _, place = line.strip().partition(b" ")
        if place.isdigit() and written:
            ranks[base64.b64decode(written, validate=True)] = int(place)
        elif written:
            raise ValueError(f"line {number} is not a token and its rank")
    size, shown = max(ranks.values()) + 1, dict(byte_characters())
    if size > 2 * len(ranks) + 1000:
        raise ValueError(f"{len(ranks)} tokens have ranks up to {size - 1}")
    tokens, types, merges = [f"<|unused {i}|>" for i in range(size)], [3] * size, []
    for token, rank in sorted(ranks.items(), key=lambda one: one[1]):
        tokens[rank], types[rank] = "".join(shown[byte] for byte in token), 1
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:  # as the token comes about from its bytes
            first, at = min((ranks.get(a + b, rank), i) for i, (a, b) in enumerate(pairwise(parts)))
            if first >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append(["".join(shown[byte] for byte in part) for part in parts])
    words = {"model": "gpt2", "pre": _LLAMA, "tokens": tokens, "token_type": types, "scores": [0.0] * size}
    return {**words, "merges": merges, "add_bos_token": True}


def byte_characters() -> Iterator[tuple[int, str]]:
    """The character of each byte in byte-level vocabularies: itself if printable, else one from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    yield from ((byte, chr(byte)) for byte in seen)
    yield from ((byte, chr(0x100 + i)) for i, byte in enumerate(sorted(set(range(256)) - set(seen))))
