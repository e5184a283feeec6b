# SPDX-License-Identifier: BSD-3-Clause
# In: an image, as a 32-bit ELF file. Out: the UF2 file that the user copies to a board. Projects contain a copy of this
# file, so it must not import the package. Format: https://github.com/microsoft/uf2
"""Converts an image: python3 uf2.py IMAGE.elf IMAGE.uf2 FAMILY."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

PAYLOAD = 256  # bytes of each block; flash is written in pages of this size


def blocks(elf: bytes, family: int) -> bytes:
    """Returns a UF2 file with the bytes that an ELF file loads, for a processor family."""
    table, size, count = *struct.unpack_from("<I", elf, 28), *struct.unpack_from("<2H", elf, 42)
    pages: dict[int, bytearray] = {}
    for at in range(table, table + size * count, size):
        kind, offset, _, address, stored = struct.unpack_from("<5I", elf, at)
        for i in range(stored if kind == 1 else 0):  # PT_LOAD
            page, place = divmod(address + i, PAYLOAD)
            pages.setdefault(page, bytearray(PAYLOAD))[place] = elf[offset + i]
    output = bytearray()
    for number, page in enumerate(sorted(pages)):
        head = (0x0A324655, 0x9E5D5157, 0x2000, page * PAYLOAD, PAYLOAD, number, len(pages), family)
        output += struct.pack("<8I476sI", *head, bytes(pages[page]), 0x0AB16F30)
    return bytes(output)


if __name__ == "__main__":
    _, image, written, named = sys.argv
    Path(written).write_bytes(blocks(Path(image).read_bytes(), int(named, 0)))
