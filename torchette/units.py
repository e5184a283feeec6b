# SPDX-License-Identifier: BSD-3-Clause
# Parses and formats sizes, durations and counts.
"""`byte_count`, `byte_text`, `duration_text`, `counted`, `wrong_count`.

Sizes in output are decimal, as in torch, pip and file managers: 1 kB is 1000 bytes, 1 MB is 10^6 bytes. Exact sizes are
printed in bytes. Sizes that the user enters are device memories with binary units, as in linker scripts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def byte_count(text: str) -> int:
    """Returns the size in bytes: ``"64K"`` is 65536. The units K, M and G are powers of 1024, with or without B or iB.

    Raises:
        ValueError: if the text is not a size.
    """
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a number of bytes, such as 65536, 64K or 2M")
    return int(match[1]) * _UNITS[match[2].upper()]


def byte_text(count: float) -> str:
    """Returns a size in bytes as text with three significant digits: ``4_448_000`` is ``"4.45 MB"``.

    The page of `torchette report` implements the same function in JavaScript.
    """
    if count < 1000:
        return f"{count:.0f} B"
    size, unit = count / 1000, "kB"
    for larger in ("MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.{2 if size < 10 else 1 if size < 100 else 0}f} {unit}"


def duration_text(seconds: float) -> str:
    """Returns a duration in seconds as text in its largest unit: ``200`` is ``"3 min"``."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun: ``1 input``, ``2 inputs``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def wrong_count(callee: str, input_names: Sequence[str], num_given: int) -> str:
    """Returns the message for a wrong count of inputs: ``method 'f' expects 1 input (x: float32[2]), got 3``."""
    inputs = f"{counted(len(input_names), 'input')} ({', '.join(input_names) or 'none'})"
    return f"{callee} expects {inputs}, got {num_given}"
