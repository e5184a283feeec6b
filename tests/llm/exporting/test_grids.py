# SPDX-License-Identifier: BSD-3-Clause
# In: small random models of transformers that read an image as patches in a grid. Out: the decoder computes the logits of the model.
"""Images in a grid, and their rotary positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.llm.image_models import IMAGE, asked, build
from tests.models import zoo
from tests.sweep import sweep

_LIBRARY = zoo.declare_torchvision_operators()
pytest.importorskip("transformers")
pytest.importorskip("PIL")
pytest.importorskip("torchette.llm")

PROMPT = [1, 5, IMAGE, 3, 17, IMAGE, 9, IMAGE, 42, 7]


def blocks_of(tokens: list[int], rows: int) -> torch.Tensor:
    """Returns the decoder's third input: first and last position of each row's image."""
    blocks, position = [], 0
    for token in tokens:
        count = rows if token == IMAGE else 1
        blocks += [[position, position + count - 1]] * count
        position += count
    return torch.tensor(blocks)


@torch.no_grad()
@pytest.mark.parametrize(
    "name", sweep(["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"], "qwen2_5_vl", "qwen3_vl", "qwen3_5")
)
def test_logits_with_images_equal_those_of_the_model(name: str) -> None:
    from torchette.llm.exporting.encoders import TokenEmbedding
    from torchette.llm.exporting.grids import GridDecoder, GridEncoder

    model = build(name)
    images = torch.randn(3, 3, 48, 32, generator=torch.Generator().manual_seed(5))
    inputs = asked(model, PROMPT, images)
    tokens = inputs["input_ids"]
    reference = model(**inputs).logits[0]
    encoder = GridEncoder(model, images[:1]).eval()
    assert encoder.grid == (3, 2) and torch.equal(encoder.inputs(images[:1]), inputs["pixel_values"][:24])
    decoder: Any = GridDecoder(model, 64, True, vision=encoder, image=images[:1]).eval()
    decoder.check()
    rows = TokenEmbedding(model, encoder.num_deep)(tokens)
    rows = rows.masked_scatter(
        (tokens == IMAGE).unsqueeze(-1), torch.cat([encoder(one[None]) for one in images])
    )
    blocks = blocks_of(PROMPT, 6)
    # Parts end within images; the last parts are a rewind to the start and, with a KV cache only, to an image.
    rewinds = [(0, 11), (11, 20), (4, 25)] if name != "qwen3_5" else [(0, 25)]
    for start, end in [(0, 5), (5, 6), (6, 12), (12, 21), (21, 25), *rewinds]:
        logits = decoder(rows[:, start:end], torch.tensor([start]), blocks[start:end])
        torch.testing.assert_close(logits[0], reference[start:end], rtol=1e-4, atol=1e-4)
