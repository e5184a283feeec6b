# SPDX-License-Identifier: BSD-3-Clause
# `torchette check` reports the growth between two files with a known difference.

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("portable_plan")

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from torchette import cli  # noqa: E402
from torchette.devtools import check  # noqa: E402
from torchette.devtools.bundle import BundledProgram, MethodTestCase, MethodTestSuite  # noqa: E402
from torchette.errors import FormatError  # noqa: E402

X = torch.linspace(-1, 1, 16).reshape(2, 8)


class Net(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(8, width)
        self.last = torch.nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("check")
    return {
        name: torchette.compile(Net(width).eval(), (X,), verify=True).save(folder / f"{name}.pte")
        for name, width in (("small", 8), ("large", 64))
    }


def kinds(growths: list[check.Growth]) -> set[str]:
    return {growth.kind for growth in growths}


def test_same_file_has_no_growth(files: dict[str, Path]) -> None:
    now = check.measure(files["small"])
    assert check.find_growth(json.loads(json.dumps(now)), now) == []
    assert check.find_growth(check.measure(files["large"]), now) == [], "smaller is no growth"
    assert set(now["errors"]) == {"forward, output 0"}


def test_growth_names_parts(files: dict[str, Path]) -> None:
    last, now = check.measure(files["small"]), check.measure(files["large"])
    growths = {growth.kind: growth for growth in check.find_growth(last, now, {"error": 1e9})}
    assert set(growths) == {"file", "arena"}
    names = [name for name, _, _ in growths["file"].where]
    assert "part weights" in names and "operator aten::linear.out" in names
    assert any(name.startswith("tensor weight") for name in names)
    assert (
        growths["file"].after - growths["file"].before
        == files["large"].stat().st_size - files["small"].stat().st_size
    )
    (tensor, before, after), *_ = growths["arena"].where
    assert "float32[2, 64]" in tensor and (before, after) == (0, 512)
    assert "is allowed" in str(growths["file"]) and json.dumps(growths["file"].to_dict())


def test_tolerances(files: dict[str, Path]) -> None:
    last, now = check.measure(files["small"]), check.measure(files["large"])
    ratio = now["file"] / last["file"] - 1
    allow = {"arena": 100.0, "error": 1e9}
    assert kinds(check.find_growth(last, now, {**allow, "file": ratio - 0.01})) == {"file"}
    assert check.find_growth(last, now, {**allow, "file": ratio + 0.01}) == []


def test_errors_and_shares_of_time(files: dict[str, Path]) -> None:
    last = check.measure(files["small"], times={"forward": {"aten::linear.out": 0.5, "aten::tanh.out": 0.4}})
    now = copy.deepcopy(last)
    now["errors"]["forward, output 0"] = last["errors"]["forward, output 0"] * 2 + 1e-3
    now["time"]["forward"] |= {"aten::tanh.out": 0.44, "aten::clone.out": 0.06}
    growths = check.find_growth(last, now)
    assert [growth.name for growth in growths] == [
        "forward: the share of aten::clone.out",
        "the error of forward, output 0",
    ]
    assert kinds(check.find_growth(last, now, {"time": 0.1, "error": 1e9})) == set()


def test_errors_of_a_bundle(files: dict[str, Path], tmp_path: Path) -> None:
    cases = [MethodTestCase((X,), Net(8)(X)), MethodTestCase((X,), Net(8)(X) + 0.25)]
    suite = MethodTestSuite("forward", cases)
    bundle = tmp_path / "net.bpte"
    bundle.write_bytes(BundledProgram(None, [suite], files["small"]).serialize())
    assert check.measure(files["small"], cases=bundle)["errors"]["forward, output 0"] == pytest.approx(
        0.25, abs=1e-5
    )


def test_the_command(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = str(tmp_path / "last.json")
    small, large = (str(files[name]) for name in ("small", "large"))
    assert cli.main(["check", small, "--against", last]) == 2
    assert "--save" in capsys.readouterr().err
    assert cli.main(["check", small, "--against", last, "--save", "--time", "90%", "-n", "2"]) == 0
    assert cli.main(["check", small, "--against", last, "--time", "100%", "-n", "2"]) == 0
    assert "unchanged" in capsys.readouterr().out
    assert cli.main(["check", large, "--against", last]) == 1
    assert "planned memory of forward grew from" in capsys.readouterr().out
    assert cli.main(["check", large, "--against", last, "--json"]) == 1
    assert {growth["kind"] for growth in json.loads(capsys.readouterr().out)["grown"]} >= {"file", "arena"}
    assert (
        cli.main(["check", large, "--against", last, "--file", "900%", "--arena", "9", "--error", "9999"])
        == 0
    )


@pytest.mark.parametrize(
    "figures", [[], {}, {"format": 9}, {"format": 1, "file": "x"}, {"format": 1, "file": 3}]
)
def test_invalid_figures_raise(figures: Any, files: dict[str, Path]) -> None:
    with pytest.raises(FormatError):
        check.find_growth(figures, check.measure(files["small"]))
