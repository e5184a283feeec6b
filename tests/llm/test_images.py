# SPDX-License-Identifier: BSD-3-Clause
# In: small random models of transformers that see images. Out: a session's tokens are their own.
"""Image-text models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.models import zoo
from torchette.errors import InputError

_LIBRARY = zoo.declare_torchvision_operators()
transformers = pytest.importorskip("transformers")

llm = pytest.importorskip("torchette.llm")

IMAGE, COUNT = 100, 64
_TEXT = {
    "vocab_size": 101, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 300, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_SEES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
}  # fmt: skip


def _llama(**more: Any) -> dict[str, Any]:
    return {
        "text_config": {"model_type": "llama", **_TEXT},
        "image_token_id": IMAGE,
        "pad_token_id": 0,
        **more,
    }


def build(name: str) -> Any:
    """A model with random weights, the same each time."""
    t = transformers
    torch.manual_seed(0)
    if name in ("idefics3", "smolvlm"):
        family = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}[name]
        vision = {"model_type": f"{name}_vision", **_SEES}
        config = getattr(t, f"{family}Config")(**_llama(vision_config=vision, scale_factor=2))
        model = getattr(t, f"{family}ForConditionalGeneration")(config)
    elif name == "llava":
        vision = {"model_type": "clip_vision_model", "projection_dim": 32, **_SEES}
        config = t.LlavaConfig(**_llama(vision_config=vision, vision_feature_layer=-2))
        model = t.LlavaForConditionalGeneration(config)
    else:
        text = {
            **_TEXT,
            "tie_word_embeddings": False,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention"],
        }
        vision = {"model_type": "siglip_vision_model", "vision_use_head": False, **_SEES}
        config = t.Gemma3Config(
            text_config=text,
            vision_config=vision,
            image_token_id=IMAGE,
            mm_tokens_per_image=4,
            tie_word_embeddings=False,
        )
        model = t.Gemma3ForConditionalGeneration(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.eval()


def asked(model: Any, prompt: list[int], images: torch.Tensor) -> dict[str, Any]:
    """As the model itself takes it: an image's token as often as it has rows."""
    name = type(model).__name__
    rows = 16 if name.startswith("Llava") else 4
    ids = torch.tensor([[t for token in prompt for t in [token] * (rows if token == IMAGE else 1)]])
    many = images.unsqueeze(0) if name.startswith(("Idefics3", "SmolVLM")) else images
    given = {"token_type_ids": (ids == IMAGE).long()} if name.startswith("Gemma3") else {}
    return {"input_ids": ids, "pixel_values": many, **given}


def expected(model: Any, given: dict[str, Any], count: int) -> list[int]:
    tokens = model.generate(**given, max_new_tokens=count, do_sample=False, eos_token_id=None)
    return tokens[0].tolist()[-count:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smolvlm", "idefics3", "llava", "gemma3"])
def test_answers_are_the_models_own(name: str) -> None:
    model = build(name)
    session = llm.Session(llm.export(model, max_context=200, max_prefill=9 if name == "gemma3" else 5))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    prompt = [1, 5, 17, IMAGE, 3, IMAGE, 42, 7]
    options = {"max_tokens": COUNT, "temperature": 0, "ignore_end": True}
    rows = []
    for turned in (images, images.flip(0)):
        given = asked(model, prompt, turned)
        answer = session.generate(prompt, images=list(turned.numpy()), **options).run()
        assert answer.tokens == expected(model, given, COUNT)
        with torch.no_grad():
            rows.append(model(**given).logits[0, -1])
        placed = session._decoder.place(prompt, list(turned.numpy()), None)
        torch.testing.assert_close(torch.as_tensor(session._ingest(placed)), rows[-1], rtol=1e-4, atol=1e-4)
    assert answer.statistics.reused_tokens == 3
    assert not torch.allclose(*rows, atol=0.1)
    if name == "gemma3":  # images that do not see themselves are something else
        with torch.no_grad():
            causal = model(**{**given, "token_type_ids": torch.zeros_like(given["input_ids"])}).logits[0, -1]
        assert not torch.allclose(causal, rows[1], atol=0.01)
    say = session.generate([1, 5, 17, 9], **options).run().tokens
    assert say == expected(model, {"input_ids": torch.tensor([[1, 5, 17, 9]])}, COUNT)
    photo = np.random.default_rng(1).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    assert session.generate([1, IMAGE], images=[photo], **options).run().tokens != answer.tokens
    with pytest.raises(InputError, match="1 tokens of images for 2 images"):
        session.generate([1, IMAGE], images=list(images.numpy()))
    with pytest.raises(
        InputError, match=r"image 0 is \[1, 3, 16, 16\], the model takes numbers of shape \[1, 3, 32, 32\]"
    ):
        session.generate([1, IMAGE], images=[np.zeros((3, 16, 16), np.float32)])
