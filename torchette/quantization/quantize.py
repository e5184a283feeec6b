# SPDX-License-Identifier: BSD-3-Clause
# In: a model, inputs and a recipe, optionally with limits. Out: a quantized model, and a table of errors, times and sizes.
#
# With limits, the layers are chosen by measurements:
# 1. Each layer is quantized alone. Its cost is the lowest signal-to-noise ratio (SNR) among the network's outputs on the
#    first 32 inputs. The layer is also compiled alone, in floats and in integers, and both versions are timed alternately.
#    Wider formats are measured as well: bfloat16 weights, and 8 bits if the recipe has 4.
# 2. A knapsack solver finds, for up to 64 savings of bytes, or of microseconds if `max_ms` is given, the bits of each
#    layer (32, 16, 8 or 4) with the least total noise.
# 3. A number of these choices that grows with the logarithm of their count is compiled as a whole and measured. With
#    `max_drop`, `_best` selects among the choices within all limits. Without it, the choice with the smallest saving
#    that is within the limits is selected.
"""`torchette.quantize`: quantizes a model with one call."""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, SupportsFloat

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchette._compile import CompiledModel, check_backend, compile
from torchette.build.bare.counter import Counter
from torchette.capture import DynamicShapes, capture
from torchette.capture.calibration import calls_of, check_calls
from torchette.devtools.inspector.comparison import signal_to_noise
from torchette.errors import DelegationWarning, InputError, InputTypeError, QuantizationError
from torchette.packages import require
from torchette.progress import Progress
from torchette.quantization import knapsack, recipes, scheme_named
from torchette.quantization.measurements import Measurements
from torchette.quantization.recipes import BETWEEN, Call
from torchette.quantization.table import Layer, Point, QuantizationTable
from torchette.runtime import kernel_level

_ROUNDS = 9  # timed rounds; the median is used
_MIN_ROUND_SECONDS = 0.003  # faster models are repeated within a round
_ERROR_INPUTS = 32  # inputs for the error of a layer
_RESAMPLES = 1000  # bootstrap samples
_MAX_CHOICES = 66  # 64 knapsack solutions, float32, and all layers
_EQUAL = 1.05  # a smaller ratio of two times or sizes counts as equal in `_best`

Metric = Callable[[Callable[..., Any]], Any]


def quantize(
    model: nn.Module,
    calibration: Iterable[Any],
    recipe: str = "int8",
    metric: Metric | None = None,
    max_drop: float | str | None = None,
    max_ms: float | None = None,
    max_mb: float | None = None,
    *,
    dynamic_shapes: DynamicShapes = None,
    backend: object = "auto",
    resume: str | os.PathLike[str] | None = None,
    board: str | None = None,
) -> tuple[nn.Module, QuantizationTable]:
    """Quantizes a model for `torchette.compile`.

    Without a limit, all layers that the recipe supports are quantized. With a limit, measurements choose the bits of
    each layer; the top of this module describes the search.

    Args:
        model: a module in eval mode. It does not change.
        calibration: typical inputs: tuples of arguments, dicts of named arguments or single tensors. All of them are
            observed. The model is captured with the first one.
        recipe: "int8": weights and activations of layers and of the operators between them; "int8-dynamic": linear
            layers, with the scales of activations from each input; "8da4w": like "int8-dynamic" with 4-bit weights in
            groups of 32; "int8-weight-only" and "int4-weight-only": embeddings and linear layers that compute in
            floats.
        metric: a function of a compiled model, which is called like `model`. Returns a score, or one score for each
            example; the mean is compared, and higher is better. With one score for each example, the table has 95 %
            intervals of the drops: percentiles of 1,000 bootstrap means, with the same examples for both models. The
            default with `max_drop` is the share of calibration inputs with the same argmax as float32 if the first
            output is [n, classes], and 1 - noise / signal otherwise.
        max_drop: the largest allowed drop of the metric below its float32 value: a float, absolute; or a text such as
            "0.5%", relative. The drop itself is compared, not the end of its interval.
        max_ms: maximum milliseconds of a call with the first calibration input, on this machine.
        max_mb: maximum size of the compiled file, in 10^6 bytes.
        dynamic_shapes, backend: arguments of `torchette.compile`; pass the same values to it afterwards.
        resume: a file that stores the measurements. An interrupted run continues with it, and a run with other limits
            measures only new choices. The metric must be the same.
        board: a board of `torchette build --board`, such as "mps2-an386", a Cortex-M4F. The time is the instruction
            count of the board's image in qemu, including startup and one call; `max_ms` is in millions. Requires
            qemu-system-arm and compilers for both machines.

    Returns:
        The quantized model, and the table of all measurements. With `max_drop`, the model is the fastest measured one
        within all limits, or the smallest one if none is faster than float32. Otherwise it is the one with the fewest
        integer layers. Without `max_drop`, the given model is returned if float32 is within `max_ms` and `max_mb`.

    Raises:
        InputError: if the recipe is unknown, calibration is empty, the metric returns no score, a limit is
            invalid, or the file to resume belongs to another model, recipe, backend, machine or calibration.
        TargetError, MissingCompilerError, BuildError: if the board is unknown, lacks a tool, or has too little memory.
        QuantizationError: code "nothing-to-quantize": the recipe supports no layer, or a layer is in the function of a
            while_loop, cond, map or scan and the recipe replaces modules. Code "budget-not-met": no choice is
            within the limits; the text names the nearest one.
        MissingPackageError: if torchao is not installed.
        TrainModeError, ExportError: see `torchette.compile`.

    Example:
        >>> quantized, table = torchette.quantize(model, [(x,)], max_drop="0.5%")
    """
    recipe = scheme_named(recipe).name
    chosen_recipe = recipes.recipe_named(recipe)
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    limits = _Limits.of(max_drop, max_ms, max_mb)
    if isinstance(calibration, str):
        raise InputTypeError(
            f"calibration must be a list of inputs, got {calibration!r}",
            hints=["calibration=[(x,), ...], typical inputs"],
        )
    calls, _ = calls_of(calibration, ((), {}))
    if not calls:
        raise InputError(
            "calibration is empty; at least one input is required", hints=["calibration=[(x,), ...]"]
        )
    require("torchao.quantization", "quantizing")
    counter = None if board is None else Counter(board)
    check_backend(backend)
    of = {"recipe": recipe, "backend": _text(backend), **_fingerprint(model, calls)}
    of |= {"machine": board} if board else {}
    with Progress() as progress, torch.no_grad(), _layers_in_loops_refused():
        work = _begin(model, calls, chosen_recipe, dynamic_shapes, backend, progress, resume, counter, of)
        work.metric = work.agreement if metric is None and limits.drop is not None else metric
        table, chosen = _measure(recipe, work, limits)
    if chosen is None:
        raise _not_met(table, limits)
    point = work.points[chosen]
    chosen_model = work.quantized(work.choices[chosen]) if point.layers else model
    return chosen_model, table.choosing(point)


@contextlib.contextmanager
def _layers_in_loops_refused() -> Iterator[None]:
    """Names the cause if torch's control flow cannot call a module that a recipe replaced or observes."""
    try:
        yield
    except torch._dynamo.exc.TorchDynamoException as error:
        raise QuantizationError(
            "this recipe cannot quantize a layer that while_loop, cond, map or scan calls",
            hints=['recipe="int8", which leaves their functions in floats', "write the loop in Python"],
            code="nothing-to-quantize",
        ) from error


def _begin(
    model: nn.Module,
    calls: Sequence[Call],
    recipe: recipes.Recipe,
    dynamic_shapes: DynamicShapes,
    backend: object,
    progress: Progress,
    resume: str | os.PathLike[str] | None,
    counter: Counter | None,
    of: dict[str, Any],
) -> _Work:
    """Captures the model, finds its layers and opens the measurements. `of` describes the measurements."""
    progress("quantize", "capture")
    args, kwargs = calls[0]
    program = capture(model, args, kwargs, dynamic_shapes, "forward")
    check_calls(program, calls)
    layers = recipes.layers_of(recipe, model, program)
    if not layers:
        raise QuantizationError(
            f"the recipe {of['recipe']!r} supports no layer of {type(model).__name__}",
            hints=[
                "int8 also supports convolutions; 4-bit recipes require linear layers with a multiple of 32 inputs"
            ],
            code="nothing-to-quantize",
        )
    measurements = Measurements(resume, of)
    return _Work(
        model, calls, recipe, program, layers, dynamic_shapes, backend, progress, measurements, counter
    )


def _measure(recipe: str, work: _Work, limits: _Limits) -> tuple[QuantizationTable, int | None]:
    """Measures layers and choices.

    Returns the table and the index of the selected choice, or None if none is within the limits.
    """
    several = not limits.are_none
    work.total = sum(len(work.levels(name, several)) for name in work.layers) + _max_points(_MAX_CHOICES)
    measured = [work.layer(name, several) for name in work.layers]
    work.choices, gaining = _choices(measured, by_time=limits.ms is not None)
    work.total = work.done + (_max_points(len(work.choices)) if several else 2)
    chosen = _search(work, len(work.choices) - 1, gaining, limits)
    table = QuantizationTable(
        recipe,
        tuple(replace(layer, bits=32) for layer in measured),
        tuple(work.points[number] for number in sorted(work.points)),
        {**work.wide.layers, **work.wide.sums},
    )
    return table, chosen


# ---- limits ----


@dataclass(frozen=True)
class _Limits:
    """Upper limits; None means no limit."""

    drop: float | None
    is_relative: bool
    ms: float | None
    mb: float | None

    @classmethod
    def of(cls, max_drop: float | str | None, ms: float | None, mb: float | None) -> _Limits:
        is_relative = isinstance(max_drop, str) and max_drop.strip().endswith("%")
        drop = None if max_drop is None else _number("max_drop", str(max_drop).strip().removesuffix("%"))
        for name, value in (("max_ms", ms), ("max_mb", mb)):
            if value is not None and _number(name, value) <= 0:
                raise InputError(f"{name} must be greater than 0, got {value}", hints=[f"{name}=10.0"])
        return cls(drop / 100 if is_relative and drop is not None else drop, is_relative, ms, mb)

    def keeps(self, point: Point, plain: float | None) -> bool:
        """Whether a point is within the limits. `plain` is the float32 score."""
        limit = self.allowed(plain)
        return (
            (limit is None or (point.drop is not None and point.drop <= limit))
            and (self.ms is None or point.milliseconds <= self.ms)
            and (self.mb is None or point.megabytes <= self.mb)
        )

    def allowed(self, plain: float | None) -> float | None:
        """Returns the largest allowed drop, in the metric's units."""
        if self.drop is None or plain is None:
            return self.drop
        return self.drop * abs(plain) if self.is_relative else self.drop

    def excess(self, point: Point, plain: float | None) -> float:
        """Returns the sum of the relative excesses over the limits."""
        pairs = (
            (point.drop, self.allowed(plain)), (point.milliseconds, self.ms), (point.megabytes, self.mb),
        )  # fmt: skip
        return sum(
            max(0.0, value / max(limit, 1e-9) - 1)
            for value, limit in pairs
            if value is not None and limit is not None
        )

    def __str__(self) -> str:
        drop = (
            None if self.drop is None else f"{100 * self.drop:g} %" if self.is_relative else f"{self.drop:g}"
        )
        named = (("a drop of", drop, ""), ("", self.ms, " ms"), ("", self.mb, " MB"))
        return ", ".join(f"{lead} {value}{unit}".strip() for lead, value, unit in named if value is not None)

    @property
    def are_none(self) -> bool:
        return (self.drop, self.ms, self.mb) == (None, None, None)


def _number(name: str, value: SupportsFloat | str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise InputError(
            f"{name} must be a number of at least 0, got {value!r}",
            hints=['max_drop=0.01 (absolute) or max_drop="0.5%" (relative)', "max_ms=2.5", "max_mb=1.0"],
        )
    return number


def _not_met(table: QuantizationTable, limits: _Limits) -> QuantizationError:
    plain = table.points[0].score
    quantized = [point for point in table.pareto if point.layers] or list(table.points[1:])
    nearest = min(quantized, key=lambda point: limits.excess(point, plain))
    error = QuantizationError(
        f"no choice of layers is within {limits} with {table.recipe}; the nearest: {nearest}",
        where=[f"float32: {table.points[0]}"],
        hints=[
            f"limits that the nearest one satisfies: {_relaxed_limits(nearest, limits)}",
            "choose another recipe; torchette.quantize lists them",
            *table.remarks,
        ],
        code="budget-not-met",
    )
    error.table = table
    return error


def _relaxed_limits(point: Point, limits: _Limits) -> str:
    pairs = (("max_drop", limits.drop, point.drop), ("max_ms", limits.ms, point.milliseconds), ("max_mb", limits.mb, point.megabytes))  # fmt: skip
    return ", ".join(
        f"{name}={max(value, 0) * 1.01:.3g}"
        for name, limit, value in pairs
        if limit is not None and value is not None
    )


# ---- candidate choices ----


def _choices(layers: Sequence[Layer], by_time: bool) -> tuple[list[dict[str, int]], int]:
    """Returns the candidate choices, and the index of the last choice in which every layer has a positive saving.

    A choice maps layers to bits. The candidates are: no layer; the knapsack's solutions; all layers. Operators between
    the layers have no separate saving. They are quantized in a choice if a chosen layer adds more noise than they
    do.
    """
    alone = [layer for layer in layers if layer.name != BETWEEN]
    options = [[(_gain(level, by_time), _noise(level)) for level in layer.levels] for layer in alone]
    choices: list[dict[str, int]] = [{}]
    for picks in knapsack.solutions(options):
        levels = [layer.levels[pick] for layer, pick in zip(alone, picks, strict=True) if pick >= 0]
        loudest = max(map(_noise, levels), default=0.0)
        between = [layer for layer in layers if layer.name == BETWEEN and levels and _noise(layer) < loudest]
        choice = {level.name: level.bits for level in (*levels, *between)}
        if choice not in choices:
            choices.append(choice)
    gaining = len(choices) - 1
    everything = {layer.name: layer.bits for layer in layers}
    if choices[-1] != everything:
        choices.append(everything)
    return choices, gaining or len(choices) - 1


def _max_points(count: int) -> int:
    """Returns the maximum number of measured choices: both ends, one more, and the steps of the binary search."""
    return 3 + math.ceil(math.log2(count))


def _gain(layer: Layer, by_time: bool) -> float:
    """Returns the microseconds or bytes that integers save, or 0 if they were not measured."""
    before = layer.float_us if by_time else layer.float_bytes
    after = layer.integer_us if by_time else layer.integer_bytes
    return 0.0 if before is None or after is None else before - after


def _noise(layer: Layer) -> float:
    return math.inf if math.isnan(layer.sqnr) else 10 ** (-layer.sqnr / 10)


def _search(work: _Work, last: int, gaining: int, limits: _Limits) -> int | None:
    """Returns the index of the selected choice among 0 to `last`, or None if no choice is within the limits.

    Up to `gaining`, each choice has a larger saving than the one before.
    """

    def keeps(number: int, only: _Limits = limits) -> bool:
        return only.keeps(work.point(number), plain)

    plain = work.point(0).score
    work.point(last)
    if limits.are_none:
        return last
    if limits.drop is not None:
        of_drop = replace(limits, ms=None, mb=None)
        if limits.ms is not None:
            work.point(gaining)
        least, most = 0, last  # binary search for the last choice within the drop limit
        while least < most:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if keeps(middle, of_drop) else (least, middle - 1)
        return _best({n: point for n, point in work.points.items() if n and keeps(n)}, work.points[0])
    least, most = 0, gaining if keeps(gaining) else last
    while least < most:  # binary search for the first choice within the time and size limits
        middle = (least + most) // 2
        least, most = (least, middle) if keeps(middle) else (middle + 1, most)
    return min((number for number in work.points if keeps(number)), default=None)


def _best(within: Mapping[int, Point], plain: Point) -> int | None:
    """Returns the index of the best choice among those `within` the limits, or None if there are none.

    The fastest choice is best. If none is faster than float32, the smallest choice is best. Times or sizes that differ by
    less than the factor `_EQUAL` are equal. The other criterion, size or time, decides between equal choices, then the
    signal-to-noise ratio.
    """
    if not within:
        return None

    def time(number: int) -> float:
        return within[number].milliseconds

    def size(number: int) -> float:
        return within[number].megabytes

    is_faster = min(map(time, within)) * _EQUAL < plain.milliseconds
    first, second = (time, size) if is_faster else (size, time)
    least = min(map(first, within))
    equal = [number for number in within if first(number) <= least * _EQUAL]
    return min(equal, key=lambda number: (second(number), -within[number].sqnr))


# ---- measurements ----


@dataclass
class _Work:
    """The state of a quantization run: the model, its layers, and the measurements."""

    model: nn.Module
    calls: Sequence[Call]
    recipe: recipes.Recipe
    program: Any
    layers: Mapping[str, str]
    dynamic_shapes: Any
    backend: Any
    progress: Progress
    measurements: Measurements
    counter: Counter | None = None  # counts the instructions on a board
    metric: Metric | None = None
    choices: list[dict[str, int]] = field(default_factory=list)  # layer name -> bits
    points: dict[int, Point] = field(default_factory=dict)  # choice index -> point

    done: int = 0  # measured layers and choices
    total: int = 0  # maximum number of layers and choices

    def __post_init__(self) -> None:
        self._alone: dict[Any, tuple[float, float, int, int]] = {}
        eager = copy.deepcopy(self.model)  # a call may modify buffers
        self._inputs = {name: [pair] for name, pair in self._inputs_of_layers(eager).items()}
        self.wide = recipes.wide_results(self.recipe, self.program, self.calls[:_ERROR_INPUTS])
        functions = [name for name in self.layers if name not in self._inputs and name != BETWEEN]
        if self.recipe.in_graph and functions:
            self._inputs |= recipes.calls_alone(self.recipe, self.program, functions, self.calls[0])
        self._expected = [_floats(eager(*args, **kwargs)) for args, kwargs in self.calls]
        self._plain: tuple[CompiledModel, Tensor | None] | None = None

    def quantized(self, chosen: Mapping[str, int]) -> nn.Module:
        """Returns the model with these layers quantized: layer name -> bits."""
        return recipes.apply(
            self.recipe, self.model, self.program, self.layers, chosen, self.calls, self.wide
        )

    def layer(self, name: str, several: bool) -> Layer:
        """Measures this layer alone in integers. With `several`, also measures the wider formats."""
        first, *alternatives = (self._layer(name, bits) for bits in self.levels(name, several))
        return replace(first, others=tuple(alternatives))

    def levels(self, name: str, several: bool) -> tuple[int, ...]:
        """Returns the bits with which a layer is measured."""
        return self.recipe.levels if several and name != BETWEEN else self.recipe.levels[:1]

    def _layer(self, name: str, bits: int) -> Layer:
        measured = self.measurements.get(f"layer {name} {bits}")
        self.done += 1
        if measured is not None:
            return Layer(name, self.layers[name], bits, *measured)
        kind = self.layers[name]
        self._show(f"layer {name or kind} in {bits} bits")
        sqnr = self._sqnr(self.quantized({name: bits}))
        parts = [self._measured_alone(part, x, bits) for part, x in self._inputs.get(name, ())]
        numbers: tuple[Any, ...] = (sqnr, *map(sum, zip(*parts, strict=True)))
        self.measurements.put(f"layer {name} {bits}", numbers)
        return Layer(name, kind, bits, *numbers)

    def point(self, number: int) -> Point:
        """Compiles and measures the model of a choice. The result is cached."""
        if number not in self.points:
            chosen = self.choices[number]
            self.done += 1
            name = f"point {sorted(chosen.items())}"
            measured = self.measurements.get(name)
            # Measurements of runs without a metric have no score.
            if measured is not None and (self.metric is None or measured["score"] is not None):
                interval = measured["interval"] and tuple(measured["interval"])
                layers = {"layers": tuple(measured["layers"]), "bits": tuple(measured["bits"])}
                self.points[number] = Point(**{**measured, **layers, "interval": interval})
            else:
                self._show(f"compile with {len(chosen)} of {len(self.layers)} layers in integers")
                self.points[number] = self._measured(chosen)
                self.measurements.put(name, asdict(self.points[number]))
        return self.points[number]

    def _show(self, step: str) -> None:
        """Reports the next step to the progress callback."""
        self.progress("quantize", step, self.done - 1, self.total)

    def agreement(self, model: Callable[..., Any]) -> Tensor:
        """The default metric: for each row or each input, how closely the outputs match those of float32."""
        agreements = []
        for (args, kwargs), (expected, *_) in zip(self.calls, self._expected, strict=True):
            actual = _floats(model(*args, **kwargs))[0]
            if expected.dim() == 2 and expected.shape[1] >= 2:
                agreements.append((actual.argmax(1) == expected.argmax(1)).double())
            else:
                power = expected.double().square().sum().clamp(min=1e-30)
                agreements.append(1 - (actual.double() - expected.double()).square().sum().reshape(1) / power)
        return torch.cat(agreements)

    def _measured(self, chosen: Mapping[str, int]) -> Point:
        args, kwargs = self.calls[0]
        if self._plain is None:
            plain = self._compiled(self.model, args, kwargs, self.dynamic_shapes)
            self._plain = plain, None if self.metric is None else _scores(self.metric, plain)
        plain, plain_scores = self._plain
        model, scores = plain, plain_scores
        if chosen:
            model = self._compiled(self.quantized(chosen), args, kwargs, self.dynamic_shapes)
            scores = None if self.metric is None else _scores(self.metric, model)
        seconds = self._times(
            {"f": plain, "i": model},
            {"f": lambda: plain(*args, **kwargs), "i": lambda: model(*args, **kwargs)},
        )
        float_ms = self.points[0].milliseconds if 0 in self.points else 1e3 * seconds["f"]
        ms = float_ms * (seconds["i"] / seconds["f"] if chosen else 1)
        names = tuple(chosen)
        unit = "ms" if self.counter is None else "M instructions"
        point = Point(
            names, self._sqnr(model), ms, model.nbytes / 1e6, bits=tuple(chosen.values()), unit=unit
        )
        if scores is None or plain_scores is None:
            return point
        score, drop = scores.mean().item(), (plain_scores.mean() - scores.mean()).item()
        interval = _interval(plain_scores - scores) if 1 < len(scores) == len(plain_scores) else None
        return replace(point, score=score, drop=drop, interval=interval)

    def _times(
        self, models: Mapping[str, CompiledModel], runs: Mapping[str, Callable[[], Any]]
    ) -> dict[str, float]:
        """Returns the seconds of each run on this machine, or the billions of instructions on a board."""
        if self.counter is None:
            return _alternating_times(runs)
        return {name: 1e-9 * self.counter.instructions(bytes(model)) for name, model in models.items()}

    def _compiled(self, model: nn.Module, *args: Any) -> CompiledModel:
        with warnings.catch_warnings():
            # Delegation warnings are issued later, when the user compiles the selected model.
            warnings.simplefilter("ignore", DelegationWarning)
            return compile(model, *args, backend=self.backend)

    def _sqnr(self, model: Callable[..., Any]) -> float:
        """Returns the lowest signal-to-quantization-noise ratio among the outputs."""
        actual = [_floats(model(*args, **kwargs)) for args, kwargs in self.calls[:_ERROR_INPUTS]]
        ratios = []
        for sides in zip(zip(*self._expected[:_ERROR_INPUTS]), zip(*actual)):
            left, right = (
                torch.cat([output.double().flatten() for output in side]).numpy() for side in sides
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios.append(math.inf if (left == right).all() else float(signal_to_noise(left, right)))
        return min(ratios)

    def _inputs_of_layers(self, model: nn.Module) -> dict[str, tuple[nn.Module, Tensor]]:
        """Returns each layer that is a module, and its input when the model runs on the first calibration input."""
        layer_inputs: dict[str, Tensor] = {}

        def keep(name: str) -> Callable[..., None]:
            def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
                if len(args) == 1 and isinstance(args[0], Tensor):
                    layer_inputs.setdefault(name, args[0].detach().clone())

            return hook

        parts = {name: _module(model, name) for name in self.layers}
        hooks = [
            part.register_forward_pre_hook(keep(name)) for name, part in parts.items() if part is not None
        ]
        args, kwargs = self.calls[0]
        model(*args, **kwargs)
        for hook in hooks:
            hook.remove()
        return {
            name: (part, layer_inputs[name])
            for name, part in parts.items()
            if part is not None and name in layer_inputs
        }

    def _measured_alone(self, part: nn.Module, x: Tensor, bits: int) -> tuple[float, float, int, int]:
        """Returns the microseconds and file bytes of a layer, in floats and in integers."""
        key = repr(part), tuple(x.shape), x.dtype, bits
        if key not in self._alone:
            program = capture(part, (x,), {}, None, "forward")
            layers = recipes.layers_of(self.recipe, part, program)
            all_of_it = dict.fromkeys(layers, bits)
            changed = recipes.apply(self.recipe, part, program, layers, all_of_it, [((x,), {})])
            models = {kind: self._compiled(module, (x,)) for kind, module in (("f", part), ("i", changed))}
            methods = {kind: model.methods["forward"].load() for kind, model in models.items()}
            runs = {kind: (lambda method=method: method.execute([x])) for kind, method in methods.items()}
            seconds = self._times(models, runs)
            self._alone[key] = (
                1e6 * seconds["f"], 1e6 * seconds["i"], models["f"].nbytes, models["i"].nbytes,
            )  # fmt: skip
        return self._alone[key]


def _fingerprint(model: nn.Module, calls: Sequence[Call]) -> dict[str, Any]:
    """Returns a summary of the weights, the inputs and the machine, for which the measurements are valid."""

    def digest(tensors: Iterable[tuple[str, Any]]) -> str:
        text = sha256()
        for name, value in tensors:
            if not isinstance(value, Tensor):  # extra state of a module may have any type
                continue
            text.update(f"{name} {value.shape} {value.dtype}".encode())
            text.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return text.hexdigest()

    leaves = [leaf for leaf in pytree.tree_leaves(calls) if isinstance(leaf, Tensor)]
    return {
        "model": type(model).__name__,
        "weights": digest(model.state_dict().items()),
        "inputs": digest(("", leaf) for leaf in leaves),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, kernels for {kernel_level()}",
    }


def _text(backend: object) -> str:
    """Returns the name of a backend, or the names of several."""
    backends = backend if isinstance(backend, (list, tuple)) else [backend]
    return ", ".join(one if isinstance(one, str) else type(one).__name__ for one in backends)


def _module(model: nn.Module, name: str) -> nn.Module | None:
    """Returns the module of a layer, or None if the module computes more than the layer."""
    part = model.get_submodule(name.partition("@")[0])
    return part if isinstance(part, (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd)) else None


def _floats(outputs: object) -> list[Tensor]:
    """Returns the floating-point tensors among a model's outputs."""
    leaves = pytree.tree_leaves(outputs)
    tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not tensors:
        raise InputError(
            "the model returns no floating-point tensor to compare", hints=["return the logits as well"]
        )
    return tensors


def _alternating_times(runs: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Returns median seconds. The runs alternate, so that other load on the machine affects all of them equally."""
    repeats = {}
    for name, run in runs.items():
        run()
        repeats[name] = max(1, round(_MIN_ROUND_SECONDS / max(_seconds(run, 1), 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(_ROUNDS):
            for name, run in runs.items():
                times[name].append(_seconds(run, repeats[name]))
    finally:
        if collects:
            gc.enable()
    return {name: statistics.median(values) for name, values in times.items()}


def _seconds(run: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def _scores(metric: Metric, model: CompiledModel) -> Tensor:
    """Returns the scores of a metric as [n]."""
    returned = metric(model)
    try:
        scores = torch.as_tensor(returned, dtype=torch.float64).flatten()
    except (TypeError, ValueError, RuntimeError):
        scores = torch.tensor([])
    if not len(scores) or not bool(scores.isfinite().all()):
        raise InputError(
            f"the metric returned {returned!r}, which is not a number",
            hints=["return a float, or a list of floats, one for each example; higher is better"],
        )
    return scores


def _interval(drops: Tensor) -> tuple[float, float]:
    """Returns the 95 % bootstrap interval of the mean."""
    draws = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(drops), (_RESAMPLES, len(drops)), generator=draws)
    low, high = torch.quantile(
        drops[chosen].mean(1), torch.tensor([0.025, 0.975], dtype=torch.float64)
    ).tolist()
    return low, high
