# SPDX-License-Identifier: BSD-3-Clause
# `torchette diff`: exit code and text if an operator departs.

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchette.cli import main
from torchette.format import pte


@pytest.fixture
def model(folder: Path) -> str:
    assert main(["compile", "model.py:Net", "-o", "net.pte"]) == 0
    return "net.pte"


def test_nothing_departs(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["diff", "model.py:Net", model]) == 0
    out = capsys.readouterr().out
    assert out.startswith("nothing departs: 1 of 1 instructions") and "cpu::linear.out" not in out
    assert main(["diff", "model.py:Net", model, "-v"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("nothing departs: 1 of 1 instructions")
    assert "cpu::linear.out" in out and "file on device" in out
    assert main(["compile", "model.py:Net", "-o", "portable.pte", "--backend", "portable"]) == 0
    capsys.readouterr()
    assert main(["diff", "portable.pte", "--no-search", "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert ("aten::linear.out" in out) != ("aten::relu.out" in out)
    assert "… 1 more row; --top 2 shows all" in out


def test_changed_weight_is_named(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(Path(model).read_bytes())
    file = pte.read(bytes(data))
    start = file.segment_base + file.program.segments[0].offset + file.program.constant_segment.offsets[1]
    data[start + 3] ^= 0x40
    Path(model).write_bytes(data)
    capsys.readouterr()
    assert main(["diff", "model.py:Net", model, "--no-search", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["equal"]
    first = report["faults"][0]
    assert (first["kind"], first["operator"], first["module"]) == ("weight", "cpu::linear.out", "linear")
    assert first["source"].startswith(("model.py:", "torch/nn/"))


def test_sign_stores_receipt(model: str) -> None:
    from torchette import receipt

    assert main(["diff", "model.py:Net", model, "--no-search", "--sign"]) == 0
    facts = receipt.read(model).facts
    assert (
        facts["compared"][0]["method"] == "forward" and facts["compared"][0]["outputs"][0]["max_abs"] < 1e-5
    )
    assert facts["instructions_compared"] == 1 and facts["exceptions"] == []
    assert receipt.verify(model) == []
    assert main(["run", model]) == 0


def test_departing_file_is_not_signed(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchette.devtools.diff.result import DiffResult, Fault

    fault = Fault("kernel", "aten::relu.out", 1, "", "off", "the given inputs")
    monkeypatch.setattr("torchette.devtools.diff.compare", lambda *_, **__: DiffResult("forward", [fault]))
    before = Path(model).read_bytes()
    assert main(["diff", model, "--sign"]) == 1
    assert Path(model).read_bytes() == before
    assert main(["diff", "model.py:Net", "--sign"]) == 2


@pytest.mark.parametrize("words", [["a.pte", "b.pte"], ["model.py:Nothing"], ["missing.pte"]])
def test_wrong_use(folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *words]) == 2
    assert capsys.readouterr().err
