# SPDX-License-Identifier: BSD-3-Clause
# What holds for every test: the torch that results are held against is the pinned one, and the header says if not.

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

PINNED_TORCH = "2.13.0"
# What `torchette build` compiles in tests is kept with the checkout.
os.environ.setdefault("TORCHETTE_CACHE", str(Path(__file__).resolve().parents[1] / ".torchette" / "cache"))
# The cmake and ninja that `./dev setup` installed and built with, also where the system has none.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def pytest_report_header() -> str:
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "torch: not installed; run ./dev setup"
    if torch.partition("+")[0] != PINNED_TORCH:
        return f"torch: {torch}, NOT the pinned {PINNED_TORCH} that the tests are written for; ./dev setup makes a .venv"
    return f"torch: {torch}"
