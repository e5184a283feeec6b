# SPDX-License-Identifier: BSD-3-Clause
# The zoo on XNNPACK and Vulkan: at most the documented number of delegate calls, and results equal to eager.

from __future__ import annotations

import importlib.util
import statistics

import pytest

from tests.backends.vulkan.device import needs_device
from tests.backends.xnnpack_cases import of_the_library
from tests.models import architectures, delegates

# Two models amplify rounding errors beyond the limit of the others; see benchmarks/architectures.md.
TOLERANCE = 3e-4


@pytest.mark.slow
@of_the_library
@pytest.mark.parametrize("name", architectures.NAMES)
def test_delegate_calls(name: str) -> None:
    if importlib.util.find_spec(name.partition("/")[0]) is None:
        pytest.skip(f"{name.partition('/')[0]} is not installed")
    row, known = delegates.measure(name), delegates.rows()[name]
    assert row.calls <= known.calls and row.outside <= known.outside, row
    assert row.difference <= TOLERANCE, row


# Models that a software Vulkan device runs within seconds.
_MAX_MACS = 5e8


@needs_device
@pytest.mark.slow
@pytest.mark.parametrize("name", architectures.NAMES)
def test_calls_of_vulkan(name: str) -> None:
    if importlib.util.find_spec(name.partition("/")[0]) is None:
        pytest.skip(f"{name.partition('/')[0]} is not installed")
    row = delegates.measure(name, delegates.VULKAN_PAGE, _MAX_MACS)
    known = delegates.rows(delegates.VULKAN_PAGE)[name]
    assert row.calls <= known.calls and row.outside <= known.outside, row
    assert row.difference <= TOLERANCE, row


def test_the_page_lists_every_architecture_and_the_median_is_one_call() -> None:
    known = delegates.rows()
    assert list(known) == architectures.NAMES, "run: python -m tests.models.delegates"
    assert statistics.median(row.calls for row in known.values()) == 1
    assert delegates.page(known) == delegates.PAGE.read_text(encoding="utf-8")


def test_vulkan_page_is_up_to_date() -> None:
    known = delegates.rows(delegates.VULKAN_PAGE)
    assert list(known) == architectures.NAMES, "run: python -m tests.models.delegates --vulkan"
    assert statistics.median(row.calls for row in known.values()) == 1
    assert delegates.page(known, delegates.VULKAN_PAGE) == delegates.VULKAN_PAGE.read_text(encoding="utf-8")
