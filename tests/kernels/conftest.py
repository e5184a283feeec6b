# SPDX-License-Identifier: BSD-3-Clause
# Every kernel test draws the same random numbers in every run. In a run that tests/build/test_kernels_elsewhere.py starts, the
# kernels are those of another machine.
from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _machine() -> Iterator[None]:
    if not (command := os.environ.get("TORCHETTE_TEST_KERNELS")):
        yield
        return
    from tests.kernels import machine

    with machine.kernels_of(machine.Machine(shlex.split(command))):
        yield
