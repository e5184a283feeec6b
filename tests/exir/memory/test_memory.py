# SPDX-License-Identifier: BSD-3-Clause
# Tests the planner against brute force and its bound, and the checker against invalid plans.
from __future__ import annotations

import itertools
import random

import pytest

from torchette.exir import memory
from torchette.exir.memory import Interval, PlanViolation, check, lower_bound, plan

ALGORITHMS = (memory.naive, memory.by_size, memory.by_breadth, memory.by_lifetime, memory.by_time)


def random_intervals(rng: random.Random, count: int) -> list[Interval]:
    """Returns intervals with mostly short and some long lifetimes, like those of skip connections; some are empty."""
    intervals = []
    for time in range(count):
        life = rng.choice([0, 1, 1, 1, 2, 3, rng.randint(0, count)])
        size = rng.choice([0, 1, 16, 17, rng.randint(1, 4096), 1024 * rng.randint(1, 64)])
        intervals.append(Interval(time, min(count, time + life), size))
    rng.shuffle(intervals)
    return intervals


def clash(a: Interval, b: Interval, at_a: int, at_b: int) -> bool:
    """The definition of an overlap, without the checker's sweep."""
    in_time = a.first <= b.last and b.first <= a.last
    in_space = at_a < at_b + b.size and at_b < at_a + a.size
    return in_time and in_space and a.size > 0 and b.size > 0


def test_ten_thousand_random_graphs_have_no_overlap_and_keep_to_the_bound():
    rng = random.Random(2026)
    optimal = 0
    for number in range(10_000):
        intervals = random_intervals(rng, rng.randint(0, 24))
        alignment = rng.choice([1, 8, 16, 64])
        layout = plan(intervals, alignment, effort=2_000)
        check(intervals, layout.offsets, alignment)
        assert layout.bound == lower_bound(intervals, alignment) <= layout.size, number
        assert all(
            o + i.size <= layout.size for o, i in zip(layout.offsets, intervals, strict=True) if i.size
        )
        optimal += layout.size == layout.bound
        if number % 50 == 0:
            for (i, a), (j, b) in itertools.combinations(enumerate(intervals), 2):
                assert not clash(a, b, layout.offsets[i], layout.offsets[j])
    assert optimal > 9_700


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_yields_valid_plans_and_plan_is_the_best(algorithm):
    rng = random.Random(7)
    for _ in range(50):
        intervals = random_intervals(rng, 60)
        alone = algorithm(intervals, 16)
        check(intervals, alone.offsets, 16)
        assert alone.algorithm == algorithm.__name__
        best = plan(intervals, 16)
        assert best.bound == alone.bound <= best.size <= alone.size


def test_search_closes_gaps_that_the_greedy_orders_leave():
    rng = random.Random(3)
    greedy = searched = 0.0
    for _ in range(40):
        intervals = [
            Interval(first, first + rng.randint(0, 8), 16 * rng.randint(1, 500))
            for first in (rng.randrange(30) for _ in range(30))
        ]
        without, full = plan(intervals, effort=0), plan(intervals)
        check(intervals, full.offsets, 16)
        assert full.size <= without.size
        greedy += without.overhead
        searched += full.overhead
    assert searched < greedy / 2


def test_five_hundred_intervals_of_a_deep_network_stay_within_two_per_cent():
    # An inverted-residual network: expand, filter, project, add, at decreasing resolutions.
    intervals, time = [], 0
    for stage in range(25):
        pixels, width = (112 >> (stage // 5)) ** 2, 16 << (stage // 5)
        for _ in range(5):
            skip = Interval(time, time + 3, 4 * pixels * width)
            intervals += [
                skip,
                Interval(time + 1, time + 2, 4 * pixels * width * 6),
                Interval(time + 2, time + 3, 4 * pixels * width * 6),
                Interval(time + 3, time + 4, 4 * pixels * width),
            ]
            time += 4
    assert len(intervals) == 500
    layout = plan(intervals)
    check(intervals, layout.offsets, 16)
    assert layout.overhead <= 0.02


def test_equal_inputs_yield_equal_plans():
    intervals = random_intervals(random.Random(11), 200)
    assert plan(intervals) == plan(list(intervals))


def test_small_cases():
    assert plan([]) == memory.Plan([], 0, 0, "by_size")
    assert plan([Interval(0, 5, 0)]).size == 0
    assert plan([Interval(0, 5, 1)]).size == 16
    chain = plan([Interval(t, t + 1, 100) for t in range(9)])
    assert chain.size == chain.bound == 224 and chain.overhead == 0
    layout = plan([Interval(0, 9, 10), Interval(3, 4, 10), Interval(5, 9, 10)])
    assert layout.offsets == [0, 16, 16]
    with pytest.raises(ValueError, match="alignment"):
        plan([Interval(0, 0, 1)], 0)


def test_checker_names_the_pair_of_every_invalid_plan():
    rng = random.Random(5)
    broken = 0
    for _ in range(300):
        intervals = random_intervals(rng, 30)
        offsets = list(plan(intervals, effort=0).offsets)
        victim = rng.randrange(30)
        offsets[victim] = 16 * rng.randrange(64)
        clashes = {
            (i, j)
            for (i, a), (j, b) in itertools.combinations(enumerate(intervals), 2)
            if clash(a, b, offsets[i], offsets[j])
        }
        if not clashes:
            check(intervals, offsets, 16)
            continue
        broken += 1
        with pytest.raises(PlanViolation) as caught:
            check(intervals, offsets, 16, [f"tensor{i}" for i in range(30)])
        assert caught.value.pair in clashes
        for i in caught.value.pair:
            assert f"tensor{i} (live" in str(caught.value)
    assert broken > 100


def test_checker_rejects_misaligned_negative_and_reversed_intervals():
    with pytest.raises(PlanViolation, match="multiple of 16"):
        check([Interval(0, 1, 4)], [8], 16)
    with pytest.raises(PlanViolation, match="multiple of 16"):
        check([Interval(0, 1, 4)], [-16], 16)
    with pytest.raises(PlanViolation, match="ends before"):
        check([Interval(2, 1, 4)], [0], 16)
    with pytest.raises(ValueError, match="offsets"):
        check([Interval(0, 1, 4)], [])


# ---- several memories ----


def test_hot_small_intervals_go_to_the_first_memory() -> None:
    hot, cold, large = Interval(0, 9, 64), Interval(0, 9, 64), Interval(0, 9, 640)
    assert memory.place([cold, hot, large], [64, 640, 640], [64, None]) == [1, 0, 1]
    # An interval with a given memory keeps it and uses its room.
    assert memory.place([cold, hot, large], [64, 640, 640], [64, None], given=[0, None, None]) == [0, 1, 1]


def test_only_the_last_memory_may_overflow() -> None:
    rng = random.Random(5)
    for _ in range(200):
        intervals = []
        for _ in range(rng.randrange(1, 30)):
            first = rng.randrange(20)
            intervals.append(Interval(first, first + rng.randrange(5), rng.randrange(400)))
        traffic = [interval.size * rng.randrange(1, 9) for interval in intervals]
        capacities = [rng.randrange(1000), rng.randrange(1000), None]
        chosen = memory.place(intervals, traffic, capacities)
        for number, capacity in enumerate(capacities[:-1]):
            there = [interval for interval, at in zip(intervals, chosen, strict=True) if at == number]
            assert memory.plan(there).size <= capacity
            # No remaining interval would fit in an empty memory.
            following = [interval for interval, at in zip(intervals, chosen, strict=True) if at > number]
            assert there or all(memory.align(i.size, 16) > capacity for i in following if i.size)


def test_placement_by_size_fits() -> None:
    # Placing the hot interval first would leave no room for the large one.
    intervals = [Interval(0, 9, 64), Interval(0, 9, 128)]
    assert memory.place(intervals, [6400, 128], [128, 64]) == [1, 0]
