# SPDX-License-Identifier: BSD-3-Clause
"""Accuracy and file size of quantized trained networks."""

from __future__ import annotations

import pytest
import torch

import torchette
from tests.models import trained
from tests.sweep import sweep

pytest.importorskip("torchao")
pytest.importorskip("sklearn")

pytestmark = pytest.mark.xdist_group("trained")


def _compiled(name: str, recipe: str) -> torchette.CompiledModel:
    return torchette.compile(**trained.prepare(trained.train(name), recipe))


def _accuracy(name: str, outputs: torch.Tensor) -> float:
    return (outputs.argmax(1) == trained.train(name).labels).double().mean().item()


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        *sweep(
            (name, recipe)
            for name in ("digits_cnn", "digits_transformer")
            for recipe in ("static int8", "QAT")
        ),
        *(("digits_mlp", recipe) for recipe in trained.RECIPES),
    ],
)
def test_accuracy_is_within_a_point_of_float32(name: str, recipe: str) -> None:
    network = trained.train(name)
    expected = _accuracy(name, network.outputs(network.module))
    assert expected > 0.95, "the float32 network has not learned the task"
    assert _accuracy(name, network.outputs(_compiled(name, recipe))) >= expected - 0.01


@pytest.mark.parametrize(
    ("recipe", "share"),
    [
        ("static int8", 0.27),
        ("dynamic int8", 0.27),
        ("weight-only int8", 0.27),  # 0.26: a quarter, scales, and the program
        # an eighth, a 4-byte scale for each 32 weights, and the program; XNNPACK's file has 0.15
        ("8da4w", 0.17),
        ("bfloat16", 0.52),
    ],
)
def test_file_size_with_large_linear_layers(recipe: str, share: float) -> None:
    plain, quantized = (
        len(bytes(_compiled("digits_mlp", recipe_name))) for recipe_name in ("float32", recipe)
    )
    assert quantized <= share * plain


@pytest.mark.parametrize("recipe", ["static int8", "dynamic int8", "8da4w", "weight-only int8", "float16"])
def test_integers_need_no_more_memory_than_floats(recipe: str) -> None:
    plain, quantized = (_compiled("digits_mlp", model).planned_bytes for model in ("float32", recipe))
    assert quantized <= plain


def test_training_is_deterministic() -> None:
    first = trained.train("digits_mlp").module.state_dict()
    again = trained.train.__wrapped__("digits_mlp").module.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
