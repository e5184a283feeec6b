# SPDX-License-Identifier: BSD-3-Clause
# Sizes of a compiled reference model. figures.json stores them, and they must not grow.
"""Records the figures of all reference models: ``python -m tests.models.figures`` rewrites figures.json."""

from __future__ import annotations

import json
from pathlib import Path

from tests.models import artifacts, zoo
from torchette.devtools.device_memory import bills

PATH = Path(__file__).with_name("figures.json")


def measure(name: str) -> dict[str, int]:
    """Returns the bytes of the file, of the planned arena, of the lower bound for the arena, and of method memory on a
    Cortex-M."""
    model = artifacts.compiled(name)
    return {
        "file_bytes": model.nbytes,
        "arena_bytes": model.planned_bytes,
        "bound_bytes": model.lower_bound_bytes,
        "method_bytes": bills(bytes(model), "cortex-m", temp=False)[0].method,
    }


def stored() -> dict[str, dict[str, int]]:
    return json.loads(PATH.read_text())


if __name__ == "__main__":
    PATH.write_text(json.dumps({name: measure(name) for name in zoo.names()}, indent=2) + "\n")
