# SPDX-License-Identifier: BSD-3-Clause
# Which device the tests use: lavapipe where it is installed, which any driver must agree with; looked for once.
from __future__ import annotations

import os
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
            )  # others take half a second to say that they are none
    from torchette.runtime import Runtime

    return Runtime.get().backend_registry.is_available("VulkanBackend")


needs_device = pytest.mark.skipif(
    not has_device(),
    reason="no Vulkan device: ./dev tools installs one in software, ./dev setup then builds the backend",
)
