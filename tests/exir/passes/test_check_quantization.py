# SPDX-License-Identifier: BSD-3-Clause
"""A model with incomplete quantization is rejected through every API; a calibrated model is not."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.export import Dim, export

pytest.importorskip("torchao")

from torchao.quantization.pt2e.observer import MinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

import torchette
from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config
from torchette.capture import pt2e
from torchette.errors import QuantizationError, ZeroRangeWarning
from torchette.exir import to_edge
from torchette.export import export as export_with_recipe

pytestmark = pytest.mark.filterwarnings("ignore")  # torchao warns about the tested cases
IMAGE = (torch.linspace(-1, 1, 96).reshape(2, 3, 4, 4),)
WAYS = {
    "static": {}, "per channel": {"is_per_channel": True}, "dynamic": {"is_dynamic": True},
    "dynamic per channel": {"is_dynamic": True, "is_per_channel": True}, "trained": {"is_qat": True},
    "trained per channel": {"is_qat": True, "is_per_channel": True},
}  # fmt: skip


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x):
        x = self.conv(x).relu()
        return self.linear(x.mean((2, 3)))


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, y):
        x = self.a(x)
        y = self.b(y)  # the line without observations
        return x, y


class _Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, turns):
        return torch._higher_order_ops.while_loop(
            lambda i, h: i < turns,
            lambda i, h: (i + 1, self.linear(h)),
            (torch.zeros((), dtype=torch.int64), x),
        )[1]


def _quantizer(**how) -> XNNPACKQuantizer:
    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**how))


def _prepared(model: nn.Module, args: tuple, shapes=None, **how) -> torch.fx.GraphModule:
    torch.manual_seed(0)
    qat = how.get("is_qat", False)
    prepare = prepare_qat_pt2e if qat else prepare_pt2e
    return prepare(export(model.train(qat), args, dynamic_shapes=shapes).module(), _quantizer(**how))


def _refused(code: str, run) -> QuantizationError:
    with pytest.raises(QuantizationError) as caught:
        run()
    assert caught.value.code == code and caught.value.hints
    return caught.value


@pytest.mark.parametrize("way", WAYS)
def test_missing_calibration_is_detected(way: str) -> None:
    converted = convert_pt2e(_prepared(_Net(), IMAGE, **WAYS[way]))
    error = _refused("not-calibrated", lambda: torchette.compile(converted, IMAGE))
    assert any("self.linear(x.mean((2, 3)))" in place for place in error.where), error


@pytest.mark.parametrize("backend", ["portable", "xnnpack"])
def test_missing_calibration_is_detected_by_other_apis(backend: str) -> None:
    program = export(convert_pt2e(_prepared(_Net(), IMAGE)), IMAGE)
    _refused("not-calibrated", lambda: to_edge(program))
    _refused("not-calibrated", lambda: torchette.compile(program, backend=backend))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    _refused("not-calibrated", lambda: to_edge(torch.export.load(file)))
    unfolded = export(convert_pt2e(_prepared(_Net(), IMAGE), fold_quantize=False), IMAGE)
    _refused("not-calibrated", lambda: to_edge(unfolded))


@pytest.mark.parametrize("wrapped", ["never observed", "never converted"])
def test_unfinished_part_of_a_larger_model_is_detected(wrapped: str) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = _prepared(_Net(), IMAGE)
            if wrapped == "never observed":
                self.part = convert_pt2e(self.part)

        def forward(self, x):
            return self.part(x / 2).softmax(-1)

    code = {"never observed": "not-calibrated", "never converted": "not-converted"}[wrapped]
    error = _refused(code, lambda: torchette.compile(Wrapper(), IMAGE))
    assert [place for place in error.where if "self.linear(x.mean((2, 3)))" in place], error


def test_missing_calibration_is_detected_without_weights() -> None:
    class Sum(nn.Module):
        def forward(self, x, y):
            x = x.reshape(x.shape[0], -1)
            return (x + x) * y.reshape(y.shape[0], -1)

    args, rows = (torch.randn(3, 2, 2), torch.randn(3, 2, 2)), Dim("rows", max=8)
    shapes = ({0: rows}, {0: rows})
    prepared = _prepared(Sum(), args, shapes)
    never = convert_pt2e(prepared)
    _refused("not-calibrated", lambda: torchette.compile(never, args, dynamic_shapes=shapes))


def test_branch_without_calibration_is_detected() -> None:
    args, shapes = (
        (torch.randn(2, 4), torch.randn(2, 4)),
        ({0: Dim("a", min=0, max=9)}, {0: Dim("b", min=0, max=9)}),
    )
    prepared = _prepared(_Two(), args, shapes)
    prepared(args[0], torch.zeros(0, 4))
    converted = convert_pt2e(prepared)
    error = _refused("not-calibrated", lambda: torchette.compile(converted, args, dynamic_shapes=shapes))
    assert [place for place in error.where if "the line without observations" in place], error
    assert not [place for place in error.where if "self.a(x)" in place], error


def test_loop_without_iterations_is_detected() -> None:
    args = (torch.randn(2, 4), torch.tensor(3))
    prepared = _prepared(_Loop(), args)
    prepared(args[0], torch.tensor(0))
    converted = convert_pt2e(prepared)
    _refused("not-calibrated", lambda: torchette.compile(converted, args))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("calibrated", [False, True])
def test_remaining_observers_are_detected(way: str, calibrated: bool) -> None:
    prepared = _prepared(_Net(), IMAGE, **WAYS[way])
    if calibrated:
        prepared(*IMAGE)
    error = _refused("not-converted", lambda: torchette.compile(prepared, IMAGE))
    assert "activation_post_process_" in error.message
    _refused("not-converted", lambda: export_with_recipe(prepared, [IMAGE]))
    if "dynamic" in way or "trained" in way:  # torch.export itself rejects the others
        program = export(prepared, IMAGE)
        _refused("not-converted", lambda: to_edge(program))


def test_quantize_checks_the_observers() -> None:
    args, shapes = (
        (torch.randn(2, 4), torch.randn(2, 4)),
        ({0: Dim("a", min=0, max=9)}, {0: Dim("b", min=0, max=9)}),
    )

    def quantize(**how):
        graph = export(_Two().eval(), args, dynamic_shapes=shapes).module()
        return pt2e.quantize(graph, [_quantizer(**how)], [((args[0], torch.zeros(0, 4)), {})])

    error = _refused("not-calibrated", quantize)
    assert [place for place in error.where if "the line without observations" in place], error
    quantize(is_dynamic=True)
    loop, turns = (torch.randn(2, 4), torch.tensor(3)), torch.tensor(0)
    graph = export(_Loop().eval(), loop).module()
    _refused("not-calibrated", lambda: pt2e.quantize(graph, [_quantizer()], [((loop[0], turns), {})]))
    untrained = export(_Net().train(), IMAGE).module()
    _refused(
        "not-calibrated",
        lambda: pt2e.quantize(untrained, [_quantizer(is_qat=True)], train=lambda graph: None),
    )


def test_infinite_values_are_rejected() -> None:
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    with torch.no_grad():
        model[0].weight[1, 2] = torch.inf
    args = (torch.ones(2, 4),)
    graph = export(model, args).module()
    error = _refused("infinite-range", lambda: pt2e.quantize(graph, [_quantizer()], [(args, {})]))
    assert error.where
    prepared = _prepared(model, args)
    prepared(*args)
    converted = convert_pt2e(prepared)
    _refused("infinite-range", lambda: torchette.compile(converted, args))


# ---- no false positives ----


def _agrees(model: nn.Module, args: tuple, quantizer: XNNPACKQuantizer) -> torch.fx.GraphModule:
    prepared = prepare_pt2e(export(model.eval(), args).module(), quantizer)
    prepared(*args)
    converted = convert_pt2e(prepared)
    torch.testing.assert_close(
        torchette.compile(converted, args)(*args), converted(*args), rtol=1e-5, atol=1e-5
    )
    return converted


def _numbers(graph: torch.fx.GraphModule) -> list[tuple[float, int]]:
    nodes = graph.graph.find_nodes(
        op="call_function", target=torch.ops.quantized_decomposed.quantize_per_tensor.default
    )
    return [(node.args[1], node.args[2]) for node in nodes]


def test_observed_zeros_are_accepted() -> None:
    model, args = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), (torch.zeros(2, 4),)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert {scale for scale, _ in _numbers(_agrees(model, args, _quantizer()))} == {2**-12}
    _agrees(model, args, _quantizer(is_dynamic=True, is_per_channel=True))


INTEGER_RANGE = torch.arange(-128.0, 128).reshape(1, 1, 16, 16)  # its scale is 1, its zero point 0


def _of_extremes() -> XNNPACKQuantizer:
    """Returns a quantizer with scales that depend only on the minimum and maximum."""
    config = get_symmetric_quantization_config()
    assert config.input_activation is not None
    spec = replace(config.input_activation, observer_or_fake_quant_ctr=MinMaxObserver.with_args(eps=2**-12))
    return XNNPACKQuantizer().set_global(replace(config, input_activation=spec, output_activation=spec))


def test_observed_scale_of_one_is_accepted() -> None:
    class Edges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x):
            x = nn.functional.max_pool2d(x, 1)
            return torch.cat([x, self.conv(x)], 1)

    model = Edges().eval()
    nn.init.constant_(model.conv.weight, 0.01)
    assert (1.0, 0) in _numbers(_agrees(model, (INTEGER_RANGE,), _of_extremes()))


def test_weights_with_scale_one_are_accepted() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[127.0, -3.0], [1.0, 5.0]]))
    _agrees(model, (torch.randn(3, 2),), _quantizer())


def test_hand_written_integer_weights_are_accepted() -> None:
    """Ternary weights with a scale of 1 that was set without an observer."""

    class Ternary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.tensor([[1, 0, -1], [0, 0, 1]], dtype=torch.int8))

        def forward(self, x):
            ops = torch.ops.quantized_decomposed
            x = ops.quantize_per_tensor(x * 3 + x.sigmoid(), 1.0, 0, -128, 127, torch.int8)
            x = ops.dequantize_per_tensor(x, 1.0, 0, -128, 127, torch.int8)
            weight = ops.dequantize_per_tensor(self.weight, 1.0, 0, -128, 127, torch.int8)
            return nn.functional.linear(x, weight)

    model, x = Ternary(), torch.randn(4, 3) * 9
    torch.testing.assert_close(torchette.compile(model.eval(), (x,))(x), model(x))


@pytest.mark.parametrize(
    "call",
    [nn.AvgPool2d(1), nn.Hardtanh(-128, 127), nn.ReplicationPad2d(1)],
    ids=lambda call: type(call).__name__,
)
def test_graph_with_only_scales_of_one_is_accepted(call: nn.Module) -> None:
    model = nn.Sequential(nn.MaxPool2d(1), call, nn.AdaptiveAvgPool2d(16))
    assert set(_numbers(_agrees(model, (INTEGER_RANGE,), _of_extremes()))) == {(1.0, 0)}


class _Dead(nn.Module):
    """Two layers. The first one yields only zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        nn.init.constant_(self.first.bias, -100)

    def forward(self, x):
        return self.last(self.first(x).relu())


def _zero_ranges(module: nn.Module, x: torch.Tensor, **how: bool) -> list[str]:
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**how))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torchette.compile(module.eval(), (x,), quantizer=quantizer, calibration=[(x,)])
    return [str(one.message) for one in caught if one.category is ZeroRangeWarning]


@pytest.mark.parametrize("per_channel", [False, True])
def test_warning_names_values_that_were_zero(per_channel: bool) -> None:
    (text,) = _zero_ranges(_Dead(), torch.randn(2, 4), is_per_channel=per_channel)
    assert (
        "relu" in text
        and "test_check_quantization.py" in text
        and " x" not in text.split("on the calibration")[0]
    )
    (text,) = _zero_ranges(_Single(), torch.zeros(2, 4), is_per_channel=per_channel)
    assert "ranges of x" in text and "first (first)" not in text


class _Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)

    def forward(self, x):
        return self.first(x)


@pytest.mark.parametrize("how", ["used", "zero weights", "dynamic"])
def test_nonzero_ranges_cause_no_warning(how: str) -> None:
    net = _Single()
    if how == "zero weights":  # stored zeros are exact
        nn.init.zeros_(net.first.weight)
    assert not _zero_ranges(net, torch.randn(2, 4), is_dynamic=how == "dynamic")


@pytest.mark.parametrize("scale", [0.0, 2.0**-12, torch.finfo(torch.float32).eps])
def test_scales_of_zero_ranges_cause_a_warning(scale: float) -> None:
    prepared = prepare_pt2e(
        export(_Single().eval(), (torch.randn(2, 4),)).module(),
        XNNPACKQuantizer().set_global(get_symmetric_quantization_config()),
    )
    prepared(torch.randn(2, 4))
    converted = convert_pt2e(prepared)
    for node in converted.graph.nodes:
        if "quantize_per_tensor" in str(node.target) and node.args[0].op == "placeholder":
            node.update_arg(1, scale)
    converted.recompile()
    with pytest.warns(ZeroRangeWarning, match="ranges of x"):
        to_edge(export(converted, (torch.randn(2, 4),)))
