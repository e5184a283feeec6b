# SPDX-License-Identifier: BSD-3-Clause
# Which tests one process of pytest-xdist runs, and in which order: a plugin of tests/conftest.py.
"""One process runs all tests of a file, so that the fixtures and imports that they share are made once. Tests with a mark
`xdist_group` are run by the process of their group instead. The longest files come first, so that no process works alone at
the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest


def scope_of(nodeid: str) -> str:
    """Returns the group that pytest-xdist appended to the name of the test, or the test's file if there is no group."""
    name, _, group = nodeid.rpartition("@")
    return group if name and nodeid.rfind("@") > nodeid.rfind("]") else nodeid.partition("::")[0]


def longest_first(tests: Sequence[tuple[str, bool]]) -> list[int]:
    """Returns the order in which to distribute tests: first scopes that have tests of the gate, then those of many tests.

    Args:
        tests: name of each test, and whether it is marked as one of the gate.
    """
    scopes = [scope_of(nodeid) for nodeid, _ in tests]
    count = Counter(scopes)
    long = {scope for scope, (_, of_gate) in zip(scopes, tests, strict=True) if of_gate}
    return sorted(range(len(tests)), key=lambda i: (scopes[i] not in long, -count[scopes[i]]))


@pytest.hookimpl(trylast=True)  # after the tests that are not selected are gone and groups are named
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        tests = [(item.nodeid, any(map(item.get_closest_marker, ("gate", "safety")))) for item in items]
        items[:] = [items[i] for i in longest_first(tests)]


@pytest.hookimpl(optionalhook=True)  # some tests run pytest without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    config.option.loadscopereorder = False  # the order is that of `longest_first`
    return ByFile(config, log)
