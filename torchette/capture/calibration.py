# SPDX-License-Identifier: BSD-3-Clause
# In: the example inputs, or the inputs for calibration that the user passed. Out: the calls that calibrate a quantized
# model, and their description. Random inputs support only estimates of size and speed.
"""Calibration inputs: the user's inputs, the example inputs, or random inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchette.errors import InputTypeError

# The value of `calibration` that selects random inputs, and the remark about such a model.
RANDOM = "random"
RANDOM_REMARK = "random inputs, for estimates of size and speed: the accuracy is meaningless"

_RANDOM_CALLS = 8

Call = tuple[tuple[Any, ...], dict[str, Any]]


def as_arguments(given: object) -> Call:
    """Returns (args, kwargs) from a tuple of arguments, a dict of named arguments, or a single argument."""
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given), {}) if isinstance(given, (tuple, list)) else ((given,), {})


def calls_of(calibration: Iterable[Any] | str | None, example: Call) -> tuple[list[Call], str]:
    """Returns the calls that calibrate a method, and a description of them.

    Args:
        calibration: tuples of arguments, dicts of named arguments or single tensors; "random"; or None, for the example
            inputs.
        example: the example inputs of the method.

    Raises:
        InputTypeError: `calibration` is another string.
    """
    if calibration is None:
        return [example], "the example inputs"
    check_calibration(calibration)
    if calibration == RANDOM:
        return random_calls(example), RANDOM_REMARK
    calls = [as_arguments(given) for given in calibration]
    return calls, f"{len(calls)} input{'s' * (len(calls) != 1)}"


def check_calibration(calibration: object) -> None:
    """Raises InputTypeError for a string other than "random"."""
    if isinstance(calibration, str) and calibration != RANDOM:
        raise InputTypeError(
            f"calibration must be a list of inputs or 'random', got {calibration!r}",
            hints=["calibration=[(x,), ...]", "calibration='random'"],
        )


def random_calls(example: Call) -> list[Call]:
    """Returns random inputs with the shapes, dtypes and ranges of the example inputs. Every call returns the same
    inputs."""
    return [draw(example, seed)[1] for seed in range(_RANDOM_CALLS)]


def draw(inputs: object, seed: int) -> tuple[list[list[float]], Any]:
    """Returns the range of each tensor, and inputs of the same structure with uniform values in these ranges. A range
    of equal floats is widened by 1 on both sides."""
    generator = torch.Generator().manual_seed(seed)
    ranges: list[list[float]] = []

    def drawn(value: object) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_complex() or not value.numel():
            return value
        values = value.to(torch.float64)
        values = values[values.isfinite()]
        low, high = (values.min().item(), values.max().item()) if len(values) else (0.0, 0.0)
        if value.is_floating_point():
            low, high = (low - 1, high + 1) if low == high else (low, high)
            made = torch.rand(value.shape, generator=generator, dtype=torch.float64) * (high - low) + low
        else:
            made = torch.randint(int(low), int(high) + 1, value.shape, generator=generator)
        ranges.append([low, high])
        return made.to(value.dtype)

    return ranges, pytree.tree_map(drawn, inputs)
