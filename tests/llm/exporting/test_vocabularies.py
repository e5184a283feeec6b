# SPDX-License-Identifier: BSD-3-Clause
# In: vocabularies of SentencePiece and tiktoken that are trained or written here. Out: their tokens, from a file, a folder and a
# program, and errors that name the problem.
"""Files of SentencePiece and tiktoken in `torchette.llm.exporting.named_data`."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.llm import double
from tests.models import zoo
from torchette.errors import FormatError
from torchette.llm import Session
from torchette.llm.exporting.named_data import of_folder, tokenizer_file
from torchette.llm.text import Tokenizer

pytest.importorskip("tokenizers")
_LIBRARY = zoo.declare_torchvision_operators()
TEXTS = [
    "The quick brown fox jumps over the lazy dog, twice.",
    "Größe und Länge, naïve café; ﬁne ﬀ Ⅳ",
    "日本語 の テキスト 123 and 4567",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))",
]
MORE = [
    "",
    " ",
    "x",
    " leading  and   double ",
    "emoji 🙂 ß",
    "the the the",
    "a\tb\r\nc",
    "'LL we'll WE'VE",
    "한국어 العربية",
]


def strings(count: int) -> list[str]:
    """Texts without combining marks: `tokenizers` looks up a letter together with its marks in SentencePiece's map."""
    rng = random.Random(0)
    pieces = [*"abcdeTfoxé日 \n🙂1", "quick", " the", "  ", "dog", "ize"]
    return ["".join(rng.choices(pieces, k=rng.randrange(1, 30))) for _ in range(count)]


def trained(
    folder: Path,
    kind: str,
    lines: Sequence[str] = TEXTS,
    user_defined: Sequence[str] = ("<tool>",),
    **more: Any,
) -> Any:
    sentencepiece = pytest.importorskip("sentencepiece")
    (folder / "text").write_text("\n".join([*lines] * 30))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "tokenizer"), model_type=kind, vocab_size=400,
        byte_fallback=bool(user_defined), user_defined_symbols=list(user_defined), minloglevel=2, hard_vocab_limit=False, **more,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("bpe", {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}),
        ("bpe", {"add_dummy_prefix": False}),
        ("unigram", {}),
        ("unigram", {"normalization_rule_name": "identity"}),
    ],
)
def test_sentencepiece_files(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    theirs = trained(tmp_path, kind, **more)
    data = (tmp_path / "tokenizer.model").read_bytes()
    ours = Tokenizer(data)
    table = ours.bytes_of(theirs.get_piece_size())
    for text in [*TEXTS, *MORE, *strings(400)]:
        expected = theirs.encode(text)
        if more == {"normalization_rule_name": "identity"}:  # only then SentencePiece keeps lines at the ends
            text = text.strip()
            expected = theirs.encode(text)
        assert ours.encode(text, special=False) == expected, text
        decoded = b"".join(table[token] for token in expected).decode("utf-8", "replace")
        assert theirs.decode(expected) in (decoded, decoded.removeprefix(" "))
    assert ours.encode("fox") == [
        *([1] if kind == "bpe" else []),
        *theirs.encode("fox"),
        *([2] if kind == "unigram" else []),
    ]


def tiktoken_file(size: int = 450) -> bytes:
    """A vocabulary in the form of byte-level trainers: bytes, then pairs in the order in which they were found."""
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = [character for _, character in double.byte_characters()]
    tokenizer.train_from_iterator(
        TEXTS * 20, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    back = {character: byte for byte, character in double.byte_characters()}
    ranks = sorted(tokenizer.get_vocab().items(), key=lambda one: one[1])
    lines = (base64.b64encode(bytes(back[c] for c in token)).decode() + f" {rank}" for token, rank in ranks)
    return "\n".join(lines).encode() + b"\n"


def test_tiktoken_files(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    from torchette.llm.exporting.vocabularies import _LLAMA3

    data = tiktoken_file()
    ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in data.splitlines())}
    theirs = tiktoken.Encoding(
        "ours", pat_str=_LLAMA3, mergeable_ranks=ranks, special_tokens={"<|end|>": len(ranks) + 3}
    )
    config = {"added_tokens_decoder": {str(len(ranks) + 3): {"content": "<|end|>", "special": True}}}
    (tmp_path / "x.tiktoken").write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer(of_folder(tmp_path)["tokenizer.json"])
    table = ours.bytes_of(len(ranks))
    for text in [*TEXTS, *MORE, *strings(400)]:
        expected = theirs.encode(text)
        assert ours.encode(text) == Tokenizer(data).encode(text) == expected, text
        assert b"".join(table[token] for token in expected).decode("utf-8", "replace") == text
    assert ours.encode("fox<|end|>")[-1] == len(ranks) + 3 and ours.name(len(ranks) + 3) == "<|end|>"


def test_special_tokens_of_llama_3(tmp_path: Path) -> None:
    lines = [base64.b64encode(bytes([i])).decode() + f" {i}" for i in range(256)]
    lines += [base64.b64encode(f"z{i}".encode()).decode() + f" {i}" for i in range(256, 128_000)]
    (tmp_path / "tokenizer.model").write_text("\n".join(lines))
    plain, wrapped = Tokenizer((tmp_path / "tokenizer.model").read_bytes()), of_folder(tmp_path)
    for ours in (plain, Tokenizer(wrapped["tokenizer.json"])):
        assert [ours.name(128_000 + i) for i in (0, 1, 4, 6, 8, 9, 10, 11, 255)] == [
            "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>", "<|eom_id|>",
            "<|eot_id|>", "<|python_tag|>", "<|reserved_special_token_2|>", "<|reserved_special_token_246|>",
        ]  # fmt: skip
        assert ours.encode("a<|eot_id|>") == [128_000, 97, 128_009]


@pytest.mark.parametrize(("family", "kind"), [("llama", "bpe"), ("t5", "unigram")])
def test_control_tokens_in_a_text_are_those_of_transformers(family: str, kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trained(tmp_path, kind)
    if family == "t5":
        (tmp_path / "tokenizer.model").rename(tmp_path / "spiece.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    config = {
        "legacy": True, "extra_ids": 0, "add_bos_token": False, "eos_token": "</s>",
        "added_tokens_decoder": {"450": {"content": "<|end|>", "special": True}},
    }  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer(of_folder(tmp_path, family)["tokenizer.json"])
    for text in ["<s>fox", "fox</s>dog", "fox</s> <s> x", "</s>", "fox<|end|>dog", " fox  dog ", ""]:
        tokens = [
            450 if one == theirs.convert_tokens_to_ids("<|end|>") else one
            for one in theirs(text)["input_ids"]
        ]
        assert ours.encode(text) == tokens, text


@pytest.mark.parametrize("field", ["bos", "eos"])
def test_configuration_defines_the_tokens_of_all_texts(field: str, tmp_path: Path) -> None:
    theirs = trained(tmp_path, "bpe")
    config = tmp_path / "tokenizer_config.json"
    for flag in (True, False):
        config.write_text(json.dumps({f"{field}_token": {"content": "<tool>"}, f"add_{field}_token": flag}))
        tool = [theirs.piece_to_id("<tool>")] if flag else []
        fox = theirs.encode("fox")
        expected = [*tool, *fox] if field == "bos" else [1, *fox, *tool]
        assert Tokenizer(of_folder(tmp_path)["tokenizer.json"]).encode("fox") == expected


def marian(folder: Path, pieces: list[str] | None = None) -> None:
    """A folder of Marian: models of two languages, and the indices of the pieces of both."""
    pieces = pieces or []
    for name, lines in (("source", TEXTS[:2]), ("target", TEXTS[2:])):
        part = folder / name
        part.mkdir()
        model = trained(part, "unigram", lines=lines, user_defined=[])
        (part / "tokenizer.model").rename(folder / f"{name}.spm")
        pieces += [model.id_to_piece(i) for i in range(3, model.get_piece_size())]
    random.Random(0).shuffle(pieces)
    names = dict.fromkeys(["</s>", "<unk>", ">>fra<<", ">>de_DE<<", *pieces, "<pad>"])
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    (folder / "config.json").write_text(json.dumps({"model_type": "marian"}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))


def test_marian_folders(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    marian(tmp_path)
    with pytest.warns(UserWarning, match="sacremoses"):
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer(of_folder(tmp_path, "marian")["tokenizer.json"])
    size = len(theirs.get_vocab())
    assert [ours.name(i) for i in range(size)] == theirs.convert_ids_to_tokens(list(range(size)))
    table, unknown = ours.bytes_of(size), set()
    for text in [
        *TEXTS,
        *MORE,
        *strings(200),
        ">>fra<< The fox",
        ">>de_DE<<fox",
        "fox</s> dog",
        "日本 fox 語",
    ]:
        expected = theirs(text)["input_ids"]
        assert ours.encode(text) == expected, text
        unknown |= {one for one in expected if one == 1}
        decoded = b"".join(table[one] for one in expected if one != 1).decode()
        assert decoded.strip() == theirs.decode(
            [one for one in expected if one != 1], skip_special_tokens=True
        )
    assert unknown


def test_damaged_marian_folders_are_named_errors(tmp_path: Path) -> None:
    marian(tmp_path)
    vocabulary = (tmp_path / "vocab.json").read_text()
    (tmp_path / "vocab.json").write_text(vocabulary.replace("<unk>", "<none>"))
    with pytest.raises(FormatError, match=r"source\.spm.*<unk>"):
        of_folder(tmp_path, "marian")
    (tmp_path / "vocab.json").write_text("[]")
    with pytest.raises(FormatError, match=r"vocab\.json"):
        of_folder(tmp_path, "marian")
    (tmp_path / "vocab.json").write_text(vocabulary)
    (tmp_path / "source.spm").write_bytes((tmp_path / "source.spm").read_bytes()[:100])
    with pytest.raises(FormatError, match=r"source\.spm.*damaged"):
        of_folder(tmp_path, "marian")


def test_sessions_and_exports_accept_the_files(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from torchette import llm

    (tmp_path / "vocabulary.tiktoken").write_bytes(tiktoken_file(259))
    session = Session(double.program(), tokenizer=tmp_path / "vocabulary.tiktoken")
    assert session.decode(session.encode("Größe")) == "Größe"
    config = transformers.LlamaConfig(
        vocab_size=450,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    theirs = trained(tmp_path, "bpe")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    (tmp_path / "vocabulary.tiktoken").unlink()
    program = llm.export(tmp_path, max_context=32, max_prefill=8)
    assert Session(program).encode("The quick fox") == theirs.encode("The quick fox")


@pytest.mark.parametrize("kind", ["sentencepiece", "tiktoken"])
def test_damaged_files_are_named_errors(kind: str, tmp_path: Path) -> None:
    if kind == "sentencepiece":
        trained(tmp_path, "bpe")
        data = (tmp_path / "tokenizer.model").read_bytes()
    else:
        data = tiktoken_file(300)
    rng, refused = random.Random(1), 0
    for trial in range(300):
        broken = bytearray(data if trial % 3 else data[: rng.randrange(len(data))])
        for _ in range(rng.randrange(1, 6)):
            if broken:
                broken[rng.randrange(len(broken))] = rng.randrange(256)
        (tmp_path / "broken.model").write_bytes(bytes(broken))
        try:
            Tokenizer(tokenizer_file(tmp_path / "broken.model"))
        except FormatError as error:
            refused += 1
            assert error.code == "unknown-tokenizer" and "broken.model" in str(error)
    assert refused > 60
