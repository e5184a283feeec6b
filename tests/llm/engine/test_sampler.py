# SPDX-License-Identifier: BSD-3-Clause
# In: rows of logits. Out: the sampler's distributions are those of the definitions of its options.

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

from tests.llm.double import log_softmax
from tests.llm.engine.sampling import Choice, choices, line
from torchette.errors import InputError
from torchette.llm.options import checked

LOGITS = np.random.default_rng(1).normal(size=50).astype(np.float32) * 2


class Case(NamedTuple):
    options: dict[str, object]
    logits: np.ndarray = LOGITS
    prompt: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()
    allowed: tuple[int, ...] | None = None
    draws: int = 0


def outcomes(*cases: Case) -> tuple[list[Choice], str]:
    return choices(
        [
            line(
                case.logits.tolist(), (*case.prompt, *case.answer), len(case.prompt),
                options={"temperature": 1.0, **case.options}, allowed=case.allowed, draws=case.draws,
            )
            for case in cases
        ]
    )  # fmt: skip


def distributions(*cases: Case) -> list[np.ndarray]:
    results, _ = outcomes(*cases)
    assert {one.error for one in results} == {"Ok"}
    return [one.distribution for one in results]


def softmax(values: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(values.astype(np.float64)))


def test_temperature_divides_logits_and_zero_selects_the_maximum() -> None:
    temperatures = (0.3, 1.0, 2.5)
    *warm, zero, tiny = distributions(*(Case({"temperature": t}) for t in (*temperatures, 0, 1e-9)))
    for temperature, distribution in zip(temperatures, warm, strict=True):
        np.testing.assert_allclose(
            distribution, softmax(LOGITS.astype(np.float64) / np.float32(temperature)), rtol=1e-6
        )
    assert zero.argmax() == LOGITS.argmax() and zero.sum() == 1 == zero.max() == tiny.max()


@pytest.mark.parametrize("seed", range(3))
def test_tokens_that_top_k_top_p_and_min_p_keep(seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=40).astype(np.float32)
    full = softmax(logits)
    order = np.argsort(-full)
    counts, masses, parts = (1, 7, 40, 1000), (0.05, 0.5, 0.9), (0.1, 0.6, 1.0)
    cases = [{"top_k": k} for k in counts] + [{"top_p": p} for p in masses] + [{"min_p": m} for m in parts]
    results = distributions(*(Case(case, logits) for case in (*cases, {"top_k": 10, "top_p": 0.8})))
    nonzero_tokens = [set(np.flatnonzero(one)) for one in results]
    mass = np.cumsum(full[order])
    assert nonzero_tokens[:4] == [set(order[:k]) for k in counts]
    assert nonzero_tokens[4:7] == [set(order[: int((mass < p).sum()) + 1]) for p in masses]
    assert nonzero_tokens[7:10] == [set(np.flatnonzero(full >= m * full.max())) for m in parts]
    np.testing.assert_allclose([one.sum() for one in results], 1)
    first = np.where(np.isin(np.arange(40), order[:10]), full, 0)
    mass = np.cumsum(first[order] / first.sum())
    assert nonzero_tokens[10] == set(order[: int((mass < 0.8).sum()) + 1])


def test_tokens_equal_to_the_last_one_stay_with_top_k() -> None:
    (distribution,) = distributions(Case({"top_k": 1}, np.array([1, 2, 2, 0], np.float32)))
    assert np.count_nonzero(distribution) == 2


def test_drawn_tokens_have_the_distribution() -> None:
    options = {"temperature": 1.3, "top_k": 12, "seed": 3}
    (first, again), _ = outcomes(Case(options, draws=20_000), Case(options, draws=3))
    counts = np.bincount(first.drawn, minlength=50)
    is_possible = first.distribution > 0
    assert not counts[~is_possible].any() and first.drawn[:3] == again.drawn
    expected = 20_000 * first.distribution[is_possible]
    statistic = float(((counts[is_possible] - expected) ** 2 / expected).sum())
    assert statistic < 31.3  # chi-squared, 11 degrees of freedom: exceeded with probability 0.001


def test_penalties_and_bias_are_those_of_the_definitions() -> None:
    logits = np.array([2.0, -2.0, 1.0, 0.5], np.float32)
    cases = {
        (1.0, -4.0, 1.0, 0.5): Case({"repetition_penalty": 2.0}, logits, (0, 0), (1,)),
        (1.0, -2.0, 0.25, 0.5): Case(
            {"presence_penalty": 0.5, "frequency_penalty": 0.25}, logits, (3,), (0, 0, 2)
        ),
        (2.0, 3.0, 1.0, 0.5): Case({"logit_bias": {"1": 5}}, logits),
    }
    for expected, distribution in zip(cases, distributions(*cases.values()), strict=True):
        np.testing.assert_allclose(distribution, softmax(np.array(expected)), rtol=1e-6)
    (forbidden,) = distributions(
        Case({"temperature": 0, "logit_bias": {"0": -1e38}}, logits, allowed=(0, 1, 3))
    )
    assert forbidden.argmax() == 3


def test_no_possible_token_is_an_error() -> None:
    cases = (
        Case({}, allowed=()), Case({}, np.full(50, np.nan, np.float32)), Case({}, np.full(50, np.inf, np.float32)),
        Case({}, np.array([1, np.nan, 2], np.float32)), Case({"logit_bias": {"50": 1.0}}),
    )  # fmt: skip
    results, log = outcomes(*cases)
    assert "Ok" not in {one.error for one in results}
    assert log.count("no token can be chosen") == 4 and "logit_bias: token 50 is out of range" in log


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1}, {"temperature": math.nan}, {"temperature": "1"}, {"temperature": True}, {"top_k": 1.5},
        {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": 2}, {"repetition_penalty": 0}, {"presence_penalty": 1e9},
        {"logit_bias": {0: math.nan}}, {"logit_bias": {0: math.inf}}, {"logit_bias": {"a": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_values_out_of_range_are_named(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        checked(options)
