# SPDX-License-Identifier: BSD-3-Clause
# Every kernel test uses the same random seed.
from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
