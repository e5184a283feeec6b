# SPDX-License-Identifier: BSD-3-Clause
# In: C++ files with operators (torchette/extension/custom_op.h). Out: a shared library that torchette.load_library and
# C++ programs load.
"""Compiles custom operators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchette.build import library, toolchain
from torchette.build.sources import PACKAGE
from torchette.files import missing_file
from torchette.targets import find

# The parts of the core that kernels call; each library contains a copy.
_CORE = ("kernel_registry", "memory", "platform", "platform_posix", "tensor")


def core_sources() -> list[Path]:
    """Returns the sources that every library of operators contains."""
    return [
        *(PACKAGE / "runtime" / f"{name}.cpp" for name in _CORE),
        PACKAGE / "build" / "custom_library.cpp",
    ]


def build(
    sources: Sequence[Path],
    output: Path | None = None,
    *,
    compiler: str | None = None,
    report: toolchain.Report | None = None,
) -> Path:
    """Compiles and links the sources.

    Args:
        sources: C++ files.
        output: path of the library; by default ``lib<first source>.so`` in the current folder.
        compiler: see `toolchain.find_compiler`; by default `c++`, or else ziglang.
        report: called for each compiled object.

    Returns:
        The path of the library.

    Raises:
        ModelNotFoundError: a source does not exist.
        MissingCompilerError: there is no compiler.
        BuildError: the compiler or linker failed.
    """
    for source in sources:
        if not source.is_file():
            raise missing_file(source)
    output = output or Path(f"lib{sources[0].stem}.so")
    target = find("host")
    driver = toolchain.find_compiler(target, compiler)
    flags = (*library.flags(small=False), "-fPIC", "-DTORCHETTE_CUSTOM_LIBRARY")
    include = library.compat_folder()
    core = [toolchain.Unit(source, flags) for source in core_sources()]
    unit_flags = (*flags, *toolchain.FAST, *toolchain.KERNEL_FLAGS, f"-I{include}", "-Wall")
    units = [toolchain.Unit(source.resolve(), unit_flags) for source in sources]
    units += core
    objects = toolchain.compile_units(driver, units, report)
    output.parent.mkdir(parents=True, exist_ok=True)
    toolchain.link(driver, objects, output, ["-shared", "-fPIC", "-Wl,--gc-sections", "-Wl,-Bsymbolic", "-s"])
    return output
