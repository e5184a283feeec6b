# SPDX-License-Identifier: BSD-3-Clause
# Errors of `torchette build` before it compiles: targets, missing compilers, backends that a target does not support.

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from tests.building import BUILD, run
from torchette import cli, targets
from torchette.build import kernels, library, make, selection, sources, toolchain
from torchette.build.selection import Selection
from torchette.errors import BuildError, MissingCompilerError, TargetError
from torchette.packages import PACKAGES
from torchette.progress import Progress


def test_missing_compiler_error_names_package(monkeypatch: pytest.MonkeyPatch):
    arm = targets.find("cortex-m4")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingCompilerError, match=r"arm-none-eabi-g\+\+") as caught:
        toolchain.find_compiler(arm, "arm-none-eabi-")
    assert any("gcc-arm-none-eabi" in hint for hint in caught.value.hints)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ziglang" else find(name))
    with pytest.raises(MissingCompilerError, match="ziglang is not installed") as caught:
        toolchain.find_compiler(arm)
    assert PACKAGES["ziglang"].install in caught.value.hints


def test_android_requires_compiler_option():
    with pytest.raises(MissingCompilerError, match="NDK"):
        toolchain.find_compiler(targets.find("aarch64-android"))


def test_unavailable_backend_is_named():
    chosen = Selection(frozenset(), frozenset(), frozenset(["VulkanBackend"]))
    with pytest.raises(
        TargetError, match="the backend VulkanBackend, which a model uses, is not available for cortex-m4"
    ):
        library.backend_units(chosen, targets.find("cortex-m4"), ())
    assert library.portable_backends().keys() >= {"NullBackend", "XnnpackBackend"}


def test_compiler_output_is_in_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHETTE_CACHE", str(tmp_path))
    (tmp_path / "wrong.cpp").write_text("int main() { return nothing; }")
    try:
        driver = toolchain.find_compiler(targets.find("host"), "c++")
    except MissingCompilerError:
        pytest.skip("no C++ compiler")
    with pytest.raises(BuildError, match=r"(?s)wrong\.cpp cannot be compiled.*nothing"):
        toolchain.compile_units(driver, [toolchain.Unit(tmp_path / "wrong.cpp")])


def _appending(objects: list[str]) -> toolchain.Report:
    """Returns a report function that records the name of each compiled object."""

    def report(stage: str, name: str, done: int, total: int) -> None:
        if done:
            objects.append(name)

    return report


def test_object_is_compiled_again_only_if_inputs_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHETTE_CACHE", str(tmp_path / "cache"))
    try:
        driver = toolchain.find_compiler(targets.find("host"), "c++")
    except MissingCompilerError:
        pytest.skip("no C++ compiler")
    header, source = tmp_path / "number.h", tmp_path / "a source.cpp"
    header.write_text("#define NUMBER 1\n")
    source.write_text('#include "number.h"\nint number() { return NUMBER; }\n')
    objects: list[str] = []

    def compile_once(*flags: str) -> bytes:
        unit = toolchain.Unit(source, flags)
        (path,) = toolchain.compile_units(driver, [unit], _appending(objects))
        return path.read_bytes()

    first = compile_once()
    assert compile_once() == first and len(objects) == 1
    compile_once("-DOTHER")
    assert len(objects) == 2
    header.write_text("#define NUMBER 22\n")
    assert compile_once() != first and len(objects) == 3


def test_a_precompiled_header_changes_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects have the same bytes as without it, and a change of an included header compiles all of them again."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    driver = toolchain.find_compiler(targets.find("host"), "c++")
    inner, header = tmp_path / "number.h", tmp_path / "all.h"
    inner.write_text("#pragma once\n#define NUMBER 1\n")
    header.write_text('#include "number.h"\n')
    sources = [tmp_path / f"{name}.cpp" for name in ("one", "two", "three")]
    for source in sources:
        source.write_text(f'#include "number.h"\nint {source.stem}() {{ return NUMBER + ADDED; }}\n')
    precompiled: list[Path] = []
    precompile = toolchain._precompile
    monkeypatch.setattr(
        toolchain, "_precompile", lambda *args: precompiled.append(args[1]) or precompile(*args)
    )

    def objects(header: Path | None, cache: str) -> tuple[list[bytes], int]:
        monkeypatch.setenv("TORCHETTE_CACHE", str(tmp_path / cache))
        compiled_names: list[str] = []
        units = [toolchain.Unit(source, ("-O1",), ("-DADDED=1",), header) for source in sources]
        paths = toolchain.compile_units(driver, units, _appending(compiled_names))
        return [path.read_bytes() for path in paths], len(compiled_names)

    plain, _ = objects(None, "plain")
    assert objects(header, "precompiled") == (plain, 3) and precompiled == [header]
    assert objects(header, "precompiled") == (plain, 0) and precompiled == [header]
    inner.write_text("#pragma once\n#define NUMBER 2\n")
    changed, count = objects(header, "precompiled")
    assert count == 3 and changed == objects(None, "plain")[0] != plain


def test_a_compiler_cache_reads_the_same_commands_in_each_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher runs each compilation. Only temporary outputs differ; a folder that another process uses is not shared."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    log, launcher, cache = tmp_path / "log", tmp_path / "launcher", tmp_path / "cache"
    launcher.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("CMAKE_CXX_COMPILER_LAUNCHER", str(launcher))
    monkeypatch.setenv("TORCHETTE_CACHE", str(cache))
    (tmp_path / "all.h").write_text("#include <cstdint>\n")
    sources = [tmp_path / f"{name}.cpp" for name in ("one", "two", "three")]
    for source in sources:
        source.write_text(f"std::int64_t {source.stem}() {{ return 1; }}\n")
    units = [toolchain.Unit(source, ("-O1",), (), tmp_path / "all.h") for source in sources]
    driver = toolchain.find_compiler(targets.find("host"), "c++")

    def commands() -> list[str]:
        log.write_text("")
        shutil.rmtree(cache / "objects", ignore_errors=True)
        toolchain.compile_units(driver, units)
        return sorted(re.sub(r"-(MF|o) \S+", "", line) for line in log.read_text().splitlines())

    first = commands()
    assert len(first) == 4 and commands() == first and not list((cache / "precompiled").iterdir())
    with toolchain._folder_for(driver, tmp_path / "all.h", ("-O1",)) as used:
        assert commands() != first and not list(used.iterdir())


def test_build_shows_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The first build shows progress; the second one has nothing to compile."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("TORCHETTE_CACHE", str(tmp_path / "cache"))
    for name in ("one", "two"):
        (tmp_path / f"{name}.cpp").write_text(f"int {name}() {{ return 1; }}\n")
    sources = sorted(tmp_path.glob("*.cpp"))
    driver = toolchain.find_compiler(targets.find("host"), "c++")
    for lines in (["(0 of 2 done", "(1 of 2 done", "(2 of 2 done"], []):
        toolchain.compile_units(driver, [toolchain.Unit(path) for path in sources], Progress(interval=0))
        printed = capsys.readouterr().err.splitlines()
        assert [re.findall(r"\(\d of \d done", line) for line in printed] == [[line] for line in lines]
        assert all(line.startswith("compile: ") for line in printed)


@pytest.mark.parametrize("name", [name for name, header in targets.TARGETS.items() if header.kind == "linux"])
def test_programs_for_another_linux_are_static(name: str) -> None:
    """With any compiler; programs for this machine are dynamic."""
    for is_zig in (False, True):
        compiler = toolchain.Compiler(("c++",), ("c++",), ("ar",), "", is_zig, is_zig)
        assert ("-static" in make.link_flags(targets.find(name), compiler)) == (name != "host")


def test_targets_are_listed(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["build", "--list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in targets.TARGETS)
    assert cli.main(["build", "--target", "aarch64-linx", "-o", "x"]) == 2
    assert cli.main(["build", "--ops", "aten::ad.out", "-o", "x"]) == 2
    assert "did you mean aten::add.out" in capsys.readouterr().err


def test_selection_of_file(tmp_path: Path):
    torch = pytest.importorskip("torch")
    import torchette

    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.argmax(x @ x, 1)

    path = tmp_path / "net.pte"
    torchette.compile(Net().eval(), (torch.ones(3, 3),)).save(path)
    selected = selection.of_file(path)
    assert selected.operators == {"aten::mm.out", "aten::argmax.out"}
    assert selected.dtypes == {"float32", "int64"} and not selected.backends


def test_called_sources_are_compiled():
    chosen = Selection(frozenset(["aten::index_put.out"]), frozenset(["float32", "int64"]))
    units = library.kernel_units(targets.find("cortex-m4"), chosen, (), small=True)
    names = {unit.source.name for unit in units}
    assert {"index.cpp", "selection.cpp", "elementwise.cpp", "strided.cpp"} <= names
    assert not names & {"pool.cpp", "norm.cpp", "softmax.cpp", "fft.cpp", "recurrent.cpp"}


def test_included_headers_determine_called_sources():
    """For each kernel source, the included headers determine the sources that its object requires at link time."""
    archive, nm = BUILD / "libtorchette_kernels.a", shutil.which("nm")
    if nm is None or not archive.exists():
        pytest.skip("nm is not installed, or the runtime is not built")
    defined: dict[str, str] = {}
    undefined: dict[str, set[str]] = {}
    for line in run(nm, "-A", archive).stdout.splitlines():
        if match := re.match(r".*:([\w.]+)\.o: *\w* (\w) (\S+)$", line):
            source, kind, name = match.groups()
            if kind == "T":
                defined[name] = source
            elif kind == "U":
                undefined.setdefault(source, set()).add(name)
    assert len(undefined) > 50 and len(defined) > 50
    missing = {}
    for name in kernels.sources():
        source = Path(name).name
        if source != "table.cpp":
            called = {defined[symbol] for symbol in undefined.get(source, ()) if symbol in defined}
            known = {Path(path).name for path in kernels.closure([f"torchette/kernels/{name}"])}
            if called - known:
                missing[name] = called - known
    assert not missing, missing


def test_webassembly_excludes_thread_sources():
    """Its C++ library has no threads; a test of the gate builds it."""
    left: list[Path] = [unit.source for unit in library.extension_units(targets.find("wasm32-wasi"), ())]
    visited: set[Path] = set()
    while left:
        path = left.pop()
        visited.add(path)
        for name in re.findall(r"#include [<\"](.*)[>\"]", path.read_text(encoding="utf-8")):
            assert name not in ("mutex", "thread", "condition_variable", "future"), path.name
            if (sources.ROOT / name).is_file() and sources.ROOT / name not in visited:
                left.append(sources.ROOT / name)
    assert {"module.cpp", "file_data_loader.h", "method.h"} <= {path.name for path in visited}
    host = [unit.source.name for unit in library.extension_units(targets.find("host"), ())]
    assert {"kernel_threads.cpp", "method_threads.cpp", "parallel_method.cpp", "thread_pool.cpp"} == {
        *host
    } - {path.name for path in visited}
