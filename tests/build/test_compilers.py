# SPDX-License-Identifier: BSD-3-Clause
# Compilers other than GCC and Clang: extensions to C++17 are in two headers, and the other branch of these headers
# compiles all sources, also for Windows, with the same results.

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from tests.building import CXX, ROOT, built, program, run

# Files in which extensions are allowed: the two headers; the C interface, which includes no other file; files that only
# GNU tools compile: firmware, WebAssembly, the weight packer of XNNPACK, the throughput measurement of the Python
# module.
PLACES = (
    *("torchette/runtime/compiler.h", "torchette/kernels/lanes.h", "torchette/extension/c_api.h"),
    *(
        "torchette/build/bare/",
        "torchette/build/web/",
        "torchette/llm/web/",
    ),
    "torchette/pybindings/limits/probe.cpp",
)
BEYOND = re.compile(
    r"__attribute__|__builtin_|vector_size|#\s*pragma (GCC|clang)|_Pragma|__typeof|__int128|__extension__|__declspec"
    r"|__forceinline|\b__asm"
)
SOURCES = sorted(
    path
    for folder in ("runtime", "kernels", "extension")
    for path in (ROOT / "torchette" / folder).rglob("*.cpp")
    if not {"aten", "llm"} & set(path.parts) and path.name != "platform_minimal.cpp"
)
# the sources with the most vector code, and those with code for Windows
SAMPLE = (
    *("kernels/engine/scaled_gemm.cpp", "kernels/engine/chain_program.cpp", "runtime/method_load.cpp"),
    *("runtime/platform_posix.cpp", "extension/open_file.cpp", "extension/mmap_data_loader.cpp"),
)
FLAGS = ("-std=c++17", "-fsyntax-only", "-pedantic-errors", "-DTORCHETTE_PLAIN", f"-I{ROOT}")


def beyond(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if BEYOND.search(line)]


def test_extensions_are_only_in_allowed_files() -> None:
    files = [path for pattern in ("*.cpp", "*.h", "*.def") for path in (ROOT / "torchette").rglob(pattern)]
    lines_by_file = {str(path.relative_to(ROOT)): beyond(path.read_text(encoding="utf-8")) for path in files}
    assert all(
        any(lines_by_file[name] for name in lines_by_file if name.startswith(place)) for place in PLACES
    )
    assert not {name: lines for name, lines in lines_by_file.items() if lines and not name.startswith(PLACES)}


def test_assembly_is_guarded() -> None:
    """`asm` is guarded by the macro of a processor that Microsoft's compiler does not define."""
    for path in (ROOT / "torchette").rglob("*.[ch]*"):
        name = str(path.relative_to(ROOT))
        if name.startswith(PLACES) or path.suffix not in (".cpp", ".h"):
            continue
        guards: list[str] = []
        for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            if line.startswith("#if"):
                guards.append(line)
            elif line.startswith(("#elif", "#else")):
                guards[-1] += line  # an #else branch has the guard of its #if
            elif line.startswith("#endif"):
                guards.pop()
            elif re.search(r"\basm( volatile)?\(", line):
                assert any(re.search(r"__(ARM|AVX|aarch64)|TORCHETTE_GNU|MAY_HAVE_", g) for g in guards), (
                    f"{name}: {line.strip()}"
                )


@pytest.fixture(scope="module")
def families() -> Path:
    built("torchette_core")
    return ROOT / "build" / "dev" / "generated"


def syntax(compiler: list[str], source: Path, generated: Path) -> None:
    run(*compiler, *FLAGS, f"-I{generated}", "-include", generated / "torchette/kernels/families.h", source)


def microsoft() -> list[str]:
    """Clang in Microsoft compatibility mode, with the Windows headers of ziglang."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("pip install ziglang")
    import sys

    import ziglang

    library = Path(ziglang.__file__).parent / "lib"
    headers = [
        library / name
        for name in ("libcxx/include", "libcxxabi/include", "include", "libc/include/any-windows-any")
    ]
    # the configuration of ziglang's C++ library
    defined = {
        "ABI_VERSION": 1,
        "ABI_NAMESPACE": "__1",
        "DISABLE_VISIBILITY_ANNOTATIONS": 1,
        **{
            f"HAS_{name}": 1
            for name in ("THREADS", "MONOTONIC_CLOCK", "TERMINAL", "FILESYSTEM", "RANDOM_DEVICE")
        },
        **{f"HAS_{name}": 1 for name in ("LOCALIZATION", "UNICODE", "WIDE_CHARACTERS")},
        "HAS_MUSL_LIBC": 0,
        "HAS_VENDOR_AVAILABILITY_ANNOTATIONS": 0,
        "HARDENING_MODE": "_LIBCPP_HARDENING_MODE_NONE",
        "ASSERTION_SEMANTIC_DEFAULT": "_LIBCPP_ASSERTION_SEMANTIC_IGNORE",
    }
    return [
        *(
            sys.executable,
            "-m",
            "ziglang",
            "clang",
            "--target=x86_64-pc-windows-gnu",
            "-nostdinc",
            "-nostdinc++",
        ),
        *("-fms-extensions", "-fms-compatibility", "-fms-compatibility-version=19.40", "-fgnuc-version=14.2"),
        *(f"-D_LIBCPP_{name}={value}" for name, value in defined.items()),
        *(word for folder in headers for word in ("-isystem", str(folder))),
    ]


@pytest.mark.gate
@pytest.mark.parametrize("name", SAMPLE)
def test_sources_compile_without_extensions(name: str, families: Path) -> None:
    assert ROOT / "torchette" / name in SOURCES
    syntax(microsoft(), ROOT / "torchette" / name, families)


@pytest.mark.parametrize(
    "name", ["kernels/engine/scaled_gemm.cpp", pytest.param(None, id="all", marks=pytest.mark.slow)]
)
def test_clang_compiles_all_sources(name: str | None, families: Path) -> None:
    """ziglang is a Clang, and the compiler for other machines."""
    if shutil.which("clang++") is None:
        pytest.skip("./dev tools installs clang++")
    table = families / "torchette" / "kernels" / "families.h"
    for source in [ROOT / "torchette" / name] if name else SOURCES:
        if name or "_WIN32" not in source.read_text(encoding="utf-8"):
            run(
                "clang++",
                "-std=c++17",
                "-fsyntax-only",
                "-w",
                f"-I{ROOT}",
                f"-I{families}",
                "-include",
                table,
                source,
            )


@pytest.mark.slow
def test_all_sources_compile_without_extensions(families: Path) -> None:
    for source in SOURCES:
        syntax(microsoft(), source, families)
        if "_WIN32" not in source.read_text(encoding="utf-8"):
            syntax([CXX], source, families)


def test_structures_compute_as_vectors_do(tmp_path: Path) -> None:
    flags = ("-std=c++17", "-O1", "-fwrapv", "-ffp-contract=off", f"-I{ROOT}")
    source = ROOT / "tests" / "kernels" / "print_lanes.cpp"
    vectors = program(tmp_path / "vectors", [source], *flags, "-DEXPECTED_GNU=1")
    structures = program(tmp_path / "structures", [source], *flags, "-DEXPECTED_GNU=0", "-DTORCHETTE_PLAIN")
    printed = run(vectors).stdout
    assert len(printed.splitlines()) > 100
    assert run(structures).stdout == printed
