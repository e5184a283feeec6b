# SPDX-License-Identifier: BSD-3-Clause
# What integers in each layer save and cost comes in; the choices that save most for what they cost go out. Numbers alone.
"""A knapsack with one option for each item, or none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_STEPS = 2000  # into which what all items save together is divided


def solutions(options: Sequence[Sequence[tuple[float, float]]], most: int = 64) -> list[tuple[int, ...]]:
    """Choices of at most one option for each item, each with the least cost for what it saves (to a part in 2,000 of all
    that there is to save).

    Args:
        options: for each item the (saving, cost) of each of its options; those that save nothing are left out.
        most: how many choices; where there are more, they are spread evenly.

    Returns:
        The number of the option of each item, -1 for none, in the order of what is saved. The last choice saves most.
    """
    total = sum(max((saving for saving, _ in of if saving > 0), default=0.0) for of in options)
    if total <= 0:
        return []
    units = [
        [max(1, round(_STEPS * saving / total)) if saving > 0 else 0 for saving, _ in of] for of in options
    ]
    least = np.full(1 + sum(max(of, default=0) for of in units), np.inf)  # cost, by what is saved
    least[0] = 0.0
    taken: np.ndarray = np.full((len(options), len(least)), -1, np.int8)
    for item, of in enumerate(options):
        before = least.copy()
        for number, (_, cost) in enumerate(of):
            if not (unit := units[item][number]):
                continue
            costs = before[:-unit] + min(cost, 1e300)
            better = costs < least[unit:]
            least[unit:][better] = costs[better]
            taken[item, unit:][better] = number
    # Where nothing that saves more costs as little.
    following: np.ndarray = np.append(np.minimum.accumulate(least[::-1])[::-1][1:], np.inf)
    best = np.flatnonzero(least < following)
    if len(best) > most:
        best = best[np.unique(np.linspace(0, len(best) - 1, most).round().astype(int))]
    found = []
    for saved in best.tolist():
        choice = []
        for item in reversed(range(len(options))):
            number = int(taken[item, saved])
            choice.append(number)
            saved -= units[item][number] if number >= 0 else 0
        found.append(tuple(reversed(choice)))
    return found
