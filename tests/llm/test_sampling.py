# SPDX-License-Identifier: BSD-3-Clause
# In: rows of logits. Out: the distributions that sampling makes of them are those of the definitions.

from __future__ import annotations

import math

import numpy as np
import pytest

from torchette.errors import ExecutionError, InputError
from torchette.llm.sampling import Sampling, adjust, draw, log_softmax, probabilities, seeded

LOGITS = np.random.default_rng(1).normal(size=50).astype(np.float32) * 2


def softmax(values: np.ndarray) -> np.ndarray:
    e = np.exp(values.astype(np.float64) - values.max())
    return e / e.sum()


def of(logits: np.ndarray = LOGITS, prompt=(), answer=(), allowed=None, **options: object) -> np.ndarray:
    sampling = Sampling(**options)  # type: ignore[arg-type]
    return probabilities(adjust(logits, sampling, prompt, answer, allowed), sampling)


def test_temperature_divides_and_zero_takes_the_greatest():
    for temperature in (0.3, 1.0, 2.5):
        np.testing.assert_allclose(
            of(temperature=temperature), softmax(LOGITS.astype(np.float64) / temperature), rtol=1e-6
        )
    assert of().argmax() == LOGITS.argmax() and of().sum() == 1 == of().max()
    assert of(temperature=1e-9).max() == 1


@pytest.mark.parametrize("seed", range(5))
def test_what_top_k_top_p_and_min_p_keep(seed):
    logits = np.random.default_rng(seed).normal(size=40).astype(np.float32)
    full = softmax(logits)
    order = np.argsort(-full)
    for k in (1, 7, 40, 1000):
        kept = np.flatnonzero(of(logits, temperature=1.0, top_k=k))
        assert set(kept) == set(order[:k])
    for p in (0.05, 0.5, 0.9):
        kept = np.flatnonzero(of(logits, temperature=1.0, top_p=p))
        mass = np.cumsum(full[order])
        assert set(kept) == set(order[: int((mass < p).sum()) + 1])
    for m in (0.1, 0.6, 1.0):
        kept = of(logits, temperature=1.0, min_p=m)
        assert set(np.flatnonzero(kept)) == set(np.flatnonzero(full >= m * full.max()))
        np.testing.assert_allclose(kept.sum(), 1)
    together = of(logits, temperature=1.0, top_k=10, top_p=0.8)
    first = np.where(np.isin(np.arange(40), order[:10]), full, 0)
    mass = np.cumsum(first[order] / first.sum())
    assert set(np.flatnonzero(together)) == set(order[: int((mass < 0.8).sum()) + 1])


def test_equals_of_the_last_one_stay_with_top_k():
    assert np.count_nonzero(of(np.array([1, 2, 2, 0], np.float32), temperature=1.0, top_k=1)) == 2


def test_drawn_tokens_have_the_distribution():
    distribution = of(temperature=1.3, top_k=12)
    random = seeded(3)
    counts = np.bincount([draw(distribution, random) for _ in range(20_000)], minlength=50)
    kept = distribution > 0
    assert not counts[~kept].any()
    expected = 20_000 * distribution[kept]
    statistic = float(((counts[kept] - expected) ** 2 / expected).sum())
    assert statistic < 31.3  # chi squared of 11 degrees: one seed in a thousand is beyond
    assert [draw(distribution, seeded(9)) for _ in range(3)] == [draw(distribution, seeded(9))] * 3


def test_penalties_and_bias_are_those_of_the_definitions():
    logits = np.array([2.0, -2.0, 1.0, 0.5], np.float32)
    plain = Sampling()
    assert adjust(logits, plain, [0], [1], None) is logits
    np.testing.assert_allclose(
        adjust(logits, Sampling(repetition_penalty=2.0), [0, 0], [1], None), [1, -4, 1, 0.5]
    )
    np.testing.assert_allclose(
        adjust(logits, Sampling(presence_penalty=0.5, frequency_penalty=0.25), [3], [0, 0, 2], None),
        [1, -2, 0.25, 0.5],
    )
    np.testing.assert_allclose(adjust(logits, Sampling(logit_bias={1: 5}), [], [], None), [2, 3, 1, 0.5])
    forbidden = adjust(
        logits, Sampling(logit_bias={0: -math.inf}), [], [], np.array([True, True, False, True])
    )
    assert probabilities(forbidden, Sampling()).argmax() == 3
    np.testing.assert_array_equal(logits, np.array([2.0, -2.0, 1.0, 0.5], np.float32))


def test_log_probabilities_are_the_log_softmax():
    np.testing.assert_allclose(log_softmax(LOGITS), np.log(softmax(LOGITS)), rtol=1e-12)
    assert np.isfinite(log_softmax(np.array([1e4, -1e4], np.float32))).all()


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1}, {"temperature": math.nan}, {"temperature": "1"}, {"temperature": True}, {"top_k": 1.5},
        {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": 2}, {"repetition_penalty": 0}, {"presence_penalty": 1e9},
        {"logit_bias": {0: math.nan}}, {"logit_bias": {0: math.inf}}, {"logit_bias": {"a": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_out_of_range_is_named(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Sampling(**options)


def test_no_token_that_can_be_chosen_is_an_error():
    for logits, allowed in (
        (LOGITS, np.zeros(50, bool)),
        (np.full(50, np.nan, np.float32), None),
        (np.full(50, np.inf, np.float32), None),
    ):
        with pytest.raises(ExecutionError, match="no token can be chosen"):
            of(logits, allowed=allowed)
    with pytest.raises(InputError, match="no token 50"):
        of(logit_bias={50: 1.0})
    for seed in (-1, 1.5, True, "x"):
        with pytest.raises(InputError, match="seed"):
            seeded(seed)
