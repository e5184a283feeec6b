# SPDX-License-Identifier: BSD-3-Clause
# In: the vocabulary in a GGUF file's metadata. Out: a tokenizer.json.
"""`tokenizer_json`: vocabularies of GGUF files."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torchette.errors import FormatError, UnsupportedError

# --- Pre-tokenizers ---

_CASED = "'s|'t|'re|'ve|'m|'ll|'d"
_CONTRACTIONS = f"(?i:{_CASED})"
_GPT2 = _CASED + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD, _SYMBOLS = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_SYMBOLS}[\r\n]*|{_LINES}"
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_case(numbers: str, suffix: str = "", upper: str = _UPPER, lower: str = _LOWER) -> str:
    """Returns a pattern that matches, in this order: words that begin with capitals or have none, with a suffix; digits; symbols;
    spaces."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{before}{upper}*{lower}+{suffix}|{before}{upper}+{lower}*{suffix}"
    return rf"{words}|{numbers}|{_SYMBOLS}[\r\n/]*|{_LINES}"


_GPT4O = _by_case(r"\p{N}{1,3}", f"{_CONTRACTIONS}?")
_KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
_IDEOGRAPHS = "[一-龥ࠀ-一가-\ud7ff]+"
_ASCII_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK3 = (
    rf"{_ASCII_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_LINES}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_HAN = (
    "⺀-⺙⺛-⻳⼀-⿕々〇〡-〩〸-〻㐀-䶿一-\u9fff豈-\ufa6d\ufa70-\ufad9\U00016fe2-\U00016fe3\U00016ff0-\U00016ff6"
    "\U00020000-\U0002a6df\U0002a700-\U0002ebe0\U0002ebf0-\U0002ee5d\U0002f800-\U0002fa1d\U00030000-\U000323af"
)
# Letters with case, as of the Unicode version of the vocabulary.
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)


class _Pre(NamedTuple):
    """A pre-tokenizer of byte-level BPE: each pattern divides the pieces of the previous pattern."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a token is not divided
    adds_bos: bool = False  # if the file does not say
    is_composed: bool = False  # texts are normalized to NFC


def _table(*rows: tuple[str, _Pre]) -> dict[str, _Pre]:
    return {name: pre for names, pre in rows for name in names.split()}


# Each value of tokenizer.ggml.pre that llama.cpp knows.
_PRE = _table(
    ("default", _Pre((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    ("gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
     "exaone4 jais trillion granite-docling", _Pre((_GPT2,))),
    ("mpt olmo modern-bert", _Pre((_GPT2,), is_composed=True)),
    ("starcoder refact smollm codeshell exaone minerva-7b mellum2", _Pre((r"\p{N}", _GPT2))),
    ("command-r", _Pre((r"\p{N}", _GPT2), is_composed=True)),
    ("falcon", _Pre((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _Pre((_LLAMA3,), True, True)),
    ("dbrx smaug-bpe glm4 chatglm-bpe", _Pre((_LLAMA3,))),
    ("minicpm5", _Pre((r"\p{N}{1,3}", _QWEN2.replace(r"|\p{N}|", r"|\p{N}+|")), True)),
    ("jais-2", _Pre((
        _LLAMA3.removesuffix(_SPACES) + "|".join(rf"\s{{{1 << i}}}(?!\S)" for i in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}",
    ))),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez", _Pre((_QWEN2,), is_composed=True)),
    ("stablelm2 hunyuan solar-open grok-2", _Pre((_QWEN2,))),
    ("qwen35", _Pre((
        _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}"),
    ), is_composed=True)),
    ("ufakzeka", _Pre((_QWEN2.removeprefix(f"{_CONTRACTIONS}|"),))),
    ("seed-coder", _Pre((rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}",))),
    ("laguna", _Pre((r"[^\n]+|[\n]+", _QWEN2))),
    ("exaone-moe", _Pre((
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|{_SYMBOLS}[\r\n/]?|\s*[\r\n]|{_SPACES}",
    ))),
    ("bailingmoe bailingmoe2 llada-moe", _Pre((
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + _SPACES,
    ))),
    ("tekken", _Pre((_by_case(r"\p{N}"),), True, True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _Pre((_GPT4O,))),
    ("granite-embed-multi-97m", _Pre((_GPT4O,), True)),
    ("tiny_aya cohere2moe", _Pre((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))),
    ("youtu", _Pre((
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _KANA, _by_case(r"\p{N}", f"{_CONTRACTIONS}?"),
    ), True)),
    ("kimi-k2", _Pre((
        f"[{_HAN}]+|" + _by_case(
            r"\p{N}{1,3}", f"{_CONTRACTIONS}?", *(f"{one[:-1]}&&[^{_HAN}]]" for one in (_UPPER, _LOWER))
        ).replace("[\\r\\n/]*", "[\\r\\n]*"),
    ))),
    ("deepseek-llm", _Pre((
        r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", _IDEOGRAPHS, r"\p{N}+",
    ))),
    ("deepseek-coder", _Pre((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _IDEOGRAPHS, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _Pre((r"\p{N}{1,3}", _KANA, _DEEPSEEK3))),
    ("spark2_5", _Pre((
        r"\p{N}{1,3}", _KANA, _DEEPSEEK3.replace(rf"[\r\n]*|{_LINES}", rf"|[\r\n]|{_SPACES}"), r"\p{N}",
    ))),
    ("afmoe", _Pre((
        r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*(?!\p{Nd}))",
        "[一-\u9fff㐀-䶿豈-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-\u109fꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
        _DEEPSEEK3,
    ))),
    ("bloom poro-chat gpt3-finnish", _Pre((_BLOOM,))),
    ("viking", _Pre((_BLOOM, r"\p{N}"))),
    ("superbpe", _Pre((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    ("chameleon", _Pre((
        "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]", _GPT2,
    ), adds_bos=True)),
)  # fmt: skip
# The values of BPE on characters, with bytes as tokens <0x00> to <0xFF>.
_CHARACTERS = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")


_SPACE = "\u2581"
# Values of tokenizer.ggml.model for a file without a vocabulary.
_NO_VOCABULARY = ("none", "no_vocab")
TOKENIZER_HINT = (
    "tokenizer=PATH, --tokenizer: a tokenizer.json, or a file of SentencePiece or tiktoken, instead of it"
)


# Texts of the tokens at which llama.cpp ends a text, also if no key of the file names them.
END_TEXTS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>",
    "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
))  # fmt: skip


def tokenizer_json(data: Mapping[str, Any]) -> bytes | None:
    """Returns the tokenizer of GGUF's keys, or None if the file has no vocabulary.

    The vocabulary is BPE on bytes ("gpt2") or characters ("gemma4"), or SentencePiece's pairs ("llama") or unigrams ("t5").

    Raises:
        UnsupportedError: an unknown kind of vocabulary, or an unknown pre-tokenizer; names it.
        FormatError: a part of the vocabulary is missing or damaged; names it.
    """
    tokens, kind = data.get("tokenizer.ggml.tokens"), data.get("tokenizer.ggml.model")
    if kind in _NO_VOCABULARY or (kind is None and tokens is None):
        return None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UnsupportedError(
            f"the GGUF file's vocabulary is of the kind {kind!r} (tokenizer.ggml.model), which is not supported",
            hints=[f"supported kinds: {', '.join(_KINDS)}", TOKENIZER_HINT],
        )
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise FormatError(
            "the GGUF file's tokenizer.ggml.tokens is not a list of texts", hints=[TOKENIZER_HINT]
        )
    types = data.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    tokenizer = _KINDS[kind](data, tokens)
    added = [
        {"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": one != 4}
        for i, (token, one) in enumerate(zip(tokens, types, strict=False)) if one in (3, 4) or token in END_TEXTS
    ]  # fmt: skip
    ends = {}
    for name, default in (("bos", _adds_bos(kind, data.get("tokenizer.ggml.pre"))), ("eos", kind == "t5")):
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
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing", "single": [*first, one, *last], "pair": [*first, one, *last, *first, two, *last],
            "special_tokens": {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in ends.values()},
        }  # fmt: skip
    contents = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": None,
        **tokenizer,
    }
    return json.dumps(contents, ensure_ascii=False).encode()


def _adds_bos(kind: str, pre: object) -> bool:
    """Whether a text begins with BOS if the file does not say."""
    known = _PRE.get(pre) if kind == "gpt2" and isinstance(pre, str) else None
    return (
        kind in ("llama", "gemma4")
        or (kind == "gpt2" and pre == "gemma4")
        or (known is not None and known.adds_bos)
    )


def _model(tokens: list[str], merges: object, **more: object) -> dict[str, Any]:
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges, **more,
    }  # fmt: skip


def _pre(data: Mapping[str, Any]) -> _Pre:
    """The pre-tokenizer of BPE on bytes. UnsupportedError if it is unknown."""
    name = data.get("tokenizer.ggml.pre", "default")
    if name not in _PRE:
        raise UnsupportedError(
            f"the GGUF file's pre-tokenizer is {name!r} (tokenizer.ggml.pre), which is unknown",
            hints=[f"known pre-tokenizers: {', '.join(sorted([*_PRE, *_CHARACTERS]))}", TOKENIZER_HINT],
        )
    return _PRE[name]


def _merges(data: Mapping[str, Any]) -> list[Any]:
    """Texts "left right" (GGUF), or pairs."""
    merges = data.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(one, (str, list)) for one in merges):
        raise FormatError(
            "the GGUF file's tokenizer.ggml.merges is not a list of texts", hints=[TOKENIZER_HINT]
        )
    return merges


def _bytes(data: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """BPE on bytes."""
    if data.get("tokenizer.ggml.pre") in _CHARACTERS:
        return _characters(data, tokens)
    pre, merges = _pre(data), _merges(data)
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in pre.patterns
    ]
    steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
    return {
        "normalizer": {"type": "NFC"} if pre.is_composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _model(tokens, merges, ignore_merges=pre.ignore_merges),
    }


def _characters(data: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """BPE on characters, with tokens of bytes for unknown ones."""
    number = data.get("tokenizer.ggml.unknown_token_id")
    unknown = tokens[number] if isinstance(number, int) and 0 <= number < len(tokens) else None
    steps = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    ]  # fmt: skip
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": _model(
            tokens,
            _merges(data),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _sentencepiece(data: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """Pieces with scores, and how texts are made even before they are cut."""
    scores = data.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise FormatError(
            f"the GGUF file's tokenizer.ggml.scores is not a list of {len(tokens)} floats, one for each token",
            hints=[TOKENIZER_HINT],
        )
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


_KINDS = {"gpt2": _bytes, "gemma4": _characters, "llama": _sentencepiece, "t5": _sentencepiece}
