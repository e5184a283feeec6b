# SPDX-License-Identifier: BSD-3-Clause
# Prints the current step of long work and the remaining time to standard error. Imports only small modules.
"""`Progress`: the current step of long work, on standard error."""

from __future__ import annotations

import sys
import time

from torchette.units import duration_text


class Progress:
    """Prints the current step of long work to standard error: one changing line on a terminal, otherwise separate lines.

    Args:
        interval: the seconds between two lines if standard error is not a terminal, and before the first line. Work that
            is shorter prints nothing there. 0 prints each step.
    """

    def __init__(self, interval: float = 10.0) -> None:
        self._interval = interval
        self._printed = time.monotonic()
        self._counted: tuple[float, int] | None = (
            None  # start time of the counted steps, and the number of finished steps at that time
        )

    def __enter__(self) -> Progress:
        return self

    def __call__(self, stage: str, name: str, done: int = 0, total: int = 0) -> None:
        """Prints the start of a step.

        Args:
            stage: the work that the step belongs to.
            name: the step.
            done: the number of finished steps.
            total: the total number of steps, used to estimate the remaining time; 0 if unknown.
        """
        now = time.monotonic()
        text = f"{stage}: {name}{self._count(now, done, total) if total else ''}"
        if sys.stderr.isatty():
            print(f"\r\033[K  …  {text}", end="", file=sys.stderr, flush=True)
        elif now - self._printed >= self._interval:
            self._printed = now
            print(text, file=sys.stderr, flush=True)

    def _count(self, now: float, done: int, total: int) -> str:
        if self._counted is None or done < self._counted[1]:
            self._counted = now, done
        began, before = self._counted
        if done == before or done >= total:
            return f" ({done} of {total} done)"
        left = (now - began) / (done - before) * (total - done)
        return f" ({done} of {total} done, about {duration_text(left)} left)"

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
