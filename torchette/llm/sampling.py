# SPDX-License-Identifier: BSD-3-Clause
# In: one row of logits and what was asked for. Out: the probabilities from which the next token is drawn.
# Speculative decoding compares two of these, so they are whole distributions and not a pick.
"""How the next token is chosen from logits."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchette.errors import ExecutionError, InputError

# Least and greatest value of each number, whether the least is excluded, whether it is a whole number.
_RANGES: dict[str, tuple[float, float, bool, bool]] = {
    "temperature": (0, 100, False, False),
    "top_k": (0, 1 << 31, False, True),
    "top_p": (0, 1, True, False),
    "min_p": (0, 1, False, False),
    "repetition_penalty": (0, 100, True, False),
    "presence_penalty": (-100, 100, False, False),
    "frequency_penalty": (-100, 100, False, False),
}


@dataclass(frozen=True)
class Sampling:
    """The options of sampling, in the order of application. InputError names an option out of range."""

    repetition_penalty: float = 1.0
    """Divides positive logits, and multiplies negative ones, of tokens in the prompt or the answer."""
    presence_penalty: float = 0.0
    """Subtracted from logits of tokens in the answer."""
    frequency_penalty: float = 0.0
    """Likewise, as often as the token is there."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to logits, by token; -inf forbids one."""
    temperature: float = 0.0
    """Divides the logits; 0 takes the greatest and draws nothing."""
    top_k: int = 0
    """Only so many of the likeliest tokens, and their equals; 0: all."""
    top_p: float = 1.0
    """Only the fewest of the likeliest tokens that have this probability together."""
    min_p: float = 0.0
    """Only tokens with this part of the likeliest one's probability."""

    def __post_init__(self) -> None:
        for name, (least, most, above, whole) in _RANGES.items():
            value = getattr(self, name)
            number = isinstance(value, (int, np.integer) if whole else (int, float, np.number))
            if (
                isinstance(value, bool)
                or not number
                or not least <= value <= most
                or (above and value == least)
            ):
                kind = "a whole number" if whole else "a number"
                bound = f"above {least}" if above else f"from {least}"
                raise InputError(f"{name} is {value!r}, it must be {kind} {bound} to {most}")
        for token, bias in self.logit_bias.items():
            if (
                not isinstance(token, (int, np.integer))
                or isinstance(bias, bool)
                or not isinstance(bias, (int, float))
                or not bias <= 1e30
            ):
                raise InputError(
                    f"logit_bias[{token!r}] is {bias!r}: it takes numbers to 1e30 by token number"
                )

    @property
    def is_plain(self) -> bool:
        """Whether logits are used as they are, but for the temperature and what it keeps."""
        return self.repetition_penalty == 1 and not (
            self.presence_penalty or self.frequency_penalty or self.logit_bias
        )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities, float64."""
    shifted: np.ndarray = logits.astype(np.float64) - logits.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def adjust(
    logits: np.ndarray,
    sampling: Sampling,
    prompt: Sequence[int],
    answer: Sequence[int],
    allowed: np.ndarray | None,
) -> np.ndarray:
    """Logits after penalties and bias; -inf where `allowed` is False. ExecutionError where none is left, or NaN."""
    if not sampling.is_plain or allowed is not None:
        logits = logits.astype(np.float32)  # a copy
    if sampling.repetition_penalty != 1:
        seen = np.unique(np.fromiter((*prompt, *answer), np.int64))
        some = logits[seen]
        logits[seen] = np.where(
            some < 0, some * sampling.repetition_penalty, some / sampling.repetition_penalty
        )
    if answer and (sampling.presence_penalty or sampling.frequency_penalty):
        said, often = np.unique(np.fromiter(answer, np.int64), return_counts=True)
        logits[said] -= sampling.presence_penalty + sampling.frequency_penalty * often
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < len(logits):
            raise InputError(f"logit_bias: there is no token {token}, the vocabulary has {len(logits)}")
        logits[token] += bias if bias > -1e30 else -np.inf
    if allowed is not None:
        logits[~allowed] = -np.inf
    most = logits.max()
    if not most > -np.inf or most == np.inf:  # NaN too
        raise ExecutionError(
            "no token can be chosen: logits are NaN or infinite, or the grammar and logit_bias forbid all",
            hints=["a grammar needs tokens for its characters in the vocabulary"],
            code="no-token",
        )
    return logits


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The distribution that adjusted logits have under `sampling`, float64; one 1 where the temperature is 0."""
    if sampling.temperature == 0:
        certain = np.zeros(len(logits))
        certain[logits.argmax()] = 1
        return certain
    with np.errstate(over="ignore"):
        scaled = logits.astype(np.float64) - logits.max()
        result: np.ndarray = np.exp(
            scaled / sampling.temperature if sampling.temperature > 1e-6 else scaled * 1e6
        )
    if 0 < sampling.top_k < len(result):
        result[result < np.partition(result, -sampling.top_k)[-sampling.top_k]] = 0
    if sampling.top_p < 1:
        mass = sampling.top_p * result.sum()
        for least in (0.01, 0.0001, 0):  # of a large vocabulary, few are enough nearly always
            some = np.flatnonzero(result > least)
            if result[some].sum() > mass:
                break
        order = some[np.argsort(-result[some], kind="stable")]
        kept = order[: np.searchsorted(np.cumsum(result[order]), mass) + 1]
        values, result = result[kept], np.zeros_like(result)
        result[kept] = values
    result[result < sampling.min_p] = 0  # the likeliest is 1 so far
    result /= result.sum()
    return result


class Random:
    """Random numbers, the same as of sampler.cpp: SplitMix64."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def random(self) -> float:
        """From 0 to below 1."""
        low = (1 << 64) - 1
        z = self._state = (self._state + 0x9E3779B97F4A7C15) & low
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & low
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & low
        return float((z ^ z >> 31) >> 11) * 2.0**-53


def draw(distribution: np.ndarray, random: Random) -> int:
    """A token of the distribution."""
    kept = np.flatnonzero(distribution)
    total = np.cumsum(distribution[kept])
    return int(kept[min(np.searchsorted(total, random.random() * total[-1], side="right"), len(kept) - 1)])


def seeded(seed: object) -> Random:
    """Random numbers. InputError if the seed is no whole number from 0."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0):
        raise InputError(f"seed is {seed!r}, it must be a whole number from 0")
    return Random(secrets.randbits(64) if seed is None else int(seed))
