# SPDX-License-Identifier: BSD-3-Clause
# Speech models with state, and with lengths that follow from data, compared with eager mode.

from __future__ import annotations

import copy

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


@pytest.mark.slow
def test_streaming_encoder_of_transformers_with_its_caches_in_buffers() -> None:
    transformers = pytest.importorskip("transformers", minversion="5.20")
    from transformers.cache_utils import Cache
    from transformers.models.nemotron_asr_streaming import modeling_nemotron_asr_streaming as modeling

    class Rows(Cache):
        """Keys and values of a fixed left context."""

        def __init__(self, owner: nn.Module) -> None:
            super().__init__(layers=[])
            self.owner = owner

        def update(self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object) -> list[Tensor]:
            rows = []
            for name, new in (("key", key), ("value", value)):
                buffer = self.owner.get_buffer(f"{name}{layer}")
                rows.append(torch.cat([buffer, new], 2))
                buffer.copy_(rows[-1][:, :, -buffer.shape[2] :])
            return rows

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return self.owner.key0.shape[2]

        def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
            return self.owner.key0.shape[2] + query_length, 0

    class Stream(nn.Module):
        """Continues from the caches of the first chunks."""

        def __init__(self, encoder: nn.Module, first: Tensor) -> None:
            super().__init__()
            self.encoder = encoder
            caches = self.encode(first)
            for i, layer in enumerate(caches.cache.layers):
                self.register_buffer(f"key{i}", layer.keys.clone())
                self.register_buffer(f"value{i}", layer.values.clone())
            self.convolutions = caches.padding_cache.layers
            for i, layer in enumerate(self.convolutions.values()):
                self.register_buffer(f"inputs{i}", layer.cache.clone())

        def encode(self, features: Tensor, **caches: object) -> transformers.utils.ModelOutput:
            return self.encoder(features, use_cache=True, num_lookahead_tokens=1, **caches)

        def forward(self, features: Tensor) -> Tensor:
            padding = modeling.NemotronAsrStreamingEncoderCausalConvPaddingCache()
            for i, (name, layer) in enumerate(self.convolutions.items()):
                padding.layers[name] = copy.copy(layer)
                padding.layers[name].cache = self.get_buffer(f"inputs{i}")
            return self.encode(features, cache=Rows(self), padding_cache=padding).last_hidden_state

    config = transformers.NemotronAsrStreamingEncoderConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, num_mel_bins=16,
        subsampling_conv_channels=8, sliding_window=9, default_num_lookahead_tokens=1, conv_kernel_size=5,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.no_grad():
        model = Stream(modeling.NemotronAsrStreamingEncoder(config).eval(), torch.randn(1, 89, 16)).eval()
        shapes = ({1: 8 * Dim("n", min=4, max=16)},)  # at least the depthwise convolutions' inputs
        compiled = torchette.compile(copy.deepcopy(model), (torch.randn(1, 40, 16),), dynamic_shapes=shapes)
        for frames in (40, 32, 128, 80):
            features = torch.randn(1, frames, 16)
            torch.testing.assert_close(compiled(features), model(features), rtol=1e-4, atol=1e-5)
