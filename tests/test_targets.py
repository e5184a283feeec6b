# SPDX-License-Identifier: BSD-3-Clause
# The table of targets: builds, memory accounting, and the error for an unknown name.

from __future__ import annotations

import pytest

from torchette import targets
from torchette.devtools.device_memory import processor_of
from torchette.errors import InputError, TargetError


def test_unknown_target_suggests_the_nearest_name():
    with pytest.raises(TargetError, match="did you mean aarch64-linux") as caught:
        targets.find("aarch64-linx")
    assert "riscv64-linux" in caught.value.hints[0]
    assert caught.value.code == "no-such-target"


def test_every_target_has_memory_properties():
    for name in targets.TARGETS:
        assert processor_of(name).pointer == (
            4 if name.startswith(("armv7", "cortex", "riscv32", "wasm32")) else 8
        )
    assert targets.processor("aarch64-android").lanes == targets.PROCESSORS["aarch64"].lanes
    assert targets.processor("riscv64-linux").lanes == 4 and targets.processor("riscv64-v-linux").lanes == 8
    assert targets.processor("x86-64-v3") == targets.PROCESSORS["x86-64-v3"]
    assert targets.processor("cortex-m0").pointer == targets.processor("cortex-m0plus").pointer == 4


def test_processor_without_builds_differs_from_an_unknown_name():
    with pytest.raises(TargetError, match="a processor for memory accounting"):
        targets.find("x86-64-v4")
    assert targets.find("native") is targets.find("host")
    with pytest.raises(InputError, match="no target 'z80'") as caught:
        targets.processor("z80")
    assert "cortex-m" in str(caught.value) and "aarch64-linux" in str(caught.value)
