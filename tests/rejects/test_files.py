# SPDX-License-Identifier: BSD-3-Clause
# Files that must be refused: missing, truncated, of another format, mutated. Each test checks the message that a user reads.

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import torchette
from torchette import cli
from torchette.errors import FormatError, ModelNotFoundError, RuntimeLoadError

pytestmark = pytest.mark.usefixtures("portable_plan")


@pytest.fixture(scope="module")
def file() -> bytes:
    """A small program with weights, a matmul and a convolution."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32, 4)
    )
    return bytes(torchette.compile(module.eval(), (torch.randn(1, 1, 4, 4),)))


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.pte"
    with pytest.raises(ModelNotFoundError, match=r"nowhere\.pte") as caught:
        torchette.load(path)
    assert isinstance(caught.value, FileNotFoundError)
    assert "0x" not in str(caught.value)


def test_directory(tmp_path: Path) -> None:
    with pytest.raises((FormatError, OSError), match=tmp_path.name):
        torchette.load(tmp_path)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.pte"
    path.touch()
    with pytest.raises((FormatError, RuntimeLoadError), match=r"empty\.pte.*(empty|0 bytes|too short)"):
        torchette.load(path)


def test_wrong_magic(tmp_path: Path, file: bytes) -> None:
    path = tmp_path / "picture.pte"
    path.write_bytes(file[:4] + b"JFIF" + file[8:])
    with pytest.raises((FormatError, RuntimeLoadError), match=r"JFIF|ET12"):
        torchette.load(path)


def test_every_truncation(file: bytes) -> None:
    from torchette.runtime import Runtime

    for length in [*range(200), *range(200, len(file) - 64, 37)]:
        with pytest.raises((FormatError, RuntimeLoadError)):
            Runtime.get().load_program(file[:length]).load_method("forward")


def test_unknown_method(file: bytes) -> None:
    from torchette.runtime import Runtime

    with pytest.raises(Exception, match=r"backward.*forward|forward.*backward"):
        Runtime.get().load_program(file).load_method("backward")


def test_operators_without_kernel_are_all_listed(file: bytes) -> None:
    from torchette.runtime import Runtime

    # The names have the same length, so that nothing else in the file changes.
    assert file.count(b"aten::convolution") == 1 and file.count(b"aten::relu") == 1
    unknown = file.replace(b"aten::convolution", b"aten::revolution_").replace(b"aten::relu", b"aten::rule")
    with pytest.raises(RuntimeLoadError) as caught:
        Runtime.get().load_program(unknown).load_method("forward")
    assert "aten::revolution_.out" in str(caught.value) and "aten::rule.out" in str(caught.value)


def test_command_line_reports_error_without_traceback(
    tmp_path: Path, file: bytes, capsys: pytest.CaptureFixture
) -> None:
    cut = tmp_path / "cut.pte"
    cut.write_bytes(file[: len(file) // 2])
    for verb in ("run", "inspect"):
        for path in (tmp_path / "nowhere.pte", cut):
            assert cli.main([verb, str(path)]) == 2
            message = capsys.readouterr().err
            assert path.name in message
            assert "Traceback" not in message


# ExecuTorch's process crashes with 13 of 400 such mutations, also with verification.
_MUTATE = """
    import random, resource, sys
    import numpy as np
    from torchette.errors import TorchetteError
    from torchette.runtime import Runtime

    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # a huge arena must be an error, not exhaust the machine
    contents = open(sys.argv[1], "rb").read()
    random.seed(0)
    refused = ran = 0
    for number in range(int(sys.argv[2])):
        mutant = bytearray(contents)
        # The file starts with its structure, followed by weights: most mutations change the structure.
        position = random.randrange(len(mutant) if number % 8 == 0 else int(sys.argv[3]))
        mutant[position] = random.choice([0, 1, 0x7F, 0x80, 0xFF, mutant[position] ^ (1 << random.randrange(8))])
        print(number, position, mutant[position], file=sys.stderr, flush=True)
        try:
            program = Runtime.get().load_program(bytes(mutant))
            for name in sorted(program.method_names):
                program.load_method(name).execute([np.ones(INPUT_SHAPE, np.float32)])
            ran += 1
        except (TorchetteError, MemoryError, LookupError):
            refused += 1
    print(refused, ran)
"""


@pytest.mark.parametrize("compiler", ["torchette", "executorch"])
def test_mutated_files_do_not_crash(compiler: str, tmp_path: Path, file: bytes) -> None:
    if compiler == "executorch":
        from tests.models import artifacts

        file, shape = artifacts.peer_file("digits"), (1, 64)
    else:
        shape = (1, 1, 4, 4)
    path = tmp_path / "model.pte"
    path.write_bytes(file)
    structure = int.from_bytes(file[16:24], "little")  # size of the flatbuffer, from the extended header
    program = textwrap.dedent(_MUTATE).replace("INPUT_SHAPE", repr(shape))
    outcome = subprocess.run(
        [sys.executable, "-c", program, str(path), "2000", str(structure)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    last = outcome.stderr.splitlines()[-1] if outcome.stderr else ""
    assert outcome.returncode == 0, f"ended with {outcome.returncode} after (mutation, position, byte) {last}"
    refused, ran = map(int, outcome.stdout.split())
    assert refused + ran == 2000
    assert refused > 200, "too few mutations were refused for a meaningful test"
