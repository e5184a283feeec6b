# SPDX-License-Identifier: BSD-3-Clause
# The figures of docs/port-to-a-board.md and of the boards in benchmarks/targets.md: memory is computed, images are built.

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import boards as bench
from benchmarks.targets import save
from tests.build.images import compiler
from tests.building import ROOT
from torchette import cli
from torchette.build.bare import boards, project
from torchette.devtools.device_memory import bills
from torchette.devtools.inspect import describe

PAGE = (ROOT / "docs" / "port-to-a-board.md").read_text()
SIZES = (ROOT / "benchmarks" / "targets.md").read_text()


@pytest.mark.gate
def test_page_has_memory_of_integer_and_float_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchao")
    ram: dict[str, int] = {}
    size: dict[str, int] = {}
    for name in ("keyword_spotting", "keyword_spotting_int8"):
        save(name, tmp_path)
        for side in ("cpu", "portable"):
            model = tmp_path / f"{name}-{side}.pte"
            (bill,) = bills(model, "cortex-m4")
            ram[f"{name}-{side}"] = bill.ram + project._CallerTensors(describe(model).methods[0]).nbytes
            size[f"{name}-{side}"] = model.stat().st_size
    floats, integers = "keyword_spotting-cpu", "keyword_spotting_int8-cpu"
    assert (
        f"RAM from {ram[floats]:,} to {ram[integers]:,} bytes, the program from {size[floats]:,} to {size[integers]:,} |"
        in PAGE
    )
    assert (
        f"keyword spotting needs {ram['keyword_spotting-portable']:,} bytes of RAM. In int8 it needs " in PAGE
    )
    assert f"it needs {ram['keyword_spotting_int8-portable']:,}, because portable kernels" in PAGE

    words = ["new", "mcu", str(tmp_path / "x"), str(tmp_path / f"{floats}.pte"), "--name", "keyword_spotting"]
    capsys.readouterr()
    assert cli.main([*words, "--ram", "80K"]) == 2
    printed = capsys.readouterr().err.splitlines()[0]
    shown = re.search(r"^(torchette new: .*? too many)\n(.*)$", PAGE, re.M)
    assert shown and printed == f"{shown[1]} {shown[2]}"
    assert cli.main([*words[:3], str(tmp_path / f"{integers}.pte"), "--ram", "80K"]) == 0


@pytest.mark.slow
def test_images_have_the_sizes_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchao")
    for board in boards.BOARDS.values():
        used = compiler(board, "zig" if board.target.startswith("riscv") else "gcc")
        if not re.search(r"\) 12\.|ziglang 0\.17", used.identity):
            pytest.skip(f"the page has the figures of gcc 12 and ziglang 0.17, not of {used.identity}")
    assert bench.main(["--gcc"]) == 0
    rows: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines()[1:]:
        board, _, *figures = line.split()
        fits = figures[0] != "does"
        rows.setdefault(board, []).extend([*figures[:2], figures[4]] if fits else ["needs more RAM", "", ""])
    shown = SIZES[SIZES.index("| board | digits") :].split("\n\n")[0].splitlines()[2:]
    cells = {
        row[0].strip("`"): row[1:]
        for row in ([c.strip() for c in line.strip("|").split("|")] for line in shown)
    }
    assert cells == rows
