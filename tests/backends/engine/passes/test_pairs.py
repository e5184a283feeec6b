# SPDX-License-Identifier: BSD-3-Clause
# Layers in bfloat16: the results, the choice of layers, and the error in the file.

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

import torchette
from torchette.errors import InputError, InputTypeError


class Net(nn.Module):
    """Layers of all kinds: images of 3 channels -> 5 numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, stride=2, groups=2), nn.ReLU(),
            nn.Conv2d(24, 32, 1), nn.GELU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(x).mean((2, 3)))
        return result


IMAGE = torch.randn(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))


def _rounds(module: nn.Module, inputs: bool) -> nn.Module:
    """Rounds the weights of layers with an even number of channels to bfloat16, and their inputs if `inputs`."""

    def hook(_: nn.Module, args: tuple[Any, ...]) -> Any:
        return tuple(arg.bfloat16().float() for arg in args) if inputs else None

    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)) and layer.weight.shape[1] % 2 == 0:
            layer.weight.data = layer.weight.data.bfloat16().float()
            layer.register_forward_pre_hook(hook)
    return module.eval()


def _error(actual: Any, expected: torch.Tensor) -> float:
    return ((torch.as_tensor(actual) - expected).abs().max() / expected.abs().max()).item()


def test_bfloat16_rounds_weights_and_maybe_inputs() -> None:
    model = Net().eval()
    compiled, exact = torchette.compile(model, (IMAGE,), precision="bfloat16"), model(IMAGE)
    result = compiled(IMAGE)
    # Processors without instructions for bfloat16 do not round inputs.
    assert min(_error(result, _rounds(Net(), inputs)(IMAGE)) for inputs in (False, True)) < 1e-3
    assert 1e-4 < _error(result, exact) < 0.02
    remark = compiled.methods["forward_precision"]()
    assert remark.startswith("bfloat16 in 4 of 4 layers, error 0.00")
    assert compiled.nbytes < torchette.compile(model, (IMAGE,)).nbytes - 6000


def test_auto_keeps_layers_in_float32_for_the_tolerance() -> None:
    model = Net().eval()
    loose = torchette.compile(model, (IMAGE,), precision="auto", tolerance=0.1)
    assert loose.methods["forward_precision"]().startswith("bfloat16 in 4 of 4 layers")
    error = float(loose.methods["forward_precision"]().rpartition(" ")[2])
    some = torchette.compile(model, (IMAGE,), precision="auto", tolerance=error * 0.8)
    assert some.methods["forward_precision"]()[12] in "123"
    assert _error(some(IMAGE), model(IMAGE)) <= error
    none = torchette.compile(model, (IMAGE,), precision="auto", tolerance=1e-7)
    assert none.methods["forward_precision"]() == "bfloat16 in 0 of 4 layers, error 0"
    assert bytes(none)[:4096].count(b"linear") and _error(none(IMAGE), model(IMAGE)) < 1e-5


class Heads(nn.Module):
    """Attention with 2 heads of 32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (2, 32)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


def test_attention_in_bfloat16() -> None:
    x = torch.randn(1, 40, 64, generator=torch.Generator().manual_seed(0))
    model = Heads()
    compiled = torchette.compile(model, (x,), precision="bfloat16")
    assert "cpu::bfloat16_attention.out" in compiled.program.operators()
    (error,) = re.findall(r"1 of 1 layers, error ([\d.e-]+)", compiled.methods["forward_precision"]())
    assert 1e-4 < float(error) < 0.02
    assert _error(compiled(x), model(x)) < 0.02
    exact = torchette.compile(model, (x,), precision="auto", tolerance=float(error) / 2)
    assert _error(exact(x), model(x)) < 1e-5


def test_default_is_float32() -> None:
    compiled = torchette.compile(Net().eval(), (IMAGE,))
    assert list(compiled.methods) == ["forward"] and _error(compiled(IMAGE), Net()(IMAGE)) < 1e-5


def test_layers_in_loops_and_dynamic_sizes() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def body(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return i + 1, self.layer(x).tanh()

            return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), self.layer(x)))[1]  # type: ignore[no-any-return]

    model, x = Loop().eval(), torch.randn(3, 16)
    rows = torch.export.Dim("rows", min=1, max=40)
    compiled = torchette.compile(model, (x,), dynamic_shapes=({0: rows},), precision="bfloat16")
    for rows_now in (1, 3, 40):
        x = torch.randn(rows_now, 16)
        assert _error(compiled(x), model(x)) < 0.02
    assert compiled.methods["forward_precision"]().startswith("bfloat16 in 2 of 2 layers")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "float16"}, "no precision 'float16'"),
        ({"precision": "auto", "tolerance": 0.0}, "tolerance must be positive"),
        ({"precision": "auto", "tolerance": float("nan")}, "tolerance must be positive"),
        ({"precision": "bfloat16", "tolerance": 0.1}, "tolerance requires precision='auto'"),
        ({"tolerance": 0.1}, "tolerance requires precision='auto', but precision is 'float32'"),
        ({"precision": "bfloat16", "backend": "portable"}, "requires the CPU engine"),
        ({"precision": "bfloat16", "backend": "xnnpack"}, "requires the CPU engine"),
        ({"precision": "bfloat16", "verify": True}, "cannot be combined with precision"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        torchette.compile(Net().eval(), (IMAGE,), **options)


def test_constant_method_with_the_name_of_the_remark() -> None:
    with pytest.raises(
        InputTypeError, match="constant method forward_precision: another method has this name"
    ):
        torchette.compile(
            Net().eval(), (IMAGE,), precision="bfloat16", constant_methods={"forward_precision": 8}
        )
