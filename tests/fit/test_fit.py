# SPDX-License-Identifier: BSD-3-Clause
# Budgets: the promised memory is that of the runtime, and an error states the exact bytes that are missing and a remedy.

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import torchette
from tests.models import zoo
from torchette.devtools.device_memory import bills
from torchette.errors import InputError, PlanError


@functools.cache
def mobilenet() -> tuple[nn.Module, torch.Tensor]:
    """Returns MobileNetV2 for images of 96 x 96."""
    zoo.declare_torchvision_operators()
    import timm

    torch.manual_seed(0)
    module = timm.create_model("mobilenetv2_100", pretrained=False).eval().requires_grad_(False)
    return module, torch.randn(1, 3, 96, 96)


def test_splitting_makes_a_mobilenet_fit_into_half_of_its_memory() -> None:
    module, x = mobilenet()
    model = torchette.compile(module, (x,))
    (before,) = bills(model.program.buffer)
    budget = before.ram // 2
    with pytest.raises(PlanError) as caught:
        torchette.compile(module, (x,), device=torchette.Device(ram=budget))
    error = caught.value
    assert error.code == "over-budget"
    assert f"RAM has {budget:,} bytes, forward needs {before.ram:,}, {before.ram - budget:,} more" in str(
        error
    )
    assert "strips of rows" in error.hints[0] and "fit=True" in error.hints[-1]

    fitted = torchette.compile(module, (x,), device=torchette.Device(ram=budget, fit=True))
    (after,) = bills(fitted.program.buffer)
    assert after.ram <= budget and sum(after.planned) <= 0.6 * sum(before.planned)
    torch.testing.assert_close(torch.as_tensor(fitted(x)), module(x), rtol=1e-4, atol=1e-5)


def test_fitting_model_is_unchanged() -> None:
    layer, args = nn.Linear(8, 8).eval(), (torch.ones(1, 8),)
    plain = torchette.compile(layer, args)
    fitted = torchette.compile(
        layer, args, device=torchette.Device(ram="1M", flash="1M", target="cortex-m4", fit=True)
    )
    assert fitted.program.buffer == plain.program.buffer


def test_model_without_a_split_states_the_missing_bytes() -> None:
    layer, args = nn.Linear(8, 8).eval(), (torch.ones(1, 8),)
    (bill,) = bills(torchette.compile(layer, args).program.buffer)
    torchette.compile(layer, args, device=torchette.Device(ram=bill.ram))
    with pytest.raises(PlanError, match=f"forward needs {bill.ram:,}, 1 more") as caught:
        torchette.compile(layer, args, device=torchette.Device(ram=bill.ram - 1, fit=True))
    assert "no split" in caught.value.hints[0]


def test_too_large_file_names_its_largest_weights() -> None:
    layer, args = nn.Linear(64, 64).eval(), (torch.ones(1, 64),)
    size = len(torchette.compile(layer, args).program.buffer)
    torchette.compile(layer, args, device=torchette.Device(flash=size))
    with pytest.raises(
        PlanError, match=f"flash has {size - 1:,} bytes, the file has {size:,}, 1 more"
    ) as caught:
        torchette.compile(layer, args, device=torchette.Device(flash=size - 1))
    assert "16,384 bytes: weight" in caught.value.where[0]


@pytest.mark.parametrize(
    "options, message",
    [({"ram": "much"}, "device ram: 'much' is not a number"), ({"ram": [1]}, "device ram"), ({"flash": "?"}, "device flash"),
     ({"target": "z80"}, "z80"), ({"fit": True}, "fit=True requires"), ({"arenas": {"A": "some"}}, "arena A")],
)  # fmt: skip
def test_invalid_device_is_rejected(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        torchette.Device(**options)
