# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file and a target. Out: C sources with the program in constant memory, and static pools of exactly the
# sizes that its methods require there.
"""Converts a .pte file to C: `embed` writes NAME.h, NAME.c and NAME.hpp.

The .h and .c files are C99 and C++17 and do not depend on the runtime. The .hpp file defines allocators for the pools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torchette.devtools.device_memory import Bill, bills
from torchette.errors import InputError
from torchette.format import pte

# Alignment of pools and of the program, in bytes.
ALIGNMENT = {"program": 16, "planned": 16, "method": 16, "temp": 64, "dynamic": 16}


def embed(
    source: str | Path,
    folder: str | Path,
    *,
    name: str | None = None,
    target: str = "native",
    temp: str | int = "most",
    dynamic: int | None = None,
    sections: Mapping[str, str] | None = None,
    incbin: bool = False,
) -> list[Path]:
    """Writes the C sources of a program.

    Args:
        source: path of a .pte file.
        folder: folder for the sources; created if it does not exist.
        name: base name of the files and prefix of every symbol; by default that of the .pte file.
        target: see `torchette.targets.processor`.
        temp: bytes of the temp pool; "most", with which every scratch request succeeds, or "least", with which all
            kernels still run.
        dynamic: bytes of the pool of tensors with sizes that are known only at run time; None for the maximum sizes.
        sections: pool (program, method, temp, dynamic, planned_1, planned_2, ...) -> section of the linker script.
        incbin: let the assembler read the program from a copy of the file, for programs of many megabytes. Requires a
            GNU assembler for ELF.

    Returns:
        The paths of the written files.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is damaged.
        InputError: the target or the pool of a section is unknown, or the temp or dynamic memory cannot be determined.
    """
    source, folder = Path(source), Path(folder)
    file = pte.load_file(source)
    prefix = identifier(name or source.stem)
    methods = list(
        zip(distinct_names(file), bills(file, target, temp=not isinstance(temp, int)), strict=True)
    )
    pools = {"program", "method", "temp"}
    pools |= {"dynamic" for _, bill in methods if bill.dynamic != 0}
    pools |= {f"planned_{i}" for _, bill in methods for i in range(1, 1 + len(bill.planned))}
    if unknown := (sections or {}).keys() - pools:
        raise InputError(f"unknown pool {sorted(unknown)[0]!r}", hints=[f"pools: {', '.join(sorted(pools))}"])
    writer = _Writer(prefix, dict(sections or {}), len(file.buffer))
    for method, bill in methods:
        writer.add(method, bill, _temp(bill, temp), _dynamic(bill, dynamic))
    about = f"/* {prefix}: a program of Torchette for {target}, written by `torchette embed`. */\n"
    texts = {f"{prefix}.h": about + writer.header(), f"{prefix}.hpp": about.replace(" */", ", in C++. */")}
    texts[f"{prefix}.hpp"] += writer.cpp()
    folder.mkdir(parents=True, exist_ok=True)
    if incbin:
        (folder / f"{prefix}.pte").write_bytes(file.buffer)
        texts[f"{prefix}_program.S"] = writer.assembler()
        texts[f"{prefix}.c"] = about + writer.source(None)
    else:
        texts[f"{prefix}.c"] = about + writer.source(file.buffer)
    for file_name, text in texts.items():
        (folder / file_name).write_text(text)
    return [folder / file_name for file_name in sorted(texts)]


def identifier(text: str) -> str:
    """Returns the text as a C identifier."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name[:1].isalpha() else f"m{name}"


def distinct_names(file: pte.PteFile) -> list[str]:
    """Returns a distinct C identifier for each method."""
    names: list[str] = []
    for plan in file.program.execution_plan:
        name = identifier(plan.name)
        names.append(f"{name}_{len(names)}" if name in names else name)
    return names


def _temp(bill: Bill, temp: str | int) -> int:
    if isinstance(temp, int):
        return temp
    if bill.temp is None or bill.temp.unknown:
        reason = (
            f"this machine cannot run the kernels of {bill.target}"
            if bill.temp is None
            else f"the scratch memory of {', '.join(bill.temp.unknown)} depends on the data"
        )
        raise InputError(
            f"the temp memory of method {bill.method_name!r} is not known: {reason}",
            hints=["set the bytes of the temp pool: --temp 100000"],
        )
    return bill.temp.least if temp == "least" else bill.temp.most


def _dynamic(bill: Bill, dynamic: int | None) -> int:
    if bill.dynamic is None and dynamic is None:
        raise InputError(
            f"method {bill.method_name!r} has tensors without a maximum size, which allocate memory at run time",
            hints=[
                "set the bytes of their pool: --dynamic 100000",
                "or set a maximum size when you compile the model: Dim('n', max=128)",
            ],
        )
    if bill.dynamic == 0:
        return 0
    return dynamic if dynamic is not None else bill.dynamic or 0


class _Writer:
    """Collects the pools and writes them in C."""

    def __init__(self, prefix: str, sections: dict[str, str], program_size: int) -> None:
        self._prefix = prefix
        self._sections = sections
        self._program_size = program_size
        # method -> symbol, pool, bytes, and a macro with additional bytes
        self._pools: dict[str, list[tuple[str, str, int, str]]] = {}
        self._methods: list[tuple[str, Bill]] = []

    def add(self, method: str, bill: Bill, temp: int, dynamic: int) -> None:
        """Adds the pools of a method."""
        symbol = f"{self._prefix}_{method}"
        more = f"{symbol.upper()}_BACKEND_SIZE" if bill.backends else ""
        self._pools[method] = [
            (f"{symbol}_method", "method", bill.method, more),
            (f"{symbol}_temp", "temp", temp, ""),
            *([(f"{symbol}_dynamic", "dynamic", dynamic, "")] if bill.dynamic != 0 else []),
            *((f"{symbol}_planned_{i}", f"planned_{i}", size, "") for i, size in enumerate(bill.planned, 1)),
        ]
        self._methods.append((method, bill))

    def header(self) -> str:
        guard = f"{self._prefix.upper()}_H"
        lines = [f"#ifndef {guard}", f"#define {guard}", "", "#include <stdint.h>", ""]
        lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
        lines += ["/* The program. It is used in place; constants are read from here. */"]
        lines += self._declaration(f"{self._prefix}_program", self._program_size, "", "const ")
        for method, bill in self._methods:
            symbol = f"{self._prefix}_{method}".upper()
            lines += ["", f"/* The exact memory of method {method}. */"]
            if bill.backends:
                lines += [f"#ifndef {symbol}_BACKEND_SIZE"]
                lines += [
                    f"#define {symbol}_BACKEND_SIZE 0 /* bytes that the method's backends allocate */",
                    "#endif",
                ]
            lines += [f"#define {symbol}_PLANNED_COUNT {len(bill.planned)}"]
            for pool, _, size, more in self._pools[method]:
                lines += self._declaration(pool, size, more, "")
        lines += ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""]
        return "\n".join(lines)

    def _declaration(self, symbol: str, size: int, more: str, const: str) -> list[str]:
        value = f"({size} + {more})" if more else str(size)
        macro = f"{symbol.upper()}_SIZE"
        return [f"#define {macro} {value}", f"extern {const}uint8_t {symbol}[{_extent(macro, size, more)}];"]

    def source(self, program: memoryview | None) -> str:
        """Returns the definitions; without the program if `program` is None."""
        lines = [f'#include "{self._prefix}.h"', ""]
        lines += ["#if defined(_MSC_VER) && !defined(__clang__)"]
        lines += ["#define ALIGNED(bytes) __declspec(align(bytes))", "#else"]
        lines += ["#define ALIGNED(bytes) __attribute__((aligned(bytes)))", "#endif", ""]
        if program is not None:
            symbol = f"{self._prefix}_program"
            lines += [f"{self._attributes('program')}const uint8_t {symbol}[{symbol.upper()}_SIZE] = {{"]
            lines += [",".join(map(str, program[at : at + 24])) + "," for at in range(0, len(program), 24)]
            lines += ["};", ""]
        for symbol, pool, size, more in (pool for pools in self._pools.values() for pool in pools):
            extent = _extent(f"{symbol.upper()}_SIZE", size, more)
            lines += [f"{self._attributes(pool)}uint8_t {symbol}[{extent}];"]
        return "\n".join([*lines, ""])

    def _attributes(self, pool: str) -> str:
        section = self._sections.get(pool)
        where = f'__attribute__((section("{section}"))) ' if section else ""
        return f"{where}ALIGNED({ALIGNMENT[pool.partition('_')[0]]}) "

    def assembler(self) -> str:
        """Returns the assembler source that includes the program file."""
        symbol, section = f"{self._prefix}_program", self._sections.get("program", ".rodata")
        return (
            f'    .section {section}, "a"\n    .balign {ALIGNMENT["program"]}\n    .global {symbol}\n{symbol}:\n'
            f'    .incbin "{self._prefix}.pte"\n'
            '#ifdef __ELF__\n    .section .note.GNU-stack, "", %progbits\n#endif\n'
        )

    def cpp(self) -> str:
        """Returns the C++ header with the runtime's allocators over the pools."""
        prefix = self._prefix
        lines = ["#pragma once", "", f'#include "{prefix}.h"']
        lines += [
            '#include "torchette/extension/buffer_data_loader.h"',
            *(
                ['#include "torchette/extension/free_list_allocator.h"']
                if any(bill.dynamic != 0 for _, bill in self._methods)
                else []
            ),
            '#include "torchette/runtime/method.h"',
        ]
        lines += [
            "",
            f"namespace {prefix} {{",
            "",
            "/// The program in constant memory, for Program::load().",
        ]
        lines += ["inline torchette::extension::BufferDataLoader program() {"]
        lines += [f"  return {{{prefix}_program, {prefix.upper()}_PROGRAM_SIZE}};", "}"]
        for method, bill in self._methods:
            symbol = f"{prefix}_{method}"
            spans = ", ".join(
                f"{{{symbol}_planned_{i}, {symbol.upper()}_PLANNED_{i}_SIZE}}"
                for i in range(1, 1 + len(bill.planned))
            )
            lines += [
                "",
                f"/// The memory of method {method}; only one instance at a time may use the pools.",
            ]
            lines += [f"struct {method}_memory {{"]
            lines += [f"  torchette::Span<uint8_t> buffers[{max(1, len(bill.planned))}] = {{{spans}}};"]
            for pool in ("method", "temp"):
                size = f"{symbol.upper()}_{pool.upper()}_SIZE"
                lines += [f"  torchette::MemoryAllocator {pool}{{{size}, {symbol}_{pool}}};"]
            lines += [f"  torchette::HierarchicalAllocator planned{{{{buffers, {len(bill.planned)}}}}};"]
            if bill.dynamic != 0:
                size = f"{symbol.upper()}_DYNAMIC_SIZE"
                lines += [f"  torchette::extension::FreeListAllocator dynamic{{{size}, {symbol}_dynamic}};"]
            more = ", &dynamic" if bill.dynamic != 0 else ""
            lines += [f"  torchette::MemoryManager manager{{&method, &planned, &temp{more}}};", "};"]
        return "\n".join([*lines, "", f"}}  // namespace {prefix}", ""])


def _extent(macro: str, size: int, more: str) -> str:
    """Returns the number of array elements, at least 1: C has no empty arrays."""
    return macro if size or more else f"{macro} + 1"
