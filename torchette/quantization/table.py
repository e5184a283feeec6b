# SPDX-License-Identifier: BSD-3-Clause
# What `torchette.quantize` measured comes in, by layer and by whole model; tables for people go out.
"""`QuantizationTable`: layers with their errors, times and bytes, and what whole models cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torchette import notebook
from torchette.devtools.inspect import Table
from torchette.units import byte_text

_NAMED = 5  # layers, in a remark


def wide_remark(wide: Mapping[str, float]) -> str:
    """Names results and their steps, and says why they stay in floats."""
    text = ", ".join(f"{name} ({steps:.1f})" for name, steps in list(wide.items())[:_NAMED])
    more = f", and {len(wide) - _NAMED} more" if len(wide) > _NAMED else ""
    return (
        "results that stay in floats, with convolutions that give them: a few numbers are so much larger than the rest "
        f"that a typical one would have few steps of 8 bits (less than 2 here, or in what is added): {text}{more}"
    )


@dataclass(frozen=True)
class Layer:
    """A layer that the recipe fits.

    Attributes:
        name: the module's; "" for operators that stand in no layer, such as sums.
        kind: its class, or the operators.
        bits: of its weights in the model that was returned; 32 for floats.
        sqnr: decibels of the network's output when only this layer has integers; infinite where nothing differs.
        float_us, integer_us: microseconds of the layer alone, compiled for this machine; None where that was not measured. Of a
            board: thousands of instructions.
        float_bytes, integer_bytes: of a file with this layer alone; None as above.
        others: the same with more bits, where there are limits to keep: 8, where the recipe has 4, and 16, which is bfloat16.
    """

    name: str
    kind: str
    bits: int
    sqnr: float
    float_us: float | None = None
    integer_us: float | None = None
    float_bytes: int | None = None
    integer_bytes: int | None = None
    others: tuple[Layer, ...] = ()

    @property
    def levels(self) -> tuple[Layer, ...]:
        """What was measured of it, the fewest bits first."""
        return (self, *self.others)

    @property
    def title(self) -> str:
        """Its name, for people."""
        return self.name or "(no layer)"

    @property
    def is_slower(self) -> bool:
        """Whether integers take as long as floats here, or longer."""
        return self.float_us is not None and self.integer_us is not None and self.integer_us >= self.float_us


@dataclass(frozen=True)
class Point:
    """A model that was compiled and run.

    Attributes:
        layers: the names of those with integers or bfloat16.
        sqnr: decibels of its output against the float32 model's.
        milliseconds: of a call: float32's, times the ratio of both when they take turns, so that what else the machine does
            counts for neither. Of a board: millions of instructions.
        megabytes: of the file, 10^6 bytes.
        score: what the metric gave; None where there is none.
        drop: how much less that is than float32's.
        interval: of the drop, 95 %; None where the metric gives no score for each example.
        chosen: whether this is the model that was returned.
        bits: of the weights of each of `layers`.
        unit: of `milliseconds`.
    """

    layers: tuple[str, ...]
    sqnr: float
    milliseconds: float
    megabytes: float
    score: float | None = None
    drop: float | None = None
    interval: tuple[float, float] | None = None
    chosen: bool = False
    bits: tuple[int, ...] = ()
    unit: str = "ms"

    @property
    def parts(self) -> str:
        """How many layers have integers, and bfloat16."""
        narrow = self.bits.count(16)
        return f"{len(self.layers) - narrow}" + (f" + {narrow} bfloat16" if narrow else "")

    @property
    def time_text(self) -> str:
        """The time of a call."""
        return f"{self.milliseconds:.3g} {self.unit}"

    @property
    def size_text(self) -> str:
        """The size of the file."""
        return byte_text(1e6 * self.megabytes)

    @property
    def costs(self) -> tuple[float, float, float]:
        """Error, milliseconds, megabytes: less is better."""
        return (-self.sqnr if self.drop is None else self.drop, self.milliseconds, self.megabytes)

    def __str__(self) -> str:
        error = f"{self.sqnr:.1f} dB" if self.drop is None else f"a drop of {self.drop:.4g}"
        return f"{self.parts} layers in integers: {error}, {self.time_text}, {self.size_text}"


@dataclass(frozen=True)
class QuantizationTable:
    """What `torchette.quantize` measured; prints as tables, in a notebook too.

    Attributes:
        recipe: its name.
        layers: in the order of the model.
        points: all models that were compiled and measured, from float32 to the recipe everywhere.
        wide: layers and sums whose results stay in floats, because few numbers are far larger than the others; how many steps
            of 8 bits a typical number of them would have.
    """

    recipe: str
    layers: tuple[Layer, ...]
    points: tuple[Point, ...]
    wide: dict[str, float] = field(default_factory=dict)

    @property
    def pareto(self) -> tuple[Point, ...]:
        """The points that no other one matches or beats in error, time and size alike."""
        costs = [point.costs for point in self.points]
        return tuple(
            point
            for point in self.points
            if not any(
                all(a <= b for a, b in zip(other, point.costs)) and other != point.costs for other in costs
            )
        )

    @property
    def chosen(self) -> Point | None:
        """The model that was returned; None in the table of an error."""
        return next((point for point in self.points if point.chosen), None)

    def choosing(self, chosen: Point) -> QuantizationTable:
        """The same table, with the point that was chosen."""
        bits = dict(zip(chosen.layers, chosen.bits, strict=True))
        layers = tuple(replace(it, bits=bits.get(it.name, 32)) for it in self.layers)
        points = tuple(replace(point, chosen=point is chosen) for point in self.points)
        return replace(self, layers=layers, points=points)

    @property
    def _small(self) -> str:
        """The unit of a layer alone, a thousandth of a model's."""
        return "µs" if self.points[0].unit == "ms" else "k instructions"

    @property
    def _where(self) -> str:
        return "here" if self.points[0].unit == "ms" else "there"

    @property
    def remarks(self) -> list[str]:
        """What stays in floats, and why; where integers are not faster on this machine, and which layers are why."""
        found = []
        if self.wide:
            found.append(wide_remark(self.wide))
        first, last = self.points[0], self.points[-1]
        slow = [layer for layer in self.layers if layer.is_slower]
        if last.milliseconds >= first.milliseconds and last.layers:
            found.append(
                f"integers are not faster {self._where}: {last.milliseconds:.3g} {last.unit}, "
                f"float32 {first.milliseconds:.3g} {last.unit}"
            )
        if slow:
            slow.sort(key=lambda it: (it.float_us or 0.0) - (it.integer_us or 0.0))
            text = ", ".join(
                f"{it.title} ({it.integer_us:.0f} {self._small}, float32 {it.float_us:.0f})"
                for it in slow[:_NAMED]
            )
            more = f", and {len(slow) - _NAMED} more" if len(slow) > _NAMED else ""
            found.append(
                f"layers that are not faster alone, with what turns floats into integers: {text}{more}"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values; None for numbers that are not finite."""

        def plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in pairs}

        return asdict(self, dict_factory=plain)

    @property
    def verdict(self) -> str:
        """The model that was returned, next to float32's: layers, error, time and size; empty in the table of an error."""
        it, plain = self.chosen, self.points[0]
        if it is None:
            return ""
        score = (
            ""
            if it.score is None or plain.score is None
            else f"score {it.score:.5g}, float32 {plain.score:.5g}; "
        )
        return (
            f"{self.recipe}: {it.parts} of {len(self.layers)} layers in integers; {score}SQNR {it.sqnr:.1f} dB; "
            f"{it.time_text}, float32 {plain.time_text}; {it.size_text}, float32 {plain.size_text}"
        )

    def tables(self) -> Iterator[Table]:
        """Models; then layers, those with the largest error first."""
        yield self._models()
        rows: list[tuple[Any, ...]] = [
            (
                it.title,
                it.kind if it is layer else f"in {it.bits} bits",
                it.bits if it is layer else "",
                f"{it.sqnr:.1f}",
                *("-" if us is None else f"{us:.1f}" for us in (it.float_us, it.integer_us)),
                *("-" if count is None else count for count in (it.float_bytes, it.integer_bytes)),
            )
            for layer in sorted(self.layers, key=lambda it: -math.inf if math.isnan(it.sqnr) else it.sqnr)
            for it in layer.levels
        ]
        units = f"{self._small} float32", f"{self._small} integers"
        columns = ("layer", "kind", "bits", "SQNR dB", *units, "bytes", "in integers")
        yield Table(f"{self.recipe}: layers, the largest error first", columns, rows)

    def _models(self) -> Table:
        best = self.pareto
        rows: list[tuple[Any, ...]] = [
            (
                f"{it.parts} of {len(self.layers)}",
                f"{it.sqnr:.1f}",
                "-" if it.score is None else f"{it.score:.5g}",
                "-" if it.drop is None else f"{it.drop:.4g}",
                "-" if it.interval is None else f"{it.interval[0]:.4g} to {it.interval[1]:.4g}",
                f"{it.milliseconds:.3g}",
                it.size_text,
                "chosen" if it.chosen else "" if it in best else "not better",
            )
            for it in self.points
        ]
        columns = (
            "in integers",
            "SQNR dB",
            "score",
            "drop",
            "95 % interval",
            self.points[0].unit,
            "file",
            "",
        )
        return Table(f"models, compiled and measured {self._where}", columns, rows)

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [self.verdict, *map(str, self.tables()), *self.remarks]))

    def _repr_html_(self) -> str:
        remarks = [("", (), [(text,) for text in self.remarks])] if self.remarks else []
        return notebook.tables([*self.tables(), *remarks], self.verdict or f"quantized: {self.recipe}")
