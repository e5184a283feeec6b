# SPDX-License-Identifier: BSD-3-Clause
# Commands that run a file: shapes, dtypes and dynamic bounds come from the file, random inputs are announced, and
# --threads sets the number of threads.

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from torchette.cli import main

MODEL = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x, mask, scale=None):
        return torch.relu(self.linear(x)) * mask[:, None]

class Half(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""
RUNNING = {
    "run": [],
    "bench": ["-n", "1"],
    "profile": ["-n", "1"],
    "debug": [],
    "report": ["-o", "net.html", "--profile", "1"],
    "check": ["--against", "last.json", "--save", "--time", "5%"],
}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model without example inputs, and its file, with 2 to 8 rows."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "model.py").write_text(MODEL)
    net = [f"{folder}/model.py:Net", "--inputs", "3x4", "--inputs", "3:float32", "-o", f"{folder}/net.pte"]
    assert main(["compile", *net, "--dynamic", "0:0=rows:2..8", "--dynamic", "1:0=rows"]) == 0
    half = [f"{folder}/model.py:Half", "--inputs", "2x3:bfloat16", "-o", f"{folder}/half.pte"]
    assert main(["compile", *half]) == 0
    return folder


@pytest.fixture
def folder(model_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("verb", RUNNING)
@pytest.mark.usefixtures("folder")
def test_inputs_have_the_shapes_in_the_file(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "net.pte", *RUNNING[verb]]) == 0
    message = (
        "random inputs with the shapes in net.pte: x float32[8, 4], mask float32[8]; use --inputs to set them"
    )
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_given_inputs_are_not_announced_as_random(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", np.ones((2, 4), "float32"))
    assert main(["run", "net.pte", "--inputs", "x.npy", "--inputs", "2", "-o", "out.npy"]) == 0
    assert "random" not in capsys.readouterr().err
    assert np.load("out.npy").shape == (2, 2)


@pytest.mark.usefixtures("folder")
def test_diff_uses_inputs_and_dynamic_bounds_of_file(capsys: pytest.CaptureFixture[str]) -> None:
    """The command in the README, for a model without example inputs."""
    assert main(["diff", "model.py:Net", "net.pte"]) == 0
    done = capsys.readouterr()
    assert done.out.startswith("nothing departs: ") and "minimum shape" not in done.out
    assert "random inputs with the shapes in net.pte: x float32[8, 4], mask float32[8]" in done.err
    assert main(["diff", "model.py:Net", "net.pte", "--json", "--seed", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["random_inputs"] == ["x float32[8, 4]", "mask float32[8]"]
    assert report["inputs"]["random inputs"] == report["inputs"]["minimum shape"] == "compared"


@pytest.mark.usefixtures("folder")
def test_debug_with_model_uses_inputs_of_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "net.pte", "--model", "model.py:Net", "--json"]) == 0
    done = capsys.readouterr()
    assert "random inputs with the shapes in net.pte" in done.err
    assert any(row["module"] == "linear" for row in json.loads(done.out))


@pytest.mark.usefixtures("folder")
def test_bfloat16_inputs_are_generated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "half.pte", "-o", "out.npy"]) == 0
    assert "x bfloat16[2, 3]" in capsys.readouterr().err
    assert np.load("out.npy").dtype == np.float32
    assert main(["diff", "model.py:Half", "half.pte", "--no-search"]) == 0


@pytest.mark.usefixtures("folder")
def test_threads_are_those_of_the_method(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchette.runtime.program import Program

    num_threads: list[int | None] = []
    load = Program.load_method

    def watched(self: Program, name: str, *, threads: int | None = None, tracing: bool = False) -> object:
        num_threads.append(threads)
        return load(self, name, threads=threads, tracing=tracing)

    monkeypatch.setattr(Program, "load_method", watched)
    for verb, words in RUNNING.items():
        num_threads.clear()
        assert main([verb, "net.pte", *words, "--threads", "1"]) == 0
        assert set(num_threads) == {1}, verb
    capsys.readouterr()
    assert main(["bench", "net.pte", "-n", "1", "--threads", "1"]) == 0
    assert capsys.readouterr().out.startswith("net.pte, forward, 1 thread\n")
    assert main(["run", "net.pte", "--threads", "0"]) == 2
    assert "threads must be an integer of at least 1, got 0" in capsys.readouterr().err
