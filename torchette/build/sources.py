# SPDX-License-Identifier: BSD-3-Clause
# In: this package. Out: the root folder of its C and C++ files and include paths: the checkout, or the unpacked archive
# of an installation together with its public headers.
"""`ROOT` and `PACKAGE`: folders of the C++ sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from torchette.cache import cache_folder


def _unpacked() -> Path:
    """Returns the folder that contains ``torchette/runtime`` and the other sources; unpacks them on first use."""
    package = Path(__file__).resolve().parents[1]
    packed = sorted(
        package.glob("**/sources.tar.xz")
    )  # archives of the package and of its parts, see CMakeLists.txt
    if not packed:
        return package.parent
    public = sorted(path for path in package.rglob("*") if path.suffix in (".h", ".def", ".fbs"))
    digest = hashlib.sha256()
    for path in (*packed, *public):
        digest.update(path.read_bytes())
    folder = cache_folder() / "sources" / digest.hexdigest()[:16]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            for path in packed:
                with tarfile.open(path) as archive:
                    archive.extraction_filter = getattr(tarfile, "data_filter", None)
                    archive.extractall(Path(temporary, "whole"))
            for path in public:
                to = Path(temporary, "whole", path.relative_to(package.parent))
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)
            try:
                os.rename(Path(temporary, "whole"), folder)
            except OSError:
                if not folder.is_dir():  # otherwise another process unpacked them
                    raise
    return folder


ROOT = _unpacked()
PACKAGE = ROOT / "torchette"
