# SPDX-License-Identifier: BSD-3-Clause
# Speech models with state, and with lengths that follow from data, compared with eager mode.

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import torchette
from tests.models import speech
from tests.sweep import sweep


def settled(model: nn.Module) -> nn.Module:
    """Returns the model in eval mode, with statistics of batch normalizations that have an effect."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean.normal_(std=0.2)
            part.running_var.uniform_(0.5, 2)
    return model.eval().requires_grad_(False)


def chunks() -> list[Tensor]:
    """Returns features of a stream in chunks of several sizes: smaller and larger than the context."""
    random = torch.Generator().manual_seed(1)
    return [torch.randn(1, speech.BINS, 4 * n, generator=random) for n in (5, 1, 16, 3, 32, 2, 9)]


_FRAMES = {2: 4 * Dim("n", min=1, max=32)}


@pytest.mark.parametrize("backend", sweep(["auto", "portable", "xnnpack"], "auto"))
def test_conformer_with_caches_in_buffers_encodes_chunks_as_eager(backend: str) -> None:
    torch.manual_seed(0)
    model = settled(speech.StreamingConformer())
    compiled = torchette.compile(model, (chunks()[0],), dynamic_shapes=(_FRAMES,), backend=backend)
    for features in chunks():
        torch.testing.assert_close(compiled(features), model(features), rtol=1e-4, atol=1e-5)


def test_conformer_with_caches_as_inputs_encodes_chunks_as_eager() -> None:
    torch.manual_seed(0)
    model = settled(speech.CacheConformer())
    caches = expected_caches = speech.empty_caches()
    shapes = (_FRAMES, None, None, None, None)
    compiled = torchette.compile(model, (chunks()[0], *caches), dynamic_shapes=shapes)
    for features in chunks():
        actual, *caches = compiled(features, *caches)
        expected, *expected_caches = model(features, *expected_caches)
        torch.testing.assert_close([actual, *caches], [expected, *expected_caches], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", sweep(["auto", "portable"], "auto"))
def test_synthesizer_predicts_the_length_of_its_sound(backend: str) -> None:
    torch.manual_seed(0)
    model = speech.Synthesizer().eval().requires_grad_(False)

    def inputs(tokens: int, speed: float) -> tuple[Tensor, ...]:
        random = torch.Generator().manual_seed(tokens)
        text = torch.randint(0, 40, (1, tokens), generator=random)
        return text, torch.randn(1, 2 * speech.STYLE, generator=random), torch.tensor(speed)

    shapes = ({1: Dim("n", min=2, max=64)}, None, None)
    compiled = torchette.compile(model, inputs(7, 1.0), dynamic_shapes=shapes, backend=backend)
    for tokens, speed in ((7, 1.0), (2, 1.0), (13, 1.5), (30, 0.7), (64, 0.5)):
        (actual, frames), (expected, expected_frames) = (m(*inputs(tokens, speed)) for m in (compiled, model))
        assert torch.equal(frames, expected_frames)
        assert actual.shape == expected.shape == (1, int(frames.sum()) * speech.SAMPLES)
        # The phases of a long sound have more rounding. An angle near pi may then become -pi, which changes a few samples.
        error = (actual - expected).abs().flatten()
        assert error.median() < 2e-4 and (error > 0.01).float().mean() < 0.05
        assert tokens > 13 or error.max() < 5e-3
