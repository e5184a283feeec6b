# SPDX-License-Identifier: BSD-3-Clause
# Steps of long work come in by name; a terminal shows the current one. Imports next to nothing.
"""`Progress`: what is being done now, on standard error."""

from __future__ import annotations

import sys


class Progress:
    """Called with (stage, step): shows the current one on a terminal, and nothing anywhere else."""

    def __enter__(self) -> Progress:
        return self

    def __call__(self, stage: str, name: str) -> None:
        """Shows a step in place of the one before."""
        if sys.stderr.isatty():
            print(f"\r\033[K  …  {stage}: {name}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
