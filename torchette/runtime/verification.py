# SPDX-License-Identifier: BSD-3-Clause
# How much of a program is checked when it is opened, and the errors of its receipt.

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Sequence

from torchette.errors import FormatError, InputError, RuntimeLoadError, TorchetteError, unknown_name
from torchette.runtime import native

_log = logging.getLogger("torchette")


class Verification(enum.IntEnum):
    """The checks of a program when it is opened. All levels are safe, since the remaining checks run before the data are used.
    Integrity also reads the complete file and compares it with its receipt, so it detects every changed bit.

    Example:
        >>> program = Runtime.get().load_program("model.pte", verification=Verification.Minimal)
    """

    Minimal = 0
    InternalConsistency = 1
    Integrity = 2


def verification_of(verification: Verification | str | int) -> Verification:
    """Returns the Verification of a level, its name or its value. Raises InputError if there is no such level."""
    names = {level.name.lower(): level for level in Verification}
    try:
        return (
            names[verification.lower().replace("-", "")]
            if isinstance(verification, str)
            else Verification(verification)
        )
    except (KeyError, ValueError):
        raise InputError(
            unknown_name("verification", verification, names), hints=[f"verifications: {', '.join(names)}"]
        ) from None


def integrity_error(
    fault: Exception, name: str, data_files: Sequence[str | os.PathLike[str]]
) -> TorchetteError:
    """Returns the exception for a native Fault of `verify_integrity`."""
    _, number, text, _ = fault.args
    _log.error("%s: %s", name, text)
    if number == native.NOT_FOUND:
        return FormatError(
            f"{name} has no receipt, so its integrity cannot be checked",
            hints=[
                "compile it with torchette.compile(..., verify=True), which stores one",
                "torchette.receipt.sign() adds one to a file that you trust",
            ],
            code="no-receipt",
        )
    if number in (native.INVALID_PROGRAM, native.INVALID_EXTERNAL_DATA):
        reason = str(text).partition("\n")[0]
        for index, file in enumerate(data_files):
            reason = reason.replace(f"data file {index} ", f"data file {os.fspath(file)} ")
        return FormatError(
            f"{name} is damaged: {reason}",
            hints=["copy or download it again", "`torchette verify` names the tensors that have changed"],
            code="damaged",
        )
    return RuntimeLoadError(f"{name}: {text}")


def xxh64(data: object) -> int:
    """Returns the 64-bit hash XXH64 (seed 0) of bytes. Receipts contain such hashes.

    Args:
        data: a contiguous object with the buffer protocol, such as bytes or a numpy array.

    Example:
        >>> hex(xxh64(b""))
        '0xef46db3751d8e999'
    """
    result: int = native.module().xxh64(data)
    return result
