# SPDX-License-Identifier: BSD-3-Clause
# `torchette compile`, `run` and `bench` on a model.

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import torchette
from torchette.cli import main
from torchette.packages import PACKAGES
from torchette.progress import Progress
from torchette.quantization import LLM_SCHEMES, RECIPES, SCHEMES

pytestmark = pytest.mark.usefixtures("portable_plan")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def net(folder: Path, capsys: Capture) -> Path:
    assert main(["compile", "model.py:Net", "-o", "net.pte"]) == 0
    capsys.readouterr()
    return folder / "net.pte"


def test_compile_check_and_run(folder: Path, capsys: Capture) -> None:
    assert main(["compile", "model.py:Net", "--check"]) == 0
    assert "net.pte" in capsys.readouterr().out
    assert main(["run", "net.pte", "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out).values()
    assert output["shape"] == [1, 2] and output["dtype"] == "float32"


def test_compile_result_as_json(folder: Path, capsys: Capture) -> None:
    assert main(["compile", "model.py:build", "-o", "b.pte", "--check", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["bytes"] == (folder / "b.pte").stat().st_size
    assert facts["planned_bytes"] >= facts["lower_bound_bytes"]
    assert facts["largest_difference"] < 1e-5


def test_saved_program_compiles_to_same_file(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    namespace: dict[str, type] = {}
    exec((folder / "model.py").read_text(), namespace)
    net = namespace["Net"]().eval()
    torch.export.save(torch.export.export(net, net.example_inputs), folder / "saved.pt2")
    assert main(["compile", "saved.pt2", "--check"]) == 0
    assert main(["compile", "model.py:Net"]) == 0
    assert main(["inspect", "saved.pte"]) == main(["inspect", "net.pte"]) == 0


def test_a_saved_program_of_a_quantized_model(folder: Path) -> None:
    code = """
import torch, torch.ao.quantization.fx._decomposed
class Rounds(torch.nn.Module):
    def forward(self, x):
        kind = 0.1, 0, -128, 127, torch.int8
        return torch.ops.quantized_decomposed.quantize_per_tensor(x, *kind)
torch.export.save(torch.export.export(Rounds(), (torch.ones(2),)), "rounds.pt2")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    command = [sys.executable, "-m", "torchette", "compile", "rounds.pt2", "--check"]
    subprocess.run(command, check=True)


def test_until_prints_the_graph_and_dump_writes_all_of_them(folder: Path, capsys: Capture) -> None:
    assert main(["compile", "model.py:Net", "--until", "edge", "--dump", "graphs"]) == 0
    assert "aten.relu.default" in capsys.readouterr().out
    assert any("edge" in path.name for path in (folder / "graphs").iterdir())
    assert not (folder / "net.pte").exists()


def test_list_prints_the_pipeline(capsys: Capture) -> None:
    assert main(["compile", "--list"]) == 0
    text = capsys.readouterr().out
    assert "fold_batch_norm" in text and "edge" in text


def test_list_depends_on_options(capsys: Capture) -> None:
    assert main(["compile", "--list", "--backend", "null", "--disable", "fuse_linear"]) == 0
    text = capsys.readouterr().out
    assert "delegate -> edge\n    NullPartitioner" in text
    assert "fuse_linear" not in text and "plan_memory" in text


@pytest.mark.filterwarnings("ignore::torchette.errors.DelegationWarning")
def test_backend_with_fallback_and_dynamic_size(folder: Path, capsys: Capture) -> None:
    arguments = [
        "compile",
        "model.py:build",
        "-o",
        "net.pte",
        "--backend",
        "null",
        "--fallback",
        "--dynamic",
        "0:0=batch:1..8",
        "--check",
    ]
    assert main(arguments) == 0
    for rows in (1, 8):
        assert main(["run", "net.pte", "--inputs", f"{rows}x4"]) == 0
    capsys.readouterr()
    assert main(["run", "net.pte", "--inputs", "9x4"]) == 2


def test_weights_in_separate_file(folder: Path) -> None:
    assert main(["compile", "model.py:Net", "--data-file", "weights.ptd", "--check"]) == 0
    assert (folder / "weights.ptd").stat().st_size > 0


def test_the_lines_of_the_model_are_stored_unless_stripped(folder: Path) -> None:
    for option, stored in (("--name-lines", True), ("--strip", False)):
        assert main(["compile", "model.py:Net", option]) == 0
        assert (b"model.py" in (folder / "net.pte").read_bytes()) is stored


def test_a_quantized_model_observes_the_files(folder: Path, capsys: Capture) -> None:
    pytest.importorskip("torchao")
    np.savez("day.npz", np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4))
    assert main(["compile", "model.py:Net", "--quantize", "int8", "--calibration", "day.npz"]) == 0
    assert main(["inspect", "net.pte"]) == 0
    assert "round" in capsys.readouterr().out  # integers are emulated with floats in this mode


@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
def test_static_scheme_without_calibration_raises(folder: Path, capsys: Capture, scheme: str) -> None:
    assert main(["compile", "model.py:Net", "--quantize", scheme]) == 2
    error = capsys.readouterr().err
    assert "--calibration FILE.npz" in error and "--calibration random" in error and "int8-dynamic" in error
    assert not (folder / "net.pte").exists()


def test_random_calibration_is_reported_in_every_output(folder: Path, capsys: Capture) -> None:
    pytest.importorskip("torchao")
    command = ["compile", "model.py:Net", "--quantize", "int8", "--calibration", "random"]
    assert main([*command, "--verify", "--report", "--report-page", "page.html"]) == 0
    statement = "the accuracy is meaningless"
    assert capsys.readouterr().out.count(statement) == 2  # in the report and the last lines
    assert statement in (folder / "page.html").read_text()
    assert main([*command, "--verify", "--json"]) == 0
    assert statement in json.loads(capsys.readouterr().out)["calibration"]
    assert main(["inspect", "net.pte"]) == 0
    assert capsys.readouterr().out.count(statement) == 2  # in a constant method and the receipt
    assert statement in torchette.load("net.pte").methods["forward_calibration"]()


def test_check_of_an_int8_file_permits_a_rounding_step(folder: Path, capsys: Capture) -> None:
    (folder / "conv.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        torch.manual_seed(0)\n"
        "        self.a, self.b = torch.nn.Conv2d(3, 16, 3), torch.nn.Conv2d(16, 8, 3)\n"
        "        self.c = torch.nn.Linear(8 * 28 * 28, 10)\n"
        "    def forward(self, x):\n"
        "        return self.c(self.b(self.a(x).relu()).relu().flatten(1)).softmax(-1)\n"
    )
    command = [
        "compile",
        "conv.py:Net",
        "--inputs",
        "1x3x32x32",
        "--quantize",
        "int8",
        "--calibration",
        "random",
    ]
    assert main([*command, "--backend", "xnnpack", "--check", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["compared_with"] == "the quantized model" and facts["largest_difference"] < 1e-3


@pytest.mark.parametrize("scheme", ["8da8w", "int8wo", "bf16"])
def test_other_schemes_need_no_calibration(folder: Path, capsys: Capture, scheme: str) -> None:
    pytest.importorskip("torchao")
    assert main(["compile", "model.py:Net", "--quantize", scheme]) == 0
    assert "meaningless" not in capsys.readouterr().out


def test_the_help_lists_the_schemes_with_their_aliases(capsys: Capture) -> None:
    for command, schemes in ((["compile"], RECIPES), (["llm", "compile"], LLM_SCHEMES)):
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        listed = capsys.readouterr().out.partition("schemes of --quantize")[2].splitlines()[1:]
        expected = [(SCHEMES[name].names, SCHEMES[name].text) for name in schemes]
        assert [line.strip() for line in listed] == [line for pair in expected for line in pair]


def test_outliers_stay_in_float32(folder: Path, capsys: Capture) -> None:
    pytest.importorskip("torchao")
    (folder / "huge.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.first, self.last = torch.nn.Linear(4, 200), torch.nn.Linear(200, 2)\n"
        "        with torch.no_grad():\n"
        "            self.first.weight[5] *= 1e4\n"
        "    def forward(self, x):\n"
        "        return self.last(torch.nn.functional.layer_norm(self.first(x), (200,)))\n"
    )
    options = ["--quantize", "int8", "--calibration", "random"]
    assert main(["compile", "huge.py:Net", "--inputs", "3x4", *options]) == 0
    assert "stay in floats" in capsys.readouterr().err
    assert main(["compile", "huge.py:Net", "--inputs", "3x4", "--quantize", "int8-dynamic"]) == 0
    assert "stay in floats" not in capsys.readouterr().err


def test_layers_with_larger_loss_stay_in_float32(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchao")
    monkeypatch.setattr("torchette.quantization.quantize.Progress", lambda: Progress(interval=0))
    np.savez("day.npz", np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4))
    command = ["compile", "model.py:Net", "--calibration", "day.npz"]
    limited = ["--quantize", "int8", "--max-drop", "0.5%", "--resume", "measured.jsonl", "--top", "1"]
    assert main([*command, *limited]) == 0
    assert (folder / "measured.jsonl").read_text().count("point") >= 2
    output, log = capsys.readouterr()
    steps = re.findall(r"^quantize: .* \((\d+) of (\d+) done(?:, about \d+ \w+ left)?\)$", log, re.MULTILINE)
    assert [int(done) for done, _ in steps] == list(range(len(steps))) and len(steps) >= 4
    assert all(int(done) < int(total) for done, total in steps) and " left)" in log
    assert re.match(r"int8: .* of 1 layers in integers; score 1, float32 1; SQNR \d+", output), "first"
    assert "int8: layers" in output and "chosen" in output and "… 1 more row; --top 2 shows all" in output
    assert main([*command, "--quantize", "int8-weight-only", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["quantization"]
    assert [layer["bits"] for layer in table["layers"]] == [8]
    assert main([*command, "--quantize", "8da4w"]) == 1
    assert "supports no layer" in capsys.readouterr().err


def test_check_fails_if_results_differ(folder: Path, capsys: Capture) -> None:
    (folder / "chance.py").write_text(
        "import torch\n"
        "calls = 0\n"
        "class Chance(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        global calls\n"
        "        calls += 1\n"
        "        return x + calls\n"
    )
    assert main(["compile", "chance.py:Chance", "--inputs", "2", "--check"]) == 1
    assert "differs from eager" in capsys.readouterr().err


def test_training_mode_is_a_failed_check(folder: Path, capsys: Capture) -> None:
    assert main(["compile", "model.py:train"]) == 1
    error = capsys.readouterr().err
    assert "training mode" in error.splitlines()[0] and "eval()" in error


def test_data_dependent_branch_is_explained(folder: Path, capsys: Capture) -> None:
    assert main(["compile", "model.py:Branches"]) == 1
    error = capsys.readouterr().err
    assert "torch.cond" in error and "model.py:" in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile"], "no model; pass FILE.py:NAME"),
        (["compile", "model.py:Net", "-o", "no/such/folder/net.pte"], "no folder no/such/folder"),
        (["compile", "model.py:Net", "--until", "lunch"], "no stage 'lunch'"),
        (["compile", "model.py:Net", "--dynamic", "batch"], "expected INPUT:DIM=NAME"),
        (["compile", "model.py:Net", "--dynamic", "0:7=n"], "no dimension 7 of input 0"),
        (["compile", "model.py:Net", "--dynamic", "0:0=n:9..2"], "9 is more than 2"),
        (
            ["compile", "none.py:Net", "--data-file", "else/where.ptd"],
            "expected a .ptd file in the folder of",
        ),
        (
            ["compile", "model.py:Net", "--quantize", "int8", "--calibration", "none.npz"],
            "no file none.npz",
        ),
        (["compile", "model.py:Net", "--max-drop", "1%"], "--max-drop requires --quantize"),
        (["compile", "model.py:Net", "--quantize", "int8", "--io", "int8", "--check"], "--verify compares"),
        (
            ["compile", "model.py:Net", "--quantize", "int8", "--max-drop", "1%"],
            "--max-drop measures the accuracy",
        ),
        (
            [
                *("compile", "model.py:Net", "--quantize", "8da4w"),
                *("--calibration", "random", "--max-drop", "1%"),
            ],
            "--max-drop measures the accuracy",
        ),
        (
            [
                *("compile", "model.py:Net", "--quantize", "int8"),
                *("--calibration", "random", "--calibration", "a.npz"),
            ],
            "random cannot be combined with files",
        ),
        (["compile", "model.py:Net", "--quantize", "int7"], "no quantization scheme 'int7'"),
        (["compile", "none.py:Net", "--budget", "rom=1K"], "expected ram, flash or target"),
        (["compile", "none.py:Net", "--report-page", "no/such/page.html"], "no folder no/such"),
        (["run", "none.pte"], "none.pte"),
        (["run", "model.py"], "pte"),
        (["run", "net.pte", "--method", "backward"], "it has forward"),
        (
            ["run", "net.pte", "--inputs", "1x4", "--inputs", "1x4"],
            "expects 1 input (x: float32[1, 4]), got 2",
        ),
        (["run", "net.pte", "--output", "scores.txt"], ".npz or .npy"),
        (["bench", "net.pte", "-n", "0"], "-n must be at least 1"),
    ],
)
def test_mistakes_are_explained_in_the_first_line(
    net: Path, arguments: list[str], message: str, capsys: Capture
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error.splitlines()[0] and "Traceback" not in error


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--backend", "xnpack"), "no backend 'xnpack'"),
        (("--disable", "fold_all"), "cannot disable fold_all"),
    ],
)
def test_options_are_checked_before_the_model_is_loaded(
    folder: Path, option: tuple[str, str], message: str, capsys: Capture
) -> None:
    assert main(["compile", "none.py:Net", *option]) == 1
    assert message in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize("shape", ["1x5", "4", "1x4:int64"])
def test_wrong_inputs_raise(net: Path, shape: str, capsys: Capture) -> None:
    assert main(["run", "net.pte", "--inputs", shape]) == 2
    error = capsys.readouterr().err
    assert "input" in error.splitlines()[0] and "Traceback" not in error


def test_run_reads_and_writes_arrays(net: Path) -> None:
    x = np.array([[0.5, 0.0, -1.0, 2.0]], np.float32)
    np.save("x.npy", x)
    assert main(["run", "net.pte", "--inputs", "x.npy", "--output", "y.npz"]) == 0
    assert main(["run", "net.pte", "--inputs", "x.npy", "--output", "y.npy"]) == 0
    namespace: dict[str, type] = {}
    exec((net.parent / "model.py").read_text(), namespace)
    with torch.inference_mode():
        expected = namespace["Net"]()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(np.load("y.npy"), expected, rtol=1e-4, atol=1e-5)
    with np.load("y.npz") as saved:
        np.testing.assert_allclose(saved[saved.files[0]], expected, rtol=1e-4, atol=1e-5)


def test_bench_reports_each_phase(net: Path, capsys: Capture) -> None:
    assert main(["bench", "net.pte", "-n", "5", "--warm-up", "1", "--json"]) == 0
    phases = json.loads(capsys.readouterr().out)
    assert {name: phase["count"] for name, phase in phases.items()} == {"load": 10, "first run": 1, "run": 5}
    assert all(0 < phase["min"] <= phase["p50"] <= phase["p90"] for phase in phases.values())
    assert main(["bench", "net.pte", "-n", "5"]) == 0
    assert "p90" in capsys.readouterr().out


def test_ops_lists_kernels_and_coverage(capsys: Capture) -> None:
    assert main(["ops", "relu", "--json"]) == 0
    assert "aten::relu.out" in {row["kernel"] for row in json.loads(capsys.readouterr().out)}
    assert main(["ops", "--dialect", "core"]) == 0
    printed = capsys.readouterr()
    assert "aten::relu" in printed.out and "Core ATen operators run" in printed.err


def test_compile_without_torch_names_package(folder: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from torchette.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "compile", "model.py:Net"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert (
        "torchette compile: [missing-package] compiling needs torch, which is not installed\n" in done.stderr
    )
    assert PACKAGES["torch"].install in done.stderr and "Traceback" not in done.stderr


def test_arenas_are_planned_as_memories(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compile", "model.py:Net", "-o", "net.pte", "--arena", "SRAM=64K", "--arena", "DRAM"]
    assert main([*arguments, "--json"]) == 0
    (sizes,) = json.loads(capsys.readouterr().out)["arenas"].values()
    assert list(sizes) == ["SRAM", "DRAM"] and sizes["DRAM"] == 0
    assert main(["compile", "model.py:Net", "-o", "net.pte", "--arena", "SRAM=8"]) == 1
    assert "SRAM has 8 bytes" in capsys.readouterr().err
