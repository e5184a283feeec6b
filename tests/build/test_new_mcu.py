# SPDX-License-Identifier: BSD-3-Clause
# `torchette new mcu`: the project builds and runs without changes and without this package; for models that do not fit,
# the error contains the missing bytes.

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import torchette
from tests.build.images import compiler, each_board, needs_emulator
from tests.building import LAUNCHER
from torchette.build.bare import boards, image
from torchette.cli import main


class Net(torch.nn.Module):
    """Two inputs, one of them an integer tensor, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, int: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        return torch.tanh(y) + int, y.argmax(1)


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    args = (torch.ones(2, 8), torch.ones(2, 4, dtype=torch.int64))
    torchette.compile(Net().eval(), args).save("net.pte")
    return tmp_path / "net.pte"


def make(folder: str, *words: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["make", "-j2", "-C", folder, *words], capture_output=True, text=True, env=environment
    )
    return done.returncode, done.stdout + done.stderr


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="apt install make")


@needs_emulator
@needs_make
@pytest.mark.parametrize(("board", "kind"), each_board)
def test_a_new_project_builds_and_runs(board: str, kind: str, net: Path) -> None:
    command = compiler(boards.BOARDS[board], kind).compile
    name = "sine" if board == "hifive1" else "net"  # the network does not fit 16 KB of RAM
    assert main(["new", "mcu", "firmware", *(["net.pte"] if name == "net" else []), "--board", board]) == 0
    words = [f"ZIG={kind == 'zig':d}", f"PYTHON={command[0]}"]
    if kind == "gcc" and LAUNCHER:  # the command of the Makefile, through the compiler cache
        words.append(f"CXX={shlex.join(LAUNCHER)} $(CROSS)g++ $(TARGET)")
    code, text = make("firmware", "run", *words)
    assert code == 0, text
    assert text.count("values are equal to the expected values") == (2 if name == "net" else 1)
    assert f"{name} on {board}" in text
    method, pool, used, stack = map(
        int, re.search(r"method (\d+) of (\d+) bytes.*stack (\d+) of (\d+)", text).groups()
    )
    assert method == pool and 0 < used < stack == boards.BOARDS[board].stack


@needs_make
@pytest.mark.parametrize("board", boards.BOARDS.values(), ids=lambda board: board.name)
def test_project_describes_board_usage(board: boards.Board, net: Path) -> None:
    """make only prints its commands."""
    assert main(["new", "mcu", "firmware", "net.pte", "--board", board.name, "--stack", "2K"]) == 0
    folder = Path("firmware")
    for name in ("Makefile", "README.md", "image.ld", "main.cpp"):
        assert not re.search(r"@[A-Z]\w*@", (folder / name).read_text()), name
    readme = (folder / "README.md").read_text()
    code, text = make("firmware", "-n", "run")
    assert code == 0 and (" ".join(board.emulator) or f"{board.name} has no emulator") in text
    assert ("make run" in readme) == bool(board.emulator)
    code, text = make("firmware", "-n", "uf2")
    assert (code == 0) == ("make uf2" in readme) == (board.uf2_family is not None)
    if board.uf2_family is not None:
        assert f"uf2.py net.elf net.uf2 {board.uf2_family:#x}" in text and (folder / "uf2.py").exists()


@pytest.mark.slow
@needs_emulator
@needs_make
def test_wrong_results_exit_with_one(net: Path) -> None:
    compiler(boards.BOARDS["mps2-an386"], "gcc")
    assert main(["new", "mcu", "firmware", "net.pte"]) == 0
    expected = Path("firmware/expected.h")
    expected.write_text(re.sub(r"\{\n +-?[\d.e-]+f", "{\n    1000.0f", expected.read_text(), count=1))
    code, text = make("firmware", "run", "ZIG=0")
    assert code != 0 and "8 values are NOT equal to the expected values" in text and "Error 1" in text


@pytest.mark.slow
@needs_make
@pytest.mark.parametrize("kind", ["gcc", pytest.param("zig", marks=pytest.mark.slow)])
def test_the_linker_names_the_missing_bytes(kind: str, net: Path) -> None:
    command = compiler(boards.BOARDS["mps2-an386"], kind).compile
    assert main(["new", "mcu", "firmware", "net.pte", "--flash", "5K"]) == 0
    code, text = make("firmware", f"ZIG={kind == 'zig':d}", f"PYTHON={command[0]}")
    assert code != 0 and image.overflows(text)["FLASH"] > 5000, text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["full", "net.pte"], "full is not empty"),
        (
            ["new", "net.pte", "--board", "mps2-an38"],
            "there is no board 'mps2-an38'; did you mean mps2-an386?",
        ),
        (["new", "net.pte", "--ram", "17000"], r"needs ([\d,]+) bytes of 17,000, ([\d,]+) too many"),
        (["new", "net.pte", "--flash", "1K"], r"the program has ([\d,]+) bytes of 1,024, ([\d,]+) too many"),
        (["new", "net.pte", "--ram", "much"], "'much' is not a memory"),
        (["new", "net.pte", "--temp", "some"], "most or least"),
        (["new", "nothing.pte"], "nothing.pte"),
    ],
)
def test_invalid_requests_raise(
    arguments: list[str], message: str, net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("full").mkdir()
    Path("full/notes.txt").touch()
    assert main(["new", "mcu", *arguments]) == 2
    text = capsys.readouterr().err
    match = re.search(message, text)
    assert match, text
    if match.groups():
        needed, missing = (int(number.replace(",", "")) for number in match.groups())
        assert needed - missing in (17000, 1024)
    assert not Path("new").exists() and sorted(path.name for path in Path("full").iterdir()) == ["notes.txt"]


def test_memory_sizes_are_parsed() -> None:
    assert boards.region("256K") == boards.Region(0, 256 * 1024)
    assert boards.region("1M@0x08000000") == boards.Region(0x08000000, 1 << 20)
    assert boards.region("100", 64) == boards.Region(64, 100)


def test_overflow_is_parsed_from_both_linkers() -> None:
    gnu = "ld: region `FLASH' overflowed by 116504 bytes\nld: region `RAM' overflowed by 80 bytes"
    lld = "error: section '.data' will not fit in region 'FLASH': overflowed by 12 bytes"
    assert image.overflows(gnu) == {"FLASH": 116504, "RAM": 80}
    assert image.overflows(f"{lld}\n{lld.replace('12', '9')}") == {"FLASH": 12}
