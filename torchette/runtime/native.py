# SPDX-License-Identifier: BSD-3-Clause
# The compiled half of torchette.runtime, and its error codes.

from __future__ import annotations

import functools
import importlib
from typing import Any

from torchette.errors import NativeModuleError

# The error codes that Python distinguishes: torchette/runtime/error.h.
INVALID_ARGUMENT, OPERATOR_MISSING = 0x12, 0x14
NOT_FOUND = 0x20
ACCESS_FAILED, INVALID_PROGRAM, INVALID_EXTERNAL_DATA = 0x22, 0x23, 0x24


@functools.cache
def module() -> Any:
    """The native module. Raises NativeModuleError if it cannot be imported."""
    try:
        return importlib.import_module(f"{__package__}._native")
    except ImportError as error:
        raise NativeModuleError(
            f"the compiled part of the runtime cannot be imported: {error}",
            hints=["in a checkout, build it: ./dev setup", "`torchette doctor` says what is missing"],
        ) from None


def portable(name: str) -> str:
    """The name of a method's second plan, which needs no backend."""
    result: str = name + module().PORTABLE
    return result
