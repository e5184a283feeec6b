# SPDX-License-Identifier: BSD-3-Clause
# In: the lifetime and size of each tensor. Out: its byte offset, and a proven lower bound of the total size. This file
# works on intervals and does not depend on graphs or torch.
"""Offline memory planning: assigns an address range to every lifetime interval, in as few bytes as possible.
The problem (dynamic storage allocation) is NP-hard, but graphs of real networks are easy. The planner tries several
greedy orders and keeps the best plan. It stops as soon as a plan reaches the lower bound. Otherwise a bounded local
search over the placement order follows. The result is deterministic, because counted work and not time bounds the
search.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchette import compat
from torchette.errors import PlanError

__getattr__ = compat.attributes(__name__)  # alloc, free and view, under ExecuTorch's names


class Interval(NamedTuple):
    """A block of `size` bytes that must stay intact from time `first` to time `last`, both inclusive."""

    first: int
    last: int
    size: int


@dataclass(frozen=True)
class Plan:
    """A byte offset for each interval, in the given order.

    `size` is the length of the arena in bytes. `bound` is the proven minimum of any plan: the peak of the live aligned
    bytes. `algorithm` is the name of the algorithm. The plan is proven optimal if `size == bound`.
    """

    offsets: list[int]
    size: int
    bound: int
    algorithm: str

    @property
    def overhead(self) -> float:
        """Bytes above the bound as a fraction of the bound; 0.0 is proven optimal."""
        return self.size / self.bound - 1.0 if self.bound else 0.0


class PlanViolation(PlanError):
    """A plan that would corrupt data. `pair` contains the indices of the two intervals; equal if only one is
    invalid."""

    def __init__(self, message: str, pair: tuple[int, int]) -> None:
        super().__init__(message)
        self.pair = pair


def align(size: int, alignment: int) -> int:
    """Returns `size` rounded up to a multiple of `alignment`, both in bytes."""
    return -(-size // alignment) * alignment


def lower_bound(intervals: Sequence[Interval], alignment: int = 16) -> int:
    """Returns the peak of live aligned bytes. No plan can be smaller."""
    change: dict[int, int] = {}
    for first, last, size in intervals:
        size = align(size, alignment)
        change[first] = change.get(first, 0) + size
        change[last + 1] = change.get(last + 1, 0) - size
    peak = live = 0
    for time in sorted(change):
        live += change[time]
        peak = max(peak, live)
    return peak


def check(
    intervals: Sequence[Interval],
    offsets: Sequence[int],
    alignment: int = 1,
    names: Sequence[str] | None = None,
) -> None:
    """Checks that no two intervals share a byte while both are live.

    Args:
        intervals: the planned intervals.
        offsets: a byte offset for each interval.
        alignment: every offset of a non-empty interval must be a multiple of this number of bytes.
        names: names of the intervals for messages; their indices by default.

    Raises:
        ValueError: the numbers of offsets and intervals differ.
        PlanViolation: two intervals overlap, or one is invalid. The message contains their lifetimes and address
            ranges.
    """
    if len(offsets) != len(intervals):
        raise ValueError(f"expected {len(intervals)} offsets, got {len(offsets)}")

    def describe(i: int) -> str:
        first, last, size = intervals[i]
        name = names[i] if names else f"#{i}"
        return f"{name} (live {first}..{last}, bytes {offsets[i]}..{offsets[i] + size - 1})"

    real = [i for i, interval in enumerate(intervals) if interval.size > 0]
    for i in real:
        if offsets[i] < 0 or offsets[i] % alignment:
            raise PlanViolation(f"{describe(i)} does not start at a multiple of {alignment} bytes", (i, i))
        if intervals[i].last < intervals[i].first:
            raise PlanViolation(f"{describe(i)} ends before it begins", (i, i))

    # Sweep over time with the live ranges sorted by address. They are disjoint until an error is found, so a new range
    # can only collide with its two neighbours.
    events = sorted(
        [(intervals[i].last + 1, 0, i) for i in real] + [(intervals[i].first, 1, i) for i in real]
    )
    live: list[tuple[int, int]] = []
    for _, begins, i in events:
        key = (offsets[i], i)
        at = bisect_left(live, key)
        if not begins:
            del live[at]
            continue
        for neighbour in live[max(0, at - 1) : at + 1]:
            j = neighbour[1]
            if offsets[j] < offsets[i] + intervals[i].size and offsets[i] < offsets[j] + intervals[j].size:
                first, second = min(i, j), max(i, j)
                raise PlanViolation(
                    f"{describe(first)} and {describe(second)} share bytes while both are live",
                    (first, second),
                )
        live.insert(at, key)


def naive(intervals: Sequence[Interval], alignment: int = 16) -> Plan:
    """Assigns separate bytes to every interval. For debugging."""
    offsets, end = [], 0
    for interval in intervals:
        offsets.append(end)
        end += align(interval.size, alignment)
    return Plan(offsets, end, lower_bound(intervals, alignment), "naive")


def by_size(intervals: Sequence[Interval], alignment: int = 16) -> Plan:
    """Places the largest interval first, each in the smallest gap that fits."""
    return _Problem(intervals, alignment).greedy("by_size")


def by_breadth(intervals: Sequence[Interval], alignment: int = 16) -> Plan:
    """Visits times by descending live bytes. Places the live intervals of each, largest first."""
    return _Problem(intervals, alignment).greedy("by_breadth")


def by_lifetime(intervals: Sequence[Interval], alignment: int = 16) -> Plan:
    """Places the longest lifetime first, each in the lowest gap that fits."""
    return _Problem(intervals, alignment).greedy("by_lifetime")


def by_time(intervals: Sequence[Interval], alignment: int = 16) -> Plan:
    """Places intervals by start time, each in the lowest gap that fits, like a run-time allocator."""
    return _Problem(intervals, alignment).greedy("by_time")


def plan(intervals: Sequence[Interval], alignment: int = 16, effort: int = 250_000) -> Plan:
    """Returns the best plan of the greedy orders and a bounded local search.

    Args:
        intervals: lifetimes (on any integer time scale) and sizes in bytes.
        alignment: every offset is a multiple of this number of bytes.
        effort: the number of placed neighbours that the local search may visit (about 0.1 microseconds each); 0
            disables it.

    Returns:
        The smallest plan found, deterministic for equal input. `check` verifies a plan.
    """
    problem = _Problem(intervals, alignment)
    tried: list[tuple[int, str, list[int], list[int]]] = []
    for name in _ORDERS:
        order, tightest = problem.order(name)
        offsets, size = problem.place(order, tightest)
        tried.append((size, name, offsets, order))
        if size == problem.peak:
            return problem.result(offsets, name)
    tried.sort(key=lambda attempt: attempt[0])
    size, name, offsets, order = tried[0]
    found = problem.search([order for *_, order in tried[:2]], size, effort)
    return problem.result(*found) if found else problem.result(offsets, name)


def place(
    intervals: Sequence[Interval],
    traffic: Sequence[int],
    capacities: Sequence[int | None],
    alignment: int = 16,
    given: Sequence[int | None] | None = None,
) -> list[int]:
    """Assigns each interval to one of several memories, with as much traffic as possible in the first ones.

    Each memory except the last one selects, from the remaining intervals, those with the most traffic per byte and unit
    of lifetime. The function tries several orders. It prefers an assignment that fits, then more traffic in fast
    memories.

    Args:
        intervals: lifetimes and sizes.
        traffic: bytes read from and written to each interval.
        capacities: the size of each memory in bytes, fastest first; None is unlimited.
        alignment: alignment of every offset in bytes.
        given: memories that are already chosen, None for the other intervals.

    Returns:
        An index into `capacities` for each interval. The last memory receives the remaining intervals, even if they do
        not fit.
    """
    given = given or [None] * len(intervals)

    def traffic_density(i: int) -> float:
        return traffic[i] / max(1, intervals[i].size * (intervals[i].last - intervals[i].first + 1))

    indices = range(len(intervals))
    orders = (
        sorted(indices, key=lambda i: (-traffic_density(i), intervals[i].size, i)),
        sorted(indices, key=lambda i: (-traffic_density(i), -intervals[i].size, i)),
        sorted(indices, key=lambda i: (-intervals[i].size, i)),
    )
    best: tuple[tuple[int, int], list[int]] | None = None
    for order in orders:
        result = list(given)
        for number, capacity in enumerate(capacities[:-1]):
            for i in _fill(number, capacity, order, intervals, result, alignment):
                result[i] = number
        chosen = [len(capacities) - 1 if number is None else number for number in result]
        missing = sum(
            max(0, plan(_of(number, chosen, intervals), alignment, effort=0).size - capacity)
            for number, capacity in enumerate(capacities)
            if capacity is not None
        )
        cost = (missing, sum(number * moved for number, moved in zip(chosen, traffic, strict=True)))
        if best is None or cost < best[0]:
            best = cost, chosen
    assert best is not None
    return best[1]


def _of(number: int, chosen: Sequence[int | None], intervals: Sequence[Interval]) -> list[Interval]:
    return [interval for interval, memory in zip(intervals, chosen, strict=True) if memory == number]


def _fill(
    number: int,
    capacity: int | None,
    order: Sequence[int],
    intervals: Sequence[Interval],
    assigned: Sequence[int | None],
    alignment: int,
) -> list[int]:
    """Returns the intervals without a memory that go to memory `number`: the first ones in `order` that fit."""
    free = [i for i in order if assigned[i] is None]
    if capacity is None:
        return free
    there = _of(number, assigned, intervals)
    births = sorted({interval.first for interval in intervals})
    live = [0] * len(births)

    def span(interval: Interval) -> tuple[int, int]:
        return bisect_left(births, interval.first), bisect_right(births, interval.last)

    def put(interval: Interval) -> None:
        start, end = span(interval)
        for t in range(start, end):
            live[t] += align(interval.size, alignment)

    for interval in there:
        put(interval)
    chosen: list[int] = []
    for i in free:
        start, end = span(intervals[i])
        if max(live[start:end]) + align(intervals[i].size, alignment) <= capacity:
            put(intervals[i])
            chosen.append(i)
    # A plan nearly always reaches the assumed bound. If not, remove the intervals with the least traffic.
    while chosen and plan([*there, *(intervals[i] for i in chosen)], alignment, effort=0).size > capacity:
        chosen.pop()
    return chosen


_ORDERS = ("by_size", "by_breadth", "by_lifetime", "by_time")


class _Problem:
    """The intervals in units of the alignment, without empty and permanent ones, and the conflicts between them."""

    def __init__(self, intervals: Sequence[Interval], alignment: int) -> None:
        if alignment < 1:
            raise ValueError(f"alignment must be at least 1 byte, got {alignment}")
        self.alignment = alignment
        self.count = len(intervals)
        begin = min((interval.first for interval in intervals if interval.size > 0), default=0)
        end = max((interval.last for interval in intervals if interval.size > 0), default=0)
        self.floor: list[
            tuple[int, int]
        ] = []  # (interval, offset) of intervals that are always live: they are placed at the bottom without waste
        self.items: list[int] = []  # index of the caller's interval
        self.first: list[int] = []
        self.last: list[int] = []
        self.size: list[int] = []
        bottom = 0
        for i, (first, last, size) in enumerate(intervals):
            if size <= 0:
                continue
            units = -(-size // alignment)
            if first == begin and last == end:
                self.floor.append((i, bottom))
                bottom += units
            else:
                self.items.append(i)
                self.first.append(first)
                self.last.append(last)
                self.size.append(units)
        self.bottom = bottom
        self._sweep()

    def _sweep(self) -> None:
        """Computes the conflicting pairs, and the live units at each start time, in one pass over time."""
        n = len(self.items)
        self.conflicts: list[list[int]] = [[] for _ in range(n)]
        self.live_by_time: list[tuple[int, list[int]]] = []
        self.peak = 0
        first, last, size = self.first, self.last, self.size
        births = sorted(range(n), key=lambda i: (first[i], -size[i], i))
        live: list[int] = []
        total = 0
        for position, i in enumerate(births):
            now = first[i]
            kept = [j for j in live if last[j] >= now]
            if len(kept) != len(live):
                total = sum(size[j] for j in kept)
            for j in kept:
                self.conflicts[j].append(i)
            self.conflicts[i].extend(kept)
            kept.append(i)
            live = kept
            total += size[i]
            if position + 1 == n or first[births[position + 1]] != now:
                self.live_by_time.append((total, live))
                live = list(live)
                self.peak = max(self.peak, total)
        self.births = births

    def order(self, name: str) -> tuple[list[int], bool]:
        """Returns the placement order of an algorithm, and whether it selects the smallest gap instead of the
        lowest."""
        n, size, first, last = len(self.items), self.size, self.first, self.last
        if name == "by_size":
            return sorted(range(n), key=lambda i: (-size[i], first[i] - last[i], i)), True
        if name == "by_lifetime":
            return sorted(range(n), key=lambda i: (first[i] - last[i], -size[i], i)), False
        if name == "by_breadth":
            seen: dict[int, None] = {}
            for _, live in sorted(self.live_by_time, key=lambda entry: -entry[0]):
                for i in sorted(live, key=lambda i: (-size[i], first[i] - last[i], i)):
                    seen[i] = None
            return list(seen), False
        assert name == "by_time"
        return self.births, False

    def place(self, order: Iterable[int], tightest: bool) -> tuple[list[int], int]:
        """Places the items in this order. Returns offsets and total size above the floor, in units."""
        size, conflicts = self.size, self.conflicts
        offset = [-1] * len(size)
        top = 0
        for i in order:
            need = size[i]
            at = 0
            best, best_gap = -1, 0
            for low, j in sorted([(offset[j], j) for j in conflicts[i] if offset[j] >= 0]):
                gap = low - at
                if gap >= need and (best < 0 or gap < best_gap):
                    best, best_gap = at, gap
                    if not tightest:
                        break
                end = low + size[j]
                if end > at:
                    at = end
            if best >= 0:
                at = best
            offset[i] = at
            if at + need > top:
                top = at + need
        return offset, top

    def search(self, orders: Sequence[list[int]], size: int, effort: int) -> tuple[list[int], str] | None:
        """Local search ("squeaky wheel"): items above the bound are placed earlier in the next round.

        Each order is tried with both gap policies, with an equal share of the effort. Returns None if no plan is
        smaller than `size`.
        """
        found: tuple[list[int], str] | None = None
        n = len(self.size)
        cost = sum(map(len, self.conflicts)) + 4 * n  # cost of one round
        for start in orders:
            for tightest in (True, False):
                order = start
                for _ in range(effort // (cost * 2 * len(orders))):
                    offsets, top = self.place(order, tightest)
                    if top < size:
                        found, size = (offsets, "search"), top
                        if size == self.peak:
                            return found
                    # An item above the bound moves two thirds of the way to the front, enough to pass the items that
                    # blocked it.
                    rank = [0] * n
                    for position, i in enumerate(order):
                        is_above_bound = offsets[i] + self.size[i] > self.peak
                        rank[i] = 3 * position - 10 if is_above_bound else 10 * position
                    order = sorted(order, key=rank.__getitem__)
        return found

    def greedy(self, name: str) -> Plan:
        offsets, _ = self.place(*self.order(name))
        return self.result(offsets, name)

    def result(self, placed: Sequence[int], algorithm: str) -> Plan:
        """Converts units to bytes, in the order of the caller's intervals."""
        offsets = [0] * self.count
        for i, offset in self.floor:
            offsets[i] = offset * self.alignment
        top = 0
        for i, offset, size in zip(self.items, placed, self.size, strict=True):
            offsets[i] = (self.bottom + offset) * self.alignment
            top = max(top, offset + size)
        unit = self.alignment
        return Plan(offsets, (self.bottom + top) * unit, (self.bottom + self.peak) * unit, algorithm)
