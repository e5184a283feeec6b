# SPDX-License-Identifier: BSD-3-Clause
# The folder for files that are created once for each machine: build objects, and limits of the processor.
"""`cache_folder`."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns ``$TORCHETTE_CACHE``, or ``torchette`` in the user's cache folder. The folder may not exist."""
    named = os.environ.get("TORCHETTE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchette"
