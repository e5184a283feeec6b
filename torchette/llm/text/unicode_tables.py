# SPDX-License-Identifier: BSD-3-Clause
# In: the properties of each code point in Python's unicodedata. Out: unicode_tables.h, small sorted tables for unicode.cpp.
# The build runs it, so that no generated table is stored; the Unicode version is that of the Python that builds.

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

CATEGORIES = "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCo"


def runs(values: list[int], bits: int) -> list[int]:
    """Returns one entry per run of equal values: the first code point, with the value in the low bits."""
    return [i << bits | v for i, v in enumerate(values) if i == 0 or values[i - 1] != v]


def array(kind: str, name: str, values: list[int]) -> str:
    """Returns the C++ definition of a table."""
    return f"constexpr {kind} {name}[] = {{{','.join(map(str, values))}}};\n"


def other_uppers(every: list[str], lower: dict[int, list[int]]) -> list[int]:
    """Returns four values for each letter with an upper case that the lower-case table does not contain.

    The values are the letter and its upper case, up to 3 letters.
    """
    table: list[int] = []
    of_lower: dict[int, int] = {}
    for upper, points in lower.items():
        of_lower.setdefault(points[0], upper)
    for point, c in enumerate(every):
        upper_case = [ord(one) for one in c.upper()]
        if upper_case != [of_lower.get(point, point)] and point >= 0x80:
            table += [point, *upper_case, *[0] * (3 - len(upper_case))]
    return table


def header() -> str:
    """Returns the text of unicode_tables.h."""
    every = [chr(i) for i in range(sys.maxunicode + 1)]
    lower = {ord(c): [ord(d) for d in c.lower()] for c in every if c.lower() != c}
    if [key for key, value in lower.items() if len(value) != 1] != [
        0x130
    ]:  # the only one that unicode.cpp handles
        raise SystemExit("this Python lowers more than U+0130 to several characters")
    decompositions: list[int] = []
    parts: list[int] = []
    pairs: list[tuple[int, int, int]] = []
    for point, c in enumerate(every):
        words = unicodedata.decomposition(c).split()
        if words:
            compatible = words[0].startswith("<")
            points = [int(word, 16) for word in words[compatible:]]
            decompositions += [point | compatible << 21, len(parts) << 5 | len(points)]
            parts += points
            # a canonical pair composes, unless Unicode excludes it
            if not compatible and len(points) == 2 and unicodedata.normalize("NFC", c) == c:
                pairs.append((points[0], points[1], point))
    return (
        "// made by unicode_tables.py\n#pragma once\n#include <cstdint>\nnamespace torchette::extension::llm {\n"
        + array(
            "uint32_t",
            "kCategories",
            runs([CATEGORIES.index(unicodedata.category(c)) // 2 for c in every], 5),
        )
        + array("uint32_t", "kCombining", runs([unicodedata.combining(c) for c in every], 8))
        + array("uint32_t", "kLower", [n for key, value in lower.items() for n in (key, value[0])])
        + array("uint16_t", "kOtherUppers", other_uppers(every, lower))
        + array("uint32_t", "kDecompositions", decompositions)
        + array("uint32_t", "kParts", parts)
        + array("uint32_t", "kPairs", [n for pair in sorted(pairs) for n in pair])
        + "}  // namespace torchette::extension::llm\n"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header(), encoding="ascii")
