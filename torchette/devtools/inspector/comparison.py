# SPDX-License-Identifier: BSD-3-Clause
# In: two lists of outputs. Out: their differences, by several metrics.
"""`compare_results`, with ExecuTorch's signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torchette.devtools.inspector.values import as_float64, is_tensor
from torchette.errors import InputError
from torchette.packages import require
from torchette.units import counted


def compare_results(
    reference_output: Sequence[Any],
    run_output: Sequence[Any],
    metrics: Sequence[str] | None = None,
    plot: bool = False,
) -> dict[str, list[float | None]]:
    """Compares outputs with reference outputs, and prints the metrics or plots them to files in the current folder.

    Args:
        reference_output: the expected tensors or arrays. The result for a value of another type is None.
        run_output: the actual tensors or arrays.
        metrics: some of "snr" (decibels; larger is closer), "mse" and "cosine_similarity"; by default all.
        plot: draw each metric to `<metric>_output_plot.png`; requires matplotlib.

    Returns:
        metric -> a value for each pair, rounded to two decimals.

    Raises:
        InputError: a metric is unknown, or the numbers of outputs or their sizes differ.
        MissingPackageError: `plot` is set and matplotlib is not installed.
    """
    unknown = sorted(set(metrics or ()) - set(_METRICS))
    if unknown:
        raise InputError(f"unknown metric {unknown[0]!r}", hints=[f"metrics: {', '.join(_METRICS)}"])
    if len(reference_output) != len(run_output):
        raise InputError(
            f"{counted(len(run_output), 'output')} cannot be compared with {len(reference_output)} reference outputs"
        )
    results = {
        name: [
            _measured(measure, *pair, index)
            for index, pair in enumerate(zip(reference_output, run_output, strict=True))
        ]
        for name, measure in _METRICS.items()
        if metrics is None or name in metrics
    }
    for name, values in results.items():
        if plot:
            _plot(name, values)
        else:
            print(f"{name}\n{'-' * 20}")
            for index, value in enumerate(values):
                print(f"{index:<5}{'' if value is None else format(value, '.5f'):>8}")
            print()
    return results


def _measured(
    measure: Callable[[np.ndarray, np.ndarray], float], expected: object, actual: object, index: int
) -> float | None:
    if not (is_tensor(expected) and is_tensor(actual)):
        return None
    if tuple(expected.shape) != tuple(actual.shape):
        raise InputError(f"output {index} has sizes {list(actual.shape)}, expected {list(expected.shape)}")
    with np.errstate(divide="ignore", invalid="ignore"):
        return round(float(measure(as_float64(expected), as_float64(actual))), 2)


def signal_to_noise(expected: np.ndarray, actual: np.ndarray) -> float:
    """Returns the signal-to-noise ratio in decibels; infinite if the arrays are equal."""
    result: float = 10 * np.log10(np.mean(expected**2) / np.mean((expected - actual) ** 2))
    return result


def mean_square(expected: np.ndarray, actual: np.ndarray) -> float:
    """Returns the mean squared difference."""
    return float(np.mean((expected - actual) ** 2))


def _cosine(expected: np.ndarray, actual: np.ndarray) -> float:
    result: float = np.sum(expected * actual) / np.sqrt(np.sum(expected**2) * np.sum(actual**2))
    return result


_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "snr": signal_to_noise,
    "mse": mean_square,
    "cosine_similarity": _cosine,
}


def _plot(name: str, values: Sequence[float | None]) -> None:
    pyplot = require("matplotlib.pyplot", "plot=True", ["plot=False"])
    figure, axes = pyplot.subplots(figsize=(8, 6))
    bars = axes.bar(range(len(values)), [value or 0.0 for value in values], width=0.5)
    axes.bar_label(bars, ["" if value is None else str(value) for value in values])
    axes.set(xlabel="output", ylabel=name, title=name)
    figure.savefig(f"{name}_output_plot.png")
    pyplot.close(figure)
