# SPDX-License-Identifier: BSD-3-Clause
# The interface that the files for single calls use.
"""`Tables`: the values and instructions of one method."""

from __future__ import annotations

from typing import Protocol

from torchette.exir.emit.instructions import Instructions
from torchette.exir.emit.values import Values


class Tables(Protocol):
    """The tables to which calls are added."""

    values: Values
    code: Instructions
