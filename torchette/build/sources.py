# SPDX-License-Identifier: BSD-3-Clause
# In: this package. Out: the folder with its C and C++ files, from which include paths begin: the checkout itself, or
# what an installation has packed, which is a fifth of the bytes.
"""`ROOT` and `PACKAGE`: where C++ is compiled from."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from pathlib import Path

from torchette.cache import cache_folder


def _unpacked() -> Path:
    """The folder above ``torchette/runtime`` and the other sources; unpacked on first use."""
    package = Path(__file__).resolve().parents[1]
    packed = package / "sources.tar.xz"  # CMakeLists.txt
    if not packed.exists():
        return package.parent
    folder = cache_folder() / "sources" / hashlib.sha256(packed.read_bytes()).hexdigest()[:16]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made, tarfile.open(packed) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # type: ignore[assignment]
            archive.extractall(Path(made, "whole"))
            try:
                os.rename(Path(made, "whole"), folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
    return folder


ROOT = _unpacked()
PACKAGE = ROOT / "torchette"
