# SPDX-License-Identifier: BSD-3-Clause
# Requirements of the core, from the symbols of its objects: compiled for a processor without floating point, it calls
# only seven functions of memory and text, and the platform functions.

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import core_size
from tests.building import LAUNCHER
from torchette.build import library

COMPILER = "arm-none-eabi-g++"
SOFT = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=soft", "-Wno-psabi")
ALLOWED = {"memcmp", "memcpy", "memmove", "memset", "strcmp", "strlen", "strncmp"}

pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason=f"apt install {core_size.CORTEX_M4.packages}"
)


def undefined(source: Path, folder: Path) -> set[str]:
    """Returns the undefined symbols of an object, except C++ functions of the runtime and platform functions."""
    object_file = folder / f"{source.stem}.o"
    include = [f"-I{core_size.ROOT}", f"-I{library.generated_folder()}"]
    subprocess.run(
        [*LAUNCHER, COMPILER, *core_size.FLAGS, *SOFT, *include, "-c", source, "-o", object_file], check=True
    )
    text = subprocess.run(
        ["arm-none-eabi-nm", "-u", object_file], check=True, capture_output=True, text=True
    ).stdout
    names = {line.split()[-1] for line in text.splitlines()}
    return {
        name for name in names if not name.startswith(("_ZN9torchette", "_ZNK9torchette", "torchette_pal_"))
    }


def test_the_core_needs_no_floating_point_no_long_division_no_heap_no_files(tmp_path: Path) -> None:
    sources = [
        path
        for path in (core_size.ROOT / "torchette" / "runtime").glob("*.cpp")
        if path.name not in core_size.OUTSIDE
    ]
    symbols = {source.name: undefined(source, tmp_path) for source in sources}
    assert {"method.cpp", "method_load.cpp", "program.cpp", "platform_minimal.cpp"} <= symbols.keys()
    assert not {name: sorted(names - ALLOWED) for name, names in symbols.items() if names - ALLOWED}


def test_check_detects_forbidden_symbols(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cpp"
    source.write_text(
        "#include <cstdio>\n#include <cstdint>\n#include <cstdlib>\n"
        "float product(float a, float b) { return a * b; }\n"
        "int64_t quotient(int64_t a, int64_t b) { return a / b; }\n"
        'void* open() { return malloc(fopen("a", "r") != nullptr); }\n'
    )
    assert undefined(source, tmp_path) == {"__aeabi_fmul", "__aeabi_ldivmod", "fopen", "malloc"}
