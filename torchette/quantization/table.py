# SPDX-License-Identifier: BSD-3-Clause
# In: the measurements of `torchette.quantize`, by layer and by model. Out: tables for people.
"""`QuantizationTable`: errors, times and sizes of layers, and of complete models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torchette import notebook
from torchette.devtools.inspect import Table
from torchette.units import byte_text

_NAMED = 5  # maximum number of layers that a remark names


def wide_remark(wide: Mapping[str, float]) -> str:
    """Names the results that stay in floats, and the reason."""
    text = ", ".join(f"{name} ({steps:.1f})" for name, steps in list(wide.items())[:_NAMED])
    more = f", and {len(wide) - _NAMED} more" if len(wide) > _NAMED else ""
    return (
        "results that stay in floats, with the convolutions that produce them: outliers are so large that a typical value "
        f"has less than 2 steps of an 8-bit scale, in the result or in an operand that is added: {text}{more}"
    )


@dataclass(frozen=True)
class Layer:
    """The measurements of a layer that the recipe supports.

    Attributes:
        name: the module name; "" for operators outside of layers, such as additions.
        kind: the module's class, or the operators.
        bits: bits of the weights in the returned model; 32 for floats.
        sqnr: signal-to-quantization-noise ratio of the network's output in decibels, with only this layer quantized;
            infinite if the outputs are equal.
        float_us, integer_us: microseconds of the layer alone, compiled for this machine; None if not measured. On a
            board: thousands of instructions.
        float_bytes, integer_bytes: bytes of a file with this layer alone; None if not measured.
        others: measurements with more bits, if there are limits: 8 if the recipe has 4, and 16 (bfloat16).
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
        """All measurements of the layer, in ascending order of bits."""
        return (self, *self.others)

    @property
    def title(self) -> str:
        """The displayed name."""
        return self.name or "(no layer)"

    @property
    def is_slower(self) -> bool:
        """Whether integers are not faster than floats in this measurement."""
        return self.float_us is not None and self.integer_us is not None and self.integer_us >= self.float_us


@dataclass(frozen=True)
class Point:
    """The measurements of a compiled model.

    Attributes:
        layers: names of the layers in integers or bfloat16.
        sqnr: signal-to-quantization-noise ratio of the output in decibels, compared with the float32 model.
        milliseconds: time of a call: the float32 time multiplied by the ratio of both models in alternating runs, which
            cancels the effect of other load. On a board: millions of instructions.
        megabytes: size of the file in 10^6 bytes.
        score: the score of the metric; None without a metric.
        drop: the float32 score minus this score.
        interval: 95 % interval of the drop; None if the metric returns no score for each example.
        chosen: whether this is the returned model.
        bits: bits of the weights of each layer in `layers`.
        unit: unit of `milliseconds`.
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
        """The number of integer layers and of bfloat16 layers, as text."""
        narrow = self.bits.count(16)
        return f"{len(self.layers) - narrow}" + (f" + {narrow} bfloat16" if narrow else "")

    @property
    def time_text(self) -> str:
        """The time of a call, as text."""
        return f"{self.milliseconds:.3g} {self.unit}"

    @property
    def size_text(self) -> str:
        """The size of the file, as text."""
        return byte_text(1e6 * self.megabytes)

    @property
    def costs(self) -> tuple[float, float, float]:
        """(error, milliseconds, megabytes); lower is better."""
        return (-self.sqnr if self.drop is None else self.drop, self.milliseconds, self.megabytes)

    def __str__(self) -> str:
        error = f"{self.sqnr:.1f} dB" if self.drop is None else f"a drop of {self.drop:.4g}"
        return f"{self.parts} layers in integers: {error}, {self.time_text}, {self.size_text}"


@dataclass(frozen=True)
class QuantizationTable:
    """The measurements of `torchette.quantize`. Prints as tables, also in a notebook.

    Attributes:
        recipe: the name of the recipe.
        layers: the layers in the order of the model.
        points: all compiled and measured models, from float32 to the recipe in all layers.
        wide: layers and additions with results that stay in floats because of outliers -> the number of 8-bit steps of
            a typical value.
    """

    recipe: str
    layers: tuple[Layer, ...]
    points: tuple[Point, ...]
    wide: dict[str, float] = field(default_factory=dict)

    @property
    def pareto(self) -> tuple[Point, ...]:
        """The Pareto front: the points that no other point matches or improves in error, time and size together."""
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
        """The returned model; None in the table of an error."""
        return next((point for point in self.points if point.chosen), None)

    def choosing(self, chosen: Point) -> QuantizationTable:
        """Returns the same table with another chosen point."""
        bits = dict(zip(chosen.layers, chosen.bits, strict=True))
        layers = tuple(replace(layer, bits=bits.get(layer.name, 32)) for layer in self.layers)
        points = tuple(replace(point, chosen=point is chosen) for point in self.points)
        return replace(self, layers=layers, points=points)

    @property
    def _small(self) -> str:
        """The unit of a layer's time, a thousandth of the unit of a model's time."""
        return "µs" if self.points[0].unit == "ms" else "k instructions"

    @property
    def _where(self) -> str:
        return "here" if self.points[0].unit == "ms" else "there"

    @property
    def remarks(self) -> list[str]:
        """The results that stay in floats, and the layers that are not faster in integers."""
        remarks = []
        if self.wide:
            remarks.append(wide_remark(self.wide))
        first, last = self.points[0], self.points[-1]
        slow = [layer for layer in self.layers if layer.is_slower]
        if last.milliseconds >= first.milliseconds and last.layers:
            remarks.append(
                f"integers are not faster {self._where}: {last.milliseconds:.3g} {last.unit}, "
                f"float32 {first.milliseconds:.3g} {last.unit}"
            )
        if slow:
            slow.sort(key=lambda layer: (layer.float_us or 0.0) - (layer.integer_us or 0.0))
            text = ", ".join(
                f"{layer.title} ({layer.integer_us:.0f} {self._small}, float32 {layer.float_us:.0f})"
                for layer in slow[:_NAMED]
            )
            more = f", and {len(slow) - _NAMED} more" if len(slow) > _NAMED else ""
            remarks.append(
                f"layers that are not faster alone, including the conversion between floats and integers: {text}{more}"
            )
        return remarks

    def to_dict(self) -> dict[str, Any]:
        """Returns the table as plain values. Infinite and NaN values are None."""

        def plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in pairs}

        return asdict(self, dict_factory=plain)

    @property
    def verdict(self) -> str:
        """Compares the returned model with float32: layers, error, time and size. Empty in the table of an error."""
        chosen, plain = self.chosen, self.points[0]
        if chosen is None:
            return ""
        score = (
            ""
            if chosen.score is None or plain.score is None
            else f"score {chosen.score:.5g}, float32 {plain.score:.5g}; "
        )
        return (
            f"{self.recipe}: {chosen.parts} of {len(self.layers)} layers in integers; {score}SQNR {chosen.sqnr:.1f} dB; "
            f"{chosen.time_text}, float32 {plain.time_text}; {chosen.size_text}, float32 {plain.size_text}"
        )

    def tables(self) -> Iterator[Table]:
        """Yields the table of models, and the table of layers with the largest error first."""
        yield self._models()
        rows: list[tuple[Any, ...]] = [
            (
                row.title,
                row.kind if row is layer else f"in {row.bits} bits",
                row.bits if row is layer else "",
                f"{row.sqnr:.1f}",
                *("-" if us is None else f"{us:.1f}" for us in (row.float_us, row.integer_us)),
                *("-" if count is None else count for count in (row.float_bytes, row.integer_bytes)),
            )
            for layer in sorted(self.layers, key=lambda row: -math.inf if math.isnan(row.sqnr) else row.sqnr)
            for row in layer.levels
        ]
        units = f"{self._small} float32", f"{self._small} integers"
        columns = ("layer", "kind", "bits", "SQNR dB", *units, "bytes", "in integers")
        yield Table(f"{self.recipe}: layers, the largest error first", columns, rows)

    def _models(self) -> Table:
        best = self.pareto
        rows: list[tuple[Any, ...]] = [
            (
                f"{point.parts} of {len(self.layers)}",
                f"{point.sqnr:.1f}",
                "-" if point.score is None else f"{point.score:.5g}",
                "-" if point.drop is None else f"{point.drop:.4g}",
                "-" if point.interval is None else f"{point.interval[0]:.4g} to {point.interval[1]:.4g}",
                f"{point.milliseconds:.3g}",
                point.size_text,
                "chosen" if point.chosen else "" if point in best else "not better",
            )
            for point in self.points
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
