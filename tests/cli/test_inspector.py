# SPDX-License-Identifier: BSD-3-Clause
# `torchette inspector`: the options of ExecuTorch's inspector, also under its module path.

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torchette.cli import main
from torchette.format import etdump

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    events = [
        etdump.Event(profile_event=etdump.ProfileEvent(name, 0, at, -1, None, b"", 0, 3000))
        for name, at in (("aten::add.out", 0), ("Method::execute", -1))
    ]
    path = tmp_path / "net.etdp"
    path.write_bytes(etdump.dumps(etdump.ETDump(0, [etdump.RunData("Execute", -1, [], events)])))
    return path


def test_tables_and_files(dump: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["inspector", "--etdump_path", str(dump), "--target_time_scale", "us"]
    assert main([*arguments, "--tsv_path", str(tmp_path / "net.tsv")]) == 0
    assert "aten::add.out" in capsys.readouterr().out
    header, first = (tmp_path / "net.tsv").read_text().splitlines()[:2]
    assert "p50 (us)" in header.split("\t") and "3.0" in first.split("\t")
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["event_name"], row["avg (us)"]) for row in rows] == [
        ("aten::add.out", 3),
        ("Method::execute", 3),
    ]


def test_unusable_files_are_named(dump: Path, tmp_path: Path, capsys: Capture) -> None:
    for more, message in (
        (["--etrecord_path", str(tmp_path / "none")], "there is no file"),
        (["--etrecord_path", str(dump)], "not an ETRecord"),
        (["--compare_results"], "no outputs to compare"),
        (["--source_time_scale", "cycles"], "cycles cannot"),
    ):
        assert main(["inspector", "--etdump_path", str(dump), *more]) == 2
        assert message in capsys.readouterr().err


def test_executorch_module_path_runs(dump: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torchette.devtools.inspector.inspector_cli", "--etdump_path", str(dump)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "aten::add.out" in done.stdout, done.stderr
