# SPDX-License-Identifier: BSD-3-Clause
# Imports the native module of torchette.runtime, and defines its error codes.

from __future__ import annotations

import base64
import functools
import hashlib
import importlib
import importlib.metadata
from pathlib import Path
from typing import Any

from torchette.errors import NativeModuleError

# The error codes that Python distinguishes: torchette/runtime/error.h.
INVALID_STATE, NOT_SUPPORTED, INVALID_ARGUMENT, OPERATOR_MISSING = 0x02, 0x10, 0x12, 0x14
NOT_FOUND = 0x20
ACCESS_FAILED, INVALID_PROGRAM, INVALID_EXTERNAL_DATA, OUT_OF_RESOURCES = 0x22, 0x23, 0x24, 0x25


@functools.cache
def module() -> Any:
    """Returns the native module.

    A checkout without a built module uses the module of the installed package if the package was built from equal
    sources (docs/decisions/0026-a-checkout-uses-the-installed-native-module.md).

    Raises:
        NativeModuleError: the module cannot be imported; says why.
    """
    runtime = importlib.import_module(__package__)
    name = f"{__package__}._native"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = str(error)
    package = Path(__file__).parents[1]
    installed = _installed_runtime(package)
    if installed is not None:
        different = _first_difference(package)
        if different is None:
            runtime.__path__.append(str(installed))
            try:
                return importlib.import_module(name)
            except ImportError as error:
                reason = str(error)
        else:
            reason = f"{different} differs from the installed package in {installed.parent}"
    raise NativeModuleError(
        f"the compiled part of the runtime cannot be imported: {reason}",
        hints=[
            "in a checkout, build it: ./dev setup",
            "or install the checkout: pip install .",
            "`torchette doctor` lists missing parts",
        ],
    )


def _installed_runtime(package: Path) -> Path | None:
    """Returns the folder of the installed package's native module; None if it is that of ``package``."""
    for file in _installed_files():
        if file.match("torchette/runtime/_native*"):
            folder = Path(str(file.locate())).parent
            return None if folder.samefile(package / "runtime") else folder
    return None


def _first_difference(package: Path) -> Path | None:
    """Returns the first file of ``package`` that is missing or differs from the hash in the installed package's file list."""
    for file in _installed_files():
        here = package.parent / file
        if file.hash is None or file.parts[0] != "torchette" or not (file.suffix == ".py" or here.exists()):
            continue  # not a source file: only the installed package has files that the build made
        if not here.exists():
            return here
        digest = hashlib.new(file.hash.mode, here.read_bytes()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            return here
    return None


def _installed_files() -> list[importlib.metadata.PackagePath]:
    for distribution in importlib.metadata.distributions(name="torchette"):
        if distribution.files:
            return distribution.files
    return []


def portable(name: str) -> str:
    """Returns the name of the portable plan of a method, which needs no backend."""
    result: str = name + module().PORTABLE
    return result
