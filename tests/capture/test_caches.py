# SPDX-License-Identifier: BSD-3-Clause
# Tests that cache objects of transformers are inputs and outputs without registration by the user.

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils import _pytree as pytree

import torchette
from torchette.errors import ExportError

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _unregistered() -> Iterator[None]:
    """Removes the registrations of cache classes, so that a test does not depend on earlier ones."""
    from transformers import cache_utils

    for kind in (cache_utils.DynamicCache, cache_utils.EncoderDecoderCache):
        if kind in pytree.SUPPORTED_NODES:
            pytree._deregister_pytree_node(kind)
    yield


def _assert_equal(actual: object, expected: object) -> None:
    pairs = list(zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True))
    assert len(pairs) > 4
    for ours, eager in pairs:
        torch.testing.assert_close(torch.as_tensor(ours), eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_encoder_decoder_cache_is_an_output(kind: str) -> None:
    from tests.models import tiny

    model, inputs = tiny.build(kind)
    model.config.use_cache = model.decoder.config.use_cache = True
    compiled = torchette.compile(model, (), inputs)
    with torch.no_grad():
        expected = model(**inputs)
    actual = compiled(**inputs)
    assert type(actual.past_key_values) is transformers.EncoderDecoderCache
    _assert_equal(actual, expected)


def test_dynamic_cache_is_an_input() -> None:
    from tests.models import tiny

    model, inputs = tiny.build("llama")
    with torch.no_grad():
        first = model(**inputs, use_cache=True).past_key_values
        compiled = torchette.compile(model, (), {**inputs, "past_key_values": first})
        actual = compiled(**inputs, past_key_values=first)
        _assert_equal(actual, model(**inputs, past_key_values=first, use_cache=True))


def test_other_classes_are_refused() -> None:
    class Box:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Box:
            return Box(x + 1)

    with pytest.raises(ExportError, match="register_dataclass"):
        torchette.compile(Model(), (torch.zeros(2),))
