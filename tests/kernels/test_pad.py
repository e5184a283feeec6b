# SPDX-License-Identifier: BSD-3-Clause
# Reflection and replication pads compared with eager, including crops and invalid arguments.
from __future__ import annotations

import pytest
import torch

from tests.kernels.kernel_call import check, run

aten = torch.ops.aten
PADS: dict[int, list[list[int]]] = {
    1: [[0, 0], [1, 2], [3, 0], [-1, 2], [1, -2]],
    2: [[0, 0, 0, 0], [1, 2, 2, 1], [3, 0, 0, 3], [-1, 1, 1, -1]],
    3: [[1, 2, 0, 1, 2, 1], [0, 0, 0, 0, 0, 0], [3, 3, 3, 3, 3, 3]],
}


@pytest.mark.parametrize("kind", ["reflection", "replication"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pads(kind: str, dtype: torch.dtype, dims: int) -> None:
    function = getattr(aten, f"{kind}_pad{dims}d")
    for batch in ((2,), (2, 3), (0, 2)):
        x = torch.randint(0, 100, (*batch, 6, 5, 4)[: len(batch) + dims]).to(dtype)
        for pad in PADS[dims]:
            expected = function(x.double(), pad).to(dtype)
            check(f"aten::{kind}_pad{dims}d.out", expected, x, pad)
            if x.dim() == 4:
                last = x.to(memory_format=torch.channels_last)
                check(f"aten::{kind}_pad{dims}d.out", expected, last, pad)


def test_replication_may_exceed_the_input() -> None:
    x = torch.randn(1, 2, 3)
    check("aten::replication_pad1d.out", aten.replication_pad1d(x, [10, 20]), x, [10, 20])


def test_invalid_arguments_are_rejected() -> None:
    x = torch.randn(2, 3, 4)
    for name, value, pad in (
        ("reflection_pad1d", x, [4, 0]),
        ("reflection_pad1d", x, [0, 4]),
        ("reflection_pad1d", x, [2**62, 2**62]),
        ("reflection_pad1d", x, [-4, 0]),
        ("replication_pad1d", x, [-2, -2]),
        ("replication_pad1d", x, [1]),
        ("replication_pad1d", x[0, 0], [1, 1]),
        ("replication_pad1d", x[:, :, :0], [1, 1]),
        ("replication_pad1d", x, [2**40, 0]),
        ("reflection_pad2d", x, [0, 0, 3, 0]),
        ("reflection_pad1d", x.long(), [0, 0]),
    ):
        with pytest.raises(RuntimeError):
            run(f"aten::{name}.out", value, pad, like=[x])
