# SPDX-License-Identifier: BSD-3-Clause
"""Programs with integer inputs and outputs compute the same results as programs with float inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("torchao")

from torchette.exir.passes.quantize_io_pass import (
    QuantizeInputs,
    QuantizeOutputs,
    extract_io_quant_params,
    get_config_method_name,
)

import torchette
from torchette.errors import InputError, QuantizationError
from torchette.exir import to_edge, to_edge_transform_and_lower
from torchette.quantization.recipes import quantizer_of
from torchette.runtime import Runtime

BACKENDS = ("cpu", "portable")


class _Net(nn.Module):
    """Moves elements between its inputs or outputs and its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(512, 10)

    def forward(self, image):
        x = self.conv(image.reshape(2, 3, 8, 8)).relu()
        return self.linear(x.flatten(1)).reshape(2, 5, 2).transpose(1, 2)


class _Mixed(nn.Module):
    """One float input and output, and an integer input that is not quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x, bias, index):
        y = self.linear(x)
        return y, y.exp() / bias, index + 1


def _quantized(model: nn.Module, args: tuple) -> Any:
    from torchette.capture import capture, pt2e

    graph = pt2e.quantize(
        capture(model.eval(), args, {}, None, "forward").module(), [quantizer_of("int8")], [(args, {})]
    )
    return torch.export.export(graph, args)


def _as(x: torch.Tensor, info: Any) -> np.ndarray:
    integers = np.round(x.numpy() / info.quant.scale) + info.quant.zero_point
    return integers.clip(*info.quant_range).astype(info.dtype_name)


def _floats(q: np.ndarray, info: Any) -> np.ndarray:
    return (np.asarray(q, np.float32) - info.quant.zero_point) * np.float32(info.quant.scale)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("io", ["int8", "uint8"])
def test_integer_inputs_and_outputs_yield_equal_results(backend: str, io: str) -> None:
    torch.manual_seed(0)
    model, x = _Net().eval(), torch.randn(2, 192)
    floats = torchette.compile(model, (x,), quantizer=quantizer_of("int8"), backend=backend)
    integer_model = torchette.compile(
        model, (x,), quantizer=quantizer_of("int8"), backend=backend, io=io, verify=True
    )
    meta = integer_model.methods["forward"].meta
    input_info, output_info = meta.input_tensor_meta(0), meta.output_tensor_meta(0)
    assert input_info.dtype_name == output_info.dtype_name == io
    limits = torch.iinfo(getattr(torch, io))
    assert input_info.quant_range == output_info.quant_range == (limits.min, limits.max)
    result = integer_model(_as(x, input_info))
    assert result.dtype == io
    np.testing.assert_allclose(_floats(result, output_info), floats(x), rtol=1e-6, atol=1e-7)
    operators = set(integer_model.program.operators())
    assert not operators & {"cpu::quantize.out", "cpu::dequantize.out"}
    if backend == "cpu":
        assert ("cpu::lookup.out" in operators) == (
            io == "uint8"
        )  # one lookup per input and output converts between the 8-bit dtypes


def test_constant_methods_return_the_graphs_parameters() -> None:
    torch.manual_seed(0)
    program = _quantized(_Net(), (torch.randn(2, 192),))
    named = torch.ops.quantized_decomposed
    (first, *_) = (node for node in program.graph.nodes if node.target is named.quantize_per_tensor.default)
    (*_, last) = (node for node in program.graph.nodes if node.target is named.dequantize_per_tensor.default)
    model = torchette.compile(program, io="int8")
    for port, node in (("input", first), ("output", last)):
        values = [
            model.methods[get_config_method_name("forward", port, 0, key)]()
            for key in ("scale", "zp", "quant_min", "quant_max", "dtype")
        ]
        assert values == [*node.args[1:5], 1]
    info = model.methods["forward"].meta.input_tensor_meta(0)
    assert info.quant == (first.args[1], first.args[2], None)
    assert program.example_inputs[0][0].dtype is torch.float32  # the given program is unchanged


@pytest.mark.parametrize("lower", [to_edge, to_edge_transform_and_lower])
def test_executorchs_passes(lower: Callable) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 192)
    edge = lower(_quantized(_Net(), (x,)))
    expected = edge.exported_program().module()(x)
    params = extract_io_quant_params(edge)
    assert not edge.config_methods
    quantized = edge.transform([QuantizeInputs(edge, [0]), QuantizeOutputs(edge, [0])])
    assert edge.exported_program().module()(x).dtype is torch.float32
    assert quantized.config_methods == {
        f"{port}_{key}"
        for port in ("input0", "output0")
        for key in ("scale", "zp", "quant_min", "quant_max", "dtype")
    }
    program = Runtime.get().load_program(quantized.to_executorch().buffer)
    method = program.load_method("forward")
    input_info, output_info = (
        getattr(method.metadata, f"{port_name}_tensor_meta")(0) for port_name in ("input", "output")
    )
    (result,) = method.execute([_as(x, input_info)])
    assert result.dtype == "int8"
    np.testing.assert_allclose(_floats(result, output_info), expected.detach(), rtol=1e-6, atol=1e-7)
    (inputs,), (outputs,) = params["inputs"].values(), params["outputs"].values()
    assert (inputs["scale"], inputs["zero_point"]) == input_info.quant[:2]
    assert (outputs["scale"], outputs["quant_max"]) == (output_info.quant.scale, 127)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_the_callers_own_scale(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 192)
    edge = to_edge(_quantized(_Net(), (x,)))
    qparams = {"scale": 1 / 100, "zp": 3, "dtype": dtype}
    program = edge.transform([QuantizeInputs(edge, {0: qparams}, "forward")]).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    info = method.metadata.input_tensor_meta(0)
    assert info.quant == (1 / 100, 3, None) and info.dtype_name == str(dtype).removeprefix("torch.")
    assert method.metadata.output_tensor_meta(0).quant is None
    q = _as(x, info)
    (result,) = method.execute([q])
    expected = edge.exported_program().module()(torch.from_numpy(_floats(q, info)))
    np.testing.assert_allclose(result, expected.detach(), rtol=1e-5, atol=1e-6)


def test_input_read_as_floats_is_rejected_with_its_line() -> None:
    args = (torch.randn(2, 8), torch.randn(2, 4), torch.arange(3))
    program = _quantized(_Mixed(), args)
    with pytest.raises(QuantizationError, match="read as floats") as caught:
        torchette.compile(program, io="int8")
    assert caught.value.code == "not-quantized" and "y.exp() / bias" in str(caught.value)
    edge = to_edge(program)
    with pytest.raises(QuantizationError, match="output 1 is computed in floats"):
        edge.transform([QuantizeOutputs(edge, [1])])
    single = edge.transform([QuantizeInputs(edge, [0]), QuantizeOutputs(edge, [0])]).to_executorch()
    meta = Runtime.get().load_program(single.buffer).metadata("forward")
    kinds = [meta.input_tensor_meta(i).dtype_name for i in range(3)]
    assert kinds == ["int8", "float32", "int64"]
    kinds = [meta.output_tensor_meta(i).dtype_name for i in range(3)]
    assert kinds == ["int8", "float32", "int64"]
    with pytest.raises(QuantizationError, match="read as floats"):
        torchette.compile(nn.Linear(4, 2).eval(), (torch.ones(1, 4),), io="int8")


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda edge: QuantizeInputs(edge, [7]), "no input 7"),
        (lambda edge: QuantizeOutputs(edge, [-1]), "no output -1"),
        (lambda edge: QuantizeInputs(edge, {0: {"scale": 1.0}}), "lack zp, dtype"),
        (
            lambda edge: QuantizeInputs(edge, {0: {"scale": 1.0, "zp": 0, "dtype": torch.float16}}),
            "a supported dtype",
        ),
    ],
)
def test_invalid_indices_and_parameters_raise(make: Callable, words: str) -> None:
    edge = to_edge(_quantized(nn.Linear(4, 2), (torch.ones(1, 4),)))
    with pytest.raises(InputError, match=words):
        edge.transform([make(edge)])


def test_other_dtypes_are_rejected() -> None:
    with pytest.raises(InputError, match="8-bit"):
        torchette.compile(nn.Linear(4, 2).eval(), (torch.ones(1, 4),), io="float32")


def test_computing_method_provides_no_scale() -> None:
    """The names of methods in a file are arbitrary."""
    methods = {
        "forward": torch.export.export(nn.Linear(4, 2), (torch.ones(1, 4),)),
        "forward_input0_scale": torch.export.export(nn.Linear(4, 2), (torch.ones(1, 4),)),
    }
    program = to_edge(methods, constant_methods={"forward_input0_zp": 3}).to_executorch()
    assert Runtime.get().load_program(program.buffer).metadata("forward").input_tensor_meta(0).quant is None
