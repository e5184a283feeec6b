# SPDX-License-Identifier: BSD-3-Clause
# In: the installed torch, and a C++ compiler. Out: libtorchette_aten.so, with which the runtime calls torch's kernels.
"""`library` compiles the C++ part of ATen mode on first use and caches it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import tempfile
from pathlib import Path

from torchette.build import custom, toolchain
from torchette.build.library import flags
from torchette.build.sources import PACKAGE
from torchette.cache import cache_folder
from torchette.errors import MissingCompilerError, MissingPackageError
from torchette.packages import PACKAGES
from torchette.progress import Progress
from torchette.targets import find

NAME = "libtorchette_aten.so"
# torch's headers require C++20, exceptions, RTTI and thread-safe statics, which the runtime does not use.
_TORCH_FLAGS = ("-std=c++20", "-fexceptions", "-frtti", "-fthreadsafe-statics", "-fPIC", "-DTORCHETTE_ATEN")


def library() -> Path:
    """Returns the library for this torch and these sources. The first call compiles it, which takes half a minute.

    The compiler is ``$CXX``, else ``c++``. It must use the C++ library that torch was built with, which excludes
    ziglang.

    Raises:
        MissingPackageError: torch is not installed, or has no headers.
        MissingCompilerError: there is no compiler.
        BuildError: the compiler failed; the message contains its output.
    """
    spec = importlib.util.find_spec("torch")
    home = Path(spec.origin).parent if spec is not None and spec.origin else None
    if home is None or not (home / "include" / "ATen" / "core" / "Tensor.h").exists():
        raise MissingPackageError(
            "ATen mode runs torch's kernels, and "
            + ("torch is not installed" if home is None else f"the installed torch has no headers ({home})"),
            hints=[PACKAGES["torch"].install],
        )
    digest = hashlib.sha256(f"{importlib.metadata.version('torch')} {home}".encode())
    for part in ("runtime", "extension", "extension/aten", "schema"):
        for path in sorted((PACKAGE / part).iterdir()):
            if path.suffix in (".h", ".cpp", ".def"):
                digest.update(path.read_bytes())
    library_path = cache_folder() / "aten" / digest.hexdigest()[:16] / NAME
    if not library_path.exists():
        _build(home, library_path)
    return library_path


def _build(torch: Path, library: Path) -> None:
    named = os.environ.get("CXX")
    try:
        compiler = toolchain.find_compiler(find("host"), named or "c++")
    except MissingCompilerError as error:
        raise MissingCompilerError(
            f"ATen mode is compiled on first use: {error.message}",
            hints=["apt install g++", "or set another compiler: CXX=clang++"],
        ) from None
    compile_flags = (*flags(small=False), "-fPIC", "-DTORCHETTE_CUSTOM_LIBRARY")
    units = [
        toolchain.Unit(
            PACKAGE / "extension/aten/kernels.cpp", (*compile_flags, *_TORCH_FLAGS, f"-I{torch / 'include'}")
        )
    ]
    units += [toolchain.Unit(source, compile_flags) for source in custom.core_sources()]
    with Progress() as progress:
        progress("ATen mode", "compiling it with torch's headers; once, about half a minute")
        objects = toolchain.compile_units(compiler, units, progress)
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            linked = Path(folder, library.name)
            lib = torch / "lib"
            options = ["-shared", "-fPIC", "-Wl,--gc-sections", "-Wl,-Bsymbolic", f"-Wl,-soname,{NAME}", "-s"]
            options += [f"-L{lib}", f"-Wl,-rpath,{lib}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"]
            toolchain.link(compiler, objects, linked, options)
            os.replace(linked, library)
