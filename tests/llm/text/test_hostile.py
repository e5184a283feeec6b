# SPDX-License-Identifier: BSD-3-Clause
# Damaged, invalid or hostile tokenizer files: each is an error that names the part, also under AddressSanitizer and
# UndefinedBehaviorSanitizer.

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.building import built, run

MUTATIONS = int(os.environ.get("TORCHETTE_MUTATIONS", "5000"))
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"


def added(content: str, number: int, **options: bool) -> dict[str, Any]:
    return {"id": number, "content": content, "special": True, **options}


LETTERS = {c: i for i, c in enumerate("abcdehlorsw'ĠĊ1 2345▁<")}
BPE = {
    "added_tokens": [added("<s>", 30), added("word", 31, single_word=True, rstrip=True, special=False)],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ],
    },
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
        "special_tokens": {"<s>": {"ids": [30]}},
    },
    "decoder": {"type": "ByteLevel"},
    "model": {
        "type": "BPE",
        "unk_token": "<",
        "vocab": {**LETTERS, "he": 24, "ll": 25, "hell": 26, "hello": 27},
        "merges": ["h e", ["l", "l"], "he ll", "hell o"],
    },
}
UNIGRAM = {
    "added_tokens": [added("[MASK]", 9, lstrip=True, normalized=True)],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(struct.pack("<I", 8) + bytes(20)).decode(),
            },
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ],
    },
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "ByteFallback"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            {"type": "Fuse"},
        ],
    },
    "model": {
        "type": "Unigram",
        "unk_id": 0,
        "byte_fallback": True,
        "vocab": [
            ["<unk>", 0],
            ["▁", -1],
            ["▁h", -2],
            ["el", -2.5],
            ["lo", -3],
            ["a", -3],
            ["b", -4],
            ["<0xFF>", -9],
        ],
    },
}
WORD_PIECE = {
    "normalizer": {"type": "BertNormalizer", "lowercase": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 1], "cls": ["[CLS]", 0]},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
        "type": "WordPiece",
        "unk_token": "u",
        "vocab": {"[CLS]": 0, "[SEP]": 1, "u": 2, "he": 3, "##l": 4, "##lo": 5},
    },
}


def field(number: int, kind: int, value: bytes) -> bytes:
    return bytes([number << 3 | kind]) + (bytes([len(value)]) if kind == 2 else b"") + value


def sentencepiece(model_type: int) -> bytes:
    """Writes a SentencePiece model: its pieces, then the settings of training and normalization."""
    pieces = [
        ("<unk>", 0, 2),
        ("<s>", 0, 3),
        ("</s>", 0, 3),
        ("\u2581", -1, 1),
        ("h", -2, 1),
        ("e", -3, 1),
        ("he", -2.5, 1),
        ("#", 0, 4),
    ]
    out = b"".join(
        field(
            1,
            2,
            field(1, 2, text.encode()) + field(2, 5, struct.pack("<f", score)) + field(3, 0, bytes([kind])),
        )
        for text, score, kind in pieces
    )
    trained = field(3, 0, bytes([model_type]))
    return out + field(2, 2, trained) + field(3, 2, field(2, 2, struct.pack("<I", 8) + bytes(20)))


def tiktoken() -> bytes:
    tokens = [*(bytes([i]) for i in range(256)), b"he", b"ll", b"hell"]
    return b"".join(b"%s %d\n" % (base64.b64encode(token), i) for i, token in enumerate(tokens))


def wrapped(file: bytes, **numbers: Any) -> dict[str, Any]:
    """A tokenizer.json that contains a file of another format."""
    model = {"type": "File", "bytes": base64.b64encode(file).decode(), **numbers}
    return {"added_tokens": [added("<|end|>", 12)], "model": model, "eos_token": "he", "add_eos_token": True}


NUMBERS = {"vocab": {"<unk>": 3, "\u2581": 0, "h": 1, "he": 2}, "unk_token": "<unk>"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    contents = {
        **{f"{i}.json": json.dumps(text).encode() for i, text in enumerate((BPE, UNIGRAM, WORD_PIECE))},
        "file.json": json.dumps(wrapped(sentencepiece(2))).encode(),
        "renumbered.json": json.dumps(wrapped(sentencepiece(1), **NUMBERS)).encode(),
        "unigram.model": sentencepiece(1),
        "bpe.model": sentencepiece(2),
        "vocabulary.tiktoken": tiktoken(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def mutate(files: list[Path], count: int, tree: str) -> None:
    printed = run(built("torchette_mutate_tokenizer", tree=tree), str(count), *files).stdout
    assert count * 0.05 < int(printed.split()[0]) < count * 0.9, (
        "damage that nothing notices, or that everything does"
    )


def test_damaged_files_are_errors(files: list[Path]) -> None:
    mutate(files, 3000, "dev")


@pytest.mark.safety
def test_damaged_files_are_errors_under_sanitizers(files: list[Path]) -> None:
    mutate(files, 2 * MUTATIONS, "asan")


def mutate_requests(count: int, tree: str) -> None:
    counts = [
        int(one) for one in run(built("torchette_mutate_request", tree=tree), str(count)).stdout.split()
    ]
    assert all(count / 4 * 0.02 < num_accepted < count / 4 * 0.9 for num_accepted in counts), counts


def test_damaged_requests_are_errors() -> None:
    """Schemas, grammars, configurations, states."""
    mutate_requests(4000, "dev")


@pytest.mark.safety
def test_damaged_requests_are_errors_under_sanitizers() -> None:
    mutate_requests(4 * MUTATIONS, "asan")


def load(content: bytes, path: Path) -> tuple[int, str]:
    """Loads a tokenizer in a subprocess; returns its exit status and its output."""
    path.write_bytes(content)
    text = b"Hello world"
    packed = struct.pack("<I", len(text)) + text
    done = subprocess.run([built("torchette_tokenize"), path], input=packed, capture_output=True)
    return done.returncode, done.stderr.decode() + done.stdout.decode()


def changed(text: dict[str, Any], **parts: Any) -> bytes:
    return json.dumps({**text, **parts}).encode()


@pytest.mark.parametrize(
    "content, message",
    [
        (changed(BPE, normalizer={"type": "Rot13"}), "normalizer Rot13 is not supported"),
        (changed(BPE, pre_tokenizer={"type": "UnicodeScripts"}), "pre-tokenizer UnicodeScripts is not supported"),
        (changed(BPE, decoder={"type": "CTC"}), "decoder CTC is not supported"),
        (changed(BPE, post_processor={"type": "Wrap"}), "post-processor Wrap is not supported"),
        (changed(BPE, model={"type": "Neural"}), "has type Neural"),
        (changed(BPE, model={**BPE["model"], "dropout": 0.1}), "dropout"),
        (changed(BPE, model={**BPE["model"], "merges": ["h q"]}), "merge 0, h q:"),
        (changed(BPE, model={**BPE["model"], "vocab": {"a": 2**31}}), "token a has the id"),
        (changed(BPE, model={**BPE["model"], "unk_token": "?"}), "unknown token ? is not in the vocabulary"),
        (changed(BPE, added_tokens=[added("x", 10**9)]), "added token x has the id"),
        (
            changed(BPE, pre_tokenizer={"type": "Split", "pattern": {"Regex": r"\p{Han}+"}, "behavior": "Isolated"}),
            "the class Han at character 7 is not supported",
        ),
        (
            changed(BPE, pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"}),
            "unmatched (",
        ),
        (
            changed(BPE, pre_tokenizer={"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Shaken"}),
            "behavior Shaken is not supported",
        ),
        (changed(UNIGRAM, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "a charsmap of 3 bytes"),
        (changed(UNIGRAM, model={**UNIGRAM["model"], "unk_id": 99}), "unk_id is out of range"),
        (b'{"model": ' + b"[" * 100_000, "nested deeper"),
        (b'{"model": tru', "no JSON at byte"),
        (b"\n\xff\xff\xff\xff\x0f", "not a SentencePiece model"),
        (sentencepiece(4), "has type 4"),
        (json.dumps(wrapped(b"")).encode(), "no token for byte 0"),
        (json.dumps(wrapped(b"{}")).encode(), "line 1 of a tiktoken file"),
        (json.dumps(wrapped(sentencepiece(2), **NUMBERS)).encode(), "type BPE with a vocabulary"),
        (json.dumps(wrapped(sentencepiece(1), vocab=[])).encode(), "must be an object"),
        (json.dumps(wrapped(sentencepiece(1), vocab={"h": 0})).encode(), "has no unk_token"),
        (changed(BPE, model={"type": "File", "bytes": "!"}), "is not base64"),
        (b"QQ== 0\n!! 1\n", "is not base64"),
        (b"QQ== 0\n", "no token for byte 0"),
        (b"QQ== zero\n", "line 1 of a tiktoken file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_unknown_and_invalid_parts_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    status, text = load(content, tmp_path / "tokenizer")
    assert status == 3 and message in text, text


def test_slow_patterns_are_an_error_after_bounded_work(tmp_path: Path) -> None:
    """The work is bounded, and the tokenizer is usable after the error."""
    split = {"type": "Split", "pattern": {"Regex": "(?:l|ll|lll|[lm])+x"}, "behavior": "Isolated"}
    path = tmp_path / "tokenizer.json"
    path.write_bytes(changed(BPE, pre_tokenizer=split))
    texts = [b"l" * 60, b"hello"]
    packed = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    done = subprocess.run([built("torchette_tokenize"), path], input=packed, capture_output=True, timeout=600)
    lines = done.stdout.decode().splitlines()
    assert "needs too many steps" in done.stderr.decode()
    assert lines[1:3] == ["error 0x25", "error 0x25"] and lines[4] == "30 27 "


def test_long_texts_take_linear_time(files: list[Path]) -> None:
    """Half a million characters without a word boundary."""
    for path in files:
        text = b"he" * 100_000 + b" " * 100_000 + b"x" * 100_000 + b"\n" * 100_000
        packed = struct.pack("<I", len(text)) + text
        command = [built("torchette_tokenize"), path]
        done = subprocess.run(command, input=packed, capture_output=True, timeout=600)
        assert done.returncode == 0 and len(done.stdout) > 0
