# SPDX-License-Identifier: BSD-3-Clause
# Torch's samples of its operators equal eager if the device supports them. Tolerance relative to the maximum magnitude: 1e-4 for
# float32, 2e-2 for float16, 0 for integers. Runs a few operators always, all with --full.
from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from tests.backends.vulkan.device import needs_device
from tests.kernels import direct, parity
from torchette.backends.vulkan import VulkanPartitioner
from torchette.backends.vulkan.payload import read
from torchette.errors import TorchetteError

pytestmark = needs_device
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 2e-2}
SHARDS, AT_ONCE = 48, 24
QUICK = {
    "float32": ["addmm", "cumsum", "gather", "nn.functional.avg_pool2d", "remainder", "softmax", "var"],
    "float16": ["addmm", "nn.functional.layer_norm", "sum"],
    "int32": ["div.floor_rounding", "maximum"],
}  # fmt: skip
called: set[str] = set()
"""The operators that ran on the device."""


def run(batch: Sequence[parity.Sample]) -> list | None:
    """Returns the results of samples in one program; None if the backend claims no node."""
    model, inputs = parity.compiled(batch, backend=VulkanPartitioner())
    module = model.program.exported_program().graph_module
    parts = [bytes(one.processed_bytes) for one in module.children() if hasattr(one, "processed_bytes")]
    if not parts:
        return None
    results = model(*map(torch.clone, inputs))
    called.update(call.name for part in parts for call in read(part).chain)
    return list(map(list, results))


def difference(sample: parity.Sample, results: list) -> str | None:
    """Returns the difference from eager, or None if the results are close to eager or to eager in float64."""
    problem = parity.difference(sample, results)
    if problem is None:
        return None
    expected = list(map(parity.paired, sample.eager()))
    exact = parity._exact(sample, len(expected))
    matches = (
        isinstance(ours, torch.Tensor)
        and (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        and (
            is_near(ours, theirs)
            or (exact_tensor is not None and is_near(ours, exact_tensor.to(theirs.dtype)))
        )
        for ours, theirs, exact_tensor in zip(results, expected, exact, strict=True)
    )
    return None if all(matches) else problem


def is_near(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    if not theirs.is_floating_point():
        return torch.equal(ours, theirs)
    finite = theirs.isfinite()
    if not torch.allclose(ours[~finite], theirs[~finite], 0, 0, equal_nan=True):
        return False
    a, b = ours[finite].double(), theirs[finite].double()
    scale = max(b.abs().max().item(), 1.0) if b.numel() else 1.0
    return not b.numel() or (a - b).abs().max().item() <= TOLERANCE.get(theirs.dtype, 1e-9) * scale


def problems_of(batch: Sequence[parity.Sample]) -> list[str]:
    """Returns the problems of samples. If they fail in one program, runs them separately."""
    if not batch:
        return []
    try:
        batch_results = run(batch)
    except TorchetteError as error:
        if len(batch) == 1:
            return (
                []
                if "exceed 32 bits" in str(error)
                else [f"{batch[0]}: {' '.join(str(error).split())[:300]}"]
            )
        middle = len(batch) // 2
        return problems_of(batch[:middle]) + problems_of(batch[middle:])
    if batch_results is None:
        return []
    problems = (
        (sample, difference(sample, results)) for sample, results in zip(batch, batch_results, strict=True)
    )
    return [f"{sample}: {problem}" for sample, problem in problems if problem is not None]


def samples(names: Sequence[str], dtype: str, limit: int) -> list[parity.Sample]:
    every = [
        sample
        for name in names
        if dtype in parity.dtypes(name)
        for sample in parity.samples(name, dtype, limit)
        if not parity.is_excluded(sample)
    ]
    return [sample for sample in every if not direct.draws(sample.eager)]


@pytest.mark.parametrize("dtype", QUICK)
def test_operators_of_the_daily_tests_equal_eager(dtype: str) -> None:
    called.clear()
    problems = problems_of(samples(QUICK[dtype], dtype, 2))
    assert not problems, "\n".join(problems)
    assert len(called) >= len(QUICK[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool"])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_all_operators_equal_eager(shard: int, dtype: str) -> None:
    every = samples(list(parity.operators())[shard::SHARDS], dtype, 4)
    problems = [text for i in range(0, len(every), AT_ONCE) for text in problems_of(every[i : i + AT_ONCE])]
    assert not problems, "\n".join(problems)


def test_comparison_detects_a_wrong_result() -> None:
    exact_tensor = parity.Sample("add", "float32", 0, torch.add, (torch.full((2,), 9.0), 1), {})
    assert difference(exact_tensor, [torch.full((2,), 10.0)]) is None
    assert difference(exact_tensor, [torch.full((2,), 10.0005)]) is None
    assert difference(exact_tensor, [torch.full((2,), 10.002)]) is not None
    assert difference(exact_tensor, [torch.full((2,), math.nan)]) is not None
