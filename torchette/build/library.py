# SPDX-License-Identifier: BSD-3-Clause
# In: a target, a selection and a compiler. Out: the runtime with its kernels and backends as objects, its headers, and
# a program that runs .pte files.
"""The parts of a build: `units` returns the sources with flags, `write_headers` writes the headers for programs."""

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
    """Returns the include folder of headers generated from the schemas; its path depends on their contents."""
    sources = sorted((PACKAGE / "schema").glob("*.fbs"))
    texts = {source: schema.cpp_header(schema.load(source), source.name) for source in sources}
    folder = cache_folder() / "include" / _digest("".join(texts.values()))
    for source, text in texts.items():
        _write(folder / "torchette" / "schema" / f"{source.stem}.h", text)
    return folder


def compat_folder() -> Path:
    """Returns the include folder with ExecuTorch's paths: that of the package or, in a checkout, a generated one."""
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
    """Writes a file only if its content changes, so that an unchanged file keeps its time."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def flags(*, small: bool, log_level: int = 2, tracing: bool = True) -> tuple[str, ...]:
    """Returns the flags of every source of the runtime, and of sources that include its headers."""
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
    """Returns the flags of the core's sources. The core rejects tensors of dtypes that are not in the selection."""
    dtypes = Selection(frozenset() if selection.operators is not None else None, selection.dtypes)
    return (*common, "-include", str(_selection_header(dtypes, None)))


def core_units(platform: str, common: tuple[str, ...]) -> list[Unit]:
    """Returns the core with a platform layer: "posix", "minimal", or "" for the caller's platform."""
    sources = sorted((PACKAGE / "runtime").glob("*.cpp"))
    left_out = re.compile(r"platform_(?!%s$)\w+" % (platform or "$"))
    return [Unit(source, common) for source in sources if not left_out.fullmatch(source.stem)]


def kernel_units(target: Target, selection: Selection, common: tuple[str, ...], *, small: bool) -> list[Unit]:
    """Returns the kernel library for a selection. The flags of each source contain only its own operators."""
    common = (*common, *KERNEL_FLAGS, *(() if small else FAST))
    levels = _LEVELS if target.levels and not small else {"baseline": ()}
    units = []
    needed = _needed(selection)
    for name in kernels.sources():
        source = kernels.KERNELS / name
        if f"torchette/kernels/{name}" not in needed:
            continue
        include = ("-include", str(_selection_header(selection, source)))
        if source.name == "table.cpp":
            several_levels = ("-DTORCHETTE_ISA_LEVELS=1",) if len(levels) > 1 else ()
            units.append(Unit(source, (*common, *several_levels), include))
        else:
            family = kernels.family_of(source)
            for level, more in list(levels.items())[: family.levels if family is not None else None]:
                lowest, several = next(iter(levels)), len(levels) > 1
                place = "-DTORCHETTE_IS_LOWEST=1" if level == lowest else f"-DTORCHETTE_LOWEST={lowest}"
                flags = (*common, f"-DTORCHETTE_ISA={level}", *((place,) if several else ()), *more)
                units.append(Unit(source, flags, include, kernels.KERNELS / "precompiled.h"))
    return units


def _needed(selection: Selection) -> set[str]:
    """Returns the sources of the kernel library, as paths from the root, that the selection needs."""
    if selection.operators is None:
        return {f"torchette/kernels/{name}" for name in kernels.sources()}
    backends = (source for name in selection.backends for source in portable_backends().get(name, ()))
    roots = [source.relative_to(ROOT).as_posix() for source in backends]
    roots += ["torchette/kernels/table.cpp"]
    roots += [
        f"torchette/kernels/{name}"
        for name, family in kernels.families().items()
        if selection.operators.intersection(family.operators)
    ]
    return set(kernels.closure(roots))


def _selection_header(selection: Selection, source: Path | None) -> Path:
    text = selection.header(source)
    return _write(cache_folder() / "selections" / f"{_digest(text)}.h", text)


def extension_units(target: Target, common: tuple[str, ...]) -> list[Unit]:
    """Returns the extension: files, malloc, Module, and threads, except in WebAssembly."""
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
    """Returns all sources of the library for a target; without files, only core and kernels."""
    result = core_units(platform, core_flags(selection, common)) + kernel_units(
        target, selection, common, small=small
    )
    if target.kind != "bare":
        result += extension_units(target, common)
    return result + backend_units(selection, target, common)


def backend_units(selection: Selection, target: Target, common: tuple[str, ...]) -> list[Unit]:
    """Returns the backends in the selection, and a source that registers them.

    Raises:
        TargetError: a backend depends on a library and cannot be built for the target.
    """
    portable = portable_backends()
    missing = sorted(selection.backends.difference(portable))
    if missing:
        raise TargetError(
            f"the backend {missing[0]}, which a model uses, is not available for {target.name}",
            hints=[
                "compile the model without a partitioner for it, or with portable_fallback=True",
                f"backends for other machines: {', '.join(sorted(portable)) or 'none'}",
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
    """Returns the sources of each backend that requires no library, by registered name.

    The sources are a single file, or the folder that is built if the backend's library is not available.
    """
    result: dict[str, tuple[Path, ...]] = {}
    for folder in sorted(path for path in (PACKAGE / "backends").iterdir() if path.is_dir()):
        sources = tuple(sorted((folder / "kernels").glob("*.cpp")) or folder.glob("*.cpp"))
        text = "".join(source.read_text(encoding="utf-8") for source in sources)
        name = re.search(r'^Backend \w+\{"(\w+)"', text, re.M)
        if name and (len(sources) == 1 or sources[0].parent != folder):
            shared = PACKAGE / "backends" / "delegate"  # payloads as methods
            uses_shared = "torchette/backends/delegate/" in "".join(
                header.read_text(encoding="utf-8") for header in sources[0].parent.glob("*.h")
            )
            result[name[1]] = (*sources, *(sorted(shared.glob("*.cpp")) if uses_shared else ()))
    return result


def llm_units(common: tuple[str, ...]) -> list[Unit]:
    """Returns the library torchette_llm, with the Unicode tables of this Python."""
    text = runpy.run_path(str(PACKAGE / "llm" / "text" / "unicode_tables.py"))["header"]()
    include = cache_folder() / "include" / _digest(text)
    _write(include / "torchette" / "llm" / "text" / "unicode_tables.h", text)
    sources = sorted(
        source for room in (*_LLM_HEADERS, "llm/text/jinja") for source in (PACKAGE / room).glob("*.cpp")
    )
    header = PACKAGE / "extension" / "precompiled.h"
    return [Unit(source, (*common, f"-I{include}"), precompiled=header) for source in sources]


def runner_units(common: tuple[str, ...]) -> list[Unit]:
    """Returns the program executor_runner, which requires files and the C++ library."""
    return [Unit(source, common) for source in sorted((PACKAGE / "extension" / "runner").glob("*.cpp"))]


def write_headers(folder: Path, *, bare: bool, llm: bool = False) -> None:
    """Writes the headers for programs: those of the runtime, and, if the target has files, those of the extension."""
    for part in ("runtime", *(() if bare else ("extension",)), *(_LLM_HEADERS if llm else ())):
        for header in (*(PACKAGE / part).glob("*.h"), *(PACKAGE / part).glob("*.def")):
            to = folder / "torchette" / part / header.name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(header, to)
    tables = folder / "torchette" / "schema"
    tables.mkdir(parents=True, exist_ok=True)
    for table in (PACKAGE / "schema").glob("*.def"):
        shutil.copyfile(table, tables / table.name)
    if bare:  # this loader reads programs from memory and needs no files
        to = folder / "torchette" / "extension" / "buffer_data_loader.h"
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PACKAGE / "extension" / to.name, to)
