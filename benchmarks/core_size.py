# SPDX-License-Identifier: BSD-3-Clause
# In: the sources of the runtime's core. Out: bytes of text, data and bss per object, against the budget below.
# `./dev size` prints it, tests/runtime/test_core_size.py holds it.
"""What the core costs in a firmware image: compiled for size, without log messages, unwind tables or symbols."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FLAGS = [
    "-std=c++17",
    "-Os",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
    "-ffunction-sections",
    "-fdata-sections",
    "-DTORCHETTE_LOG_LEVEL=0",
    "-DNDEBUG",
]
# Bytes of the whole core on x86-64, verification included; static memory is what it has in data and bss.
TEXT_BUDGET, STATIC_BUDGET = 16 * 1024, 256
# These are not the core: the Python module, and the platform, which a board brings along.
OUTSIDE = ("python", "platform_")


class Size(NamedTuple):
    """Bytes of one object file; text includes constants."""

    name: str
    text: int
    data: int
    bss: int


def core_sources() -> list[Path]:
    return [
        path
        for path in sorted((ROOT / "torchette" / "runtime").glob("*.cpp"))
        if not path.name.startswith(OUTSIDE)
    ]


def measure(compiler: str = "c++", size: str = "size") -> list[Size]:
    """Compiles each source of the core for size and reads its object.

    Raises:
        subprocess.CalledProcessError: a source does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        generated = Path(folder, "torchette", "schema")
        generated.mkdir(parents=True)
        for schema in sorted((ROOT / "torchette" / "schema").glob("*.fbs")):
            header = generated / f"{schema.stem}.h"
            script = ROOT / "torchette" / "format" / "schema.py"
            subprocess.run([sys.executable, script, schema, "--cpp", header], check=True)
        objects = []
        for source in core_sources():
            objects.append(Path(folder, f"{source.stem}.o"))
            subprocess.run(
                [compiler, *FLAGS, f"-I{ROOT}", f"-I{folder}", "-c", source, "-o", objects[-1]], check=True
            )
        table = subprocess.run([size, *objects], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in table.splitlines()[1:]]
    return [Size(Path(row[5]).stem, *map(int, row[:3])) for row in rows]


def total(sizes: list[Size]) -> Size:
    return Size("core", *(sum(size[i] for size in sizes) for i in (1, 2, 3)))


def main() -> int:
    argparse.ArgumentParser(prog="./dev size", description=__doc__).parse_args()
    sizes = measure(os.environ.get("CXX", "c++"))
    whole = total(sizes)
    print(f"{'object':24}{'text':>8}{'data':>8}{'bss':>8}")
    for size in [*sorted(sizes, key=lambda size: -size.text), whole]:
        print(f"{size.name:24}{size.text:8,}{size.data:8,}{size.bss:8,}")
    print(f"{'budget':24}{TEXT_BUDGET:8,}{'':8}{STATIC_BUDGET:8,}  (data and bss together)")
    fits = whole.text <= TEXT_BUDGET and whole.data + whole.bss <= STATIC_BUDGET
    if not fits:
        print("over budget", file=sys.stderr)
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
