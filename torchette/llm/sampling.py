# SPDX-License-Identifier: BSD-3-Clause
# The options of sampling; torchette/llm/engine/sampler.cpp applies them.
"""`Sampling`: how the next token is chosen from logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from torchette.errors import InputError

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
