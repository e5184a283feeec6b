# SPDX-License-Identifier: BSD-3-Clause
# Runs the guides of docs/cpp.md, docs/c.md and docs/quantization-details.md with an installed package: a CMake project of five lines and
# programs in C.

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.building import BUILD, CC, CXX, ROOT, configure, locked, run
from torchette import cli


def block(page: str, language: str) -> str:
    """Returns the first code block of a language in a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    match = re.search(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    assert match is not None
    return match[1]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the runtime with `cmake --install` and returns its prefix."""
    prefix = tmp_path_factory.mktemp("installed")
    with locked():
        configure()
        run(
            "cmake",
            "--build",
            BUILD,
            "--target",
            "torchette_static",
            "torchette_shared",
            "executor_runner",
            "_native",
        )
        run("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix


def build_and_run_guide(prefix: Path, folder: Path, shared: str, model: Path) -> None:
    """Builds the project of the C++ guide with the package at `prefix`. `model` has other input sizes, which must not crash it."""
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(block("cpp.md", "cmake"))
    program = block("cpp.md", "cpp").replace("{1, 3, 224, 224}", "{2, 3}")
    (folder / "main.cpp").write_text(program)
    run(
        *("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}"),
        *(f"-DBUILD_SHARED_LIBS={shared}", "-DCMAKE_BUILD_TYPE=Debug"),
    )
    run("cmake", "--build", folder / "build")
    assert run(folder / "build" / "app", model).stdout.split() == ["3"] * 8
    assert "cannot open none" in run(folder / "build" / "app", "none", status=1).stderr
    linked = "libtorchette.so" in run("ldd", folder / "build" / "app").stdout
    assert linked == (shared == "ON")


@pytest.mark.parametrize("shared", ["OFF", "ON"])
def test_the_cpp_guide(installed: Path, two_methods: Path, tmp_path: Path, shared: str) -> None:
    build_and_run_guide(installed, tmp_path / "project", shared, two_methods)


def test_the_c_guide(installed: Path, two_methods: Path, tmp_path: Path) -> None:
    (tmp_path / "run.c").write_text(block("c.md", "c"))
    library = installed / "lib"
    run(
        *(
            CC,
            "-std=c99",
            "-pedantic",
            "-Wall",
            "-Wextra",
            "-Werror",
            tmp_path / "run.c",
            "-o",
            tmp_path / "run",
        ),
        *("-I", installed / "include", f"-L{library}", f"-Wl,-rpath,{library}", "-ltorchette"),
    )
    assert run(tmp_path / "run", two_methods).stdout.split() == ["3"] * 8
    assert "AccessFailed" in run(tmp_path / "run", "none", status=1).stderr
    assert "InvalidProgram" in run(tmp_path / "run", __file__, status=1).stderr


def test_guide_of_quantized_inputs(installed: Path, tmp_path: Path) -> None:
    """The program of docs/quantization-details.md returns the outputs of the model with float inputs and outputs."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    import torchette
    from torchette.quantization.recipes import quantizer_of

    (tmp_path / "run.cpp").write_text(block("quantization-details.md", "cpp"))
    flags = (
        "-std=c++17",
        "-I",
        installed / "include",
        f"-L{installed / 'lib'}",
        f"-Wl,-rpath,{installed / 'lib'}",
    )
    run(CXX, tmp_path / "run.cpp", "-o", tmp_path / "run", *flags, "-ltorchette")
    torch.manual_seed(0)
    model, x = torch.nn.Linear(64, 10).eval(), torch.randn(1, 64)
    floats, integers = (
        torchette.compile(model, (x,), quantizer=quantizer_of("int8"), io=io) for io in (None, "int8")
    )
    integers.save(tmp_path / "bytes.pte")
    scale, zero, _ = integers.methods["forward"].meta.input_tensor_meta(0).quant
    q = (x / scale + zero).round().clamp(-128, 127).to(torch.int8)
    done = subprocess.run(
        [tmp_path / "run", tmp_path / "bytes.pte"], input=q.numpy().tobytes(), capture_output=True
    )
    printed = torch.tensor([float(word) for word in done.stdout.split()])
    torch.testing.assert_close(printed, floats(x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options, words",
    [
        (
            ["-DEXECUTORCH_LOG_LEVEL=Debug", "-DEXECUTORCH_PAL_DEFAULT=minimal"],
            ["LOG_LEVEL:STRING=4", "PLATFORM:STRING=minimal"],
        ),
        (["-DEXECUTORCH_ENABLE_LOGGING=OFF"], ["LOG_LEVEL:STRING=0"]),
        (["-DTORCHETTE_LOG_LEVEL=3", "-DEXECUTORCH_LOG_LEVEL=0"], ["LOG_LEVEL:STRING=3"]),
        (["-DTORCHETTE_LOG_LEVEL=loud"], None),
        (["-DTORCHETTE_PLATFORM=toaster"], None),
    ],
)
def test_cmake_options_of_both_projects(tmp_path: Path, options: list[str], words: list[str] | None) -> None:
    with locked():  # skips the test if cmake is not installed
        pass
    done = run(
        *("cmake", "-S", ROOT, "-B", tmp_path, *options, "-DEXECUTORCH_BUILD_PYBIND=OFF"),
        f"-DPython_EXECUTABLE={sys.executable}",
        status=0 if words else 1,
    )
    if words is None:
        assert "use 0 to 4" in done.stderr or "use posix or minimal" in done.stderr
        return
    cache = (tmp_path / "CMakeCache.txt").read_text()
    for word in [*words, "BUILD_PYTHON:"]:
        assert f"TORCHETTE_{word}" in cache
    assert "nanobind_DIR" not in cache


def test_a_new_backend_builds_and_conforms(installed: Path, tmp_path: Path) -> None:
    assert cli.main(["backend", "new", "acme_npu", "-o", str(tmp_path)]) == 0
    folder = tmp_path / "acme_npu"
    assert not [file for file in folder.iterdir() if re.search("NUL1|[Nn]ull_?[Bb]ackend", file.read_text())]
    run("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", folder / "build")
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder)
    output = run(*command, cwd=tmp_path, env=paths).stdout
    assert "passed" in output and "failed" not in output
    assert cli.main(["backend", "new", "acme_npu", "-o", str(tmp_path)]) == 2, "the folder already exists"
    assert cli.main(["backend", "new", "Not-A-Name", "-o", str(tmp_path)]) == 2
