# SPDX-License-Identifier: BSD-3-Clause
# `torchette verify`, and the ways to name models on the command line.

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from torchette.cli import main
from torchette.exir import to_edge


@pytest.mark.parametrize("model", ["model.py:Net", "model:Net", "model.py:build", "program.pt2"])
def test_accepts_every_way_to_name_a_model(folder: Path, model: str) -> None:
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    torch.export.save(exported, folder / "program.pt2")
    assert main(["verify", model, "--dialect", "aten"]) == 0


def test_violations_are_listed_with_the_line_of_the_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "model.py:Net", "--dialect", "core_aten"]) == 1
    text = capsys.readouterr().out
    assert "not-core" in text and "aten.linear" in text and "model.py:12" in text
    assert main(["verify", "model.py:Net", "--dialect", "core_aten", "--json"]) == 1
    (violation,) = json.loads(capsys.readouterr().out)["violations"]
    assert violation["code"] == "not-core"


def test_an_edge_program_from_a_file(folder: Path) -> None:
    program = to_edge(torch.export.export(torch.nn.ReLU(), (torch.ones(2),))).exported_program()
    torch.export.save(program, folder / "edge.pt2")
    assert main(["verify", "edge.pt2", "--dialect", "edge"]) == 0
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
        node.target = torch.ops.aten.bitwise_not.default
    torch.export.save(program, folder / "broken.pt2")
    assert main(["verify", "broken.pt2", "--dialect", "edge"]) == 1


def test_lower_compiles_up_to_the_dialect(folder: Path) -> None:
    assert main(["verify", "model.py:Net", "--dialect", "exec"]) == 1
    assert main(["verify", "model.py:Net", "--dialect", "exec", "--lower"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py:Net"], "there is no file nowhere.py"),
        (["model.py"], "model.py does not name a model; use model.py:Net, model.py:NoInputs"),
        (["model.py:Nix"], "has no 'Nix'; it defines torch, Net"),
        (["model.py:number"], "is a int"),
        (["model.py:broken"], "model.py:31: ValueError: no weights here"),
        (["no_such_package:Net"], "No module named 'no_such_package'"),
        (["model.py:NoInputs"], "--inputs"),
        (["model.py:Net", "--inputs", "1,4"], "neither a shape"),
        (["model.py:Net", "--inputs", "1x4:f31"], "no dtype 'f31'"),
        (["model.py:Net", "--inputs", "nowhere.npy"], "there is no file nowhere.npy"),
        (["nowhere.pt2"], "there is no file nowhere.pt2"),
        (["model.py:Net", "--dialect", "klingon"], "no dialect 'klingon'"),
    ],
)
def test_mistakes_are_explained(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == 2
    error = capsys.readouterr().err
    assert (
        error.startswith("torchette verify: [")
        and message in error.splitlines()[0]
        and "Traceback" not in error
    )
