# SPDX-License-Identifier: BSD-3-Clause
# In: the savings and costs of each layer's options. Out: the combinations with the lowest cost for their savings.
"""Solves a knapsack problem with at most one option for each item."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_STEPS = 2000  # resolution of the total saving


def solutions(
    options: Sequence[Sequence[tuple[float, float]]], max_solutions: int = 64
) -> list[tuple[int, ...]]:
    """Selects at most one option for each item, with the lowest total cost for the total saving.

    Savings are rounded to 1/2,000 of the maximum total saving.

    Args:
        options: the (saving, cost) pairs of each item's options. Options without a positive saving are ignored.
        most: maximum number of solutions. If there are more, they are sampled evenly.

    Returns:
        For each solution, the index of the option of each item, or -1 for none. Solutions are sorted by their total
        saving; the last one has the largest saving.
    """
    total = sum(max((saving for saving, _ in of if saving > 0), default=0.0) for of in options)
    if total <= 0:
        return []
    units = [
        [max(1, round(_STEPS * saving / total)) if saving > 0 else 0 for saving, _ in of] for of in options
    ]
    min_costs = np.full(1 + sum(max(of, default=0) for of in units), np.inf)  # lowest cost for each saving
    min_costs[0] = 0.0
    picks: np.ndarray = np.full((len(options), len(min_costs)), -1, np.int8)
    for item, of in enumerate(options):
        before = min_costs.copy()
        for option, (_, cost) in enumerate(of):
            if not (unit := units[item][option]):
                continue
            costs = before[:-unit] + min(cost, 1e300)
            better = costs < min_costs[unit:]
            min_costs[unit:][better] = costs[better]
            picks[item, unit:][better] = option
    # Keep the solutions that cost less than all solutions with a larger saving.
    following: np.ndarray = np.append(np.minimum.accumulate(min_costs[::-1])[::-1][1:], np.inf)
    best = np.flatnonzero(min_costs < following)
    if len(best) > max_solutions:
        best = best[np.unique(np.linspace(0, len(best) - 1, max_solutions).round().astype(int))]
    choices = []
    for saved in best.tolist():
        choice = []
        for item in reversed(range(len(options))):
            option = int(picks[item, saved])
            choice.append(option)
            saved -= units[item][option] if option >= 0 else 0
        choices.append(tuple(reversed(choice)))
    return choices
