# SPDX-License-Identifier: BSD-3-Clause
"""The steps of ExecuTorch's Python documentation give the same results after a change of the import root."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.interop.documentation_flows import FLOWS


def _run(root: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.interop.documentation_flows", root]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return results


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    return _run("torchette")


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    pytest.importorskip("executorch")
    return _run("executorch")


@pytest.mark.parametrize("name", FLOWS)
def test_documented_flow_matches_executorch(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert _same(ours[name], theirs[name]), (FLOWS[name].__doc__, ours[name], theirs[name])


def _same(first: Any, second: Any) -> bool:
    """Whether two results are equal, floats approximately."""
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return (math.isnan(first) and math.isnan(second)) or math.isclose(
            first, second, rel_tol=1e-3, abs_tol=1e-4
        )
    return bool(first == second)


def test_no_flow_fails(ours: dict[str, Any]) -> None:
    """Equal errors, or equal wrong values, on both sides would count as equal results."""
    assert {
        name: outcome for name, outcome in ours.items() if outcome is False or isinstance(outcome, str)
    } == {}
