# SPDX-License-Identifier: BSD-3-Clause
# Reads the bytes of a receipt (see docs/format.md) and its facts. torchette/receipt.py computes the hashes.
"""The receipt of a .pte file as records."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from torchette.format import pte

KEY = "torchette.receipt"  # name of the receipt in the named data

MARK = b"RECEIPT1"
HEAD = struct.Struct(
    "<8sQII"
)  # mark, hash of the bytes from HASHED_FROM, count of parts, count of data files
HASHED_FROM = 16
ENTRY = struct.Struct("<QQ")  # bytes, hash


class Entry(NamedTuple):
    """Bytes and their hash."""

    nbytes: int
    hash: int


@dataclass(frozen=True)
class Receipt:
    """The hashes and facts that a file contains about itself."""

    parts: list[Entry]  # consecutive, from byte 0 to the start of the receipt
    data_files: list[Entry]
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns the facts, the parts and the data files as plain values."""
        return asdict(self) | {
            "parts": [entry._asdict() for entry in self.parts],
            "data_files": [entry._asdict() for entry in self.data_files],
        }


def provenance(file: pte.PteFile) -> dict[str, Any] | None:
    """Returns the unverified facts of a file's receipt; None if it has no readable receipt."""
    blob = file.named().get(KEY)
    try:
        _, _, parts, files = HEAD.unpack_from(blob or b"")
        facts = json.loads(bytes(blob[HEAD.size + ENTRY.size * (parts + files) :])) if blob else None
    except (struct.error, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the facts of a receipt as (name, text) for display."""
    result = []
    for name, value in facts.items():
        if name == "compared" and isinstance(value, list):
            result += [_case_row(case) for case in value]
        else:
            result.append((name, value if isinstance(value, str) else json.dumps(value)))
    return result


def _case_row(case: Mapping[str, Any]) -> tuple[str, str]:
    try:
        seed = case["inputs"].get("seed")
        inputs = "the example inputs" if seed is None else f"inputs of seed {seed}"
        errors = ", ".join(
            f"output {error['output']} within {error['max_abs']:.3g}"
            + (f" ({error['snr_db']:.0f} dB)" if error["snr_db"] is not None else "")
            for error in case["outputs"]
        )
        return f"{case['method']} on {inputs}", errors or "no output is a tensor"
    except (AttributeError, KeyError, TypeError, ValueError):
        return "compared", json.dumps(case)  # a receipt of another program
