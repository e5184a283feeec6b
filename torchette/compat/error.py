# SPDX-License-Identifier: BSD-3-Clause
# For passes and backends that raise ExecuTorch's errors. The compiler's own are in torchette/errors.py.
"""`ExportError`, `InternalError`, `internal_assert`, by ExecuTorch's names."""

from __future__ import annotations

from enum import Enum

from torchette.errors import CompileError


class ExportErrorType(Enum):
    """What kind of mistake an `ExportError` is about."""

    INVALID_INPUT_TYPE = 1
    INVALID_OUTPUT_TYPE = 2
    VIOLATION_OF_SPEC = 3
    NOT_SUPPORTED = 4
    MISSING_PROPERTY = 5
    UNINITIALIZED = 6


class ExportError(CompileError):
    """The user's model or pass is at fault."""

    def __init__(self, error_code: ExportErrorType, message: str) -> None:
        super().__init__(f"[{error_code}]: {message}")


class InternalError(CompileError):
    """A pass or backend is at fault."""


def internal_assert(pred: bool, assert_msg: str) -> None:
    """Raises InternalError with that text unless `pred`."""
    if not pred:
        raise InternalError(assert_msg)
