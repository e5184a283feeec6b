# SPDX-License-Identifier: BSD-3-Clause
# CMakePresets.json matches the table of targets; CMake works without Python; ExecuTorch's options have an effect or a
# message.

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

import torchette
from tests.building import ROOT, run
from torchette.targets import TARGETS

PRESETS = {
    preset["name"]: preset
    for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
}


def variables(name: str) -> dict[str, str]:
    preset = PRESETS[name]
    inherited = variables(preset["inherits"]) if "inherits" in preset else {}
    return inherited | preset.get("cacheVariables", {})


def test_each_target_has_a_preset() -> None:
    """Also iOS, which is built only with CMake and Xcode: test_ios.py."""
    shown = {name for name, preset in PRESETS.items() if not preset.get("hidden")}
    assert shown == {*TARGETS, "ios", "ios-simulator"}


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "host"])
def test_presets_match_table(name: str) -> None:
    target, chosen = TARGETS[name], variables(name)
    assert (chosen.get("TORCHETTE_PLATFORM") == "minimal") == (target.kind == "bare")
    if chosen["CMAKE_CXX_COMPILER"] == "zig":
        # with CMake's option for the target; otherwise CMake links a program to identify the compiler, and zig builds a
        # C library
        flags = ("-target", chosen["CMAKE_CXX_COMPILER_TARGET"], *chosen.get("CMAKE_CXX_FLAGS", "").split())
        assert chosen["CMAKE_CXX_COMPILER_ARG1"] == "c++" and flags == target.zig
    else:
        assert chosen["CMAKE_CXX_COMPILER"] in (f"{target.gcc}g++", f"{target.gcc}clang++")
        if name == "x86-64-windows":  # for all builds with mingw
            assert all(flag in (ROOT / "CMakeLists.txt").read_text() for flag in target.gcc_flags)
        else:
            assert chosen.get("CMAKE_CXX_FLAGS", "") == " ".join(target.gcc_flags)


def how_often(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """One target of each kind runs daily."""
    daily = ("aarch64-linux", "cortex-m4", "host", "wasm32-wasi", "x86-64-windows")
    return () if name in daily else (pytest.mark.gate,)


@pytest.mark.parametrize("name", [pytest.param(name, marks=how_often(name)) for name in TARGETS])
def test_presets_configure(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = variables(name).get("CMAKE_CXX_COMPILER", "c++")
    if compiler == "zig":
        ziglang = Path(pytest.importorskip("ziglang").__file__).parent
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ziglang}")
    if shutil.which("cmake") is None or shutil.which(compiler) is None:
        pytest.skip(f"no cmake, or no {compiler}")
    run("cmake", "--preset", name, "-B", tmp_path, "-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON", cwd=ROOT)
    cache = (tmp_path / "CMakeCache.txt").read_text()
    assert "TORCHETTE_BUILD_PYTHON:BOOL=OFF" in cache.replace(":STRING=", ":BOOL=").replace(
        ":UNINITIALIZED=", ":BOOL="
    )


def tools_without_python(folder: Path) -> str:
    """Returns a search path with all programs of the system except Python."""
    folder.mkdir()
    for directory in ("/usr/local/bin", "/usr/bin", "/bin"):
        for tool in Path(directory).iterdir():
            if not tool.name.startswith(("python", "pip", "py3")) and not (folder / tool.name).exists():
                (folder / tool.name).symlink_to(tool)
    return str(folder)


@pytest.mark.slow
def test_a_plain_build_and_ctest_need_no_python(tmp_path: Path) -> None:
    """docs/cpp.md: CMake with only a compiler; the C++ tests run unchanged."""
    path = tools_without_python(tmp_path / "bin")
    if shutil.which("ctest", path=path) is None or shutil.which("c++", path=path) is None:
        pytest.skip("the system has no CMake and C++ compiler")
    variables = {
        name: value
        for name, value in os.environ.items()
        if name == "HOME" or "CCACHE" in name or "LAUNCHER" in name
    }
    more = {"env": {**variables, "PATH": path}}
    # CMake also looks for Python outside the search path
    run("cmake", "-S", ROOT, "-B", tmp_path / "build", "-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON", **more)
    run("cmake", "--build", tmp_path / "build", "-j2", **more)
    printed = run("ctest", "--test-dir", tmp_path / "build", **more).stdout
    assert re.search(r"100% tests passed.* out of 2", printed)


@pytest.mark.slow
def test_windows_runs_the_tests_under_wine(tmp_path: Path) -> None:
    """The preset for Windows: the runtime's tests, and the program of docs/c.md with the shared library."""
    for tool in ("cmake", "ninja", "x86_64-w64-mingw32-g++", "wine"):
        if shutil.which(tool) is None:
            pytest.skip(f"./dev tools installs {tool}")
    options = ("-G", "Ninja", "-DTORCHETTE_BUILD_TESTS=ON", "-DTORCHETTE_ONE_LEVEL=ON")
    run("cmake", "--preset", "x86-64-windows", "-B", tmp_path, *options, cwd=ROOT)
    run("cmake", "--build", tmp_path)
    printed = run("ctest", "--test-dir", tmp_path).stdout
    assert re.search(r"100% tests passed.* out of 2", printed)
    model = torch.nn.Linear(4, 3).eval()
    torchette.compile(model, (torch.zeros(1, 4),)).save(tmp_path / "model.pte")
    page = (ROOT / "docs/c.md").read_text(encoding="utf-8")
    (tmp_path / "run.c").write_text(page.split("```c\n")[1].split("```")[0])
    strict = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}")
    program = tmp_path / "run.exe"
    run("x86_64-w64-mingw32-gcc", *strict, tmp_path / "run.c", f"-L{tmp_path}", "-ltorchette", "-o", program)
    scores = [float(line) for line in run("wine", program, tmp_path / "model.pte").stdout.split()]
    torch.testing.assert_close(torch.tensor([scores]), model(torch.ones(1, 4)), rtol=1e-4, atol=1e-5)
    assert "AccessFailed" in run("wine", program, "none.pte", status=1).stderr


# Options of ExecuTorch 1.5, except those that have an equivalent.
OPTIONS = re.findall(
    r"\w+",
    """
BUILD_ANDROID_JNI BUILD_ARM_BAREMETAL BUILD_ARM_ETHOSU_LINUX BUILD_CADENCE BUILD_CMSIS_NN_PYBINDS BUILD_COREAI
BUILD_COREML BUILD_CORTEX_M BUILD_CPUINFO BUILD_CUDA BUILD_DEVTOOLS BUILD_EXTENSION_APPLE BUILD_EXTENSION_ASR_RUNNER
BUILD_EXTENSION_DATA_LOADER BUILD_EXTENSION_ETDUMP_APPLE BUILD_EXTENSION_EVALUE_UTIL BUILD_EXTENSION_FLAT_TENSOR
BUILD_EXTENSION_IMAGE BUILD_EXTENSION_LLM BUILD_EXTENSION_LLM_APPLE BUILD_EXTENSION_MODULE
BUILD_EXTENSION_NAMED_DATA_MAP BUILD_EXTENSION_RUNNER_UTIL BUILD_EXTENSION_TENSOR BUILD_EXTENSION_TRAINING
BUILD_KERNELS_CUSTOM_AOT BUILD_KERNELS_LLM BUILD_KERNELS_LLM_AOT BUILD_KERNELS_OPTIMIZED BUILD_KERNELS_QUANTIZED
BUILD_KERNELS_QUANTIZED_AOT BUILD_METAL BUILD_MLX BUILD_NEURON BUILD_NXP_NEUTRON BUILD_NXP_NEUTRON_RUNNER
BUILD_OPENVINO BUILD_PORTABLE_OPS BUILD_PTHREADPOOL BUILD_QNN BUILD_ROCM BUILD_SHARED BUILD_SIZE_TEST
BUILD_TOKENIZERS_WASM BUILD_VGF BUILD_VULKAN BUILD_WASM BUILD_WEBGPU BUILD_WHEEL_DO_NOT_USE BUILD_XNNPACK
CADENCE_CPU_RUNNER COREML_BUILD_EXECUTOR_RUNNER ENABLE_BUNDLE_IO
ENABLE_PROGRAM_VERIFICATION FLATBUFFERS_MAX_ALIGNMENT METAL_COLLECT_STATS MLX_SWIFTPM_RESOURCES NNLIB_OPT
THREADPOOL_USE_ALL_LOGICAL_CORES
THREADPOOL_USE_PERFORMANCE_CORES USE_CPP_CODE_COVERAGE USE_DL XNNPACK_ENABLE_KLEIDI XNNPACK_ENABLE_WEIGHT_CACHE
XNNPACK_SHARED_WORKSPACE
""",
)


def test_executorch_options_have_effect_or_message(tmp_path: Path) -> None:
    """Each option has an effect, or CMake prints why not; none requires Python."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    expected = {
        "BUILD_EXTENSION_MODULE": "part of the library",
        "BUILD_EXTENSION_TRAINING": "torchette/extension/training",
        "BUILD_KERNELS_QUANTIZED": "part of the library",
        "BUILD_XNNPACK": "TORCHETTE_XNNPACK_DIR",
        "BUILD_QNN": "has no effect: there is no such backend",
        "BUILD_ANYTHING": "has no effect: the option is unknown",
    }
    names = {**expected, **dict.fromkeys(OPTIONS)}
    options = [f"-DEXECUTORCH_{name}=ON" for name in names]
    more = (
        "-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON",
        "-DEXECUTORCH_LOG_LEVEL=info",
        "-DEXECUTORCH_OPTIMIZE_SIZE=ON",
        "-DEXECUTORCH_BUILD_PORTABLE_OPS_TOO=OFF",
        "-DEXECUTORCH_BUILD_MPS=OFF",
        "-DMAX_KERNEL_NUM=3",
    )
    done = run("cmake", "-S", ROOT, "-B", tmp_path, *options, *more)
    output = " ".join(f"{done.stdout}\n{done.stderr}".split()).partition("Manually-specified")[0]
    lines = dict(re.findall(r"EXECUTORCH_(\w+):? ((?:(?!EXECUTORCH_|CMake Warning).)*)", output))
    assert {*names, "OPTIMIZE_SIZE", "BUILD_MPS", "BUILD_PORTABLE_OPS_TOO"} == set(lines)
    assert all(text in lines[name] for name, text in expected.items())
    without = [name for name, text in lines.items() if "option is unknown" in text]
    assert sorted(without) == ["BUILD_ANYTHING", "BUILD_PORTABLE_OPS_TOO"]
    assert "MAX_KERNEL_NUM has no effect" in done.stdout
    assert "BUILD_MPS has no effect" not in output  # MPS is never built
    failed = run("cmake", "-S", ROOT, "-B", tmp_path, "-DTORCHETTE_BUILD_PYTHON=ON", *more, status=1)
    assert "TORCHETTE_BUILD_PYTHON needs Python" in " ".join(failed.stderr.split())


def test_executorch_selective_build_writes_selection(tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()).eval()
    torchette.compile(model, (torch.zeros(1, 4),), backend="portable").save(tmp_path / "model.pte")
    (tmp_path / "ops.yaml").write_text(
        "- op: mul.out\n- func: my::own.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)\n"
    )

    def configured(*options: str, status: int = 0) -> str:
        more = ("-DTORCHETTE_BUILD_PYTHON=OFF", f"-DPython_EXECUTABLE={sys.executable}")
        done = run("cmake", "-S", ROOT, "-B", tmp_path / "build", *more, *options, status=status)
        return " ".join(done.stderr.split()) if status else (tmp_path / "build/selection.h").read_text()

    text = configured(
        f"-DEXECUTORCH_SELECT_OPS_MODEL={tmp_path / 'model.pte'}",
        "-DEXECUTORCH_SELECT_OPS_LIST=aten::add.out,aten::sub.out",
        f"-DEXECUTORCH_SELECT_OPS_YAML={tmp_path / 'ops.yaml'}",
    )
    (line,) = re.findall("#define TORCHETTE_SELECTED_OPERATORS (.*)", text)
    operators = set(re.findall('"(.*?)"', line))
    assert {"aten::add.out", "aten::sub.out", "aten::mul.out", "aten::tanh.out"} < operators
    assert "my::own.out" not in operators and len(operators) < 8
    assert "SELECTED_DTYPES" not in text
    text = configured("-DEXECUTORCH_ENABLE_DTYPE_SELECTIVE_BUILD=ON")
    assert re.search("SELECTED_DTYPES .*float32", text)
    assert "aten::ad.out" in configured("-DEXECUTORCH_SELECT_OPS_LIST=aten::ad.out", status=1)
    assert "TORCHETTE_SELECTION" in configured("-DTORCHETTE_SELECTION=other.h", status=1)


def test_custom_platform_replaces_default(tmp_path: Path) -> None:
    """EXECUTORCH_PAL_DEFAULT_FILE_PATH: the source replaces platform_posix.cpp."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    platform = tmp_path / "pal.cpp"
    platform.write_text("#include <executorch/runtime/platform/platform.h>\nvoid et_pal_init() {}\n")
    more = ("-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    run(
        "cmake", "-S", ROOT, "-B", tmp_path / "build", f"-DEXECUTORCH_PAL_DEFAULT_FILE_PATH={platform}", *more
    )
    commands = json.loads((tmp_path / "build/compile_commands.json").read_text())
    files = {entry["file"]: entry for entry in commands}
    assert not any(file.endswith("platform_posix.cpp") for file in files)
    run("sh", "-c", files[str(platform)]["command"], cwd=files[str(platform)]["directory"])
    missing = f"-DEXECUTORCH_PAL_DEFAULT_FILE_PATH={tmp_path / 'none.cpp'}"
    failed = run("cmake", "-S", ROOT, "-B", tmp_path / "other", missing, *more, status=1)
    assert "there is no file" in " ".join(failed.stderr.split())


def test_a_project_that_contains_the_sources_links_either_name(tmp_path: Path) -> None:
    """add_subdirectory(): generating fails if a target does not exist; options that a project sets also work."""
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    (tmp_path / "CMakeLists.txt").write_text(f"""
cmake_minimum_required(VERSION 3.20)
project(app LANGUAGES CXX)
set(EXECUTORCH_BUILD_COREML ON)
add_subdirectory({ROOT} torchette)
add_executable(theirs main.cpp)
target_link_libraries(theirs PRIVATE executorch executorch::backends executorch::extensions executorch::kernels)
add_executable(ours main.cpp)
target_link_libraries(ours PRIVATE torchette::torchette torchette::compat)
""")
    (tmp_path / "main.cpp").write_text("int main() {}\n")
    build = tmp_path / "build"
    options = ("-G", "Unix Makefiles", "-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON")
    done = run("cmake", "-S", tmp_path, "-B", build, *options)
    assert "EXECUTORCH_BUILD_COREML has no effect" in " ".join(done.stderr.split())
    for target in ("theirs", "ours"):
        linked = (build / f"CMakeFiles/{target}.dir/link.txt").read_text()
        compiled = (build / f"CMakeFiles/{target}.dir/flags.make").read_text()
        assert "libtorchette.a" in linked and "extension/compat" in compiled
