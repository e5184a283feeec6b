# SPDX-License-Identifier: BSD-3-Clause
"""The steps of ExecuTorch's Python documentation give the same results after a change of the import root."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.interop.documentation_flows import FLOWS, results


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    return results("torchette")


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    pytest.importorskip("executorch")
    return results("executorch")


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
