# SPDX-License-Identifier: BSD-3-Clause
# Tests executor_runner: ExecuTorch's options, arrays as inputs and outputs, JSON, and a message and exit status for each error.

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.building import built, run


@pytest.fixture(scope="module")
def runner() -> Path:
    return built("executor_runner")


def test_text(runner: Path, two_methods: Path) -> None:
    model = f"--model_path={two_methods}"
    done = run(runner, model, "--method_name", "twice")
    assert done.stdout == "Output 0: tensor(sizes=[3], [2, 2, 2])\n" and done.stderr == ""
    assert run(runner, model, "-print_output=none", "--num_executions", "3", "--cpu_threads=2").stdout == ""
    assert "usage" in run(runner, "--help").stdout


def test_links_only_the_c_and_cpp_libraries(runner: Path) -> None:
    listed = run("objdump", "-p", runner).stdout
    needed = {line.split()[1].partition(".")[0] for line in listed.splitlines() if "NEEDED" in line}
    assert "libc" in needed
    assert needed <= {
        "libc",
        "libm",
        "libstdc++",
        "libgcc_s",
        "libpthread",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
    }


def test_arrays(runner: Path, two_methods: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3)).astype(np.float32)
    expected = np.maximum(x @ np.ones((3, 4), np.float32), 0)
    common = (runner, "--model_path", two_methods, "--method_name", "forward", "--print_output", "none")
    np.save(tmp_path / "x.npy", x)
    run(*common, "--inputs", tmp_path / "x.npy", "--output_file", tmp_path / "y")
    np.testing.assert_allclose(np.load(tmp_path / "y-0.npy"), expected, rtol=1e-6)
    x.tofile(tmp_path / "x.bin")
    run(*common, "--inputs", tmp_path / "x.bin", "--output_file", tmp_path / "z")
    np.testing.assert_array_equal(
        np.fromfile(tmp_path / "z-0.bin", np.float32), np.load(tmp_path / "y-0.npy").ravel()
    )
    served = run(*common, "--server_mode", "--output_file", tmp_path / "s.npy", input="\n\n")
    assert served.stdout == "" and np.load(tmp_path / "s-0.npy").tolist() == [[3.0] * 4] * 2


def test_json(runner: Path, two_methods: Path, tmp_path: Path) -> None:
    x = np.array([np.inf, np.nan, 0.5], np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ("--model_path", two_methods, "--method_name", "twice", "--inputs", tmp_path / "x.npy")
    report = json.loads(run(runner, *arguments, "--json", "--num_executions=5").stdout)
    assert report["model"] == str(two_methods) and report["method"] == "twice" and report["executions"] == 5
    assert report["outputs"] == [{"dtype": "float32", "sizes": [3], "data": ["inf", "nan", 1]}]
    assert 0 < report["execute_ms"]["best"] <= report["execute_ms"]["median"] and report["load_ms"] > 0


def test_trace(runner: Path, two_methods: Path, tmp_path: Path) -> None:
    arguments = ("--model_path", two_methods, "--method_name", "forward", "--print_output", "none")
    run(runner, *arguments, "--num_executions", "2", "--trace_path", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events]
    assert names[0] == "Method::init" and names.count("Method::execute") == 2
    calls = [event for event in events if "args" in event]
    assert [event["name"] for event in calls[: len(calls) // 2]] == [
        event["name"] for event in calls[len(calls) // 2 :]
    ]
    assert any(name.startswith("aten::") for name in names)
    assert all(event["ph"] == "X" and event["dur"] >= 0 and event["ts"] >= 0 for event in events)


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["--model_path", "none.pte"], 2, "cannot open none.pte"),
        (["--model_path", __file__], 1, "InvalidProgram (0x23)"),
        (["--model", "x"], 2, "unknown option --model;"),
        (["--model_path"], 2, "--model_path needs a value"),
        (["model.pte"], 2, "'model.pte' is not an option"),
        (["MODEL", "--method_name", "none"], 1, "none: InvalidArgument"),
        (["MODEL", "--num_executions", "0"], 2, "integer of at least 1, got 0"),
        (["MODEL", "--print_output", "some"], 2, "got 'some'"),
        (["MODEL", "--inputs", "a,b"], 2, "--inputs has 2 entries, method forward has 1 inputs"),
        (["MODEL", "--inputs", "none.npy"], 2, "cannot open none.npy"),
        (["MODEL", "--inputs", __file__], 2, "input 0 needs 24"),
        (["MODEL", "--input_shapes", "2x3x"], 2, "'2x3x' does not have the form"),
        (["MODEL", "--input_shapes", "9x3"], 1, "forward: InvalidArgument"),
        (["MODEL", "--output_file", "/none/y"], 2, "cannot write /none/y-0.bin"),
        (["MODEL", "--data_path", "x.ptd"], 2, "cannot open x.ptd"),
        (["MODEL", "--data_path", __file__], 1, "InvalidExternalData"),
        (["MODEL", "--bundleio"], 1, "InvalidProgram"),
        (["MODEL", "--etdump_path", "/none/net.etdp"], 2, "cannot write /none/net.etdp"),
        (["MODEL", "--trace_path", "/none/trace.json"], 2, "cannot write /none/trace.json"),
    ],
)
def test_errors_have_a_message_and_exit_status(
    runner: Path, two_methods: Path, arguments: list[str], status: int, words: str
) -> None:
    options = [f"--model_path={two_methods}" if word == "MODEL" else word for word in arguments]
    done = run(runner, "--method_name=forward", *options, status=status)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("executor_runner: ") and words in last and done.stdout == ""


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_damaged_arrays_are_rejected(
    runner: Path, two_methods: Path, tmp_path: Path, dtype: str, order: str
) -> None:
    """Every truncated file is rejected. The complete file fails only if its dtype or order does not match."""
    np.save(tmp_path / "x.npy", np.asarray(np.ones((2, 3)), dtype, order=order))
    content = (tmp_path / "x.npy").read_bytes()
    arguments = ("--model_path", two_methods, "--method_name", "forward", "--inputs", tmp_path / "cut.npy")
    for cut in (0, 5, 9, 11, 40, len(content) - 1):
        (tmp_path / "cut.npy").write_bytes(content[:cut])
        assert "cut.npy:" in run(runner, *arguments, status=2).stderr
    (tmp_path / "cut.npy").write_bytes(content)
    right = dtype == "float32" and order == "C"
    assert "InvalidArgument" in run(runner, *arguments, status=0 if right else 1).stderr or right


def test_the_standard_input_and_output(runner: Path, two_methods: Path) -> None:
    common = (str(runner), "--model_path", "-", "--method_name", "twice", "--output_file", "-")
    done = subprocess.run(common, input=two_methods.read_bytes(), capture_output=True, check=True)
    stream = io.BytesIO(done.stdout)
    assert np.load(stream).tolist() == [2, 2, 2] and not stream.read() and not done.stderr
    for more in (["--server_mode"], ["--data_path", "x.ptd"], ["--json"], ["--verification", "total"]):
        done = subprocess.run([*common, *more], input=b"", capture_output=True, check=False)
        assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    for data in (b"", b"no program", two_methods.read_bytes()[:100]):
        done = subprocess.run(common, input=data, capture_output=True, check=False)
        assert done.returncode == 1 and b"the standard input: InvalidProgram" in done.stderr
