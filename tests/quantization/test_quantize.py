# SPDX-License-Identifier: BSD-3-Clause
"""`torchette.quantize`: recipes, limits, error messages, and the table of measurements."""

from __future__ import annotations

import copy
import html
import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import torchette
from tests.sweep import sweep
from torchette.errors import DelegationError, InputError, InputTypeError, QuantizationError, TrainModeError
from torchette.quantization import RECIPES, knapsack, quantize, recipes
from torchette.quantization.table import Layer, Point, QuantizationTable

pytest.importorskip("torchao")

CLASSES = 8


class _Net(nn.Module):
    """A convolution, an addition, and linear layers; the inputs of `narrow` are not a multiple of 32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.wide, self.narrow = nn.Linear(256, 40), nn.Linear(40, CLASSES)

    def forward(self, image):
        x = self.convolution(image).relu()
        return self.narrow(self.wide((x + image).flatten(1)).relu())


class _Uneven(nn.Module):
    """One value in 64 between `first` and `last` is an outlier that does not affect the result; a per-tensor scale
    loses the rest.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, CLASSES)
        self.even = nn.Linear(64, CLASSES)
        with torch.no_grad():
            self.first.weight[0] *= 1e5
            self.last.weight[:, 0] = 0

    def forward(self, x):
        return self.last(self.first(x)) + self.even(x)


class _Sign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 2)

    def forward(self, x):
        return self.linear(x) > 0


class _Two(nn.Module):
    """Two outputs of different magnitude."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(64, 16), nn.Linear(64, 2)

    def forward(self, x):
        return {"large": 1e6 * self.large(x), "small": self.small(x)}


class _Running(nn.Module):
    """Accumulates its inputs in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 2)
        self.register_buffer("sum", torch.zeros(1, 64))

    def forward(self, x):
        self.sum.add_(x)
        return self.linear(self.sum)


def _images(count: int = 8) -> list[torch.Tensor]:
    return list(torch.randn(count, 1, 1, 8, 8, generator=torch.Generator().manual_seed(1)))


def _rows(count: int = 16) -> list[torch.Tensor]:
    return list(torch.randn(count, 1, 64, generator=torch.Generator().manual_seed(1)))


def _close(reference: nn.Module) -> Callable[[Any], list[float]]:
    """A metric with a score for each example: minus the largest difference from a model."""
    rows = _rows()
    return lambda model: [-(model(x) - reference(x)).abs().max().item() for x in rows]


FITTING = {
    "int8": ["convolution", "wide", "narrow", ""],
    "int8-dynamic": ["wide", "narrow"],
    "8da4w": ["wide"],
    "int8-weight-only": ["wide", "narrow"],
    "int4-weight-only": ["wide"],
    "bfloat16": ["convolution", "wide", "narrow"],
    "float16": ["convolution", "wide", "narrow"],
}
BITS = {"8da4w": 4, "int4-weight-only": 4, "bfloat16": 16, "float16": 16}


@pytest.mark.parametrize("recipe", sweep(RECIPES, "int8", "8da4w", "bfloat16"))
def test_recipe_quantizes_all_supported_layers(recipe: str) -> None:
    model, images = _Net().eval(), _images()
    before = copy.deepcopy(model.state_dict())
    quantized, table = torchette.quantize(model, images, recipe)
    assert [layer.name for layer in table.layers] == FITTING[recipe]
    assert all(layer.bits == BITS.get(recipe, 8) and 10 < layer.sqnr < 90 for layer in table.layers)
    compiled, plain = (torchette.compile(module, (images[0],)) for module in (quantized, model))
    assert compiled.nbytes < 0.7 * plain.nbytes and table.chosen.megabytes == compiled.nbytes / 1e6
    assert table.chosen.layers == table.points[-1].layers and set(table.chosen.layers) == set(FITTING[recipe])
    with torch.no_grad():
        torch.testing.assert_close(compiled(images[1]), model(images[1]), rtol=0, atol=0.3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class _Words(nn.Module):
    """Two tables; one is tied to a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.words, self.head = nn.Embedding(200, 64), nn.Embedding(300, 64), nn.Linear(64, 300)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head((self.words(tokens) + self.places(tokens)).mean(1))


@pytest.mark.parametrize("recipe", ["int8-weight-only", "int4-weight-only"])
def test_embedding_tables(recipe: str) -> None:
    tokens = [
        torch.randint(0, 200, (1, 9), generator=torch.Generator().manual_seed(seed)) for seed in range(3)
    ]
    model = _Words().eval()
    quantized, table = torchette.quantize(model, tokens, recipe)
    assert [layer.name for layer in table.layers] == ["places", "head"]
    assert table.layers[0].integer_bytes < 0.4 * table.layers[0].float_bytes
    operators = torchette.compile(quantized, (tokens[0],)).program.operators()
    assert "cpu::weight_only_embedding.out" in operators


def test_calibration_accepts_tuples_dicts_and_tensors() -> None:
    model, images = _Net().eval(), _images(2)
    for calibration in (iter(images), [(image,) for image in images], [{"image": image} for image in images]):
        _, table = torchette.quantize(model, calibration, "int8-weight-only")
        assert len(table.chosen.layers) == 2


def test_dynamic_shapes() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    shapes = ({0: torch.export.Dim("rows", min=1, max=9)},)
    rows = [torch.randn(4, 64), torch.randn(9, 64)]
    quantized, _ = torchette.quantize(model, rows, dynamic_shapes=shapes)
    compiled = torchette.compile(quantized, (rows[0],), dynamic_shapes=shapes)
    assert [compiled(x).shape for x in rows] == [(4, 4), (9, 4)]


def test_sqnr_is_that_of_the_worst_output() -> None:
    _, table = torchette.quantize(_Two().eval(), _rows(), "int8-weight-only")
    assert all(20 < layer.sqnr < 80 for layer in table.layers)


def test_buffers_of_the_given_model_do_not_change() -> None:
    model = _Running().eval()
    quantized, _ = torchette.quantize(model, _rows(4), "int8-weight-only")
    assert not model.sum.any()
    compiled = torchette.compile(quantized, (_rows()[0],))
    first, second = (compiled(_rows()[0]) for _ in range(2))
    bias = model.linear.bias.detach()
    torch.testing.assert_close(second - bias, 2 * (first - bias))


@pytest.fixture
def time_is_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call lasts a nanosecond for each byte of the file, so the choice does not depend on this machine."""
    monkeypatch.setattr(
        quantize._Work,
        "_times",
        lambda _, models, runs: {name: 1e-9 * model.nbytes for name, model in models.items()},
    )


@pytest.mark.usefixtures("time_is_size")
def test_sensitive_layers_stay_in_float32() -> None:
    model = _Uneven().eval()
    quantized, table = torchette.quantize(model, _rows(), "int8", _close(model), max_drop=0.1)
    bits = {layer.name: layer.bits for layer in table.layers}
    assert (bits["first"], bits["last"], bits["even"]) == (16, 32, 8), "the small layer has no saving"
    compiled = torchette.compile(quantized, (_rows()[0],))
    chosen = table.chosen
    assert chosen.score == pytest.approx(sum(_close(model)(compiled)) / 16, rel=1e-3)
    low, high = chosen.interval or (1.0, 0.0)
    assert low <= (chosen.drop or 0.0) <= high <= 0.1
    assert table.points[0].layers == () and not table.points[0].drop
    assert (table.points[-1].drop or 0.0) > 0.1


@pytest.mark.usefixtures("time_is_size")
def test_default_metric_compares_classes_and_percentage_is_relative() -> None:
    _, table = torchette.quantize(_Uneven().eval(), _rows(), "int8", max_drop="10%")
    assert table.points[0].score == 1 and 0 <= (table.chosen.drop or 0.0) <= 0.1
    bits = {layer.name: layer.bits for layer in table.layers}
    assert bits["first"] >= 16 and min(bits.values()) == 8


def test_default_metric_without_classes_is_noise() -> None:
    model = nn.Conv2d(1, 4, 3).eval()
    _, table = torchette.quantize(model, _images(), "int8", max_drop="1%")
    assert 0.99 < (table.chosen.score or 0.0) < 1


def test_size_limit_quantizes_fewest_layers() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).eval()
    plain = torchette.compile(model, (_rows()[0],)).nbytes / 1e6
    quantized, table = torchette.quantize(model, _rows(), "int8-weight-only", max_mb=0.7 * plain)
    assert 0 < len(table.chosen.layers) < 4 and table.chosen.megabytes <= 0.7 * plain
    assert torchette.compile(quantized, (_rows()[0],)).nbytes / 1e6 == table.chosen.megabytes
    same, table = torchette.quantize(model, _rows(), "int8-weight-only", max_mb=2 * plain, max_ms=1e6)
    assert same is model and not table.chosen.layers


def test_infeasible_limits_raise_budget_not_met() -> None:
    model = _Uneven().eval()
    with pytest.raises(QuantizationError) as caught:
        torchette.quantize(model, _rows(), "int8", _close(model), max_drop=1e-9, max_ms=1e3, max_mb=1e-3)
    error = caught.value
    assert error.code == "budget-not-met" and "a drop of 1e-09, 1000.0 ms, 0.001 MB" in error.message
    assert "layers in integers: a drop of" in error.message and "max_mb=" in str(error)
    assert isinstance(error.table, QuantizationTable)
    assert any(str(point) in error.message for point in error.table.pareto)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"recipe": "int3"}, InputError, "no quantization scheme 'int3'"),
        ({"calibration": []}, InputError, "calibration is empty"),
        ({"metric": lambda model: None}, InputError, "the metric returned None"),
        ({"metric": lambda model: float("nan")}, InputError, "the metric returned nan"),
        ({"metric": lambda model: []}, InputError, "the metric returned []"),
        ({"max_drop": -0.1}, InputError, "max_drop must be"),
        ({"max_drop": "a little"}, InputError, "max_drop must be a number of at least 0, got 'a little'"),
        ({"max_ms": 0}, InputError, "max_ms must be greater than 0, got 0"),
        ({"max_mb": float("nan")}, InputError, "max_mb must be a number of at least 0, got nan"),
        ({"model": torch.relu}, InputTypeError, "expected a torch.nn.Module"),
        ({"model": nn.Sequential(nn.Linear(64, 2), nn.Dropout()).train()}, TrainModeError, "training mode"),
        ({"model": _Sign().eval()}, InputError, "no floating-point tensor"),
        ({"model": nn.ReLU().eval()}, QuantizationError, "supports no layer of ReLU"),
        ({"model": nn.ReLU().eval(), "backend": "tpu"}, DelegationError, "there is no backend 'tpu'"),
    ],
)
def test_error_messages(change: dict[str, Any], kind: type[Exception], message: str) -> None:
    options = {
        "model": nn.Linear(64, 2).eval(),
        "calibration": _rows(1),
        "recipe": "int8-weight-only",
    } | change
    with pytest.raises(kind) as caught:
        torchette.quantize(**options)
    assert message in caught.value.message  # type: ignore[attr-defined]
    assert kind is TrainModeError or kind is InputTypeError or caught.value.hints  # type: ignore[attr-defined]


class _Massive(nn.Module):
    """One of 200 results of `narrow` is an outlier; the norm after the addition amplifies the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.widen, self.narrow = nn.Linear(64, 200), nn.Linear(200, 256), nn.Linear(256, 200)
        self.norm, self.last = nn.LayerNorm(200), nn.Linear(200, CLASSES)
        with torch.no_grad():
            self.narrow.weight[5] *= 2000
            self.norm.weight[5] = 0

    def forward(self, x):
        x = self.first(x)
        return self.last(self.norm(x + self.narrow(self.widen(x).relu())))


def test_results_with_outliers_stay_in_floats() -> None:
    model, rows = _Massive().eval(), _rows()
    _, table = torchette.quantize(model, rows, "int8")
    assert set(table.wide) == {"narrow", "add"} and table.wide["narrow"] < 1
    assert "narrow (0." in str(table) and "stay in floats" in str(table)
    assert table.chosen is not None and table.chosen.sqnr > 20
    program = quantize.capture(model, (rows[0],), {}, None, "forward")
    recipe = recipes.recipe_named("int8")
    layers = dict.fromkeys(recipes.layers_of(recipe, model, program), 8)
    plain = recipes.apply(recipe, model, program, layers, layers, [((row,), {}) for row in rows])
    expected, rounded = (torch.cat([run(row) for row in rows]) for run in (model, plain))
    lost = (expected - rounded).square().sum() / expected.square().sum()
    assert -10 * lost.log10() < table.chosen.sqnr - 6, "quantizing all layers should lose more"


# ---- selection among given measurements ----

MS, DROPS = (10.0, 6.0, 4.0, 5.0, 9.0), (0.0, 0.1, 0.2, 0.3, 0.4)  # index: number of integer layers


class _Given:
    """A run with given points that measures nothing."""

    def __init__(self) -> None:
        self.points: dict[int, Point] = {}

    def point(self, count: int) -> Point:
        score, mb = 1 - DROPS[count], 1.0 - count / 5
        self.points[count] = Point(tuple("abcd"[:count]), 90.0 - count, MS[count], mb, score, DROPS[count])
        return self.points[count]


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({}, 4),
        ({"max_drop": 0.35}, 2),  # 3 layers are also within the limit, but slower
        ({"max_drop": "35%"}, 2),
        ({"max_drop": 0.05}, None),
        ({"ms": 4.5}, 2),
        ({"ms": 9.5}, 1),
        ({"ms": 3.0}, None),
        ({"mb": 0.45}, 3),
        ({"ms": 5.5, "mb": 0.45}, 3),
        ({"max_drop": 0.35, "ms": 4.5}, 2),
        ({"max_drop": 0.15, "ms": 4.5}, None),
    ],
)
def test_limits_select_number_of_integer_layers(limits: dict[str, Any], count: int | None) -> None:
    limits_of_case = quantize._Limits.of(**({"max_drop": None, "ms": None, "mb": None} | limits))
    assert quantize._search(_Given(), 4, 2, limits_of_case) == count  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("costs", "best"),
    [
        ({1: (9.85, 3.0), 2: (2.68, 3.1)}, 2),
        ({1: (2.60, 4.0), 2: (2.68, 3.0)}, 2),  # times within 5 % are equal
        ({1: (11.0, 4.0), 2: (12.0, 3.0)}, 2),  # float32: 10 ms
        ({1: (12.0, 3.0), 2: (11.0, 3.1)}, 2),
        ({}, None),
    ],
)
def test_fastest_choice_within_drop_or_smallest(
    costs: dict[int, tuple[float, float]], best: int | None
) -> None:
    within = {number: Point(("a",), 30.0, ms, mb) for number, (ms, mb) in costs.items()}
    assert quantize._best(within, Point((), math.inf, 10.0, 12.0)) == best


def test_choices_have_least_noise_for_their_saving() -> None:
    layers = [
        Layer("slow", "Linear", 8, 60.0, 1.0, 2.0, 100, 90),
        Layer("loud", "Linear", 8, 20.0, 9.0, 8.0, 900, 500),
        Layer("quiet", "Linear", 8, 50.0, 9.0, 8.0, 900, 500),
        Layer("", "add", 8, 40.0),
    ]
    quiet, both = {"quiet": 8}, {"loud": 8, "quiet": 8, "": 8}
    assert quantize._choices(layers, by_time=True) == (
        [{}, quiet, both, dict.fromkeys(["slow", "loud", "quiet", ""], 8)],
        2,
    )
    choices, gaining = quantize._choices(layers, by_time=False)
    assert choices[1:3] == [{"slow": 8}, quiet] and gaining == len(choices) - 1
    assert set(choices[-1]) == {"slow", "loud", "quiet", ""}


def test_choices_combine_bits_with_least_noise() -> None:
    layers = [
        Layer(
            name,
            "Linear",
            4,
            loss,
            None,
            None,
            900,
            200,
            (Layer(name, "Linear", 8, loss + 20, None, None, 900, 300),),
        )
        for name, loss in (("deaf", 60.0), ("keen", 10.0))
    ]
    choices, _ = quantize._choices(layers, by_time=False)
    assert {"deaf": 4, "keen": 8} in choices and {"deaf": 8, "keen": 4} not in choices
    assert choices[0] == {} and choices[-1] == {"deaf": 4, "keen": 4}


@pytest.mark.parametrize("seed", range(6))
def test_knapsack_solutions_are_optimal(seed: int) -> None:
    draw = random.Random(seed)
    options = [
        [
            (float(draw.randint(-1, 40)), draw.choice((0.5, 1.0, 2.0)) * draw.random())
            for _ in range(draw.choice((1, 2)))
        ]
        for _ in range(7)
    ]

    def of(choice: tuple[int, ...]) -> tuple[float, float]:
        chosen = [options[item][number] for item, number in enumerate(choice) if number >= 0]
        return sum(saving for saving, _ in chosen), sum(cost for _, cost in chosen)

    every = [of(choice) for choice in itertools.product(*(range(-1, len(each)) for each in options))]
    totals = [of(choice) for choice in knapsack.solutions(options)]
    assert totals == sorted(totals) and totals[-1][0] == max(saving for saving, _ in every)
    for saving, cost in totals:  # rounding changes each of seven savings by up to half a step of 2,000
        costs = [other_cost for more, other_cost in every if more >= saving + 1]
        assert cost <= min(costs, default=math.inf) + 1e-12
    assert len(knapsack.solutions(options, max_solutions=4)) <= 4
    assert knapsack.solutions([[(0.0, 1.0)], [(-3.0, 0.0)]]) == []


# ---- resuming from a file ----


def _measured_lines(path: Path) -> list[str]:
    """Returns the names of the complete lines except the first."""
    lines = path.read_text().splitlines()[1:]
    return [json.loads(line)["name"] for line in lines if line.endswith("}")]


def test_interrupted_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = _Uneven().eval(), tmp_path / "measured.jsonl"
    options: dict[str, Any] = {"metric": _close(model), "max_drop": 0.1, "resume": path}
    measure, calls = quantize._Work._measured, 0

    def interrupted(self: Any, chosen: Any) -> Point:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return measure(self, chosen)

    monkeypatch.setattr(quantize._Work, "_measured", interrupted)
    with pytest.raises(KeyboardInterrupt):
        torchette.quantize(model, _rows(), "int8", **options)
    before = _measured_lines(path)
    assert (
        sum(name.startswith("layer") for name in before) == 7  # four layers, three of them also in bfloat16
        and sum(name.startswith("point") for name in before) == 2
    )
    with path.open("a") as file:  # an incomplete line
        file.write('{"name": "point of')
    _, table = torchette.quantize(model, _rows(), "int8", **options)
    after = _measured_lines(path)
    assert after[: len(before)] == before and len(set(after)) == len(after), (
        "a layer or choice was measured twice"
    )
    assert table.chosen is not None and (table.chosen.drop or 0.0) <= 0.1
    count = calls
    _, again = torchette.quantize(model, _rows(), "int8", **options)
    assert calls == count and again == table
    with pytest.raises(InputError, match="another configuration; different: weights"):
        torchette.quantize(_Uneven(1).eval(), _rows(), "int8", **options)
    with pytest.raises(InputError, match="different: recipe, inputs"):
        torchette.quantize(model, _rows(3), "int8-weight-only", resume=path)
    with pytest.raises(InputError, match="another configuration"):
        torchette.quantize(model, _rows(), "int8", resume=__file__)


class _Functions(nn.Module):
    """Layers that are functions, not modules."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(96, 64)), nn.Linear(96, 64)
        self.attend = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x):
        x = self.attend(x, x, x, need_weights=False)[0]
        return self.last(nn.functional.linear(x, self.weight).relu())


def test_functional_layers_are_timed() -> None:
    rows = [row.view(1, 1, 64) for row in _rows(4)]
    _, table = torchette.quantize(_Functions().eval(), rows, "int8")
    layers = {layer.name: layer for layer in table.layers}
    assert {"attend", "last"} <= set(layers)
    for name in ("attend", "last"):
        layer = layers[name]
        assert layer.float_us and layer.integer_us and 0 < layer.integer_bytes < layer.float_bytes
    assert layers["attend"].float_bytes > 4 * 4 * 64 * 64  # all of its matrix multiplications


def test_4_bit_recipe_also_measures_8_bits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    rows = _rows()
    plain = torchette.compile(model, (rows[0],)).nbytes / 1e6
    quantized, table = torchette.quantize(model, rows, "int4-weight-only", max_mb=0.3 * plain)
    assert table.chosen.megabytes <= 0.3 * plain
    assert {8} < {layer.bits for layer in table.layers} | {4} and "in 8 bits" in str(table)
    assert torchette.compile(quantized, (rows[0],)).nbytes / 1e6 == table.chosen.megabytes


@pytest.mark.slow
@pytest.mark.usefixtures("time_is_size")
def test_sensitive_layers_use_bfloat16() -> None:
    model = _Uneven().eval()
    plain = torchette.compile(model, (_rows()[0],)).nbytes / 1e6
    options: dict[str, Any] = {"metric": _close(model), "max_mb": 0.7 * plain}
    for recipe, drop in (("int8", 0.1), ("int8-weight-only", 1e-3)):
        quantized, table = torchette.quantize(model, _rows(), recipe, max_drop=drop, **options)
        assert 16 in {layer.bits for layer in table.layers} and "bfloat16 of " in str(table), recipe
        compiled = torchette.compile(quantized, (_rows()[0],))
        assert compiled.nbytes / 1e6 == table.chosen.megabytes <= 0.7 * plain
        sixteen = table.layers[0].others[-1]
        assert sixteen.sqnr > 40 and sixteen.integer_bytes < 0.6 * sixteen.float_bytes
        assert table.layers[-1].name or len(table.layers[-1].levels) == 1, "an addition has no weights"


def test_board_time_is_instruction_count(monkeypatch: pytest.MonkeyPatch) -> None:
    model, programs = _Net().eval(), []

    class Counter:
        def __init__(self, board: str) -> None:
            assert board == "mps2-an386"

        def instructions(self, program: bytes) -> int:
            programs.append(program)
            return 1000 * len(program)

    monkeypatch.setattr(quantize, "Counter", Counter)
    plain = torchette.compile(model, (_images()[0],)).nbytes / 1e6
    _, table = torchette.quantize(model, _images(), max_ms=0.6 * plain * 1e3, board="mps2-an386")
    assert all(point.milliseconds == pytest.approx(1e3 * point.megabytes) for point in table.points)
    assert 0 < table.chosen.milliseconds <= 600 * plain and "M instructions" in str(table)
    assert all(layer.integer_us == pytest.approx(layer.integer_bytes) for layer in table.layers if layer.name)
    assert len(programs) > 2 * len(table.layers)


def test_table_marks_dominated_points() -> None:
    slow = Layer("head", "Linear", 8, 31.4, 5.0, 9.0, 4000, 2000)
    quick = Layer("body", "Conv2d", 8, 40.2, 9.0, 5.0, 8000, 3000)
    plain = Point((), float("inf"), 2.0, 0.012)
    worse = Point(("body",), 30.0, 3.0, 0.011, bits=(4,))
    balanced = Point(("body", "head"), 31.0, 2.5, 0.005, chosen=True)
    table = QuantizationTable("int8", (quick, slow), (plain, worse, balanced))
    assert table.pareto == (plain, balanced) and table.chosen is balanced
    first, second = table.remarks
    assert "not faster here: 2.5 ms, float32 2 ms" in first
    assert "head (9 µs, float32 5)" in second and "body" not in second
    page = html.unescape(table._repr_html_())
    for text in ("2 of 2", "31.4", "not better", "head (9 µs"):
        assert text in str(table) and text in page
    bits = [layer.bits for layer in table.choosing(worse).layers]
    assert bits == [4, 32]
    points = table.to_dict()["points"]
    assert [point["sqnr"] for point in points] == [None, 30.0, 31.0]


class _Loop(nn.Module):
    """A linear layer in a loop, and one behind it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside, self.behind = nn.Linear(32, 32), nn.Linear(32, 8)

    def forward(self, x):
        def unfinished(step, x):
            return step < 3

        def advance(step, x):
            return step + 1, self.inside(x).relu()

        _, x = while_loop(unfinished, advance, (torch.tensor(0), x))
        return self.behind(x)


def test_layers_in_loops_stay_in_floats():
    model, x = _Loop().eval(), torch.randn(2, 32)
    quantized, table = torchette.quantize(model, [(x,)], "int8")
    assert [layer.name for layer in table.layers] == ["behind"]
    compiled = torchette.compile(quantized, (x,))
    assert {"cpu::linear.out", "cpu::quantized_linear.out"} <= set(compiled.program.operators())
    torch.testing.assert_close(compiled(x), model(x), atol=0.02, rtol=0)
    with pytest.raises(QuantizationError, match="cannot quantize a layer that while_loop"):
        torchette.quantize(model, [(x,)], "int8-weight-only")
