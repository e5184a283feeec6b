# SPDX-License-Identifier: BSD-3-Clause
# What is being written never stands half-written under its name, whatever ends the process.
"""`replacing`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at once and whole when the block ends, or not at all."""
    target = Path(path)
    with tempfile.NamedTemporaryFile(
        dir=target.parent, prefix=target.name, suffix=".part", delete=False
    ) as file:
        try:
            yield file  # type: ignore[misc]
            file.flush()
            os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(file.name, 0o666 & ~umask)  # as open() would have made it
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
