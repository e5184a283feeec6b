# SPDX-License-Identifier: BSD-3-Clause
# In: C++ sources and a target. Out: objects, libraries and programs, compiled by ziglang or by another compiler.
# An object is compiled again only if its source, an included header, its flags or the compiler changed.
"""Compiles, archives and links for a target."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchette.build.sources import ROOT
from torchette.cache import cache_folder
from torchette.errors import BuildError, MissingCompilerError
from torchette.packages import PACKAGES
from torchette.targets import Target

# Flags of all code for firmware; CMakeLists.txt contains the same list.
DEVICE_FLAGS = (
    *("-std=c++17", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fvisibility=hidden"),
    *("-ffunction-sections", "-fdata-sections", "-w"),
)
# As in torchette/kernels/CMakeLists.txt, limited to flags that all compilers support.
FAST = ("-O2", "-ftree-vectorize")
# Windows headers define M_PI only with _USE_MATH_DEFINES.
KERNEL_FLAGS = (
    "-fwrapv",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-D_USE_MATH_DEFINES",
)

# Called at the start of a step with the stage, the step, and the numbers of finished and of all objects.
Report = Callable[[str, str, int, int], None]


@dataclass(frozen=True)
class Compiler:
    """A compiler for one target.

    Attributes:
        compile: the command that compiles C++ and C, with the target's flags.
        link: the command that links.
        archive: the command that makes a static library: ``archive rcs LIBRARY OBJECTS``.
        identity: its name and version.
        is_zig: whether it is ziglang.
        is_clang: whether it is Clang, as ziglang is.
    """

    compile: tuple[str, ...]
    link: tuple[str, ...]
    archive: tuple[str, ...]
    identity: str
    is_zig: bool
    is_clang: bool


def find_compiler(target: Target, named: str | None = None) -> Compiler:
    """Finds the compiler for a target.

    Args:
        target: the machine to build for.
        named: None for ziglang (on the host for `c++`, if installed); a prefix of GNU tools such as ``arm-none-eabi-``;
            or a command such as ``clang++ --target=aarch64-linux-gnu``.

    Raises:
        MissingCompilerError: it is not installed; the hints contain the command that installs it.
    """
    if named is None and target.name == "host" and shutil.which("c++"):
        named = ""
    if named is None:
        return _zig(target)
    words = shlex.split(f"{named}g++" if named.endswith("-") else named or "c++")
    path = shutil.which(words[0])
    if path is None:
        raise MissingCompilerError(
            f"the compiler {words[0]} is not installed",
            hints=[
                *_installs(target, words[0]),
                f"{PACKAGES['ziglang'].install} and omit --compiler, to use ziglang",
            ],
        )
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    prefix = words[0][: -len("g++")] if words[0].endswith("-g++") else ""
    archiver = f"{prefix}ar" if shutil.which(f"{prefix}ar") else "ar"
    command = (path, *words[1:], *(target.gcc_flags if not words[1:] else ()))
    first = version.splitlines()[0] if version else path
    return Compiler(command, command, (archiver,), first, False, "clang" in first)


def _installs(target: Target, program: str) -> list[str]:
    packages = {
        "arm-none-eabi-g++": "gcc-arm-none-eabi libnewlib-arm-none-eabi libstdc++-arm-none-eabi-dev",
        "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
        "arm-linux-gnueabihf-g++": "g++-arm-linux-gnueabihf",
        "riscv64-linux-gnu-g++": "g++-riscv64-linux-gnu",
        "x86_64-w64-mingw32-g++": "g++-mingw-w64-x86-64-posix",
    }
    if program in packages:
        return [f"apt install {packages[program]}"]
    return [] if not target.note else [f"{target.name} {target.note}"]


def _zig(target: Target) -> Compiler:
    if not target.zig and target.name != "host":
        raise MissingCompilerError(
            f"ziglang does not support {target.name}: {target.note}",
            hints=[f"pass a compiler: --compiler {target.gcc}"],
        )
    if importlib.util.find_spec("ziglang") is None:
        raise MissingCompilerError(
            f"no compiler for {target.name}: the package ziglang is not installed",
            hints=[PACKAGES["ziglang"].install, *_named(target)],
        )
    zig = (sys.executable, "-m", "ziglang")
    # Images and modules of web pages use no C++ library. The linker "c++" would compile one first, for 45 s; -lc++ adds
    # it.
    linker = "cc" if target.kind == "bare" or target.name == "wasm32-browser" else "c++"
    # -fno-sanitize: by default, zig traps on undefined behavior, which increases the code size
    flags = ("-fno-sanitize=all", "-fno-stack-protector")
    return Compiler(
        (*zig, "c++", *target.zig, *flags, "-g0"),
        (*zig, linker, *(target.zig_link or target.zig), *flags),
        (*zig, "ar"),
        f"ziglang {importlib.metadata.version('ziglang')}",
        True,
        True,
    )


def _named(target: Target) -> list[str]:
    return [f"pass a compiler: --compiler {target.gcc or 'c++'}"] if target.gcc is not None else []


@dataclass(frozen=True)
class Unit:
    """One source to compile.

    Attributes:
        source: the path of the source.
        flags: flags in addition to the target's.
        own_flags: further flags, which differ between units with the same precompiled header.
        precompiled: a header that is compiled once for all units with the same flags; None for none. It only saves
            time: the source includes the same headers.
    """

    source: Path
    flags: tuple[str, ...] = ()
    own_flags: tuple[str, ...] = ()
    precompiled: Path | None = None


@dataclass(frozen=True)
class _Precompiled:
    """A precompiled header: the folder that contains it, the flags that include it, and its source files."""

    folder: Path
    flags: tuple[str, ...]
    files: tuple[str, ...]


_NOT_PRECOMPILED = _Precompiled(Path(os.devnull), (), ())
# Compiling a header takes as long as parsing it for this many sources.
_MIN_UNITS = 3


@functools.cache
def _digest_at(path: str, size: int, time_ns: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _digest(path: str) -> str:
    """Returns the hash of a file's content; empty if the file does not exist."""
    try:
        status = os.stat(path)
        return _digest_at(path, status.st_size, status.st_mtime_ns)
    except OSError:
        return ""


def compile_units(compiler: Compiler, units: Sequence[Unit], report: Report | None = None) -> list[Path]:
    """Compiles units in parallel and returns their objects, in order.

    Raises:
        BuildError: the compiler failed; the message contains its output.
    """
    objects: list[Path | None] = [None] * len(units)
    missing = []
    for i, unit in enumerate(units):
        objects[i] = _cached_object(compiler, unit)
        if objects[i] is None:
            missing.append(i)
    # Large sources first, so that none runs alone at the end.
    missing.sort(key=lambda i: -units[i].source.stat().st_size)
    counts = Counter((units[i].precompiled, units[i].flags) for i in missing)
    with (
        contextlib.ExitStack() as folders,
        concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        # Submitted before the units that wait for them.
        headers: dict[tuple[Path | None, tuple[str, ...]], concurrent.futures.Future[_Precompiled]] = {}
        for (header, flags), count in counts.items():
            if header is not None and count >= _MIN_UNITS:
                folder = folders.enter_context(_folder_for(compiler, header, flags))
                headers[header, flags] = pool.submit(_precompile, compiler, header, flags, folder)
        running = {
            pool.submit(_compile, compiler, unit, headers.get((unit.precompiled, unit.flags))): i
            for i, unit in ((i, units[i]) for i in missing)
        }
        if report and missing:
            report("compile", f"{len(missing)} of {len(units)} sources", 0, len(missing))
        try:
            for done, future in enumerate(concurrent.futures.as_completed(running), 1):
                i = running[future]
                objects[i] = future.result()
                if report:
                    report("compile", units[i].source.name, done, len(missing))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [path for path in objects if path is not None]


# Objects do not depend on the path of the package (-ffile-prefix-map), so that other installations can reuse them.
_HERE = "<torchette>"


def _relocatable(text: str) -> str:
    return text.replace(str(ROOT), _HERE)


def _key(*words: str) -> str:
    return hashlib.sha256(_relocatable("\0".join(words)).encode()).hexdigest()[:32]


def _entry(compiler: Compiler, unit: Unit) -> Path:
    """Returns the path of the object; the .json file next to it lists its dependencies."""
    flags = (*compiler.compile[1:], *unit.flags, *unit.own_flags)
    key = _key(compiler.identity, *flags, str(unit.source), _digest(str(unit.source)))
    return cache_folder() / "objects" / key[:2] / f"{unit.source.stem}-{key}.o"


def _cached_object(compiler: Compiler, unit: Unit) -> Path | None:
    entry = _entry(compiler, unit)
    try:
        read = json.loads(entry.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = all(_digest(path.replace(_HERE, str(ROOT))) == digest for path, digest in read.items())
    return entry if same and entry.exists() else None


@contextlib.contextmanager
def _folder_for(compiler: Compiler, header: Path, flags: tuple[str, ...]) -> Iterator[Path]:
    """Yields an empty folder for a precompiled header. Its path is the same in each build, because a compiler cache compares
    the command line; it is another one while a second process compiles the same header."""
    key = _key(compiler.identity, *compiler.compile[1:], *flags, str(header))
    folder = cache_folder() / "precompiled" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        with tempfile.TemporaryDirectory() as other:
            yield Path(other)
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _launched(compiler: Compiler) -> list[str | Path]:
    """Returns the command that compiles, through a compiler cache if CMake's variable names one. ziglang has its own cache."""
    launcher = "" if compiler.is_zig else os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", "")
    return [*shlex.split(launcher), *compiler.compile]


def _precompile(compiler: Compiler, header: Path, flags: tuple[str, ...], folder: Path) -> _Precompiled:
    """Compiles a header to the folder, for the units with these flags."""
    rules = folder / "header.d"
    # For -include NAME, GCC loads NAME.gch if it was compiled with the same flags, and NAME otherwise.
    copy = folder / header.name
    copy.write_text(f'#include "{header}"\n', encoding="utf-8")
    precompiled = copy.with_suffix(".h.pch" if compiler.is_clang else ".h.gch")
    command = [*_launched(compiler), *flags, "-x", "c++-header", copy]
    command += ["-MD", "-MF", rules, "-o", precompiled]
    _run(command, f"{header.name} cannot be compiled")
    include = ("-include-pch", str(precompiled)) if compiler.is_clang else ("-include", str(copy))
    return _Precompiled(folder, include, tuple(_dependencies(rules, folder)))


def _dependencies(rules: Path, without: Path) -> list[str]:
    """Returns the files that the compiler read, except those in the folder `without`."""
    # Format: "object.o: a.cpp b.h \"; spaces in names are escaped with a backslash.
    names = shlex.split(rules.read_text(encoding="utf-8").partition(": ")[2].replace("\\\n", " "))
    return [name for name in names if without not in Path(name).parents]


def _compile(compiler: Compiler, unit: Unit, header: concurrent.futures.Future[_Precompiled] | None) -> Path:
    entry = _entry(compiler, unit)
    entry.parent.mkdir(parents=True, exist_ok=True)
    included = header.result() if header is not None else _NOT_PRECOMPILED
    with tempfile.TemporaryDirectory(dir=entry.parent) as folder:
        output, rules = Path(folder, "object.o"), Path(folder, "object.d")
        command = [*_launched(compiler), *included.flags, *unit.flags, *unit.own_flags]
        command += ["-MD", "-MF", rules, "-c", unit.source, "-o", output]
        _run(command, f"{unit.source.name} cannot be compiled")
        names = {*_dependencies(rules, included.folder), *included.files}
        entry.with_suffix(".json").write_text(
            json.dumps({_relocatable(name): _digest(name) for name in sorted(names)})
        )
        output.replace(entry)
    return entry


def archive(compiler: Compiler, objects: Sequence[Path], library: Path) -> None:
    """Creates a static library of the objects."""
    library.unlink(missing_ok=True)
    _run([*compiler.archive, "rcs", library, *objects], f"{library.name} cannot be created")


def link(
    compiler: Compiler, objects: Sequence[Path], program: Path, flags: Sequence[str | Path] = ()
) -> None:
    """Links a program without unreferenced sections.

    Raises:
        BuildError: the linker failed; the message contains its output.
    """
    _run([*compiler.link, *objects, *flags, "-o", program], f"{program.name} cannot be linked")


def _run(command: Sequence[str | Path], failure: str) -> None:
    # ccache compares the text of a precompiled header after preprocessing, which contains no macros; in this mode, it
    # compares the files that the compiler read.
    environment = {**os.environ, "CCACHE_DEPEND": "1"}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip()
        raise BuildError(
            f"{failure}: the compiler exited with code {done.returncode}\n{words[-3000:]}",
            where=[shlex.join(map(str, command))],
        )
