# SPDX-License-Identifier: BSD-3-Clause
# In: dtypes.def, which C++ includes. Out: its rows.
"""The tables that C++ and Python share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["DTYPES", "Dtype"]


class Dtype(NamedTuple):
    """A row of dtypes.def."""

    number: int
    """torch's, which files store."""
    name: str
    """Of the enumerator of torchette::ScalarType."""
    torch_name: str
    """Such as ``float32``."""
    nbytes: int
    """Of an element."""
    computed: bool
    """Whether kernels compute with it."""

    @property
    def schema_name(self) -> str:
        """Of the enumerator of the file format's ScalarType."""
        return self.name.upper().replace("_", "")


def _dtypes() -> tuple[Dtype, ...]:
    text = (Path(__file__).parent / "dtypes.def").read_text(encoding="utf-8")
    rows = re.findall(r"^TORCHETTE_(STORED_)?DTYPE\((\d+), (\w+), (\w+), (\d+)[,)]", text, re.M)
    found = tuple(
        Dtype(int(number), name, torch_name, int(nbytes), not stored)
        for stored, number, name, torch_name, nbytes in rows
    )
    assert [dtype.number for dtype in found] == list(range(len(found)))
    return found


DTYPES = _dtypes()
"""By number."""
