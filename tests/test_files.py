# SPDX-License-Identifier: BSD-3-Clause
# Files that do not exist, are folders, or have another format: each problem has one message in all commands and functions.

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import torchette
from torchette import receipt
from torchette.devtools import bundle, inspect, size, validate
from torchette.errors import FormatError, InputTypeError, ModelNotFoundError, did_you_mean, unknown_name
from torchette.files import file_error, hints_for, missing_file, replacing
from torchette.format import etdump, pte

READERS: list[Callable[[str], object]] = [
    torchette.load,
    pte.load_file,
    etdump.load,
    size.sizes,
    inspect.describe,
    receipt.read,
    bundle.load_bundled_program,
    lambda path: validate.validate(path, ["true"]),
]


@pytest.mark.parametrize("read", READERS)
def test_a_missing_file_has_one_message(read: Callable[[str], object], tmp_path: Path) -> None:
    (tmp_path / "net.pte").touch()
    for name, message in (
        ("nett.pte", f"there is no file {tmp_path}/nett.pte; did you mean net.pte?"),
        ("some/net.pte", f"there is no folder {tmp_path}/some"),
    ):
        with pytest.raises(ModelNotFoundError) as caught:
            read(f"{tmp_path}/{name}")
        assert caught.value.message == message


@pytest.mark.parametrize("read", READERS[:5])
def test_a_folder_is_not_a_file(read: Callable[[str], object], tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        read(str(tmp_path))
    assert caught.value.message == f"{tmp_path} is a folder, not a file"


@pytest.mark.parametrize("read", [torchette.load, pte.load_file])
def test_file_of_another_format_names_its_use(read: Callable[[str], object], tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("import torch  # and a model")
    with pytest.raises(FormatError) as caught:
        read(str(path))
    assert f"torchette compile {path}:NAME -o net.pte" in caught.value.hints[0]


def test_every_other_kind_has_a_hint_with_its_path() -> None:
    assert hints_for("x.pte") == ()
    assert all(hints_for(f"some/x{suffix}") for suffix in (".pt", ".pth", ".ptd"))
    for suffix in (".py", ".pt2", ".gguf", ".bpte", ".etdp"):
        assert f"some/x{suffix}" in hints_for(f"some/x{suffix}")[0]


def test_a_folder_of_a_language_model_names_the_command_that_compiles_it(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    assert hints_for(folder) == ()
    (folder / "config.json").write_text("{}")
    hint = f"compile the language model first: `torchette llm compile {folder} -o llama.pte`"
    for opening in (torchette.load, pte.load_file):
        with pytest.raises(FormatError, match="is a folder, not a file") as caught:
            opening(folder)
        assert caught.value.hints == (hint,)


def test_saving_needs_a_folder(tmp_path: Path) -> None:
    for path, kind, message in (
        (tmp_path / "none" / "x.pte", ModelNotFoundError, f"there is no folder {tmp_path}/none"),
        (tmp_path, FormatError, f"{tmp_path} is a folder, not a file"),
    ):
        with pytest.raises(kind) as caught, replacing(path):
            pass
        assert caught.value.message == message
    assert not list(tmp_path.iterdir())


def test_errors_of_the_system_keep_their_reason() -> None:
    error = file_error(OSError(98, "Address already in use"))
    assert (error.code, str(error)) == ("system-error", "Address already in use")
    assert str(file_error(PermissionError(13, "Permission denied", "x"))) == "x: Permission denied"
    assert missing_file("none.pte", ["compile it"]).hints == ("compile it",)


@pytest.mark.parametrize("source", [123, None, ["net.pte"]])
def test_load_rejects_objects_that_are_not_paths(source: object) -> None:
    with pytest.raises(InputTypeError, match=f"not {type(source).__name__}") as caught:
        torchette.load(source)  # type: ignore[arg-type]
    assert "torchette.load('model.pte')" in caught.value.hints


def test_unknown_names_suggest_the_nearest_one_in_any_case() -> None:
    assert (
        unknown_name("backend", "CPU", ["cpu", "xnnpack"]) == "there is no backend 'CPU'; did you mean cpu?"
    )
    assert did_you_mean("quantum", ["cpu", "xnnpack"]) == ""
