# SPDX-License-Identifier: BSD-3-Clause
# In: the part of a .pte file before its segments. Out: the methods that do not load, with reasons.
"""`load_faults`: checks that a file loads, without its weights, its planned memory and its backends."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchette.runtime import native


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
