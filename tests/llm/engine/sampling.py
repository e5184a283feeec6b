# SPDX-License-Identifier: BSD-3-Clause
# In: logits and options. Out: the distributions of the C++ sampler (sample.cpp).

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.building import built


class Choice(NamedTuple):
    error: str
    distribution: np.ndarray
    """The probability of each token; 1 for the token of a greedy choice."""
    drawn: list[int]


def line(
    logits: Iterable[float],
    tokens: Iterable[int] = (),
    answer: int = 0,
    *,
    generation: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    ends: Iterable[int] = (),
    allowed: Iterable[int] | None = None,
    draws: int = 0,
) -> str:
    """Returns a line of input for `choices`. `answer` is the index of the answer in `tokens`."""

    def listed(values: Iterable[float]) -> str:
        return " ".join(f"{value:.9g}" for value in values)

    parts = (
        json.dumps(generation or {}), json.dumps(options or {}), listed(ends), listed(tokens), str(answer), listed(logits),
        "all" if allowed is None else listed(allowed), str(draws),
    )  # fmt: skip
    return "\t".join(parts)


def choices(lines: Sequence[str]) -> tuple[list[Choice], str]:
    """Returns the choices and the log."""
    done = subprocess.run(
        [built("torchette_sample")], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    result = []
    for request, answer in zip(lines, done.stdout.splitlines(), strict=True):
        chances, _, drawn = answer.partition(";")
        error, *words = chances.split()
        distribution: np.ndarray = (
            np.array(words, float)
            if words[:1] != ["token"]
            else np.zeros(len(request.split("\t")[5].split()))
        )
        if words[:1] == ["token"]:
            distribution[int(words[1])] = 1
        result.append(Choice(error, distribution, [int(token) for token in drawn.split()]))
    return result, done.stderr
