# SPDX-License-Identifier: BSD-3-Clause
# In: a target, a selection and a compiler. Out: the runtime with its kernels and backends as objects, its headers, and
# a program that runs .pte files.
"""The parts of a build: `units` gives the sources with their flags, `write_headers` the headers for programs."""

from __future__ import annotations

import hashlib
import re
import runpy
import shutil
from pathlib import Path

from torchette.build import kernels
from torchette.build.selection import Selection
from torchette.build.sources import PACKAGE, ROOT
from torchette.build.toolchain import DEVICE_FLAGS, FAST, KERNEL_FLAGS, Unit
from torchette.cache import cache_folder
from torchette.errors import TargetError
from torchette.format import schema
from torchette.targets import Target

_LLM_HEADERS = tuple(f"llm/{room}" for room in ("text", "grammar", "media", "engine"))
_LEVELS = {
    "v1": (),
    "v3": ("-march=x86-64-v3",),
    "v4": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
}


def generated_folder() -> Path:
    """The include folder of headers made from the schemas; its path depends on their contents."""
    sources = sorted((PACKAGE / "schema").glob("*.fbs"))
    texts = {source: schema.cpp_header(schema.load(source), source.name) for source in sources}
    folder = cache_folder() / "include" / _digest("".join(texts.values()))
    for source, text in texts.items():
        _write(folder / "torchette" / "schema" / f"{source.stem}.h", text)
    return folder


def compat_folder() -> Path:
    """The include folder with ExecuTorch's paths: the package's, or, in a checkout, one made from the same list."""
    installed = Path(__file__).resolve().parents[1] / "extension" / "compat"
    if (installed / "executorch").is_dir():
        return installed
    recipe = (installed / "executorch.cmake").read_text(encoding="utf-8")
    listed = re.search(r"^set\(torchette_compat\n(.*?)^\)", recipe, re.MULTILINE | re.DOTALL)
    assert listed is not None
    words = listed[1].split()
    folder = cache_folder() / "include" / _digest(recipe)
    for theirs, ours in zip(words[::2], words[1::2], strict=True):
        lines = "".join(f'#include "torchette/extension/{name}"\n' for name in ("compat/runtime.h", ours))
        _write(folder / "executorch" / theirs, f"#pragma once\n{lines}")
    return folder


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(path: Path, text: str) -> Path:
    """Writes a file only if it changes: an unchanged file keeps its time."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def flags(*, small: bool, log_level: int = 2, tracing: bool = True) -> tuple[str, ...]:
    """Flags of every source of the runtime, and of sources that include its headers."""
    return (
        *DEVICE_FLAGS,
        *(("-Os", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables") if small else ("-O2",)),
        "-DNDEBUG",
        f"-DTORCHETTE_LOG_LEVEL={log_level}",
        f"-DTORCHETTE_EVENT_TRACER={int(tracing)}",
        f"-I{ROOT}",
        f"-I{generated_folder()}",
        f"-ffile-prefix-map={ROOT}/=",
    )


def core_flags(selection: Selection, common: tuple[str, ...]) -> tuple[str, ...]:
    """Flags of the core's sources: it refuses tensors of dtypes that no kernel was compiled for."""
    dtypes = Selection(frozenset() if selection.operators is not None else None, selection.dtypes)
    return (*common, "-include", str(_selection_header(dtypes, None)))


def core_units(platform: str, common: tuple[str, ...]) -> list[Unit]:
    """The core with a platform layer: "posix", "minimal", or "" for the caller's own."""
    sources = sorted((PACKAGE / "runtime").glob("*.cpp"))
    left_out = re.compile(r"platform_(?!%s$)\w+" % (platform or "$"))
    return [Unit(source, common) for source in sources if not left_out.fullmatch(source.stem)]


def kernel_units(target: Target, selection: Selection, common: tuple[str, ...], *, small: bool) -> list[Unit]:
    """The kernel library, cut to the selection. Each source is told only of its own operators."""
    common = (*common, *KERNEL_FLAGS, *(() if small else FAST))
    levels = _LEVELS if target.levels and not small else {"baseline": ()}
    units = []
    needed = _needed(selection)
    for name in kernels.sources():
        source = kernels.KERNELS / name
        if f"torchette/kernels/{name}" not in needed:
            continue
        own = ("-include", str(_selection_header(selection, source)))
        if source.name == "table.cpp":
            several_levels = ("-DTORCHETTE_ISA_LEVELS=1",) if len(levels) > 1 else ()
            units.append(Unit(source, (*common, *several_levels), own))
        else:
            family = kernels.family_of(source)
            for level, more in list(levels.items())[: family.levels if family is not None else None]:
                lowest, several = next(iter(levels)), len(levels) > 1
                place = "-DTORCHETTE_IS_LOWEST=1" if level == lowest else f"-DTORCHETTE_LOWEST={lowest}"
                flags = (*common, f"-DTORCHETTE_ISA={level}", *((place,) if several else ()), *more)
                units.append(Unit(source, flags, own, kernels.KERNELS / "precompiled.h"))
    return units


def _needed(selection: Selection) -> set[str]:
    """The sources of the kernel library, from the root, that have operators of the selection, and those that these call."""
    if selection.operators is None:
        return {f"torchette/kernels/{name}" for name in kernels.sources()}
    backends = (source for name in selection.backends for source in portable_backends().get(name, ()))
    wanted = [source.relative_to(ROOT).as_posix() for source in backends]
    wanted += ["torchette/kernels/table.cpp"]
    wanted += [
        f"torchette/kernels/{name}"
        for name, family in kernels.families().items()
        if selection.operators.intersection(family.operators)
    ]
    return set(kernels.closure(wanted))


def _selection_header(selection: Selection, source: Path | None) -> Path:
    text = selection.header(source)
    return _write(cache_folder() / "selections" / f"{_digest(text)}.h", text)


def extension_units(target: Target, common: tuple[str, ...]) -> list[Unit]:
    """The conveniences above the core: files, malloc, Module, and threads, except in WebAssembly."""
    left_out = (
        ("kernel_threads", "method_threads", "parallel_method", "thread_pool")
        if target.kind == "wasm"
        else ()
    )
    sources = sorted((PACKAGE / "extension").glob("*.cpp"))
    header = PACKAGE / "extension" / "precompiled.h"
    return [Unit(source, common, precompiled=header) for source in sources if source.stem not in left_out]


def units(
    target: Target, selection: Selection, platform: str, common: tuple[str, ...], *, small: bool
) -> list[Unit]:
    """Every source of the library for a target; without files, only core and kernels."""
    found = core_units(platform, core_flags(selection, common)) + kernel_units(
        target, selection, common, small=small
    )
    if target.kind != "bare":
        found += extension_units(target, common)
    return found + backend_units(selection, target, common)


def backend_units(selection: Selection, target: Target, common: tuple[str, ...]) -> list[Unit]:
    """The backends that the selection names, and the list that registers them.

    Raises:
        TargetError: one of them has no sources that compile anywhere.
    """
    portable = portable_backends()
    missing = sorted(selection.backends.difference(portable))
    if missing:
        raise TargetError(
            f"{target.name} has no backend {missing[0]}, which a model uses",
            hints=[
                "compile the model without a partitioner for it, or with portable_fallback=True",
                f"the backends that are built for other machines: {', '.join(sorted(portable)) or 'none'}",
            ],
        )
    chosen = [portable[name] for name in sorted(selection.backends)]
    names = [sources[0].relative_to(PACKAGE / "backends").parts[0] for sources in chosen]
    declared = "".join(f"extern Backend {name}_backend;\n" for name in names)
    registered = "".join(
        f"  if (get_backend_class({name}_backend.name) == nullptr) TORCHETTE_TRY(register_backend({name}_backend));\n"
        for name in names
    )
    text = (
        '#include "torchette/extension/backends.h"\n#include "torchette/runtime/backend.h"\nnamespace torchette {\n'
        f"{declared}Error register_all_backends() {{\n{registered}  return Error::Ok;\n}}\n}}  // namespace torchette\n"
    )
    listed = _write(cache_folder() / "selections" / _digest(text) / "backends.cpp", text)
    return [Unit(source, common) for source in (*sum(chosen, ()), listed)]


def portable_backends() -> dict[str, tuple[Path, ...]]:
    """The sources of each backend that needs no library, by the name that programs use: one file, or the folder that is
    built where the library is absent."""
    found: dict[str, tuple[Path, ...]] = {}
    for folder in sorted(path for path in (PACKAGE / "backends").iterdir() if path.is_dir()):
        sources = tuple(sorted((folder / "kernels").glob("*.cpp")) or folder.glob("*.cpp"))
        text = "".join(source.read_text(encoding="utf-8") for source in sources)
        name = re.search(r'^Backend \w+\{"(\w+)"', text, re.M)
        if name and (len(sources) == 1 or sources[0].parent != folder):
            shared = PACKAGE / "backends" / "delegate"  # payloads as methods
            uses_shared = "torchette/backends/delegate/" in "".join(
                header.read_text(encoding="utf-8") for header in sources[0].parent.glob("*.h")
            )
            found[name[1]] = (*sources, *(sorted(shared.glob("*.cpp")) if uses_shared else ()))
    return found


def llm_units(common: tuple[str, ...]) -> list[Unit]:
    """The library torchette_llm, with Unicode as this Python knows it."""
    text = runpy.run_path(str(PACKAGE / "llm" / "text" / "unicode_tables.py"))["header"]()
    include = cache_folder() / "include" / _digest(text)
    _write(include / "torchette" / "llm" / "text" / "unicode_tables.h", text)
    sources = sorted(
        source for room in (*_LLM_HEADERS, "llm/text/jinja") for source in (PACKAGE / room).glob("*.cpp")
    )
    header = PACKAGE / "extension" / "precompiled.h"
    return [Unit(source, (*common, f"-I{include}"), precompiled=header) for source in sources]


def runner_units(common: tuple[str, ...]) -> list[Unit]:
    """The program executor_runner, which needs files and the C++ library."""
    return [Unit(source, common) for source in sorted((PACKAGE / "extension" / "runner").glob("*.cpp"))]


def write_headers(folder: Path, *, bare: bool, llm: bool = False) -> None:
    """The headers for programs: the runtime's, and the extension's if there are files."""
    for part in ("runtime", *(() if bare else ("extension",)), *(_LLM_HEADERS if llm else ())):
        for header in (*(PACKAGE / part).glob("*.h"), *(PACKAGE / part).glob("*.def")):
            to = folder / "torchette" / part / header.name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(header, to)
    tables = folder / "torchette" / "schema"
    tables.mkdir(parents=True, exist_ok=True)
    for table in (PACKAGE / "schema").glob("*.def"):
        shutil.copyfile(table, tables / table.name)
    if bare:  # the loader of a program in memory needs no files
        to = folder / "torchette" / "extension" / "buffer_data_loader.h"
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PACKAGE / "extension" / to.name, to)
