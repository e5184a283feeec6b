# SPDX-License-Identifier: BSD-3-Clause
# In: a model of transformers with an encoder. Out: two modules, which are methods of one program. What the decoder's layers
# look up in the encoder's result, they compute of it once: keys and values are what the encoder's method returns.
"""`Encoder` and `CrossDecoder`: a model that reads one thing and writes another."""

from __future__ import annotations

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
from torchette.llm.exporting.decoder import Decoder, Shapes, ours

_SECOND = 16_000  # samples of sound


def _said(hidden: torch.Tensor) -> BaseModelOutput:
    """What an encoder returns."""
    outputs = BaseModelOutput(last_hidden_state=hidden)
    outputs.attention_mask = None
    return outputs


class Encoder(torch.nn.Module):
    """Tokens [1, n], or features, -> keys and values of each of the decoder's layers, [2 layers, heads, rows, depth]."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The encoder, and the decoder's part that depends on nothing else."""
        hidden = self.model.get_encoder()(inputs)[0]
        seen = Shapes()
        with ours(self.model):
            self.model(
                encoder_outputs=_said(hidden),
                decoder_input_ids=torch.zeros(1, 1, dtype=torch.int64),
                use_cache=True,
                cache=EncoderDecoderCache(Shapes(), seen),
            )
        return torch.cat([one for layer in sorted(seen.found) for one in seen.found[layer]])


class CrossDecoder(Decoder):
    """(tokens [1, n], what `Encoder` returns, start_pos [1]) -> logits, as `Decoder`'s."""

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
        """The logits, and the decoder's own keys and values stored at their positions."""
        return super().forward(tokens, start_pos, encoded=encoded)

    def check(self) -> None:
        """As `Decoder.check`, on what the program is exported with."""
        self.compare(*self._example)

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: Cache, **more: Any
    ) -> torch.Tensor:
        """As `Decoder.logits`, with the encoder's keys and values."""
        encoded = more["encoded"].unsqueeze(1)
        both = EncoderDecoderCache(cache, Cache(layers=[]))
        for layer in range(len(encoded) // 2):
            known = SimpleNamespace(keys=encoded[2 * layer], values=encoded[2 * layer + 1])
            both.cross_attention_cache.layers.append(known)
            both.is_updated[layer] = True
        return super().logits(
            tokens, positions, both, encoder_outputs=_said(encoded.new_zeros(1, encoded.shape[3], 1))
        )


class VisionEncoder(torch.nn.Module):
    """An image [1, channels, height, width] -> rows [1, rows, width of the text model]."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """What the model puts where a prompt has its image's tokens."""
        inner = getattr(self.model, "model", self.model)
        if hasattr(inner, "connector"):  # its own function drops images that are black, which depends on data
            found = inner.connector(inner.vision_model(pixel_values=pixel_values).last_hidden_state)
        else:
            found = self.model.get_image_features(pixel_values=pixel_values).pooler_output
        rows = torch.cat(list(found))
        return rows.reshape(1, -1, rows.shape[-1])


class TokenEmbedding(torch.nn.Module):
    """Tokens [1, n] -> their rows [1, n, width]."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """What the model itself looks up."""
        result: torch.Tensor = self.model.get_input_embeddings()(tokens)
        return result


class RowDecoder(Decoder):
    """(rows of `VisionEncoder` and `TokenEmbedding` [1, n, width], start_pos [1]) -> logits, as `Decoder`'s."""

    inputs = "inputs_embeds", "position_ids"

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: Cache, **more: object
    ) -> torch.Tensor:
        """As `Decoder.logits`, of tokens or their rows."""
        rows = tokens if tokens.is_floating_point() else self.model.get_input_embeddings()(tokens)
        return super().logits(rows, positions, cache, **more)

    def theirs(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """As `Decoder.theirs`."""
        return {"input_ids": tokens}


class BlockDecoder(RowDecoder):
    """Of a model with bidirectional attention in images: the third input has the ends of each row's image, or twice its own
    position, [n, 2]."""

    def forward(  # type: ignore[override]
        self, tokens: torch.Tensor, start_pos: torch.Tensor, blocks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The logits, and keys and values stored at their positions."""
        return super().forward(tokens, start_pos, blocks=blocks)  # type: ignore[arg-type]


def example_image(model: PreTrainedModel) -> torch.Tensor:
    """An image of the model's size."""
    config = model.config.vision_config
    size = config.image_size
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    random = torch.Generator().manual_seed(0)
    return torch.randn(1, getattr(config, "num_channels", 3), height, width, generator=random)


def image_facts(folder: Path, image_token: int) -> dict[str, Any]:
    """A folder's image processor as metadata: the tokens of an image, with `image_token` once, and the range of images. Empty
    without a processor."""
    try:
        processor: Any = AutoProcessor.from_pretrained(folder, local_files_only=True)
        name = getattr(processor, "boi_token", None) or processor.image_token
        given = {"text": name, "images": [np.zeros((64, 64, 3), np.uint8)], "add_special_tokens": False}
        if hasattr(processor.image_processor, "do_image_splitting"):
            given["do_image_splitting"] = False
        ids = processor(**given)["input_ids"][0]
        prompt = [t for token, run in groupby(ids) for t in ([token] if token == image_token else run)]
        found: dict[str, Any] = {
            key: getattr(processor.image_processor, key) for key in ("image_mean", "image_std")
        }
        placeholder = processor.tokenizer.convert_tokens_to_ids(name)
    except Exception as error:  # of a package that is missing, or of any model's own code
        if any(folder.glob("*processor_config.json")):
            warnings.warn(f"{folder}: what prompts have around an image is not known: {error}", stacklevel=3)
        return {}
    found = {key: [float(v) for v in value] for key, value in found.items() if len(value or ()) == 3}
    if prompt.count(image_token) == 1:
        found |= {"image_placeholder": placeholder, "image_prompt": prompt}
    return found


def example_input(model: PreTrainedModel, longest: int) -> tuple[torch.Tensor, Any, int]:
    """The encoder's input and, if its last dimension is dynamic, `Dim` and maximum."""
    config, kind = model.config, model.main_input_name
    if kind == "input_ids":
        return torch.arange(1, 5).unsqueeze(0) % config.vocab_size, Dim("length", min=1, max=longest), longest
    random = torch.Generator().manual_seed(0)
    if kind == "input_features" and hasattr(config, "num_mel_bins"):
        return torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions, generator=random), None, 0
    if kind == "input_values":
        step, rest = audio_step(model)
        most = 30 * _SECOND // step
        sound = torch.randn(1, _SECOND // step * step + rest, generator=random)
        return sound, step * Dim("_steps", min=5, max=most) + rest, step * most + rest
    raise UnsupportedError(
        f"what {type(model).__name__} takes, {kind}, is not known",
        hints=["known are input_ids, input_features, input_values"],
    )


def audio_step(model: PreTrainedModel) -> tuple[int, int]:
    """Audio lengths are multiples of both; the rest is less than a row."""
    step = reach = 1
    for part in model.get_encoder().modules():
        if isinstance(part, torch.nn.Conv1d):
            reach += (part.kernel_size[0] - 1) * step
            step *= part.stride[0]
    return step, reach % step


def most_rows(encoder: Encoder, inputs: torch.Tensor, most: int) -> int:
    """Rows of the encoder's result for its longest input."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        result: int = encoder(mode.from_tensor(inputs.new_zeros(1, most))).shape[2]
        return result
