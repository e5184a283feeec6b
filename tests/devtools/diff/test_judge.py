# SPDX-License-Identifier: BSD-3-Clause
# Differences that rounding explains are not faults; other differences are.

from __future__ import annotations

import math

import pytest
import torch

from torchette.devtools.diff.judge import NoReference, judge, measure


def test_metrics() -> None:
    x = torch.tensor([3.0, 4.0])
    assert measure(x, x).snr == math.inf
    metrics = measure(torch.tensor([3.0, 4.1]), x)
    assert metrics.max_abs == pytest.approx(0.1, rel=1e-5)
    assert metrics.snr == pytest.approx(10 * math.log10(25 / 0.01), rel=1e-4)
    assert 0.999 < metrics.cosine < 1
    assert metrics.ulp == pytest.approx(0.1 / 2**-21, rel=1e-4)  # between 4 and 8, one ULP is 2^-21
    inf = torch.tensor([math.inf, math.nan, 1.0])
    assert measure(inf, inf.clone()).max_abs == 0
    assert measure(torch.tensor([1.0]), torch.tensor([math.inf])).max_abs == math.inf
    assert measure(torch.zeros(0), torch.zeros(0)).ulp == 0


def test_other_summation_order_is_not_a_fault() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(8, 512), torch.randn(512, 8)
    backwards = torch.zeros(8, 8)
    for k in reversed(range(512)):
        backwards += a[:, k : k + 1] * b[k : k + 1]
    assert not torch.equal(backwards, a @ b)
    run = lambda values: [values[0] @ values[1]]  # noqa: E731
    assert not judge([backwards], run, [a, b], growth=math.sqrt(512)).departs
    wrong = backwards.clone()
    wrong[3, 5] *= 1.001
    verdict = judge([wrong], run, [a, b], growth=math.sqrt(512))
    assert verdict.departs and "1 of 64 elements" in verdict.reason


def test_cancellation_is_not_a_fault_but_wrong_element_is() -> None:
    x = torch.tensor([1e4, 1.0, 1e-3])
    run = lambda values: [values[0] - values[0].mean()]  # noqa: E731
    result = (x.double() - x.double().mean() * (1 + 1e-7)).float()
    assert not judge([result], run, [x]).departs
    result[0] *= 1.0001
    assert judge([result], run, [x]).departs


def test_integers_are_exact_except_at_rounding_boundaries() -> None:
    x = torch.tensor([0.5, 1.2, 7.0])
    run = lambda values: [values[0].round().to(torch.int64)]  # noqa: E731
    assert not judge([torch.tensor([1, 1, 7])], run, [x]).departs  # 0.5 can be rounded up or down
    assert judge([torch.tensor([0, 2, 7])], run, [x]).departs


def test_nan_and_infinity() -> None:
    x = torch.tensor([math.inf, -1.0, 4.0])
    run = lambda values: [values[0].sqrt()]  # noqa: E731
    assert not judge([torch.tensor([math.inf, math.nan, 2.0])], run, [x]).departs
    verdict = judge([torch.tensor([math.inf, 0.0, 2.0])], run, [x])
    assert verdict.departs and "unexpected infinity" in verdict.reason


def test_shapes_scalars_and_no_reference() -> None:
    assert "shape" in judge([torch.ones(2)], lambda values: [values[0]], [torch.ones(3)]).reason
    assert judge([3], lambda values: [4], []).departs
    assert not judge([None], lambda values: [4], []).departs

    def refuses(values: list) -> list:
        raise RuntimeError("no kernel for this")

    with pytest.raises(NoReference, match="no kernel for this"):
        judge([torch.ones(2)], refuses, [])
