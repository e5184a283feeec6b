# SPDX-License-Identifier: BSD-3-Clause
# In: folders with the vocabularies and chat templates of many kinds of models. Out: the named data of programs, or an error that
# names the file.
"""`torchette.llm.exporting.named_data`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.llm.exporting.test_pre_tokenizers import QWEN2, split, texts, trained
from tests.llm.exporting.test_vocabularies import tiktoken_file
from tests.llm.exporting.test_vocabularies import trained as sentencepiece_of
from torchette.errors import FormatError, ModelNotFoundError
from torchette.llm.exporting.named_data import of_folder, template_name, tokenizer_file
from torchette.runtime import _native

hf = pytest.importorskip("tokenizers")
from tokenizers import normalizers, pre_tokenizers  # noqa: E402


def write(folder: Path, **files: Any) -> Path:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


# --- Chat templates ---


def test_chat_templates_of_older_folders(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={"chat_template": "plain"})
    assert of_folder(tmp_path) == {"chat_template.jinja": b"plain"}
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "é"}]
    write(tmp_path, chat_template={"chat_template": several})
    both = {"chat_template.jinja": "é".encode(), "chat_template.tool_use.jinja": b"tools"}
    assert of_folder(tmp_path) == both
    write(tmp_path, chat_template={"chat_template": {"default": "é", "tool_use": "tools"}})
    assert of_folder(tmp_path) == both
    (tmp_path / "chat_template.jinja").write_text("newest")
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("newest tools")
    (more / "rag.jinja").write_text("{{ documents }}")
    assert of_folder(tmp_path) == {
        "chat_template.jinja": b"newest",
        "chat_template.tool_use.jinja": b"newest tools",
        "chat_template.rag.jinja": b"{{ documents }}",
    }


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"chat_template": 5}', '{"chat_template": [{"name": "x"}]}', '{"chat_template": [{"name": "a/b", "template": ""}]}'],
)  # fmt: skip
@pytest.mark.parametrize("name", ["chat_template.json", "tokenizer_config.json"])
def test_damaged_templates_are_named_errors(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match=name.replace(".", r"\.") if "a/b" not in text else "a/b"):
        of_folder(tmp_path)


def test_names_of_templates() -> None:
    assert template_name("default") == "chat_template.jinja"
    assert template_name("tool_use") == "chat_template.tool_use.jinja"


def test_special_tokens_are_those_of_both_files(tmp_path: Path) -> None:
    config = {
        "bos_token": None, "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": "<pad>", "add_bos_token": True,
        "model_max_length": 5,
    }  # fmt: skip
    write(
        tmp_path,
        special_tokens_map={"bos_token": "<old>", "unk_token": "<unk>", "additional_special_tokens": ["<x>"]},
    )
    write(tmp_path, tokenizer_config=config)
    assert json.loads(of_folder(tmp_path)["special_tokens_map.json"]) == {
        "bos_token": None, "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
    }  # fmt: skip
    (tmp_path / "special_tokens_map.json").write_text("[")
    with pytest.raises(FormatError, match=r"special_tokens_map\.json is not JSON"):
        of_folder(tmp_path)


# --- Tokenizers ---


def made(folder: Path, model_type: str) -> Any:
    """Returns the C++ tokenizer of a folder; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return _native.llm.Tokenizer(of_folder(folder, model_type)["tokenizer.json"])


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_vocab_json_and_merges_txt_alone(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs = trained(None, plain) if kind == "gpt2" else trained(normalizers.NFC(), split(QWEN2))
    theirs.model.save(str(tmp_path))
    write(tmp_path, config={"model_type": kind})
    ours = made(tmp_path, kind)
    for text in texts(100):
        assert ours.encode(text, False) == theirs.encode(text).ids, text


def test_spiece_model_alone(tmp_path: Path) -> None:
    theirs = sentencepiece_of(tmp_path, "unigram")
    (tmp_path / "tokenizer.model").rename(tmp_path / "spiece.model")
    write(tmp_path, config={"model_type": "t5"})
    assert made(tmp_path, "t5").encode("The quick fox", False) == theirs.encode("The quick fox")


def test_vocab_txt_alone(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fox", "##es", "the"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    write(tmp_path, config={"model_type": "bert"})
    assert made(tmp_path, "bert").encode("The foxes", True) == [2, 7, 5, 6, 3]


def test_token_ids_of_a_class_are_not_those_of_its_sentencepiece_file(tmp_path: Path) -> None:
    """XLM-RoBERTa, mBART and NLLB shift the IDs of the file: it must not be read as it is."""
    pytest.importorskip("transformers")
    theirs = sentencepiece_of(tmp_path, "unigram")
    (tmp_path / "tokenizer.model").rename(tmp_path / "sentencepiece.bpe.model")
    write(
        tmp_path,
        config={"model_type": "xlm-roberta"},
        tokenizer_config={"tokenizer_class": "XLMRobertaTokenizer"},
    )
    assert made(tmp_path, "xlm-roberta").encode("The quick fox", False) == [
        one + 1 for one in theirs.encode("The quick fox")
    ]


def test_a_vocabulary_that_makes_no_tokenizer_is_named(tmp_path: Path) -> None:
    """A Marian model with a separate vocabulary for each language."""
    pytest.importorskip("transformers")
    sentencepiece_of(tmp_path, "unigram")
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes((tmp_path / "tokenizer.model").read_bytes())
    (tmp_path / "tokenizer.model").unlink()
    write(tmp_path, config={"model_type": "marian"}, vocab={"<unk>": 0, "</s>": 1, "<pad>": 2})
    write(tmp_path, target_vocab={"<unk>": 0, "</s>": 1, "<pad>": 2})
    write(tmp_path, tokenizer_config={"tokenizer_class": "MarianTokenizer", "separate_vocabs": True})
    with pytest.warns(UserWarning, match=r"no tokenizer: .*vocab\.json.*source\.spm.*--tokenizer"):
        assert "tokenizer.json" not in of_folder(tmp_path, "marian")
    assert of_folder(tmp_path, "marian", b"{}")["tokenizer.json"] == b"{}"


def test_a_tokenizer_that_the_engine_does_not_support_is_named(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    write(tmp_path, tokenizer={"model": model, "normalizer": {"type": "Marvin"}})
    with pytest.warns(UserWarning, match=r"no tokenizer: .*tokenizer\.json: .*Marvin.*--tokenizer"):
        assert "tokenizer.json" not in of_folder(tmp_path)
    with pytest.raises(FormatError, match=r"tokenizer\.json cannot be read.*Marvin") as caught:
        tokenizer_file(tmp_path / "tokenizer.json")
    assert "--tokenizer" in str(caught.value.hints)


@pytest.mark.parametrize("text", ["{", "{}", '{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_json_fails_at_export(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    for read in (lambda: of_folder(tmp_path), lambda: tokenizer_file(tmp_path / "tokenizer.json")):
        with pytest.raises(FormatError, match=r"tokenizer\.json cannot be read: ."):
            read()


def test_damaged_tokens_of_a_configuration_are_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "x.tiktoken").write_bytes(tiktoken_file(300))
    for tokens in ([1], {"a": {"content": "x"}}, {"1": 5}):
        write(tmp_path, tokenizer_config={"added_tokens_decoder": tokens})
        with pytest.raises(FormatError, match=r"tokenizer_config\.json: added_tokens_decoder"):
            of_folder(tmp_path)


def test_a_tokenizer_instead_of_the_models_own(tmp_path: Path) -> None:
    (tmp_path / "x.tiktoken").write_bytes(tiktoken_file(300))
    data = tokenizer_file(tmp_path / "x.tiktoken")
    assert _native.llm.Tokenizer(data).encode("a", False) == [97 - 33]
    (tmp_path / "x.json").write_bytes(data)
    assert tokenizer_file(tmp_path / "x.json") == data
    with pytest.raises(ModelNotFoundError, match="nothing"):
        tokenizer_file(tmp_path / "nothing")
    (tmp_path / "x").write_bytes(b"\x00")
    with pytest.raises(FormatError, match=r"/x cannot be read: .*tiktoken"):
        tokenizer_file(tmp_path / "x")
