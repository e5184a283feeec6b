# SPDX-License-Identifier: BSD-3-Clause
# In: the figures of `./dev bench peers`. Out: three tables: the latency of Torchette compared with the best peer of each model, the
# other costs, both with the bars of the CPU engine, and the latency of every side; then a line for each bar, and the reasons of the sides that failed.
"""Tables of the comparison with other engines."""

from __future__ import annotations

import math
import sys
from typing import Any

from benchmarks.peers.sides import OURS, SIDES
from benchmarks.peers.variants import variant

# Torchette / best peer by number of threads: the geometric mean of float32 models, and each of the four.
GOALS = {"1": 0.85, "2": 0.9}
# Suffix of a variant -> Torchette / best peer; and Torchette / Torchette in float32.
VARIANT_GOALS = {"_int8": 0.9, "_bfloat16": 1.0}
OF_FLOAT32 = {"_bfloat16": 0.60}
STRICT = ("vit_tiny", "minilm", "llama_prefill", "llama_decode")
SPEECH = ("vocoder", "bilstm", "voice_activity", "conformer")
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
    for line in summary(figures):
        console.print(line)
    console.print(
        "Red exceeds the bar, which is in brackets; ! means that other processes disturbed all turns."
    )
    for model, entry in figures.items():
        for name, side in entry["sides"].items():
            if "error" in side:
                # An error may contain brackets.
                console.print(f"{model}, {name}: {side['error']}", markup=False)


def summary(figures: dict[str, Any]) -> list[str]:
    """Returns a line for each bar: the figure, the bar, and the models that exceed it; then the models without figures."""
    lines: list[str] = []

    def add(name: str, ratios: dict[str, float], bar: float, *, by_mean: bool = False) -> None:
        if ratios:
            lines.append(_line(name, ratios, bar, by_mean=by_mean))

    plain = {model: entry for model, entry in figures.items() if not variant(model)}
    for threads in ("1", "2"):
        ratios = _of_best(plain, threads)
        add(f"float32 / best peer, {_threads(threads)}", ratios, GOALS[threads], by_mean=True)
        for name, models in (("transformers", STRICT), ("speech", SPEECH)):
            chosen_ratios = {model: ratio for model, ratio in ratios.items() if model in models}
            add(
                f"{name} / best peer, {_threads(threads)}",
                chosen_ratios,
                GOALS[threads],
                by_mean=name == "speech",
            )
    one, two = (
        {model: ours[t]["latency"] for model, ours in _all_ours(plain) if t in ours} for t in ("1", "2")
    )
    both = {model: two[model] / one[model] for model in one.keys() & two.keys()}
    add(
        f"2 threads / 1, models over {TWO_THREADS_FROM * 1e3:g} ms",
        {model: ratio for model, ratio in both.items() if one[model] > TWO_THREADS_FROM},
        TWO_THREADS,
    )
    add("2 threads / 1, other models", {m: r for m, r in both.items() if one[m] <= TWO_THREADS_FROM}, 1.0)
    for suffix, bar in VARIANT_GOALS.items():
        chosen = {model: entry for model, entry in figures.items() if model.endswith(suffix)}
        for threads in ("1", "2"):
            add(f"{suffix[1:]} / best peer, {_threads(threads)}", _of_best(chosen, threads), bar)
        if suffix in OF_FLOAT32:
            ratios = {
                model: ours["1"]["latency"] / one[base]
                for model, ours in _all_ours(chosen)
                if (base := model.removesuffix(suffix)) in one and "1" in ours
            }
            add(f"{suffix[1:]} / float32, 1 thread", ratios, OF_FLOAT32[suffix])
    for name, costs, bar in _all_costs(figures):
        add(name, costs, bar)
    if missing := [model for model, entry in figures.items() if not _ours(entry)]:
        lines.append(f"[red]Without figures of Torchette: {', '.join(missing)}[/]")
    return lines


def _line(name: str, ratios: dict[str, float], bar: float, *, by_mean: bool) -> str:
    mean, worst = _mean(list(ratios.values())), max(ratios, key=lambda model: ratios[model])
    over = [f"{model} {ratio:.2f}" for model, ratio in ratios.items() if ratio > bar]
    is_met = mean <= bar if by_mean else not over
    text = f"{name}: {mean:.2f} on average, at most {ratios[worst]:.2f} ({worst}); bar {bar:g}"
    return f"[{'green' if is_met else 'red'}]{text}[/]" + (f"; above: {', '.join(over)}" if over else "")


def _all_costs(figures: dict[str, Any]) -> list[tuple[str, dict[str, float], float]]:
    """Returns the bars on loading, on the first call and on memory: their names, the figures by model, and the bars."""
    ours = {model: entry["sides"]["cpu"] for model, entry in figures.items() if "load" in _cpu(entry)}
    least = {
        model: min(
            (side["memory"] for name, side in _peers(figures[model]).items() if SIDES[name].file), default=0
        )
        for model in ours
    }
    return [
        ("load, ms", {model: 1e3 * side["load"] for model, side in ours.items()}, LOAD_MS),
        ("first / later call", {model: _first(side) for model, side in ours.items()}, FIRST),
        (
            "memory / smallest peer",
            {model: max(side["memory"], 1) / least[model] for model, side in ours.items() if least[model]},
            1.0,
        ),
    ]


def _all_ours(figures: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns each model with our figures by number of threads."""
    return [(model, _ours(entry)) for model, entry in figures.items()]


def _of_best(figures: dict[str, Any], threads: str) -> dict[str, float]:
    """Returns each model's latency, divided by that of the fastest peer."""
    ratios = {}
    for model, ours in _all_ours(figures):
        timed = [side["threads"] for side in _peers(figures[model]).values()]
        latencies = [each[threads]["latency"] for each in timed if threads in each]
        if threads in ours and latencies:
            ratios[model] = ours[threads]["latency"] / min(latencies)
    return ratios


def _latencies(figures: dict[str, Any], threads: list[str]) -> Any:
    table = _table(
        "Milliseconds of a call: ours and the best peer",
        [c for t in threads for c in (_threads(t), "peer", "name", "ratio")]
        + [f"2 threads / 1\n({TWO_THREADS:g})"],
    )
    for model, entry in figures.items():
        ours, peers = _ours(entry), _peers(entry)
        cells = []
        for t in threads:
            timed = {name: side["threads"][t] for name, side in peers.items() if t in side["threads"]}
            if t not in ours or not timed:
                cells += [""] * 4
                continue
            best = min(timed, key=lambda name: timed[name]["latency"])
            bar = next((bar for suffix, bar in VARIANT_GOALS.items() if model.endswith(suffix)), 1.0)
            ratio = ours[t]["latency"] / timed[best]["latency"]
            cells += [
                _ms(ours[t]),
                _ms(timed[best]),
                best,
                _format_ratio(ratio, GOALS.get(t, bar) if model in STRICT and not variant(model) else bar),
            ]
        if {"1", "2"} <= ours.keys():
            one, two = (ours[t]["latency"] for t in ("1", "2"))
            cells.append(_format_ratio(two / one, TWO_THREADS if one > TWO_THREADS_FROM else math.inf))
        table.add_row(model, *cells)
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
            model,
            *(
                " | ".join(map(_ms, side.get("threads", {}).values()))
                or ("failed" if "error" in side else "absent")
                for side in sides
            ),
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
    return _cpu(entry).get("threads", {})


def _cpu(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns our figures, or our error; empty if this side did not run."""
    return entry["sides"].get("cpu", {})


def _peers(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: side for name, side in entry["sides"].items() if name not in OURS and "threads" in side}


def _first(side: dict[str, Any]) -> float:
    """Returns the ratio of the first call to a later call."""
    return side["first"] / next(iter(side["threads"].values()))["latency"]


def _title(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['level']}, {machine['cores']} processors; {machine['clock']} time; "
        f"{machine['date'].split()[0]}"
    )


def _threads(count: str) -> str:
    return f"{count} thread{'s' * (count != '1')}"


def _ms(figures: dict[str, float]) -> str:
    return f"{1e3 * figures['latency']:.3g}{'' if figures['clean'] else '!'}"


def _format_ratio(value: float, bar: float) -> str:
    return f"[{'red' if value > bar else 'green'}]{value:.3g}[/]"


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
