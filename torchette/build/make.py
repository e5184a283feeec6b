# SPDX-License-Identifier: BSD-3-Clause
# In: a target, and the requirements of its models. Out: a folder with a static library, headers, a CMake package and
# toolchain file, and, on targets with files, a program that runs models.
"""Builds the runtime for a target into one folder: `make`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from torchette.build import footprint, library, toolchain
from torchette.build.bare.image import bare_flags
from torchette.build.selection import Selection
from torchette.targets import Target

P = ParamSpec("P")
T = TypeVar("T")

# Flags that drop unreferenced sections, by kind of target; Apple's linker has another flag.
_GC = {"aarch64-macos": ("-Wl,-dead_strip",)}


@dataclass(frozen=True)
class BuildResult:
    """Result of `make`.

    Attributes:
        files: the main files of the folder, by kind: "library", "headers", "runner", "selection", "toolchain".
        footprint: size of each kernel; None if the objects are not ELF files.
        loaded: bytes of the runner by kind; None if it is not an ELF file, or there is none.
    """

    files: dict[str, Path]
    footprint: footprint.Footprint | None
    loaded: dict[str, int] | None


def make(
    target: Target,
    selection: Selection,
    folder: Path,
    *,
    compiler: str | None = None,
    small: bool | None = None,
    log_level: int = 2,
    llm: bool = False,
    report: toolchain.Report | None = None,
) -> BuildResult:
    """Builds the runtime with the selected kernels for `target` into `folder`.

    Args:
        target: the machine.
        selection: operators, dtypes and backends to keep.
        folder: the output folder; created if it does not exist.
        compiler: as for `toolchain.find_compiler`.
        small: optimize for size; by default only without an operating system.
        log_level: as TORCHETTE_LOG_LEVEL: 0 keeps no messages, 4 all.
        llm: also build libtorchette_llm.a with tokenizers and language models.
        report: called for each compiled object, and before a program is linked.

    Raises:
        MissingCompilerError: there is no compiler for the target.
        TargetError: the target does not support a backend in the selection.
        BuildError: the compiler or linker failed.
    """
    driver = toolchain.find_compiler(target, compiler)
    if driver.is_zig:  # its library cannot detect features of the processor
        target = dataclasses.replace(target, levels=False)
    small = target.kind in ("bare", "wasm") if small is None else small
    bare = target.kind == "bare"
    tracing = target.kind not in ("bare", "wasm")
    common = (
        bare_flags(log_level, small=small)
        if bare
        else library.flags(small=small, log_level=log_level, tracing=tracing)
    )
    units = library.units(target, selection, "minimal" if bare else "posix", common, small=small)
    runner = [] if bare else library.runner_units(common)
    objects = toolchain.compile_units(driver, units + runner, report)
    files = {"library": folder / "lib" / "libtorchette.a", "headers": folder / "include"}
    files["library"].parent.mkdir(parents=True, exist_ok=True)
    toolchain.archive(driver, objects[: len(units)], files["library"])
    library.write_headers(files["headers"], bare=bare, llm=llm)
    if llm:
        files["language models"] = files["library"].with_name("libtorchette_llm.a")
        llm_objects = toolchain.compile_units(driver, library.llm_units(common), report)
        toolchain.archive(driver, llm_objects, files["language models"])
    files["selection"] = folder / "selection.h"
    files["selection"].write_text(selection.header(), encoding="utf-8")
    files["toolchain"] = folder / "toolchain.cmake"
    files["toolchain"].write_text(_toolchain_file(target, driver), encoding="utf-8")
    package = folder / "lib" / "cmake" / "torchette" / "torchetteConfig.cmake"
    package.parent.mkdir(parents=True, exist_ok=True)
    package.write_text(_cmake_package(log_level, tracing), encoding="utf-8")
    loaded = None
    if runner:
        suffix = {"x86-64-windows": ".exe", "wasm32-wasi": ".wasm"}.get(target.name, "")
        program = files["runner"] = folder / "bin" / f"executor_runner{suffix}"
        program.parent.mkdir(parents=True, exist_ok=True)
        if report:
            report("link", program.name, 0, 0)
        toolchain.link(driver, objects, program, link_flags(target, driver))
        loaded = _or_none(footprint.loaded_bytes, program)
    return BuildResult(files, _or_none(footprint.measure, objects, "main"), loaded)


def link_flags(target: Target, driver: toolchain.Compiler) -> Sequence[str]:
    """Returns the link flags of a program; static for other machines, which may lack the libraries."""
    flags = [*_GC.get(target.name, ("-Wl,--gc-sections",)), "-s"]
    is_windows_gcc = target.name == "x86-64-windows" and not driver.is_zig
    is_static = is_windows_gcc or (target.kind == "linux" and target.name != "host")
    return [*flags, "-static"] if is_static else flags


def _or_none(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Returns the function's value, or None if it cannot read files of this kind."""
    try:
        return function(*args, **kwargs)
    except ValueError:
        return None


def _toolchain_file(target: Target, driver: toolchain.Compiler) -> str:
    """Returns a CMake toolchain file for projects that link the library."""
    system = {"bare": "Generic", "wasm": "WASI"}.get(target.kind, "Linux")
    system = {"aarch64-macos": "Darwin", "x86-64-windows": "Windows", "aarch64-android": "Android"}.get(
        target.name, system
    )
    command = ";".join(driver.compile)
    c_command = ";".join(
        "cc" if word == "c++" else word.removesuffix("g++") + "gcc" if word.endswith("g++") else word
        for word in driver.compile
    )
    lines = [
        f"# The compiler of {target.name}; written by torchette build.",
        *([f"set(CMAKE_SYSTEM_NAME {system})"] if target.name != "host" else []),
        f'set(CMAKE_CXX_COMPILER "{command}")',
        f'set(CMAKE_C_COMPILER "{c_command}")',
        f'set(CMAKE_AR "{_script(driver.archive)}")' if len(driver.archive) == 1 else "",
        "set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)" if target.kind == "bare" else "",
    ]
    if target.emulator:
        # A program of the project may load shared libraries of the GNU compiler, which Debian installs here.
        libraries = Path("/usr", (target.gcc or "").removesuffix("-"), "lib")
        where = ("-L", str(libraries.parent)) if target.kind == "linux" and libraries.is_dir() else ()
        emulator = (*target.emulator, *(() if driver.is_zig else where))
        lines.append(f'set(CMAKE_CROSSCOMPILING_EMULATOR "{";".join(emulator)}")')
    return "\n".join(line for line in lines if line) + "\n"


def _script(words: Sequence[str]) -> str:
    return ";".join(words)


def _cmake_package(log_level: int, tracing: bool) -> str:
    return f"""# find_package(torchette) for this build; written by torchette build.
if(NOT TARGET torchette::torchette)
  get_filename_component(torchette_folder "${{CMAKE_CURRENT_LIST_DIR}}/../../.." ABSOLUTE)
  add_library(torchette::torchette STATIC IMPORTED)
  set_target_properties(torchette::torchette PROPERTIES
    IMPORTED_LOCATION "${{torchette_folder}}/lib/libtorchette.a"
    INTERFACE_INCLUDE_DIRECTORIES "${{torchette_folder}}/include"
    INTERFACE_COMPILE_DEFINITIONS "TORCHETTE_LOG_LEVEL={log_level};TORCHETTE_EVENT_TRACER={int(tracing)}"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
endif()
"""
