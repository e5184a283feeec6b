# SPDX-License-Identifier: BSD-3-Clause
# Sweeps: the gate runs a part of them, `./dev test --full` runs all.

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sweep(cases: Iterable[Any], *gate: Any) -> list[Any]:
    """Returns parameters for pytest: those in `gate` always run, the others only with `--full`.

    Raises:
        ValueError: A member of `gate` is not among the cases, so the gate would not run it.
    """
    cases = list(cases)
    for case in gate:
        if case not in cases:
            raise ValueError(f"{case!r} is not among the cases of the sweep: {cases}")
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if case in gate else pytest.mark.slow))
    return marked
