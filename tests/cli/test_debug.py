# SPDX-License-Identifier: BSD-3-Clause
# `torchette debug`: values as a table, as JSON and as .npy files.

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from torchette.cli import main

pytestmark = pytest.mark.usefixtures("portable_plan")


@pytest.fixture
def model(folder: Path) -> str:
    assert main(["compile", "model.py:Net", "-o", "net.pte"]) == 0
    return "net.pte"


def test_values_as_files(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.array([[1, -2, 3, 4]], "float32"))
    capsys.readouterr()
    assert main(["debug", model, "--inputs", "x.npy", "--dump", "aten::*"]) == 0
    assert "aten::linear.out" in capsys.readouterr().out
    rows = json.loads(Path("net.values/values.json").read_text())
    assert [row["operator"] for row in rows] == ["aten::linear.out", "aten::relu.out"]
    linear, relu = (np.load(Path("net.values") / row["file"]) for row in rows)
    assert np.array_equal(np.maximum(linear, 0), relu)
    assert rows[1]["value"] == "float32[1, 2]" and rows[1]["max"] == pytest.approx(relu.max(), rel=1e-4)


def test_modules_with_the_model(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["debug", model, "--model", "model.py:Net", "--select", "linear.*", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["module"], row["node"], row["instruction"]) == ("linear", "linear", 0)


def test_values_inside_delegate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "sums.py").write_text(
        "import torch\n\nclass Sums(torch.nn.Module):\n    example_inputs = (torch.ones(3), torch.ones(3) * 2)\n\n"
        "    def forward(self, x, y):\n        return (x + y) * y\n"
    )
    assert main(["compile", "sums.py:Sums", "--backend", "null", "-o", "sums.pte"]) == 0
    capsys.readouterr()
    words = ["debug", "sums.pte", "--model", "sums.py:Sums", "--dump", "add", "--json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)
    inside = next(row for row in rows if row["node"] == "add")
    assert inside["operator"] == "NullBackend: aten.add.Tensor"
    assert np.load(Path("sums.values") / inside["file"]).tolist() == [3, 3, 3]


@pytest.mark.parametrize("words", [["--select", "nothing"], ["-o", "there"], ["--method", "backward"]])
def test_wrong_use(model: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", model, *words]) == 2
    assert capsys.readouterr().err
