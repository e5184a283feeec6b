# SPDX-License-Identifier: BSD-3-Clause
# Errors for passes and backends that raise ExecuTorch's errors. torchette/errors.py defines the compiler's errors.
"""`ExportError`, `InternalError` and `internal_assert`, with ExecuTorch's names."""

from __future__ import annotations

from enum import Enum

from torchette.errors import CompileError


class ExportErrorType(Enum):
    """The kind of an `ExportError`."""

    INVALID_INPUT_TYPE = 1
    INVALID_OUTPUT_TYPE = 2
    VIOLATION_OF_SPEC = 3
    NOT_SUPPORTED = 4
    MISSING_PROPERTY = 5
    UNINITIALIZED = 6


class ExportError(CompileError):
    """An error in the user's model or pass."""

    def __init__(self, error_code: ExportErrorType, message: str) -> None:
        super().__init__(f"[{error_code}]: {message}")


class InternalError(CompileError):
    """An error in a pass or backend."""


def internal_assert(pred: bool, assert_msg: str) -> None:
    """Raises InternalError with this text unless `pred` is true."""
    if not pred:
        raise InternalError(assert_msg)
