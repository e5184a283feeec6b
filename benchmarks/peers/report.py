# SPDX-License-Identifier: BSD-3-Clause
# In: the figures of `./dev bench peers`. Out: three tables: the latency of Torchette compared with the best peer of each model, the
# other costs, both with the bars of the CPU engine, and the latency of every side.
"""Tables of the comparison with other engines."""

from __future__ import annotations

import math
import sys
from typing import Any

from benchmarks.peers.sides import OURS, SIDES

GOAL = 0.85  # Torchette / best peer: the geometric mean, and each of the four
STRICT = ("vit_tiny", "minilm", "llama_prefill", "llama_decode")
LOAD_MS, FIRST = 2.0, 1.5
TWO_THREADS, TWO_THREADS_FROM = 0.56, 2e-3


def print_tables(figures: dict[str, Any]) -> None:
    """Prints by model the ratios and their bars, and then the milliseconds of a call of every side."""
    from rich.console import Console

    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=160, highlight=False)
    measured = [side for entry in figures.values() for side in entry["sides"].values()]
    threads = sorted({count for side in measured for count in side.get("threads", ())}, key=int)
    for title in dict.fromkeys(_title(entry["machine"]) for entry in figures.values()):
        console.print(title)
    console.print(_latencies(figures, threads))
    console.print(_costs(figures))
    console.print(_all_sides(figures, threads))
    console.print(
        "Red exceeds the bar, which is in brackets; ! means that other processes disturbed all turns."
    )
    for model, entry in figures.items():
        for name, side in entry["sides"].items():
            if "error" in side:
                console.print(f"{model}, {name}: {side['error']}")


def _latencies(figures: dict[str, Any], threads: list[str]) -> Any:
    table = _table(
        "Milliseconds of a call: ours and the best peer",
        [c for t in threads for c in (_threads(t), "peer", "name", f"ratio\n({GOAL:g}, 1)")]
        + [f"2 threads / 1\n({TWO_THREADS:g})"],
    )
    ratios: dict[str, list[float]] = {t: [] for t in threads}
    for model, entry in figures.items():
        ours, peers = _ours(entry), _peers(entry)
        cells = []
        for t in threads:
            timed = {name: side["threads"][t] for name, side in peers.items() if t in side["threads"]}
            if t not in ours or not timed:
                cells += [""] * 4
                continue
            best = min(timed, key=lambda name: timed[name]["latency"])
            ratios[t].append(ours[t]["latency"] / timed[best]["latency"])
            bar = GOAL if model in STRICT else 1.0
            cells += [_ms(ours[t]), _ms(timed[best]), best, _format_ratio(ratios[t][-1], bar)]
        if {"1", "2"} <= ours.keys():
            one, two = (ours[t]["latency"] for t in ("1", "2"))
            cells.append(_format_ratio(two / one, TWO_THREADS if one > TWO_THREADS_FROM else math.inf))
        table.add_row(model, *cells)
    table.add_section()
    table.add_row(
        "geometric mean", *(c for t in threads for c in ("", "", "", _format_ratio(_mean(ratios[t]), GOAL)))
    )
    return table


def _costs(figures: dict[str, Any]) -> Any:
    """Returns the table of the other costs of engines with a file; next to each figure is the minimum of all peers."""
    table = _table(
        "Other costs: Torchette and the minimum of the peers",
        [
            *(f"load ms\n({LOAD_MS:g})", "peer", f"first / later call\n({FIRST:g})", "peer"),
            *("memory MB\n(peer)", "peer", "file MB", "peer", "planned KB", "portable", "error"),
        ],
    )
    for model, entry in figures.items():
        if not _ours(entry):
            continue
        ours = entry["sides"]["cpu"]
        peers = [side for name, side in _peers(entry).items() if SIDES[name].file]

        def least(key: str, peers: list[Any] = peers) -> float:
            return min((side[key] for side in peers), default=math.nan)

        table.add_row(
            model,
            _format_ratio(1e3 * ours["load"], LOAD_MS),
            f"{1e3 * least('load'):.3g}",
            _format_ratio(_first(ours), FIRST),
            f"{min(map(_first, peers), default=math.nan):.3g}",
            _format_ratio(ours["memory"] / 1e6, least("memory") / 1e6),
            f"{least('memory') / 1e6:.3g}",
            f"{ours['file'] / 1e6:.3g}",
            f"{least('file') / 1e6:.3g}",
            *(f"{entry['sides'].get(name, {}).get('planned', math.nan) / 1024:,.1f}" for name in OURS),
            f"{ours['error_of_eager']:.0e}",
        )
    return table


def _all_sides(figures: dict[str, Any], threads: list[str]) -> Any:
    names = [name for name in SIDES if any(name in entry["sides"] for entry in figures.values())]
    table = _table(f"Milliseconds of a call: {' | '.join(map(_threads, threads))}", names)
    for model, entry in figures.items():
        sides = [entry["sides"].get(name, {}) for name in names]
        table.add_row(
            model, *(" | ".join(map(_ms, side.get("threads", {}).values())) or "absent" for side in sides)
        )
    return table


def _table(title: str, columns: list[str]) -> Any:
    from rich.table import Table

    table = Table("model", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == "name" else "right", no_wrap=True)
    return table


def _ours(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures by number of threads; empty if they were not measured."""
    return entry["sides"].get("cpu", {}).get("threads", {})


def _peers(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: side for name, side in entry["sides"].items() if name not in OURS and "threads" in side}


def _first(side: dict[str, Any]) -> float:
    """Returns the ratio of the first call to a later call."""
    return side["first"] / next(iter(side["threads"].values()))["latency"]


def _title(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['level']}, {machine['cores']} processors; {machine['clock']} time; "
        f"{machine['date']}, load of the machine {machine['load']}"
    )


def _threads(count: str) -> str:
    return f"{count} thread{'s' * (count != '1')}"


def _ms(figures: dict[str, float]) -> str:
    return f"{1e3 * figures['latency']:.3g}{'' if figures['clean'] else '!'}"


def _format_ratio(value: float, bar: float) -> str:
    return f"[{'red' if value > bar else 'green'}]{value:.3g}[/]"


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
