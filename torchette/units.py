# SPDX-License-Identifier: BSD-3-Clause
# Sizes as people write them.
"""`byte_count`."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def byte_count(text: str) -> int:
    """Returns the size in bytes: ``"64K"`` is 65536. The units K, M and G are powers of 1024, with or without B or iB.

    Raises:
        ValueError: the text is not a size.
    """
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no number of bytes, such as 65536, 64K or 2M")
    return int(match[1]) * _UNITS[match[2].upper()]
