# SPDX-License-Identifier: BSD-3-Clause
# The C++ core: its tests and mutated files with sanitizers. Its objects need no heap, exceptions or start-up code.

from __future__ import annotations

import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.building import BUILD, CXX, LAUNCHER, ROOT, built, program, run
from tests.runtime.fields import fields
from tests.runtime.make_program import build, bundle
from tests.runtime.make_program import external as external_files

RUNTIME = ROOT / "torchette/runtime"
PROGRAM = ROOT / "tests/runtime/one_of_everything.pte"

MUTATIONS = int(os.environ.get("TORCHETTE_MUTATIONS", "50000"))

# Functions of a C library without heap and files, and functions that any compiler may call.
ALLOWED = {"memcpy", "memmove", "memset", "memcmp", "strlen", "strcmp", "strncmp"}

# Sources of the extension for .ptd files and bundled programs, and their dependencies.
HEAPLESS = ("flat_tensor", "bundled_program", "element", "etdump", "data_sink")

pytestmark = pytest.mark.skipif(shutil.which(CXX) is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def sanitized() -> Path:
    """The build folder of the C++ tests."""
    return built("torchette_core_tests", "torchette_mutate", tree="asan").parent


def test_stored_program_equals_script_output() -> None:
    """The stored file lets the C++ tests run without Python. The script writes it again after a change of the format."""
    assert build() == PROGRAM.read_bytes(), f"python tests/runtime/make_program.py {PROGRAM}"


@pytest.mark.safety
@pytest.mark.xdist_group("sanitized")
def test_cpp(sanitized: Path) -> None:
    output = run(sanitized / "torchette_core_tests", PROGRAM).stdout
    assert re.search(r"\d{3,} checks, 0 failures", output)


@pytest.mark.safety
@pytest.mark.xdist_group("sanitized")
def test_mutated_files_cause_no_undefined_behaviour(sanitized: Path, tmp_path: Path) -> None:
    """Mutates a program, a program with its weights in a data file, that data file, and a bundled program."""
    program = build()
    external, data = external_files()
    contents = {"program": program, "external": external, "data": data, "bundle": bundle(program)}
    for name, mutations, extra_args in (
        ("program", MUTATIONS, ()),
        ("external", MUTATIONS // 5, (tmp_path / "data",)),
        ("data", MUTATIONS // 5, (tmp_path / "external",)),
        ("bundle", MUTATIONS // 5, ()),
    ):
        for file, content in contents.items():
            (tmp_path / file).write_bytes(content)
        field_list = tmp_path / "fields"
        field_list.write_text(fields(contents[name]))
        output = run(
            sanitized / "torchette_mutate", tmp_path / name, str(mutations), "7", field_list, *extra_args
        ).stdout
        counts = {end: int(count) for count, end in re.findall(r"(\d+) ([a-z ]+)", output)[:4]}
        # the test is weak unless all outcomes occur
        ends = ["not opened", "not loaded", "ran", *(["failed"] if name == "program" else [])]
        assert min(counts[end] for end in ends) > 100, (name, counts)


def test_build_without_tracing_refuses_tracer(tmp_path: Path) -> None:
    """It also cannot be linked with a program that traces. Without sanitizers, so the C++ tests run daily."""
    sources = [path for path in RUNTIME.glob("*.cpp") if path.stem != "platform_minimal"]
    extension = [ROOT / f"torchette/extension/{name}.cpp" for name in ("file_data_loader", "open_file")]
    extension.append(ROOT / "torchette/extension/mmap_data_loader.cpp")
    tests = sorted((ROOT / "tests/runtime").glob("*_test.cpp"))
    includes = [f"-I{folder}" for folder in (ROOT, BUILD / "generated", ROOT / "tests/runtime")]
    flags = ["-std=c++17", "-O0", "-DTORCHETTE_EVENT_TRACER=0", *includes]
    program(tmp_path / "tests", [*sources, *extension, *tests], *flags, link=["-lpthread"])
    assert " 0 failures" in run(tmp_path / "tests", PROGRAM).stdout
    run(*LAUNCHER, CXX, *flags, "-c", ROOT / "benchmarks/smallest.cpp", "-o", tmp_path / "untraced.o")
    names = run("nm", "-C", tmp_path / "untraced.o").stdout
    assert (
        "U torchette::Program::load(char const*, torchette::MemoryManager*, torchette::NamedDataMap const*) const"
        in names
    )


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The core, and the readers of untrusted files, compiled as for a microcontroller: for size, without logging, with the platform layer without libc."""
    folder = tmp_path_factory.mktemp("objects")
    for name in ("program", "flat_tensor", "bundled_program", "etdump"):
        run(
            *(sys.executable, ROOT / "torchette/format/schema.py", ROOT / f"torchette/schema/{name}.fbs"),
            *("--cpp", folder / f"torchette/schema/{name}.h"),
        )
    skipped = re.compile(r"platform_(?!minimal)")
    sources = [path for path in sorted(RUNTIME.glob("*.cpp")) if not skipped.match(path.stem)]
    sources += [ROOT / f"torchette/extension/{name}.cpp" for name in HEAPLESS]

    def compiled(source: Path) -> Path:
        target = folder / f"{source.stem}.o"
        run(
            *(*LAUNCHER, CXX, "-std=c++17", "-Os", "-DTORCHETTE_LOG_LEVEL=0", "-fno-exceptions", "-fno-rtti"),
            *(
                "-fno-asynchronous-unwind-tables",
                "-fno-threadsafe-statics",
                "-ffunction-sections",
                "-fdata-sections",
            ),
            *("-Wall", "-Wextra", "-Werror", "-I", ROOT, "-I", folder, "-c", source, "-o", target),
        )
        return target

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compiled, sources))


def test_objects_need_no_heap_and_no_cpp_library(objects: list[Path]) -> None:
    defined: set[str] = set()
    needed: set[str] = set()
    for line in run("nm", *objects).stdout.splitlines():
        if match := re.match(r"[0-9a-f ]{16} (\w) (\S+)", line):
            kind, name = match.groups()
            (needed if kind in "Uw" else defined).add(name)
    foreign = needed - defined - {"_GLOBAL_OFFSET_TABLE_"}
    foreign = {name for name in foreign if "kernel_table" not in name}  # defined with the kernels
    assert foreign <= ALLOWED, sorted(foreign - ALLOWED)
    assert not [name for name in defined | needed if name.startswith(("_ZTI", "_ZTS", "__cxa"))]
    sections = run("objdump", "-h", *objects).stdout
    assert ".init_array" not in sections and ".ctors" not in sections


def test_objects_without_logging_hold_no_messages(objects: list[Path]) -> None:
    for path in objects:
        assert b"is outside" not in path.read_bytes()
