# SPDX-License-Identifier: BSD-3-Clause
"""torchao's `quantize_` on linear layers: integers of any width match eager; small floats raise an error that names
the dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

pytest.importorskip("torchao")

from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8StaticActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup, PerTensor

import torchette
from tests.sweep import sweep
from torchette.errors import DialectError
from torchette.exir import to_edge
from torchette.export import AOQuantizationConfig, ExportRecipe, QuantizationRecipe
from torchette.export import export as export_with_recipe

GROUPS = PerGroup(32)
CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "8-bit weights": Int8WeightOnlyConfig,
    "8-bit weights in groups": lambda: Int8WeightOnlyConfig(granularity=GROUPS),
    "8-bit weights of any kind": lambda: IntxWeightOnlyConfig(torch.int8, PerAxis(0)),
    "4-bit weights": lambda: IntxWeightOnlyConfig(torch.int4, GROUPS),
    "3-bit weights": lambda: IntxWeightOnlyConfig(torch.int3, GROUPS),
    "1-bit weights": lambda: IntxWeightOnlyConfig(torch.int1, GROUPS),
    "4-bit weights with zero points": lambda: IntxWeightOnlyConfig(torch.int4, GROUPS, MappingType.ASYMMETRIC),
    "8da4w": lambda: Int8DynamicActivationIntxWeightConfig(torch.int4, GROUPS),
    "8da4w by channel": lambda: Int8DynamicActivationIntxWeightConfig(torch.int4, PerAxis(0)),
    "8da4w with zero points": lambda: Int8DynamicActivationIntxWeightConfig(
        torch.int4, GROUPS, weight_mapping_type=MappingType.ASYMMETRIC
    ),
    "8da8w": lambda: Int8DynamicActivationIntxWeightConfig(torch.int8, PerAxis(0)),
    "integers by row": Int8DynamicActivationInt8WeightConfig,
    "integers by tensor": lambda: Int8DynamicActivationInt8WeightConfig(granularity=PerTensor()),
    "integers with zero points": lambda: Int8DynamicActivationInt8WeightConfig(act_mapping_type=MappingType.ASYMMETRIC),
    "integers of a fixed scale": lambda: Int8StaticActivationInt8WeightConfig(
        torch.full((1, 1), 0.05), granularity=PerTensor()
    ),
}  # fmt: skip


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 128), nn.Linear(128, 32, bias=False)

    def forward(self, x):
        return self.b(self.a(x).relu())


def _quantized(configuration: Any, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = _Layers().eval().to(dtype)
    quantize_(model, configuration)
    return model


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("dtype", sweep([torch.float32, torch.bfloat16], torch.float32))
def test_integers_agree_with_eager(name: str, dtype: torch.dtype) -> None:
    model, x = _quantized(CONFIGURATIONS[name](), dtype), torch.randn(5, 64, dtype=dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for backend in ("auto", "portable"):
        got = torchette.compile(model, (x,), backend=backend)(x)
        torch.testing.assert_close(got, model(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["8-bit weights", "8da4w", "integers by row"])
def test_dynamic_number_of_rows(name: str) -> None:
    model, x = _quantized(CONFIGURATIONS[name]()), torch.randn(9, 64)
    compiled = torchette.compile(model, (x[:4],), dynamic_shapes=({0: Dim("rows", min=1, max=9)},))
    for rows in (1, 9):
        torch.testing.assert_close(compiled(x[:rows]), model(x[:rows]), rtol=1e-5, atol=1e-5)


def test_packed_4_bit_weights() -> None:
    """torchao packs 4-bit weights only for devices that its kernels support, and raises its own error otherwise."""
    x = torch.randn(5, 64)
    try:
        model = _quantized(Int4WeightOnlyConfig(group_size=32))
    except ImportError as error:
        pytest.skip(str(error))
    try:
        torch.testing.assert_close(torchette.compile(model, (x,))(x), model(x), rtol=1e-5, atol=1e-5)
    except torchette.TorchetteError as error:
        assert error.hints or "try:" in str(error)


# ---- 8-bit floats ----


class _Stored(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(4, 4).to(dtype))

    def forward(self, x):
        return x @ self.weight.to(torch.float32)  # here


class _Within(nn.Module):
    def forward(self, x):
        return x.to(torch.float8_e4m3fn).to(torch.float32) * 2  # here


class _Returned(nn.Module):
    def forward(self, x):
        return x.to(torch.float8_e5m2)  # here


class _Given(nn.Module):
    def forward(self, x):
        return x.to(torch.float32) + 1  # here


class _Seen(nn.Module):
    def forward(self, x):
        return x.view(torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)  # here


class _InABranch(nn.Module):
    def forward(self, x):
        def rounded(x):
            return x.to(torch.float8_e4m3fn).to(torch.float32)

        return torch.cond(x.sum() > 0, rounded, torch.sin, (x,))  # here


class _Scaled(nn.Module):
    def forward(self, x):
        x = x.to(torch.float8_e4m3fn)
        return torch._scaled_mm(x, x.t(), torch.ones(()), torch.ones(()), out_dtype=torch.bfloat16)  # here


X = torch.randn(4, 4)
FLOATS: dict[str, tuple[nn.Module, torch.Tensor]] = {
    **{
        str(dtype): (_Stored(dtype), X)
        for dtype in (
            torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
        )
    },
    "within": (_Within(), X),
    "returned": (_Returned(), X),
    "given": (_Given(), X.to(torch.float8_e4m3fn)),
    "seen": (_Seen(), X),
    "in a branch": (_InABranch(), X),
    "scaled product": (_Scaled(), torch.randn(16, 16)),
}  # fmt: skip


def _refused(run: Callable[[], object]) -> DialectError:
    with pytest.raises(DialectError) as caught:
        run()
    assert caught.value.code == "unsupported-dtype"
    assert "torch.float8_" in str(caught.value) and "try: cast to a supported dtype" in str(caught.value)
    assert "Int8WeightOnlyConfig()" in str(caught.value)
    return caught.value


@pytest.mark.parametrize("backend", ["auto", "portable", "xnnpack"])
@pytest.mark.parametrize("name", FLOATS)
def test_8_bit_floats_raise_error_with_location(name: str, backend: str) -> None:
    model, x = FLOATS[name]
    error = _refused(lambda: torchette.compile(model.eval(), (x,), backend=backend))
    assert "# here" in str(error)
    _refused(lambda: to_edge(export(model.eval(), (x,))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchao_8_bit_float_configuration_raises(dtype: torch.dtype) -> None:
    model, x = _quantized(Float8WeightOnlyConfig(), dtype), torch.randn(5, 64, dtype=dtype)
    _refused(lambda: torchette.compile(model, (x,)))
    _refused(lambda: to_edge(export(model, (x,))))
    recipe = ExportRecipe(
        quantization_recipe=QuantizationRecipe(
            ao_quantization_configs=[AOQuantizationConfig(Float8WeightOnlyConfig())]
        )
    )
    _refused(lambda: export_with_recipe(_Layers().eval().to(dtype), [(x,)], recipe))
