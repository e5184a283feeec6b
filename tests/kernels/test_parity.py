# SPDX-License-Identifier: BSD-3-Clause
# Torch's own samples of its operators, exported, compiled and run: they give what eager gives. A few samples of each
# operator always, more of them in every dtype with --full; parity_exclusions.json says what is left out, and why.

from __future__ import annotations

import pytest
import torch

from tests.kernels import parity

QUICK, FULL = 8, 64


@pytest.mark.parametrize("shard", range(QUICK))
def test_samples_give_what_eager_gives(shard: int) -> None:
    result = parity.sweep(list(parity.operators())[shard::QUICK], 2, parity.two_dtypes)
    assert not result.failures, "\n".join(result.failures)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(FULL))
def test_all_dtypes_give_what_eager_gives(shard: int) -> None:
    names = list(parity.operators())[shard::FULL]
    result = parity.sweep(names, 3)  # about a quarter of an hour of one core in all
    assert not result.failures, "\n".join(result.failures)


def test_exclusions_name_samples_and_have_reasons() -> None:
    known = parity.operators()
    for key, reason in parity.exclusions().items():
        name, _, _ = key.partition("#")
        name, _, dtype = name.partition(":")
        assert name in known and dtype in ("", *parity.DTYPES), key
        assert len(reason) > 5


def test_a_wrong_result_is_found() -> None:
    right = parity.Sample("add", "float32", 0, torch.add, (torch.ones(2), 1), {})
    assert parity.difference(right, [torch.full((2,), 2.0)]) is None
    assert parity.difference(right, [torch.full((2,), 2.001)]) is not None
    assert parity.difference(right, [torch.full((2,), 2.0, dtype=torch.float64)]) is not None
