# SPDX-License-Identifier: BSD-3-Clause
# In: the name of a family. Out: a small random image-text model of transformers, and prompts in the model's own form.
"""Image-text models."""

from __future__ import annotations

from typing import Any

import torch

IMAGE = 100
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


# Families that read patches in a grid: name -> first part of the classes' names, configuration of the encoder.
_PATCHES = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 8,
    "hidden_size": 32,
    "intermediate_size": 64,
    "out_hidden_size": 64,
}
_GRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VL", {"depth": 2, "num_heads": 2, "patch_size": 8, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}),
    "qwen2_5_vl": ("Qwen2_5_VL", {**_PATCHES, "window_size": 32, "fullatt_block_indexes": [1]}),
    "qwen3_vl": ("Qwen3VL", {**_PATCHES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}),
    "qwen3_5": ("Qwen3_5", {**_PATCHES, "num_position_embeddings": 16}),
}  # fmt: skip


def _axes(name: str) -> dict[str, Any]:
    """Returns the text model's configuration of a family of `_GRIDS`."""
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [3, 3, 2],
        "partial_rotary_factor": 1.0,
    }
    text = {**_TEXT, "rope_parameters": rope}
    if name != "qwen3_5":
        return text
    heads = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    return {**text, **heads, "layer_types": ["linear_attention", "full_attention"]}


def build(name: str) -> Any:
    """Returns a model with reproducible random weights, for images of 32 x 32 and, with _PATCHES, of any size."""
    import transformers as t

    torch.manual_seed(0)
    if name in ("idefics3", "smolvlm"):
        family = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}[name]
        vision = {"model_type": f"{name}_vision", **_SEES}
        config = getattr(t, f"{family}Config")(**_llama(vision_config=vision, scale_factor=2))
        model = getattr(t, f"{family}ForConditionalGeneration")(config)
    elif name == "lfm2_vl":
        text = {"model_type": "lfm2", **_TEXT, "layer_types": ["conv", "full_attention"]}
        vision = {"model_type": "siglip2_vision_model", "vision_use_head": False, **_SEES, "num_patches": 16}
        config = t.Lfm2VlConfig(
            text_config=text, vision_config=vision, image_token_id=IMAGE, projector_hidden_size=48
        )
        model = t.Lfm2VlForConditionalGeneration(config)
    elif name in _GRIDS:
        family, vision = _GRIDS[name]
        tokens = {
            "image_token_id": IMAGE,
            "vision_start_token_id": 98,
            "vision_end_token_id": 99,
            "video_token_id": 97,
        }
        config = getattr(t, f"{family}Config")(text_config=_axes(name), vision_config=vision, **tokens)
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
    """Returns the prompt in the model's own form: the image token is repeated once per row of the image."""
    name, (height, width) = type(model).__name__, images.shape[2:]
    rows = height * width // (64 if name.startswith("Llava") else 256)
    ids = torch.tensor([[t for token in prompt for t in [token] * (rows if token == IMAGE else 1)]])
    if name.startswith("Lfm2Vl"):
        patches = images.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1)
        return {
            "input_ids": ids,
            "pixel_values": patches.flatten(3).flatten(1, 2),
            "spatial_shapes": torch.tensor([patches.shape[1:3]] * len(images)),
            "pixel_attention_mask": torch.ones(len(images), height * width // 64, dtype=torch.int64),
        }
    if name.startswith("Qwen"):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        patches = [Qwen2VLImageProcessorPil().patchify(image.numpy(), 8, 2, 2)[0] for image in images]
        return {
            "input_ids": ids,
            "pixel_values": torch.cat([torch.from_numpy(one) for one in patches]),
            "image_grid_thw": torch.tensor([[1, height // 8, width // 8]] * len(images)),
            "mm_token_type_ids": (ids == IMAGE).int(),
        }
    batch = images.unsqueeze(0) if name.startswith(("Idefics3", "SmolVLM")) else images
    inputs = {"token_type_ids": (ids == IMAGE).long()} if name.startswith("Gemma3") else {}
    return {"input_ids": ids, "pixel_values": batch, **inputs}
