# SPDX-License-Identifier: BSD-3-Clause
# Every kernel of the table, called with arguments that fit its signature and little else, under sanitizers: it refuses
# them with an error and a message, or it computes something, but it never leaves its tensors.

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.kernels.sanitized import build
from torchette.runtime import _native

pytestmark = pytest.mark.xdist_group("sanitized")


@pytest.fixture(scope="module")
def misuse() -> Path:
    return build("torchette_misuse")


def check(misuse: Path, calls: int, seed: int) -> None:
    done = subprocess.run([misuse, str(calls), str(seed)], capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[:6000]
    counts = {
        name: (int(ran), int(refused))
        for name, ran, refused in re.findall(r"(\S+): (\d+) ran, (\d+)", done.stdout)
    }
    assert set(counts) == {name for name, _ in _native.operators()}
    ran = [name for name, (ran, _) in counts.items() if ran]
    refusing = [name for name, (_, refused) in counts.items() if refused]
    # else the calls are too wild, or too tame, to prove anything
    assert len(ran) > 0.75 * len(counts) and len(refusing) > 0.9 * len(counts)


def test_kernels_survive_what_does_not_fit(misuse: Path) -> None:
    check(misuse, 300, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_kernels_survive_a_long_run(seed: int, misuse: Path) -> None:
    check(misuse, 20000, seed)
