# SPDX-License-Identifier: BSD-3-Clause
# Inputs of the tiny models of transformers, by the names of forward's parameters.
"""`inputs(model, kind)` returns the arguments of one call."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

BATCH, TOKENS = 2, 12
HIDDEN, VOCABULARY, IMAGE, GRID = 32, 99, 32, 4


def _find(config: Any, *wanted: str) -> Any:
    """Returns the first attribute with one of these names, of the configuration or its parts."""
    import transformers

    for name in wanted:
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    for part in vars(config).values():
        if isinstance(part, transformers.PreTrainedConfig):
            value = _find(part, *wanted)
            if value is not None:
                return value
    return None


# Optional parameters of forward that a call of these types (patterns) has, after those without a default and `main_input_name`.
MORE_INPUTS: dict[str, tuple[str, ...]] = {
    r"align|bridgetower|idefics|kosmos-2|layoutlmv3|vilt|xclip": ("input_ids", "pixel_values"),
    r"bros|layoutlmv3|lilt|udop": ("bbox",),
    r"lxmert": ("visual_feats", "visual_pos"),
    r"clap|clvp|voxtral_realtime": ("input_features",),
    r"sam3|sam3_lite_text|sam3_lite_text_text_model|instructblip|instructblipvideo": ("input_ids",),
    r"sam|sam2|sam_hq|sam3_tracker|edgetam": ("input_points",),
    r"decision_transformer": ("actions", "rewards", "returns_to_go", "timesteps"),
    r"audioflamingo3_encoder": ("input_features_mask",),
    r"minicpm_ocr_vision|minicpmv4_\d_vision": ("target_sizes",),
    r"siglip2": ("pixel_values", "pixel_attention_mask", "spatial_shapes"),
    r"autoformer|informer|time_series_transformer": ("future_values", "future_time_features"),
    r"pe_audio_video": ("pixel_values_videos", "input_values"),
    r"pe_audio_video_encoder": ("pixel_values_videos",),
    r"diffusion_gemma": ("decoder_input_ids",),  # random without it
    r"xmod": ("lang_ids",),
    r"speecht5": ("decoder_input_values",),
    r"kosmos-2": ("image_embeds_position_mask",),
    r"idefics": ("image_attention_mask",),
    r"blip_2_qformer": ("encoder_hidden_states",),
    r"pi0": ("input_ids", "pixel_values", "pixel_attention_mask"),
}
# Types (patterns) without the input of `main_input_name`.
_NO_MAIN_INPUT = r"pi0|sam3_lite_text_text_model"
# Models of several images, [batch, images, channels, height, width].
_SEQUENCES = r"timesformer|videomae|vivit|xclip|efficientloftr|lightglue|instructblipvideo|idefics|pi0"
# Speech models with features [batch, frames, features]; those of other models are [batch, features, frames].
_FRAMES_FIRST = (
    r"parakeet\w*|nemotron\w*|granite_speech\w*|lasr\w*|canary|cohere_asr|gemma\w+_audio|speech_to_text|seamless\w*|"
    r"wav2vec2-bert|univnet|fun_asr_nano_encoder|neucodec|xcodec2"
)
# Heights and widths of images that differ from the configuration.
_IMAGES = {r"pp_ocrv\d_\w+_rec": (96, 160), r"seggpt": (32, 32), r"lw_detr": (64, 64), r"uvdoc": (128, 128)}
# Models of audio with one channel, [batch, 1, samples].
_CHANNELS = r"omniasr_\w+|pe_audio\w*|mimi\w*|vibevoice\w*|wavtokenizer\w*|pocket_tts\w*|encodec|dac|xcodec2?|neucodec"


class Call:
    """One call of a model, for the functions of `INPUTS`."""

    def __init__(self, model: nn.Module, kind: str, batch: int, tokens: int) -> None:
        self.model, self.kind, self.config = model, kind, model.config
        self.batch, self.tokens = batch, tokens
        self.parameters = inspect.signature(model.forward).parameters

    def find(self, *wanted: str) -> Any:
        """Returns the first attribute with one of these names, of the configuration or its parts."""
        return _find(self.config, *wanted)

    def is_a(self, pattern: str) -> bool:
        return re.fullmatch(pattern, self.kind) is not None

    def ids(self, *more: int) -> Tensor:
        """[batch, tokens, *more], without special tokens."""
        special = {
            value
            for name, value in vars(self.config).items()
            if name.endswith("_token_id") and isinstance(value, int)
        }
        vocabulary = min(self.find("vocab_size") or VOCABULARY, VOCABULARY)
        allowed = torch.tensor([token for token in range(3, vocabulary) if token not in special])
        return allowed[torch.randint(0, len(allowed), (self.batch, self.tokens, *more))]

    def tokens_of_text(self) -> Tensor:
        """[batch, tokens], with more dimensions or rows for some models."""
        if self.is_a(r"musicgen\w*"):
            return torch.cat([self.ids()] * 4)
        ids = self.ids(*([33] if self.is_a("kyutai_speech_to_text") else []))
        name = type(self.model).__name__
        if name.endswith("ForMultipleChoice"):
            return ids[:, None].expand(-1, 2, -1).contiguous()
        if name == "SplinterForPreTraining":
            ids[:, 2] = self.config.question_token_id
        return ids

    def integers(self, maximum: int, *sizes: int) -> Tensor:
        """[batch, *sizes], from 0 to maximum - 1."""
        return torch.randint(0, maximum, (self.batch, *sizes))

    def normal(self, *sizes: int) -> Tensor:
        """[batch, *sizes]."""
        return torch.randn(self.batch, *sizes)

    def ones(self, *sizes: int, dtype: torch.dtype = torch.long) -> Tensor:
        """[batch, *sizes]."""
        return torch.ones(self.batch, *sizes, dtype=dtype)

    def image(self) -> Tensor:
        """[batch, channels, height, width], with images before channels for some models; or patches."""
        if self.parameters.keys() & {
            "grid_thw",
            "image_grid_thw",
            "target_sizes",
            "spatial_shapes",
            "pixel_position_ids",
        }:
            return self.patches()
        size = self.find("image_size", "img_size") or IMAGE
        size = list(size.values()) if isinstance(size, dict) else size
        sizes = (size, size) if isinstance(size, int) else tuple(size)[:2]
        sizes = next((size for pattern, size in _IMAGES.items() if self.is_a(pattern)), sizes)
        channels = self.find("num_channels", "in_channels", "in_chans")
        channels = channels if isinstance(channels, int) else 3
        images = (self.find("num_frames") or 2,) if self.is_a(_SEQUENCES) else ()
        return self.normal(*images, channels, *sizes)

    def patches(self) -> Tensor:
        """[patches, values of a patch]; [batch, patches, values of a patch]; or [1, channels, patch, width]."""
        weight = next(
            value
            for name, value in self.model.named_parameters()
            if re.search(r"(patch_?(embed|proj)\w*)\.(\w+\.)*weight", name) and value.dim() > 1
        )
        if "target_sizes" in self.parameters:
            channels, patch = weight.shape[1:3]
            return torch.randn(1, channels, patch, self.batch * GRID * GRID * patch)
        if self.parameters.keys() & {"spatial_shapes", "pixel_position_ids"}:
            return self.normal(GRID * GRID, weight[0].numel())
        if self.is_a("inkling2_vision"):
            return torch.randn(self.batch * GRID * GRID, 2 * 2 * weight.shape[1] // 3, 3)
        if self.is_a("kimi_k25_vision"):
            return torch.randn(self.batch * GRID * GRID, *weight.shape[1:])
        return torch.randn(self.batch * GRID * GRID, weight[0].numel())

    def grid(self, *sizes: int) -> Tensor:
        """[images, *sizes]: the sizes of each image in patches."""
        return torch.tensor([sizes] * self.batch)

    def audio(self) -> Tensor:
        """[batch, samples] or [batch, 1, samples]."""
        if self.is_a("audio-spectrogram-transformer"):
            return self.normal(self.config.max_length, self.config.num_mel_bins)
        if self.is_a("speecht5"):
            return self.normal(self.tokens, self.config.hidden_size)
        return self.normal(*([1] if self.is_a(_CHANNELS) else []), 3840)

    def features(self) -> Tensor:
        """[batch, features, frames] or [batch, frames, features]."""
        if self.is_a("clap"):
            return self.normal(1, 64, 64)
        frames = {
            "voxtral_realtime": 8 * self.tokens,
            "qwen3_asr_encoder": 200,
            "neucodec": 12,
            "xcodec2": 12,
        }.get(self.kind)
        frames = frames or 2 * (self.find("max_source_positions") or 32)
        features = (
            self.find(
                "feature_projection_input_dim",
                "input_feat_size",
                "input_feat_per_channel",
                "num_mel_bins",
                "feature_size",
            )
            or 128
        )
        features *= {
            "fun_asr_nano_encoder": self.find("num_stacked_frames"),
            "granite_speech5_encoder": 4,
            "granite_speech5_ctc": 4,
        }.get(self.kind) or 1
        return self.normal(*((frames, features) if self.is_a(_FRAMES_FIRST) else (features, frames)))

    def series(self) -> Tensor:
        """[batch, time] or [batch, time, channels]."""
        if self.is_a(r"timesfm\w*"):
            return self.normal(self.config.context_length)
        if self.is_a(r"patchts\w+"):
            return self.normal(self.config.context_length, self.config.num_input_channels)
        return self.normal(self.config.context_length + max(self.config.lags_sequence))

    def boxes(self) -> Tensor:
        """[batch, tokens, 4], with x0 <= x1 and y0 <= y1."""
        corners = self.integers(16, self.tokens, 4)
        return torch.cat([corners[..., :2], corners[..., :2] + corners[..., 2:]], -1)


# Parameter of forward -> an example.
INPUTS: dict[str, Callable[[Call], Tensor]] = {
    "decoder_input_ids": lambda c: c.ids(*([9] if c.is_a("dia") else [])),
    "input_ids": Call.tokens_of_text,
    "(qformer|tasks|classes)_input_ids": Call.ids,
    "task_inputs": lambda c: c.integers(VOCABULARY, c.config.task_seq_len),
    "pixel_values|prompt_pixel_values|prompt_masks": Call.image,
    "pixel_values_videos": lambda c: c.normal(c.find("num_frames") or 2, 3, *[c.find("image_size") or IMAGE] * 2),
    "input_features|audio_features|audio_mel": Call.features,
    "input_values|audio_values": Call.audio,
    "past_values": Call.series,
    "inputs_embeds": lambda c: c.normal(c.tokens, c.find("hidden_size", "d_model")),
    "hidden_states": lambda c: c.patches() if "grid_thw" in c.parameters else c.audio() if c.is_a(r"\w+_encoder") else c.normal(c.find("hidden_size"), c.tokens),
    "grid_thw|image_grid_thw": lambda c: c.grid(1, GRID, GRID),
    "target_sizes|spatial_shapes": lambda c: c.grid(GRID, GRID),
    "merge_sizes": lambda c: c.ones(),
    "pixel_attention_mask": lambda c: c.ones(2, dtype=torch.bool) if c.is_a("pi0") else c.ones(GRID * GRID),
    "bbox": lambda c: c.boxes() / 32 if c.is_a("udop") else c.boxes(),
    "visual_feats": lambda c: c.normal(6, c.config.visual_feat_dim),
    "visual_pos": lambda c: torch.rand(c.batch, 6, 4),
    "input_features_mask": lambda c: c.ones(c.features().shape[1 if c.is_a(_FRAMES_FIRST) else 2], dtype=torch.bool),
    "audio_mel_mask": lambda c: c.ones(c.features().shape[1], dtype=torch.bool) < 1,
    "image_attention_mask": lambda c: c.ones(c.tokens, 2),
    "pixel_position_ids": lambda c: torch.cartesian_prod(*[torch.arange(GRID)] * 2).expand(c.batch, -1, -1).contiguous(),
    "input_points": lambda c: IMAGE * torch.rand(c.batch, 1, 2, 2),
    "states": lambda c: c.normal(c.tokens, c.config.state_dim),
    "actions": lambda c: c.normal(c.tokens, c.config.act_dim),
    "rewards|returns_to_go": lambda c: c.normal(c.tokens, 1),
    "timesteps": lambda c: torch.arange(c.tokens).expand(c.batch, -1).contiguous(),
    "past_time_features": lambda c: c.normal(c.series().shape[1], c.config.num_time_features),
    "past_observed_mask": lambda c: torch.ones_like(c.series()),
    "future_values": lambda c: c.normal(c.config.prediction_length),
    "future_time_features": lambda c: c.normal(c.config.prediction_length, c.config.num_time_features),
    "past_values_padding": lambda c: torch.zeros_like(c.series()),
    "freq": lambda c: c.integers(3, 1),
    "latents": lambda c: c.normal(c.find("latent_dim", "hidden_size"), c.tokens),
    "lang_ids": lambda c: c.integers(1),
    "mm_token_type_ids": lambda c: torch.zeros_like(c.ids()),  # text
    "decoder_input_values": lambda c: c.normal(c.tokens, c.config.hidden_size),
    "(classes|tasks)_attention_mask": lambda c: c.ones(c.tokens),
    "classes_structure": lambda c: c.ones(),
    "encoder_hidden_states": lambda c: c.normal(c.tokens, c.config.encoder_hidden_size),
    "query_embeds": lambda c: c.normal(6, c.config.hidden_size),
    "image_embeds_position_mask": lambda c: (torch.arange(c.tokens) < c.config.latent_query_num).expand(c.batch, -1).contiguous(),
    "noise_embeds|action_embeds": lambda c: c.normal(c.tokens, c.find("hidden_size")),
    "context_hidden_states": lambda c: c.normal(c.tokens, c.config.hidden_size * len(c.config.target_layer_ids)),
    "inputs": lambda c: c.normal(c.tokens, c.config.d_model),
}  # fmt: skip


def inputs(model: nn.Module, kind: str, batch: int = BATCH, tokens: int = TOKENS) -> dict[str, Any]:
    """Returns the arguments of one call of a model: tensors, and constants that are not tensors.

    Raises:
        ValueError: an input has no example.
    """
    call = Call(model, kind, batch, tokens)
    main = model.main_input_name
    wanted = [] if call.is_a(_NO_MAIN_INPUT) else [main] if isinstance(main, str) else list(main)
    wanted = [name for name in wanted if name in call.parameters]
    wanted += [
        name
        for name, parameter in call.parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if getattr(model.config, "is_encoder_decoder", False):
        wanted += [name for name in ("decoder_input_ids",) if name in call.parameters]
    compares = "logits_per_image" in str(inspect.getdoc(model.forward))  # texts with images, such as CLIP
    if compares and {"input_ids", "pixel_values"} <= call.parameters.keys():
        wanted += ["input_ids", "pixel_values"]
    for pattern, names in MORE_INPUTS.items():
        wanted += names if call.is_a(pattern) else ()
    rope = getattr(model, "get_rope_index", None)  # the exporter of transformers calls it
    parameter = inspect.signature(rope).parameters.get("mm_token_type_ids") if rope is not None else None
    if parameter is not None and parameter.default is parameter.empty:
        wanted += [name for name in ("mm_token_type_ids",) if name in call.parameters]
    values: dict[str, Any] = {}
    for name in dict.fromkeys(wanted):
        example = next((function for names, function in INPUTS.items() if re.fullmatch(names, name)), None)
        if example is None:
            raise ValueError(f"{kind}: no example of the input {name}")
        values[name] = example(call)
    if "input_ids" not in values:  # adds what vision models compute from the sizes of the images
        with contextlib.suppress(ImportError):  # an older transformers
            from transformers.exporters.utils import precompute_export_inputs

            precompute_export_inputs(model, values)
    return values
