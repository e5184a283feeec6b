# SPDX-License-Identifier: BSD-3-Clause
# Selects the device of the tests, once: lavapipe if it is installed. Any driver must compute the same results.
from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest


@cache
def has_device() -> bool:
    if "VK_ICD_FILENAMES" not in os.environ:
        software = sorted(Path("/usr/share/vulkan/icd.d").glob("lvp_icd.*.json"))
        if software:
            os.environ["VK_ICD_FILENAMES"] = str(
                software[0]
            )  # other drivers need half a second to report that they have no device
    from torchette.runtime import Runtime

    return Runtime.get().backend_registry.is_available("VulkanBackend")


needs_device = pytest.mark.skipif(
    not has_device(),
    reason="no Vulkan device: ./dev tools installs one in software, ./dev setup then builds the backend",
)


@contextmanager
def on_processor() -> Iterator[None]:
    """Methods that are loaded in this context run without a device, with a warning."""
    from torchette.runtime import Runtime

    registry = Runtime.get().backend_registry
    registry.set_option("VulkanBackend", device="none")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        registry.set_option("VulkanBackend", device="")
    assert any("runs on the processor: there is no device" in str(one.message) for one in caught)
