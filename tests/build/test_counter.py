# SPDX-License-Identifier: BSD-3-Clause
# Counts of instructions in the board's emulator are reproducible and grow with the work; failures are reported.

from __future__ import annotations

import shutil

import pytest
import torch

import torchette
from tests.build.images import needs_emulator
from torchette import errors
from torchette.build.bare import counter


@needs_emulator
@pytest.mark.gate
@pytest.mark.skipif(
    shutil.which("arm-none-eabi-g++") is None, reason="./dev tools installs arm-none-eabi-g++"
)
def test_more_work_executes_more_instructions() -> None:
    count = counter.Counter("mps2-an386")
    torch.manual_seed(0)
    small, large = (
        bytes(torchette.compile(torch.nn.Linear(64, outputs).eval(), (torch.randn(1, 64),)))
        for outputs in (64, 1064)
    )
    small_count, large_count = count.instructions(small), count.instructions(large)
    assert 64 * 1000 / 4 < large_count - small_count < 64 * 1000 * 8, (
        "between 1/4 and 8 instructions per multiplication"
    )
    assert counter.Counter("mps2-an386").instructions(small) == small_count
    with pytest.raises(errors.BuildError, match="does not fit the flash"):
        count.instructions(
            bytes(torchette.compile(torch.nn.Linear(1024, 1100).eval(), (torch.randn(1, 1024),)))
        )


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.TargetError, match="no board 'mps2-an38'"):
        counter.Counter("mps2-an38")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(errors.MissingCompilerError, match="emulator qemu-system-arm"):
        counter.Counter("mps2-an386")
