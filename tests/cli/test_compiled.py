# SPDX-License-Identifier: BSD-3-Clause
# In: folders and GGUF files for verbs that run a language model, and outputs in missing folders. Out: cached programs,
# and errors before any long work.
"""`torchette.cli._compiled`, and the check of outputs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llm import double
from tests.models import zoo
from torchette import cli
from torchette.errors import UnsupportedError

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
_LIBRARY = zoo.declare_torchvision_operators()
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHETTE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "llm"


def model_folder(path: Path) -> Path:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=double.SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, eos_token_id=double.END, bos_token_id=double.BEGIN,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    (path / "tokenizer.json").write_bytes(double.tokenizer_json())
    return path


def test_chat_compiles_a_folder_once(
    cache: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchette import llm

    folder = model_folder(tmp_path / "tiny")
    command = ["chat", str(folder), "--prompt", "ab", "--max-tokens", "3"]
    assert cli.main(command) == 0
    first = capsys.readouterr()
    (program,) = cache.iterdir()
    assert program.name.startswith("tiny-") and f"compiling {folder} once" in first.err
    assert f"torchette llm compile {folder} -o tiny.pte" in first.err

    compiled: list[Any] = []

    def refused(*args: Any, **_: Any) -> Any:
        compiled.append(args)
        raise UnsupportedError("no")

    monkeypatch.setattr(llm, "export", refused)
    assert cli.main(command) == 0 and not compiled
    assert capsys.readouterr().out == first.out
    (folder / "generation_config.json").write_text("{} ")  # a changed file requires another program
    assert cli.main(command) == 1 and len(compiled) == 1
    assert f"`torchette llm compile {folder} -o tiny.pte` compiles the model" in capsys.readouterr().err
    assert list(cache.iterdir()) == [program]


def test_only_the_latest_program_of_a_model_is_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchette import llm
    from torchette.cli._compiled import program_of

    class Program:
        def save(self, path: Path) -> None:
            path.write_bytes(b"program")

    monkeypatch.setattr(llm, "export", lambda *_, **__: Program())
    model, second_model = tmp_path / "x.gguf", tmp_path / "y.GGUF"
    model.write_bytes(b"1")
    second_model.write_bytes(b"1")
    first, program_of_second = program_of(model), program_of(second_model)
    assert program_of(model) == first
    model.write_bytes(b"12")
    second = program_of(model)
    assert first != second and set(cache.iterdir()) == {second, program_of_second}
    assert program_of(tmp_path / "z.pte") == tmp_path / "z.pte"


def parsers(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from parsers(inner, (*words, name))


WRITERS = [words for words, parser in parsers(cli._parser()) if parser.get_default("writes_file")]


def test_each_verb_that_writes_a_file_is_checked() -> None:
    assert {
        ("compile",),
        ("llm", "compile"),
        ("llm", "adapter"),
        ("run",),
        ("report",),
        ("migrate",),
        ("custom", "build"),
    } <= set(WRITERS)


@pytest.mark.parametrize("words", WRITERS, ids="-".join)
def test_an_output_in_a_missing_folder_is_an_error_before_any_work(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The input does not exist either; its error would be raised later."""
    monkeypatch.chdir(tmp_path)
    assert cli.main([*words, "nothing", "-o", "else/x.npz"]) == 2
    message = capsys.readouterr().err
    assert "[no-such-folder] there is no folder else" in message and "mkdir -p else" in message
    assert cli.main([*words, "nothing", "-o", "."]) == 2
    assert "is a folder, not a file" in capsys.readouterr().err or words == (
        "run",
    )  # which check their suffixes
