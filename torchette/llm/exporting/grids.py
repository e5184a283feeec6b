# SPDX-License-Identifier: BSD-3-Clause
# In: a model of transformers that reads an image as a list of patches with the size of their grid. Out: the same methods as for
# other image models. The image has one size, so the grid is constant, and so is all that transformers computes from it.
"""`GridEncoder`, `PatchEncoder` and `GridDecoder`: images of models that read patches."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from torchette.llm.exporting.decoder import BufferCache
from torchette.llm.exporting.encoders import RowDecoder, TokenEmbedding, VisionEncoder

# The first part of the names of transformers' functions that compute constants from a grid.
_GRID_FUNCTIONS = "get_vision_"


class PatchEncoder(VisionEncoder):
    """An encoder of transformers with the argument `spatial_shapes`: the patches row by row, channels last."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings that replace the image tokens of a prompt."""
        inner = self.model.model
        size = inner.config.vision_config.patch_size
        patches = pixel_values.unfold(2, size, size).unfold(
            3, size, size
        )  # [1, channels, rows, columns, size, size]
        grid = patches.shape[2:4]
        hidden = inner.vision_tower(
            pixel_values=patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2),
            spatial_shapes=torch.tensor([grid]),
            pixel_attention_mask=None,
        ).last_hidden_state
        rows: torch.Tensor = inner.multi_modal_projector(hidden.unflatten(1, grid))
        return rows.reshape(1, -1, rows.shape[-1])


class GridEncoder(VisionEncoder):
    """An encoder of transformers with the argument `image_grid_thw`: the patches in blocks, which become one row each.

    A row contains an embedding and, if the text model adds the outputs of `num_deep` encoder layers to its hidden states, these.

    Args:
        model: the model.
        image: an image [1, channels, height, width] of the size of the program's images.
    """

    def __init__(self, model: PreTrainedModel, image: torch.Tensor) -> None:
        super().__init__(model)
        config = model.config.vision_config
        self._patch, self._merge = config.patch_size, config.spatial_merge_size
        self._frames = getattr(config, "temporal_patch_size", 1)
        height, width = (size // self._patch for size in image.shape[2:])
        self.patches = np.array([[1, height, width]])
        # Rows and columns of the image's embeddings.
        self.grid = height // self._merge, width // self._merge
        self._constants: list[Any] = []
        self.num_deep = 0
        with self._grid_functions(self._record):
            self._features(image, torch.from_numpy(self.patches))

    def inputs(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Returns the patches of an image as the model reads them, [patches, values]; each frame is the image."""
        _, channels, height, width = pixel_values.shape
        size, merge = self._patch, self._merge
        blocks = pixel_values.view(
            channels, height // size // merge, merge, size, width // size // merge, merge, size
        ).permute(1, 4, 2, 5, 0, 3, 6)
        frames = blocks.unsqueeze(5).expand(-1, -1, -1, -1, -1, self._frames, -1, -1)
        return frames.reshape(height // size * (width // size), -1)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings that replace the image tokens of a prompt."""
        constants = iter(self._constants)
        with self._grid_functions(lambda function: lambda *args, **kwargs: next(constants)):
            # Models call tolist() of the grid, which must not be a tensor of torch.export.
            return self._features(pixel_values, self.patches)

    def _features(self, pixel_values: torch.Tensor, grid: np.ndarray | torch.Tensor) -> torch.Tensor:
        found = self.model.get_image_features(pixel_values=self.inputs(pixel_values), image_grid_thw=grid)
        deep = getattr(found, "deepstack_features", None) or []
        self.num_deep = len(deep)
        return torch.cat([torch.cat(list(one)) for one in (found.pooler_output, *deep)], 1).unsqueeze(0)

    def _record(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that stores its results as constants."""

        def known(value: object) -> object:
            if isinstance(value, tuple):
                return tuple(known(one) for one in value)
            # Lengths of sequences are int32; models call their tolist().
            if isinstance(value, torch.Tensor) and value.dtype is torch.int32:
                return value.numpy()
            return value

        def call(*args: object, **kwargs: object) -> Any:
            result = function(*args, **kwargs)
            self._constants.append(known(result))
            return result

        return call

    @contextlib.contextmanager
    def _grid_functions(self, replacement: Callable[[Callable[..., Any]], Any]) -> Iterator[None]:
        """Replaces transformers' functions of the grid in the model's file."""
        module = sys.modules[type(self.model).__module__]
        originals = {name: f for name, f in vars(module).items() if name.startswith(_GRID_FUNCTIONS)}
        for name, function in originals.items():
            setattr(module, name, replacement(function))
        try:
            yield
        finally:
            for name, function in originals.items():
                setattr(module, name, function)


class GridDecoder(RowDecoder):
    """Decoder of a model with multimodal rotary positions: an image has fewer positions than rows.

    The third input is that of `BlockDecoder`. A row of an image has the image's position, and its row and column in the grid as
    offsets. After an image the positions continue at the larger side of the grid. `position_shift` contains, for each cache position,
    by how many the next rotary position is smaller than the next cache position.

    Args:
        model: the model.
        max_context: length of the KV cache.
        full_logits: see `Decoder`.
        vision: the encoder.
        image: an example image for `check`.
    """

    position_shift: torch.Tensor

    def __init__(
        self,
        model: PreTrainedModel,
        max_context: int,
        full_logits: bool = False,
        *,
        vision: GridEncoder,
        image: torch.Tensor,
    ) -> None:
        super().__init__(model, max_context, full_logits)
        self._rows, self._columns = vision.grid
        self._example = vision, image
        self.register_buffer("position_shift", torch.zeros(max_context, dtype=torch.int64))

    def forward(  # type: ignore[override]
        self, tokens: torch.Tensor, start_pos: torch.Tensor, blocks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Stores keys and values at the positions from `start_pos` and returns the logits."""
        positions = start_pos + torch.arange(tokens.shape[1])
        first, last = (positions, positions) if blocks is None else blocks.unbind(1)
        lost = self._rows * self._columns - max(self._rows, self._columns)
        ends = ((last > first) & (positions == last)).long() * lost
        before = torch.where(start_pos > 0, self.position_shift[(start_pos - 1).clamp(min=0)], 0)
        shift = before + ends.cumsum(0)
        self.position_shift.index_put_((positions,), shift)
        base, offset = first - shift + ends, positions - first
        rotary = torch.stack([base, base + offset // self._columns, base + offset % self._columns])
        return self.logits(tokens, rotary, BufferCache(self, start_pos, positions))

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: Cache, **more: object
    ) -> torch.Tensor:
        """Like `RowDecoder.logits`; adds the outputs of encoder layers to those of the first layers."""
        width = self.model.config.get_text_config(decoder=True).hidden_size
        rows, *deep = tokens.split(width, 2) if tokens.is_floating_point() else [tokens]
        with contextlib.ExitStack() as hooks:
            for layer, added in zip(self.model.model.language_model.layers, deep, strict=False):
                hook = layer.register_forward_hook(lambda _part, _args, output, added=added: output + added)
                hooks.callback(hook.remove)
            return super().logits(rows, positions, cache, **more)

    @torch.no_grad()
    def check(self) -> None:
        """Like `Decoder.check`, also with an image."""
        super().check()
        vision, image = self._example
        token, count = self.model.config.image_token_id, math.prod(vision.grid)
        if count + 3 > self.max_context:
            return
        tokens = torch.tensor([[1, *[token] * count, 2, 3]])
        inner, is_image = self.model.model, tokens == token
        deltas = inner.rope_deltas
        expected = self.model(
            input_ids=tokens,
            pixel_values=vision.inputs(image),
            image_grid_thw=torch.from_numpy(vision.patches),
            mm_token_type_ids=is_image.int(),
            use_cache=False,
        ).logits[:, -1]
        inner.rope_deltas = deltas
        table = TokenEmbedding(self.model, vision.num_deep)
        rows = table(tokens).masked_scatter(is_image.unsqueeze(-1), vision(image))
        at = torch.arange(tokens.shape[1])[:, None].repeat(1, 2)
        at[1 : count + 1] = torch.tensor([1, count])
        actual = self(rows, torch.tensor([0]), at)
        self.require_equal(actual[:, -1] if self.full_logits else actual, expected, "for an image")
