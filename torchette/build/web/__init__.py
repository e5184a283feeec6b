# SPDX-License-Identifier: BSD-3-Clause
# In: .pte files. Out: a folder for a web page or Node.js: torchette.wasm with the required kernels, the JavaScript
# module that loads it, and the files. The folder is also an npm package.
"""Builds the runtime for browsers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from torchette.build import library, selection, toolchain
from torchette.build.selection import Selection
from torchette.build.sources import PACKAGE
from torchette.build.web.chat import FOLDER, chat_page
from torchette.targets import find

HERE = PACKAGE / "build" / "web"
TARGET = "wasm32-browser"
PACKAGE_JSON = {
    "name": "torchette",
    "version": sys.modules["torchette"].__version__,
    "license": "BSD-3-Clause",
    "type": "module",
    "exports": {".": {"types": "./torchette.d.ts", "default": "./torchette.js"}, "./*": "./*"},
}


def build(
    models: Sequence[Path],
    folder: Path,
    *,
    chosen: Selection | None = None,
    small: bool = False,
    log_level: int = 2,
    llm: bool = False,
    report: toolchain.Report | None = None,
) -> list[Path]:
    """Writes torchette.wasm, torchette.js, torchette.d.ts, copies of the models and, if there is none, package.json.

    Args:
        models: .pte files; if empty, the runtime contains every kernel.
        folder: output folder; created if it does not exist.
        chosen: selection of the runtime; by default that of the models.
        small: optimize kernels for size.
        log_level: as TORCHETTE_LOG_LEVEL; it includes the text of errors.
        llm: also write torchette_llm.wasm, llm.js with its types, and the chat page index.html, which opens the first
            model.
        report: called for each source that is compiled, and before a program is linked.

    Returns:
        The paths of the written files.

    Raises:
        FormatError: a model is not a .pte file.
        TargetError: a model requires a feature that is not available in browsers, such as a backend with another
            library.
        MissingCompilerError: ziglang is not installed.
        BuildError: the compiler or linker failed.
    """
    target = find(TARGET)
    compiler = toolchain.find_compiler(target)
    chosen = chosen or selection.of_files(models)
    common = library.flags(small=small, log_level=log_level, tracing=False)
    size_flags = (*common, "-Os")
    core = [
        *library.core_units("", library.core_flags(chosen, size_flags)),
        *library.kernel_units(target, chosen, common, small=small),
        *library.backend_units(chosen, target, size_flags),
    ]
    module = toolchain.Unit(PACKAGE / "build" / "web" / "module.cpp", size_flags)
    programs = {"torchette.wasm": [*core, module]}
    page: dict[str, bytes] = {}
    sources = [HERE / "torchette.js", HERE / "torchette.d.ts", *models]
    if llm:
        emulated = (*size_flags, "-D_WASI_EMULATED_MMAN")
        programs["torchette_llm.wasm"] = [
            *core,
            *library.extension_units(target, emulated),
            *library.llm_units(size_flags),
            toolchain.Unit(FOLDER / "llm.cpp", size_flags),
        ]
        page = chat_page(quote(models[0].name) if models else None)
        sources.append(HERE / "llm.d.ts")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, units in programs.items():
        objects = toolchain.compile_units(compiler, units, report)
        written.append(folder / name)
        libraries = ["-lc++", "-lwasi-emulated-mman"] if llm else []
        if report:
            report("link", name, 0, 0)
        toolchain.link(compiler, objects, written[-1], ["-s", *libraries])
    for source in sources:
        written.append(folder / source.name)
        if source.resolve() != written[-1].resolve():
            shutil.copyfile(source, written[-1])
    for name, data in page.items():
        written.append(folder / name)
        written[-1].write_bytes(data)
    package = folder / "package.json"
    if not package.exists():
        package.write_text(json.dumps(PACKAGE_JSON, indent=2) + "\n", encoding="utf-8")
        written.append(package)
    return written
