# SPDX-License-Identifier: BSD-3-Clause
# In: the sources of the runtime's core. Out: bytes of code and memory per object and function, and of the functions that the
# smallest useful program links, compared with the budget; with --kernels the bytes of all kernels for one instruction set.
# `./dev size` prints them; tests/runtime/test_core_size.py and tests/kernels/test_size.py check them.
"""The size of the core, or of all kernels, in a firmware image: compiled for size, without log messages, tracing, unwind
tables or symbols."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from torchette.build import kernels

ROOT = Path(__file__).resolve().parents[1]
FLAGS = (
    *("-std=c++17", "-Os", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-unwind-tables"),
    *("-fno-asynchronous-unwind-tables", "-ffunction-sections", "-fdata-sections"),
    *("-DTORCHETTE_LOG_LEVEL=0", "-DTORCHETTE_EVENT_TRACER=0", "-DNDEBUG"),
)
# Bytes of code of all kernels together; a build links those that its models name. The engine's kernels are in kernels/engine.
KERNEL_BUDGETS = {"portable": 400_000, "engine": 190_000}
# Files outside of the core: the Python module, and the platforms except the one without an operating system.
OUTSIDE = ("python.cpp", "platform_posix.cpp")  # python.cpp is in older commits, for comparisons


class Target(NamedTuple):
    """A processor, the flags of its compiler, and the budget of the smallest program: bytes of the core's code, including
    verification, and of static memory."""

    name: str
    compiler: str
    linker: str
    binutils: str
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    text_budget: int
    static_budget: int
    packages: str  # of apt; they contain the compiler

    @property
    def missing(self) -> str:
        """Returns the command that installs the compiler; empty if the compiler is installed."""
        return "" if shutil.which(self.compiler) else f"apt-get install {self.packages}"


_CORTEX_M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-Wno-psabi")
HOST = Target(
    "x86-64", os.environ.get("CXX", "c++"), os.environ.get("CXX", "c++"), "", (), (), 16 * 1024, 256, "g++"
)
CORTEX_M4 = Target(
    "cortex-m4", "arm-none-eabi-g++", "arm-none-eabi-gcc", "arm-none-eabi-", _CORTEX_M4,
    (*_CORTEX_M4, "-specs=nano.specs", "-specs=nosys.specs", "-Wl,--no-warnings"), 10 * 1024, 256,
    "gcc-arm-none-eabi libnewlib-arm-none-eabi libstdc++-arm-none-eabi-dev",
)  # fmt: skip


class Size(NamedTuple):
    """Bytes of an object or a program: code, constants, initialized memory, zeroed memory."""

    name: str
    text: int
    rodata: int
    data: int
    bss: int

    @classmethod
    def of(cls, path: Path, target: Target = HOST) -> Size:
        """Returns the size of an object file or program: the sums over its sections by kind."""
        table = _output(f"{target.binutils}size", "-A", path)
        sizes = dict.fromkeys(("text", "rodata", "data", "bss"), 0)
        for line in table.splitlines():
            name, _, columns = line.removeprefix(".").partition(" ")
            kind = name.split(".")[0]
            if kind in sizes:
                sizes[kind] += int(columns.split()[0])
        return cls(path.stem, **sizes)

    def minus(self, other: Size) -> Size:
        """Returns the difference of two sizes."""
        return Size(self.name, *(a - b for a, b in zip(self[1:], other[1:])))


class Measured(NamedTuple):
    """The size of each object of the core, of the smallest program, of its functions by name, and of other libraries' functions."""

    objects: list[Size]
    linked: Size
    functions: dict[str, int]
    foreign: set[str]


def measure(target: Target = HOST, root: Path = ROOT) -> Measured:
    """Compiles the core of the checkout at `root` for size, links the smallest program with it, and reads the results.

    Raises:
        subprocess.CalledProcessError: a source does not compile or link.
    """
    sources = sorted((root / "torchette" / "runtime").glob("*.cpp"))
    sources = [source for source in sources if source.name not in OUTSIDE]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_headers(root, folder / "torchette" / "schema")
        objects = [_compile(source, folder, root, target) for source in sources]
        (folder / "nothing.cpp").write_text("int main() {}\n")
        nothing = _link([_compile(folder / "nothing.cpp", folder, root, target)], folder / "nothing", target)
        smallest = _compile(root / "benchmarks" / "smallest.cpp", folder, root, target)
        program = _link([*objects, smallest], folder / "smallest", target)
        functions, foreign = _functions(program, target)
        linked = Size.of(program, target).minus(Size.of(nothing, target))
        if target is not HOST:  # without the startup code of the C library
            linked = linked._replace(text=sum(functions.values()))
        return Measured([Size.of(path, target) for path in objects], linked, functions, foreign)


def measure_kernels() -> dict[str, list[Size]]:
    """Compiles every file of kernels for size, for the compiler's default instruction set, and reads the results.

    Raises:
        subprocess.CalledProcessError: a source does not compile.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_headers(ROOT, folder / "torchette" / "schema")
        sources = sorted((ROOT / "torchette" / "kernels").rglob("*.cpp"))
        families = "".join(f"X({family.name})" for family in kernels.families().values())
        target = HOST._replace(flags=(*HOST.flags, f"-DTORCHETTE_FAMILIES(X,ONCE)={families}"))
        sizes: dict[str, list[Size]] = {group: [] for group in KERNEL_BUDGETS}
        for source in sources:
            group = "engine" if source.parent.name == "engine" else "portable"
            sizes[group].append(Size.of(_compile(source, folder, ROOT, target)))
        return sizes


def _make_headers(root: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    script = root / "torchette" / "format" / "schema.py"
    for schema in sorted((root / "torchette" / "schema").glob("*.fbs")):
        subprocess.run([sys.executable, script, schema, "--cpp", folder / f"{schema.stem}.h"], check=True)


def _compile(source: Path, folder: Path, root: Path, target: Target) -> Path:
    result = folder / f"{source.stem}.o"
    flags = [*FLAGS, *target.flags, f"-I{root}", f"-I{folder}"]
    subprocess.run([target.compiler, *flags, "-c", source, "-o", result], check=True)
    return result


def _link(objects: list[Path], result: Path, target: Target) -> Path:
    subprocess.run(
        [target.linker, *objects, "-Wl,--gc-sections", *target.link_flags, "-o", result], check=True
    )
    return result


def _functions(program: Path, target: Target) -> tuple[dict[str, int], set[str]]:
    """Returns the bytes of the core's functions in the linked program, and the names of all others. Two names with one address are
    one function."""
    places: dict[str, tuple[str, int]] = {}
    foreign: set[str] = set()
    for line in _output(f"{target.binutils}nm", "-S", "-C", program).splitlines():
        words = line.split(None, 3)
        if len(words) < 4 or words[2] not in "tTwWu":
            foreign.add(words[-1])
        elif "torchette" in words[3]:
            places[words[0]] = words[3], int(words[1], 16)
        else:
            foreign.add(words[3])
    functions: dict[str, int] = {}
    for name, size in places.values():
        functions[name] = functions.get(name, 0) + size
    return functions, foreign


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def fits(linked: Size, target: Target = HOST) -> bool:
    """Returns whether the smallest program is within the budget."""
    return linked.text <= target.text_budget and linked.data + linked.bss <= target.static_budget


def _checkout(revision: str, folder: Path) -> bool:
    """Extracts the core at a revision into `folder`; returns False if there is no such revision."""
    paths = ("torchette/runtime", "torchette/extension", "torchette/schema", "torchette/format", "benchmarks")
    done = subprocess.run(["git", "-C", ROOT, "archive", revision, *paths], capture_output=True)
    if done.returncode != 0:
        return False
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder)
    return True


def _print(target: Target, now: Measured, before: Measured | None, symbols: bool) -> None:
    print(f"{target.name:24}" + "".join(f"{column:>10}" for column in Size._fields[1:]))
    old = {size.name: size for size in before.objects} if before else {}
    for size in [*sorted(now.objects, key=lambda size: -size.text), now.linked]:
        if size is now.linked:
            print(f"\nof these, the smallest useful program links ({size.name}.cpp)")
        reference = before.linked if before and size is now.linked else old.get(size.name)
        change = f"{size.text - reference.text:+10,}" if reference and size.text != reference.text else ""
        print(f"{size.name:24}" + "".join(f"{count:10,}" for count in size[1:]) + change)
    print(f"{'budget':24}{target.text_budget:10,}{'':20}{target.static_budget:10,}  (data and bss together)")
    for name, count in sorted(now.functions.items(), key=lambda item: -item[1]) if symbols else ():
        print(f"{count:8,}  {name}")
    if before is not None:
        changed = {
            name: now.functions.get(name, 0) - before.functions.get(name, 0)
            for name in {*now.functions, *before.functions}
        }
        for name, count in sorted(changed.items(), key=lambda item: -abs(item[1])):
            if count:
                print(f"{count:+8,}  {name}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev size", description=__doc__)
    parser.add_argument("--kernels", action="store_true", help="the size of the kernels; needs half a minute")
    parser.add_argument("--symbols", action="store_true", help="list the functions of the smallest program")
    parser.add_argument("--against", default="main", metavar="REVISION", help="the revision to compare with")
    options = parser.parse_args()
    good = _report_kernels() if options.kernels else _report_core(options.against, options.symbols)
    if not good:
        print("over budget", file=sys.stderr)
    return 0 if good else 1


def _report_kernels() -> bool:
    good = True
    for group, sizes in measure_kernels().items():
        total = Size("together", *(sum(column) for column in zip(*(size[1:] for size in sizes), strict=True)))
        print(f"{group:24}" + "".join(f"{column:>10}" for column in Size._fields[1:]))
        for size in sorted([*sizes, total], key=lambda size: -size.text):
            print(f"{size.name:24}" + "".join(f"{count:10,}" for count in size[1:]))
        print(f"{'budget':24}{KERNEL_BUDGETS[group]:10,}\n")
        good = good and total.text <= KERNEL_BUDGETS[group]
    return good


def _report_core(against: str, symbols: bool) -> bool:
    good = True
    with tempfile.TemporaryDirectory() as name:
        before = Path(name) if _checkout(against, Path(name)) else None
        print(f"differences to {against}" if before else f"no comparison: {against} is not a revision")
        for target in (HOST, CORTEX_M4):
            print()
            if target.missing:
                print(f"{target.name}: not measured, {target.missing}")
                continue
            now = measure(target)
            _print(target, now, measure(target, before) if before else None, symbols)
            good = good and fits(now.linked, target)
    return good


if __name__ == "__main__":
    sys.exit(main())
