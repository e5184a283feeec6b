# SPDX-License-Identifier: BSD-3-Clause
# The part of a method's emitter that the files of single calls need.
"""`Tables`: the values and instructions of one method."""

from __future__ import annotations

from typing import Protocol

from torchette.exir.emit.instructions import Instructions
from torchette.exir.emit.values import Values


class Tables(Protocol):
    """Calls add to both tables."""

    values: Values
    code: Instructions
