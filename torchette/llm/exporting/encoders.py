# SPDX-License-Identifier: BSD-3-Clause
# In: a model of transformers with an encoder. Out: modules that become the methods of one program. The encoder's method returns
# the keys and values of the decoder's cross-attention, so each is computed once per input.
"""`Encoder` and `CrossDecoder`: encoder-decoder models; `VisionEncoder`, `TokenEmbedding`, `RowDecoder`: models with images."""

from __future__ import annotations

import math
import warnings
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch._subclasses import FakeTensorMode
from torch.export import Dim
from transformers import AutoProcessor, PreTrainedModel
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from torchette.errors import UnsupportedError
from torchette.llm.exporting.decoder import Decoder, ShapeRecorder, torchette_attention

_SAMPLE_RATE = 16_000  # audio samples per second
_DEFAULT_PATCHES = 1024  # of an image, if the model accepts any number


def _encoder_output(hidden: torch.Tensor) -> BaseModelOutput:
    """Wraps hidden states as the output of an encoder of transformers."""
    outputs = BaseModelOutput(last_hidden_state=hidden)
    outputs.attention_mask = None
    return outputs


class Encoder(torch.nn.Module):
    """Tokens [1, n] or features -> keys and values of each layer's cross-attention, [2 layers, heads, rows, depth]."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Runs the encoder and the projections of the decoder's cross-attention."""
        hidden = self.model.get_encoder()(inputs)[0]
        recorder = ShapeRecorder()
        with torchette_attention(self.model):
            self.model(
                encoder_outputs=_encoder_output(hidden),
                decoder_input_ids=torch.zeros(1, 1, dtype=torch.int64),
                use_cache=True,
                cache=EncoderDecoderCache(ShapeRecorder(), recorder),
            )
        return torch.cat([one for layer in sorted(recorder.recorded) for one in recorder.recorded[layer]])


class CrossDecoder(Decoder):
    """(tokens [1, n], output of `Encoder`, start_pos [1]) -> logits, in the shape of the logits of `Decoder`."""

    inputs = "decoder_input_ids", "decoder_position_ids"

    def __init__(
        self,
        model: PreTrainedModel,
        max_context: int,
        full_logits: bool = False,
        *,
        inputs: torch.Tensor,
        encoded: torch.Tensor,
    ) -> None:
        super().__init__(model, max_context, full_logits, encoded=encoded)
        self._example = {model.main_input_name: inputs}, (encoded,)

    def forward(  # type: ignore[override]
        self, tokens: torch.Tensor, encoded: torch.Tensor, start_pos: torch.Tensor
    ) -> torch.Tensor:
        """Stores keys and values of the decoder's self-attention at the positions from `start_pos` and returns the logits."""
        return super().forward(tokens, start_pos, encoded=encoded)

    def check(self) -> None:
        """Like `Decoder.check`, with the example input of the export."""
        self.compare(*self._example)

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: Cache, **more: Any
    ) -> torch.Tensor:
        """Like `Decoder.logits`, with the keys and values of the cross-attention."""
        encoded = more["encoded"].unsqueeze(1)
        caches = EncoderDecoderCache(cache, Cache(layers=[]))
        for layer in range(len(encoded) // 2):
            layer_cache = SimpleNamespace(keys=encoded[2 * layer], values=encoded[2 * layer + 1])
            caches.cross_attention_cache.layers.append(layer_cache)
            caches.is_updated[layer] = True
        return super().logits(
            tokens,
            positions,
            caches,
            encoder_outputs=_encoder_output(encoded.new_zeros(1, encoded.shape[3], 1)),
        )


class VisionEncoder(torch.nn.Module):
    """An image [1, channels, height, width] -> its embeddings [1, rows, width of the text model]."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings that replace the image tokens of a prompt."""
        inner = getattr(self.model, "model", self.model)
        if hasattr(
            inner, "connector"
        ):  # its get_image_features drops black images, which depends on the data
            features = inner.connector(inner.vision_model(pixel_values=pixel_values).last_hidden_state)
        else:
            features = self.model.get_image_features(pixel_values=pixel_values).pooler_output
        rows = torch.cat(list(features))
        return rows.reshape(1, -1, rows.shape[-1])


class TokenEmbedding(torch.nn.Module):
    """Tokens [1, n] -> their embeddings [1, n, width], followed by `num_zeros` zeros per width."""

    def __init__(self, model: PreTrainedModel, num_zeros: int = 0) -> None:
        super().__init__()
        self.model: Any = model
        self._num_zeros = num_zeros

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the rows of the embedding table."""
        result: torch.Tensor = self.model.get_input_embeddings()(tokens)
        return (
            torch.nn.functional.pad(result, (0, self._num_zeros * result.shape[2]))
            if self._num_zeros
            else result
        )


class RowDecoder(Decoder):
    """(embeddings of `VisionEncoder` and `TokenEmbedding` [1, n, width], start_pos [1]) -> logits, as in `Decoder`."""

    inputs = "inputs_embeds", "position_ids"

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: Cache, **more: object
    ) -> torch.Tensor:
        """Like `Decoder.logits`; `tokens` are tokens or their embeddings."""
        rows = tokens if tokens.is_floating_point() else self.model.get_input_embeddings()(tokens)
        return super().logits(rows, positions, cache, **more)

    def model_inputs(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the tokens as keyword arguments of the model."""
        return {"input_ids": tokens}


class BlockDecoder(RowDecoder):
    """Decoder of a model with bidirectional attention within an image.

    The third input, int64 [n, 2], contains the first and the last position of each row's image. A row of text contains its own
    position twice.
    """

    def forward(  # type: ignore[override]
        self, tokens: torch.Tensor, start_pos: torch.Tensor, blocks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Stores keys and values at the positions from `start_pos` and returns the logits."""
        return super().forward(tokens, start_pos, blocks=blocks)  # type: ignore[arg-type]


def example_image(model: PreTrainedModel) -> torch.Tensor:
    """Returns a random image in the input size of the model, float32 [1, channels, height, width].

    If the model accepts images of any size, the size is that of its table of positions, or `_DEFAULT_PATCHES` without a table.
    """
    config = model.config.vision_config
    size = getattr(config, "image_size", None)
    if size is None:
        names = ("num_position_embeddings", "num_patches")
        patches = next((getattr(config, name) for name in names if hasattr(config, name)), _DEFAULT_PATCHES)
        size = math.isqrt(patches) * config.patch_size
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    random = torch.Generator().manual_seed(0)
    return torch.randn(1, getattr(config, "num_channels", 3), height, width, generator=random)


def image_metadata(folder: Path, image_token: int) -> dict[str, Any]:
    """Returns the image processor of a folder as metadata; empty if the folder has none.

    The metadata contains the tokens of an image in a prompt, with `image_token` once, and the mean and standard deviation by which
    images are normalized.
    """
    try:
        processor: Any = AutoProcessor.from_pretrained(folder, local_files_only=True)
        name = getattr(processor, "boi_token", None) or processor.image_token
        processor_inputs = {
            "text": name,
            "images": [np.zeros((64, 64, 3), np.uint8)],
            "add_special_tokens": False,
        }
        if hasattr(processor.image_processor, "do_image_splitting"):
            processor_inputs["do_image_splitting"] = False
        ids = processor(**processor_inputs)["input_ids"][0]
        prompt = [t for token, run in groupby(ids) for t in ([token] if token == image_token else run)]
        metadata: dict[str, Any] = {
            key: getattr(processor.image_processor, key) for key in ("image_mean", "image_std")
        }
        placeholder = processor.tokenizer.convert_tokens_to_ids(name)
    except Exception as error:  # raised by a missing package, or by code of the model
        if any(folder.glob("*processor_config.json")):
            warnings.warn(
                f"{folder}: the tokens around an image in a prompt are unknown: {error}", stacklevel=3
            )
        return {}
    metadata = {key: [float(v) for v in value] for key, value in metadata.items() if len(value or ()) == 3}
    if prompt.count(image_token) == 1:
        metadata |= {"image_placeholder": placeholder, "image_prompt": prompt}
    return metadata


def example_input(model: PreTrainedModel, longest: int) -> tuple[torch.Tensor, Any, int]:
    """Returns an example input of the encoder, and the `Dim` and the maximum of its last dimension if that is dynamic."""
    config, kind = model.config, model.main_input_name
    if kind == "input_ids":
        return torch.arange(1, 5).unsqueeze(0) % config.vocab_size, Dim("length", min=1, max=longest), longest
    random = torch.Generator().manual_seed(0)
    if kind == "input_features" and hasattr(config, "num_mel_bins"):
        return torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions, generator=random), None, 0
    if kind == "input_values":
        step, remainder = audio_step(model)
        max_steps = 30 * _SAMPLE_RATE // step
        samples = torch.randn(1, _SAMPLE_RATE // step * step + remainder, generator=random)
        return samples, step * Dim("_steps", min=5, max=max_steps) + remainder, step * max_steps + remainder
    raise UnsupportedError(
        f"{type(model).__name__} requires the input {kind}, which is not supported",
        hints=["supported inputs: input_ids, input_features, input_values"],
    )


def audio_step(model: PreTrainedModel) -> tuple[int, int]:
    """Returns (step, remainder): the encoder makes one row per `step` samples, and audio of n * step + remainder samples leaves
    no part of a row."""
    step = reach = 1
    for part in model.get_encoder().modules():
        if isinstance(part, torch.nn.Conv1d):
            reach += (part.kernel_size[0] - 1) * step
            step *= part.stride[0]
    return step, reach % step


def max_rows(encoder: Encoder, inputs: torch.Tensor, max_length: int) -> int:
    """Returns the number of rows of the encoder's output for an input of the maximum length."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        result: int = encoder(mode.from_tensor(inputs.new_zeros(1, max_length))).shape[2]
        return result
