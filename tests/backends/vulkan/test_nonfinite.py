# SPDX-License-Identifier: BSD-3-Clause
# NaN and infinity propagate through Vulkan's payloads as in eager, on a device and on our kernels: torch's samples with
# such elements.

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.backends.vulkan.device import needs_device, on_processor
from tests.backends.vulkan.test_parity import difference, run, samples, seen
from tests.kernels import parity
from tests.kernels.nonfinite import VALUES
from tests.kernels.test_nonfinite import is_skipped, with_values
from torchette.errors import TorchetteError

pytestmark = [needs_device, pytest.mark.filterwarnings("ignore::UserWarning")]
SHARDS = 24
QUICK = [
    "add", "amax", "clamp", "div.no_rounding_mode", "exp", "maximum", "mean", "mm", "nn.functional.avg_pool2d",
    "nn.functional.gelu", "nn.functional.layer_norm", "nn.functional.max_pool2d", "nn.functional.relu", "pow",
    "sigmoid", "softmax", "sqrt", "sum", "tanh", "where",
]  # fmt: skip


def compare(batch: Sequence[parity.Sample]) -> list[str]:
    """Runs samples in one program, or in halves if the program is rejected, and returns the failures."""
    try:
        found = run(batch)
        with on_processor():
            emulated = run(batch)
    except TorchetteError:
        if len(batch) == 1:
            return []  # test_parity.py checks what is rejected
        half = len(batch) // 2
        return compare(batch[:half]) + compare(batch[half:])
    if found is None or emulated is None:
        return []
    return [
        f"{where}: {sample}: {problem}"
        for where, every in (("device", found), ("kernels", emulated))
        for sample, results in zip(batch, every, strict=True)
        if (problem := difference(sample, results)) is not None
    ]


def changed(names: Sequence[str], limit: int) -> list[parity.Sample]:
    every = [s for s in samples(names, "float32", limit) if not is_skipped(s.operator)]
    return [
        new for sample in every for kind in VALUES if parity.eager_accepts(new := with_values(sample, kind))
    ]


def test_common_operators_propagate_as_in_eager() -> None:
    batch = changed(QUICK, 1)
    assert len(batch) == len(QUICK) * len(VALUES)
    seen.clear()
    failures = compare(batch)
    assert not failures, "\n".join(failures)
    assert len(seen) >= len(QUICK) // 2, f"Vulkan ran only {sorted(seen)}"


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_all_operators_propagate_as_in_eager(shard: int) -> None:
    batch = changed(list(parity.operators())[shard::SHARDS], 2)
    failures = [text for at in range(0, len(batch), 24) for text in compare(batch[at : at + 24])]
    assert not failures, "\n".join(failures)
