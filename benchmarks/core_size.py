# SPDX-License-Identifier: BSD-3-Clause
# In: the sources of the runtime's core. Out: bytes of code and memory per object, and of what the smallest useful
# program links of them, against the budget; with --kernels the same of all kernels together, for one instruction set.
# `./dev size` prints it, tests/runtime/test_core_size.py and tests/kernels/test_size.py hold it.
"""What the core, or every kernel, costs in a firmware image: compiled for size, without log messages, unwind tables or
symbols."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FLAGS = (
    *("-std=c++17", "-Os", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-unwind-tables"),
    *("-fno-asynchronous-unwind-tables", "-ffunction-sections", "-fdata-sections"),
    *("-DTORCHETTE_LOG_LEVEL=0", "-DNDEBUG"),
)
# Bytes on x86-64, of what the smallest program links: code, verification included; and memory that is always taken.
TEXT_BUDGET, STATIC_BUDGET = 16 * 1024, 256
# Bytes of code of all kernels together; a build links those that its models name.
KERNEL_BUDGET = 400_000
# These are not the core: the Python module, and the platforms but for the one without an operating system.
OUTSIDE = ("python.cpp", "platform_posix.cpp")


class Size(NamedTuple):
    """Bytes of an object or a program: code, constants, memory with a first value, zeroed memory."""

    name: str
    text: int
    rodata: int
    data: int
    bss: int

    @classmethod
    def of(cls, path: Path) -> Size:
        """The size of an object file or program, summed over its sections by kind."""
        table = subprocess.run(["size", "-A", path], check=True, capture_output=True, text=True).stdout
        found = dict.fromkeys(("text", "rodata", "data", "bss"), 0)
        for line in table.splitlines():
            name, _, rest = line.removeprefix(".").partition(" ")
            kind = name.split(".")[0]
            if kind in found:
                found[kind] += int(rest.split()[0])
        return cls(path.stem, **found)

    def minus(self, other: Size) -> Size:
        """This, less what the other one costs as well."""
        return Size(self.name, *(a - b for a, b in zip(self[1:], other[1:])))


class Measured(NamedTuple):
    """Each object of the core, and what the smallest program links of them."""

    objects: list[Size]
    linked: Size


def measure() -> Measured:
    """Compiles the core for size, links the smallest program with it, and reads the results.

    Raises:
        subprocess.CalledProcessError: a source does not compile or link.
    """
    sources = sorted((ROOT / "torchette" / "runtime").glob("*.cpp"))
    sources = [source for source in sources if source.name not in OUTSIDE]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_headers(folder / "torchette" / "schema")
        objects = [_compile(source, folder) for source in sources]
        (folder / "nothing.cpp").write_text("int main() {}\n")
        nothing = _link([_compile(folder / "nothing.cpp", folder)], folder / "nothing")
        smallest = _link(
            [*objects, _compile(ROOT / "benchmarks" / "smallest.cpp", folder)], folder / "smallest"
        )
        return Measured([Size.of(path) for path in objects], Size.of(smallest).minus(Size.of(nothing)))


def measure_kernels() -> list[Size]:
    """Compiles every file of kernels for size, for the compiler's default instruction set, and reads the results.

    Raises:
        subprocess.CalledProcessError: a source does not compile.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_headers(folder / "torchette" / "schema")
        sources = sorted((ROOT / "torchette" / "kernels").glob("*.cpp"))
        return [Size.of(_compile(source, folder)) for source in sources]


def _make_headers(folder: Path) -> None:
    folder.mkdir(parents=True)
    script = ROOT / "torchette" / "format" / "schema.py"
    for schema in sorted((ROOT / "torchette" / "schema").glob("*.fbs")):
        subprocess.run([sys.executable, script, schema, "--cpp", folder / f"{schema.stem}.h"], check=True)


def _compile(source: Path, folder: Path) -> Path:
    result = folder / f"{source.stem}.o"
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, *FLAGS, f"-I{ROOT}", f"-I{folder}", "-c", source, "-o", result], check=True)
    return result


def _link(objects: list[Path], result: Path) -> Path:
    subprocess.run([os.environ.get("CXX", "c++"), *objects, "-Wl,--gc-sections", "-o", result], check=True)
    return result


def fits(linked: Size) -> bool:
    """Whether the smallest program is within the budget."""
    return linked.text <= TEXT_BUDGET and linked.data + linked.bss <= STATIC_BUDGET


def _print(sizes: list[Size]) -> None:
    print(f"{'object':24}" + "".join(f"{column:>10}" for column in Size._fields[1:]))
    for size in sorted(sizes, key=lambda size: -size.text):
        print(f"{size.name:24}" + "".join(f"{count:10,}" for count in size[1:]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev size", description=__doc__)
    parser.add_argument("--kernels", action="store_true", help="of the kernels; takes half a minute")
    if parser.parse_args().kernels:
        sizes = measure_kernels()
        total = Size("together", *(sum(column) for column in zip(*(size[1:] for size in sizes), strict=True)))
        _print([*sizes, total])
        print(f"{'budget':24}{KERNEL_BUDGET:10,}")
        fit = total.text <= KERNEL_BUDGET
    else:
        objects, linked = measure()
        _print(objects)
        print(f"\nof these, the smallest useful program links ({linked.name}.cpp)")
        print(f"{linked.name:24}" + "".join(f"{count:10,}" for count in linked[1:]))
        print(f"{'budget':24}{TEXT_BUDGET:10,}{'':20}{STATIC_BUDGET:10,}  (data and bss together)")
        fit = fits(linked)
    if not fit:
        print("over budget", file=sys.stderr)
    return 0 if fit else 1


if __name__ == "__main__":
    sys.exit(main())
