# SPDX-License-Identifier: BSD-3-Clause
# How much of a program is checked when it is opened, the errors of its receipt, and the check of a file before it is
# written.

from __future__ import annotations

import enum
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class LoadFault:
    """The reason why a method does not load."""

    method: str  # empty if the program itself does not load
    text: str
    instruction: int | None  # the index of the refused instruction
    value: int | None  # the index of the refused value

    @property
    def reason(self) -> str:
        """The first line of the text."""
        return self.text.partition("\n")[0]


def load_faults(head: bytes | bytearray | memoryview, file_size: int) -> list[LoadFault]:
    """Returns the methods of a program that do not load here.

    The runtime checks the records, the signatures, the memory plans and the instructions of all methods. It reads no
    weights, allocates no planned memory and initialises no backend, so the check needs less than a millisecond for most
    programs. If this machine lacks a kernel of a method, the method's instructions are not checked.

    Args:
        head: the file up to its first segment.
        file_size: the size of the file in bytes, with all segments.

    Raises:
        NativeModuleError: the native module is missing.

    Example:
        >>> data = Path("model.pte").read_bytes()
        >>> load_faults(data, len(data))
        []
    """
    return [
        LoadFault(method, text, _index("instruction", text), _index("value", text))
        for method, error, text in native.module().check_load(head, file_size)
        if error != native.OPERATOR_MISSING
    ]


def _index(kind: str, text: str) -> int | None:
    found = re.search(rf"^{kind} (\d+) is refused$", text, re.MULTILINE)
    return int(found[1]) if found else None
