# SPDX-License-Identifier: BSD-3-Clause
# In: a compiled reference model. Out: the figures that are stored in figures.json beside this file and must not grow.
"""Records the figures of all reference models: ``python -m tests.models.figures`` rewrites figures.json."""

from __future__ import annotations

import json
from pathlib import Path

from tests.models import artifacts, zoo
from torchette.devtools.device_memory import bills

PATH = Path(__file__).with_name("figures.json")


def measure(name: str) -> dict[str, int]:
    """Bytes of a model's file, of its planned arena, the least arena that any plan could have, and the method's own
    memory on a Cortex-M."""
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
