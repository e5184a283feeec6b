# SPDX-License-Identifier: BSD-3-Clause
# In: a small vocabulary under each name of a GGUF pre-tokenizer. Out: the tokens of the package `tokenizers` for the
# published configuration of a model with that name, in the C++ tokenizer.
"""Pre-tokenizers of `torchette.llm.exporting.vocabularies`."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.llm.double import byte_characters
from torchette.errors import FormatError, UnsupportedError
from torchette.llm.exporting.vocabularies import _CHARACTERS, _PRE, tokenizer_json
from torchette.runtime import _native

hf = pytest.importorskip("tokenizers")
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

LATIN = [
    "The quick brown fox's 12 dogs DON'T jump; we'LL see 3.14159 or 1234567!",
    "def add(a, b):\n    return a + b\r\n\n\n\tprint(add(1, 2))  # {x: y}\n   \n",
    "HelloWorld camelCase SHOUTING iPhone naïve e\u0301tude Größe ﬁne Ⅳ ²³ ½",
    "a/b//c \\ $100 <tag> [x] ^_^ |pipe| `code` ~~ +1 = 2 @me #1 don’t “quoted” … ¡hola!",
    " leading  and   trailing   ",
]
OTHER = [
    "日本語のテキスト123と漢字かな交じり文。中文，标点！",
    "한국어 텍스트 ㄱㄴㄷ և Հայերեն ქართული",
    "العربية ٣٤٥ हिन्दी देवनागरी ไทย ກຂ ខ្មែរ မြန်မာ",
    "emoji 🙂👍🏽 𝐀𝐁 𐐀𐐨 𠀀 ﹏︰ㄅㄆ",
]


def texts(count: int) -> list[str]:
    rng = random.Random(0)
    pieces = [
        *"aB1 \n\r\t'.,$é٣日かꓘ한_/",
        "'s",
        "'LL",
        "  ",
        "12",
        "345",
        "the",
        "THE",
        "The",
        "\u0301",
        "漢字",
        "。",
        "½",
        "—",
    ]
    return [
        *LATIN, *OTHER, "", " ", "\n", "1" * 10, "x" * 40,
        *("".join(rng.choices(pieces, k=rng.randrange(1, 25))) for _ in range(count)),
    ]  # fmt: skip


def trained(normalizer: Any, pre_tokenizer: Any, ignore_merges: bool = False) -> Any:
    """A tokenizer of the package, with merges across all that the pre-tokenizer keeps together."""
    tokenizer = hf.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    alphabet = [character for _, character in byte_characters()]
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts(100) * 4, trainer)
    return tokenizer


def words_of(tokenizer: Any, pre: str | None, **more: Any) -> dict[str, Any]:
    """A tokenizer of the package in GGUF's keys."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    keys = {"model": "gpt2", "tokens": tokens, "merges": merges, "token_type": [1] * len(tokens), **more}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | (
        {} if pre is None else {"tokenizer.ggml.pre": pre}
    )


def split(*patterns: str, digits: bool | None = None, regex: bool = False) -> Any:
    steps: list[Any] = [] if digits is None else [pre_tokenizers.Digits(individual_digits=digits)]
    steps += [pre_tokenizers.Split(Regex(one), "isolated") for one in patterns]
    return pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)]
    )


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NFC, PLAIN = normalizers.NFC, lambda: None
# Name -> the normalizer and the pre-tokenizer of the published tokenizer.json of a model, and whether merges are ignored.
PUBLISHED = {
    "gpt-2": (PLAIN, lambda: pre_tokenizers.ByteLevel(add_prefix_space=False), False),
    "olmo": (NFC, lambda: pre_tokenizers.ByteLevel(add_prefix_space=False), False),
    "mpt": (NFC, lambda: pre_tokenizers.ByteLevel(add_prefix_space=False), False),
    "llama-bpe": (PLAIN, lambda: split(LLAMA3), True),
    "glm4": (PLAIN, lambda: split(LLAMA3), False),
    "qwen2": (NFC, lambda: split(QWEN2), False),
    "qwen35": (NFC, lambda: split(QWEN35), False),
    "gpt-4o": (PLAIN, lambda: split(O200K), False),
    "tekken": (PLAIN, lambda: split(TEKKEN), True),
    "deepseek-v3": (PLAIN, lambda: split(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK3), False),
    "deepseek-coder": (
        PLAIN, lambda: split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"), False,
    ),
    "starcoder": (PLAIN, lambda: split(digits=True, regex=True), False),
    "refact": (PLAIN, lambda: split(digits=True, regex=True), False),
    "smollm": (PLAIN, lambda: split(digits=True, regex=True), False),
    "command-r": (NFC, lambda: split(digits=True, regex=True), False),
    "bloom": (PLAIN, lambda: split(r" ?[^(\s|.,!?…。，、।۔،)]+"), False),
    "tiny_aya": (PLAIN, lambda: split(r"\d{1,3}(?=(?:\d{3})*\b)", O200K), False),
    "superbpe": (PLAIN, lambda: split(r"\p{N}+", r"(?=(\d{3})+(?!\d))"), False),
    "falcon": (
        PLAIN,
        lambda: pre_tokenizers.Sequence([
            pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_tokens_are_those_of_the_published_configuration(name: str) -> None:
    normalizer, pre_tokenizer, ignore_merges = PUBLISHED[name]
    theirs = trained(normalizer(), pre_tokenizer(), ignore_merges)
    ours = _native.llm.Tokenizer(tokenizer_json(words_of(theirs, name)))
    for text in texts(300):
        assert ours.encode(text, False) == theirs.encode(text).ids, text


@pytest.mark.parametrize("name", sorted(_PRE))
def test_each_name_makes_a_lossless_tokenizer(name: str) -> None:
    """The package and the C++ tokenizer have the same tokens, and decoding returns the text."""
    theirs = trained(None, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    data = tokenizer_json(words_of(theirs, name))
    assert data is not None
    theirs, ours = hf.Tokenizer.from_str(data.decode()), _native.llm.Tokenizer(data)
    table = ours.bytes_of(theirs.get_vocab_size())
    for text in texts(60):
        tokens = ours.encode(text, False)
        assert tokens == theirs.encode(text).ids, text
        decoded = b"".join(table[token] for token in tokens).decode()
        assert decoded == (normalizers.NFC().normalize_str(text) if _PRE[name].is_composed else text)


@pytest.mark.parametrize("keys", [{"pre": name} for name in _CHARACTERS] + [{"model": "gemma4"}])
def test_bpe_on_characters(keys: dict[str, str]) -> None:
    """As in Gemma's published tokenizer.json: spaces are U+2581, unknown characters are bytes."""
    theirs = hf.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    theirs.normalizer = normalizers.Replace(" ", "\u2581")
    theirs.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    theirs.train_from_iterator(
        LATIN * 4, trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    )
    model = keys.get("model", "gpt2")
    words = words_of(theirs, keys.get("pre"), model=model, unknown_token_id=3, bos_token_id=2)
    ours = _native.llm.Tokenizer(tokenizer_json(words))
    for text in texts(100):
        assert ours.encode(text, False) == theirs.encode(text).ids, text
    begins = "gemma4" in keys.values()  # other pre-tokenizers add BOS only if the file requires it
    assert ours.encode("fox", True) == [*([2] if begins else []), *theirs.encode("fox").ids]


@pytest.mark.parametrize("name", ["llama-bpe", "tekken", "chameleon", "qwen2", "gpt-2"])
def test_bos_follows_the_file_or_else_the_pre_tokenizer(name: str) -> None:
    words = words_of(trained(None, split(QWEN2)), name, bos_token_id=5)
    begins = name in ("llama-bpe", "tekken", "chameleon")
    for stored, added in ((None, begins), (True, True), (False, False)):
        more = {} if stored is None else {"tokenizer.ggml.add_bos_token": stored}
        tokenizer = _native.llm.Tokenizer(tokenizer_json({**words, **more}))
        assert (tokenizer.encode("fox", True)[0] == 5) is added


def test_unknown_pre_tokenizers_are_named() -> None:
    words = words_of(trained(None, split(QWEN2)), "qwen2")
    with pytest.raises(
        UnsupportedError, match=r"pre-tokenizer is 'marvin' \(tokenizer\.ggml\.pre\)"
    ) as refused:
        tokenizer_json({**words, "tokenizer.ggml.pre": "marvin"})
    assert "deepseek-v3" in str(refused.value) and "--tokenizer" in str(refused.value)
    for kind in ("bert", "rwkv", "plamo2", "hybriddna", 3):
        with pytest.raises(UnsupportedError, match=rf"vocabulary is of the kind {kind!r}"):
            tokenizer_json({**words, "tokenizer.ggml.model": kind})
    for kind in ("none", "no_vocab"):
        assert tokenizer_json({"tokenizer.ggml.model": kind}) is None
    for key, kind in (
        ("tokens", "gpt2"),
        ("merges", "gpt2"),
        ("merges", "gemma4"),
        ("scores", "llama"),
        ("scores", "t5"),
    ):
        for bad in (None, 3, [], [3]):
            if (key, bad) == ("merges", []):
                continue
            with pytest.raises(FormatError, match=rf"tokenizer\.ggml\.{key}"):
                tokenizer_json({**words, "tokenizer.ggml.model": kind, f"tokenizer.ggml.{key}": bad})
