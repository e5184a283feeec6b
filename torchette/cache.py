# SPDX-License-Identifier: BSD-3-Clause
# Where what is made once for a machine is kept: objects of builds, limits of the processor.
"""`cache_folder`."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$TORCHETTE_CACHE``, or ``torchette`` in the user's cache folder; it need not exist."""
    named = os.environ.get("TORCHETTE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchette"
