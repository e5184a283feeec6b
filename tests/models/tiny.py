# SPDX-License-Identifier: BSD-3-Clause
# Tiny models of the architectures of transformers: the default configuration with reduced sizes, random weights, and inputs by
# the names of forward's parameters. Downloads nothing.
"""`build("llama")` returns a tiny model and its inputs; `names()` lists all architectures."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.models import zoo
from tests.models.architectures import without_zero_weights

# Before the import of transformers, which looks for timm once.
_LIBRARY = zoo.declare_torchvision_operators()

BATCH, TOKENS = 2, 12
HEADS, HIDDEN, LAYERS, VOCABULARY, IMAGE = 4, 32, 2, 99, 32

_DEPTH = r"(num_|n_)?(\w+_)?(layers?|blocks)|depth|n_layer"
# Names of integers in a configuration, except `_DEPTH` -> the maximum value of a tiny model. The first match counts.
SIZES: dict[str, int] = {
    r"mamba_(d_head|head_?dim)": 16,  # HEADS times 16 is 2 * HIDDEN
    r"(mamba_)?(d_state|ssm_state_size|state_size)": 8,
    r"(?!type_).*vocab(ulary)?_size|codebook_size": VOCABULARY,
    r".*(key_value|kv)_heads": HEADS // 2,
    r"(.*_)?(n|num|nb)?_?(\w+_)?heads?|nhead": HEADS,
    r"(.*_)?head_dim|attention_head_size|d_kv|d_head|kv_channels|head_size|.*_lora_rank|head_v_dim|key_dim|value_dim": 8,
    r"(.*_)?(intermediate|ffn|feedforward|mlp|inner|ff)(_hidden)?(_size|_dim|_features)?|d_ff|dim_feedforward|n_inner": 64,
    r"(.*_)?(hidden|embed|embedding|embd|model|projection|state|output|input|decoder|encoder)_?(size|dim|channels)|"
    r"d_model|n_embd|dim|width|projection_dim|(.*_)?channels|(.*_)?hidden_size": HIDDEN,
    r"(.*_)?(max_)?(source_|target_|position_embeddings|positions|position_embedding|seq_len\w*|sequence_length)|n_ctx": 64,
    r"(.*_)?(num|n)_(routed_|local_|total_|moe_)?experts|num_experts_total": 4,
    r"(.*_)?(experts?_per_tok\w*|topk|top_k|moe_k|num_selected_experts)": 2,
    r"n_group|topk_group|num_expert_group": 1,
    r"(.*_)?(image|img|crop|pretrain_image)_size": IMAGE,
    r"patch_size": 8,
    r"(num_|n_)?(\w+_)?queries": 6,
    r"sliding_window|attention_window|window_size|local_attention|(attention_|mlp_)?chunk_size|context_size|index_topk": 8,
}  # fmt: skip
_KEPT = r"qk_head_dim|num_channels|in_channels|in_chans|audio_channels|num_mel_bins|.*_token_id|chunk_size_feed_forward|.*ratio|type_vocab_size"


# Further values of these types (patterns), after `SIZES`.
OVERRIDES: dict[str, dict[str, Any]] = {
    r"rt_detr(_v2)?|d_fine|deimv2|pp_doclayout_v[34]": {"decoder_in_channels": [HIDDEN] * 3},
    r"swin|swinv2|donut-swin|maskformer-swin": {"num_heads": [2, 4, 8, 16], "depths": [1, 1, 1, 1]},
    r"gptj|codegen": {"rotary_dim": 4},
    r"mamba2": {"head_dim": 16, "n_groups": 1},
    r"falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16},
    r"nemotron_h": {"n_groups": 1},
    r"lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    r"swin2sr": {"num_heads": [2, 2], "depths": [1, 1], "embed_dim": 32},
    r"deepseek_v2": {"topk_group": 1, "n_group": 1, "topk_method": "greedy", "num_experts_per_tok": 2},
    r"mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    r"lilt": {"channel_shrink_ratio": 1},
    r"dots1|mistral4|kimi_linear|bailing_hybrid|kolibri1": {"n_routed_experts": 4, "num_experts": 4, "num_experts_per_tok": 2},
    r"hunyuan_v1_(dense|moe)|hunyuan_vl_text|ministral": {"head_dim": 8},
    r"reformer": {"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (4, 16)},
    r"patchtst|patchtsmixer": {"d_model": 32},
}  # fmt: skip
# Speech models with features [batch, frames, features]; those of other models are [batch, features, frames].
_FRAMES_FIRST = r"parakeet\w*|nemotron\w*|granite_speech\w*|lasr\w*|canary|cohere_asr|gemma4_audio|speech_to_text|seamless\w*|wav2vec2-bert"


def names() -> list[str]:
    """Returns the model types that have a base model."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


@functools.cache
def _maximum(name: str) -> int | None:
    if re.fullmatch(_KEPT, name):
        return None
    return next((value for pattern, value in SIZES.items() if re.fullmatch(pattern, name)), None)


def shrink(config: Any) -> None:
    """Reduces the sizes of a configuration and its parts in place."""
    import transformers

    values = dict(vars(config))
    parts = [value for value in values.values() if isinstance(value, transformers.PreTrainedConfig)]
    tokens = sorted(name for name in values if name.endswith("_token_id"))
    kinds = values.get("layer_types")
    layers = LAYERS
    if isinstance(kinds, list) and len(set(kinds)) > 1:
        layers = max(kinds.index(kind) for kind in set(kinds)) + 1
    for name, value in list(values.items()):
        if isinstance(value, bool) or name.startswith("_") or value is None:
            continue
        maximum = layers if re.fullmatch(_DEPTH, name) else _maximum(name)
        if isinstance(value, int) and maximum is not None:
            if name.endswith("heads") and value == values.get("num_attention_heads"):
                maximum = HEADS  # each head has its own keys
            _set(config, name, min(value, maximum))
        elif isinstance(value, int) and name.endswith("_token_id") and value >= VOCABULARY:
            _set(config, name, VOCABULARY - 1 - tokens.index(name))
    if isinstance(kinds, list):
        _set(config, "layer_types", kinds[:layers])
    if hasattr(config, "qk_rope_head_dim") and hasattr(config, "qk_nope_head_dim"):
        _set(config, "qk_head_dim", (config.qk_rope_head_dim or 0) + (config.qk_nope_head_dim or 0))
    for rotary in (values.get("rope_parameters"), values.get("rope_scaling")):
        if isinstance(rotary, dict) and not any(isinstance(value, dict) for value in rotary.values()):
            half = int(HIDDEN // HEADS * rotary.get("partial_rotary_factor", 1)) // 2
            count = len(rotary.get("mrope_section", (0, 0, 0)))
            rotary["mrope_section"] = [half - half // count * (count - 1), *[half // count] * (count - 1)]
    _set(config, "use_cache", False)
    for pattern, overrides in OVERRIDES.items():
        if re.fullmatch(pattern, config.model_type or ""):
            for name, value in overrides.items():
                _set(config, name, value)
    for part in parts:
        shrink(part)


def _set(config: Any, name: str, value: Any) -> None:
    with contextlib.suppress(AttributeError, NotImplementedError):  # a property that another value determines
        setattr(config, name, value)


# Types of models that need other parameters of forward than `main_input_name`.
MORE_INPUTS: dict[str, tuple[str, ...]] = {
    "align": ("input_ids", "pixel_values"),
}


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


def _tokens(config: Any, batch: int, tokens: int) -> Tensor:
    size = _find(config, "vocab_size") or VOCABULARY
    special = {
        value for name, value in vars(config).items() if name.endswith("_token_id") and isinstance(value, int)
    }
    allowed = [token for token in range(3, min(size, VOCABULARY)) if token not in special]
    return torch.tensor(allowed)[torch.randint(0, len(allowed), (batch, tokens))]


def _image(config: Any, batch: int) -> Tensor:
    size = _find(config, "image_size", "img_size") or IMAGE
    height, width = (
        (size, size)
        if isinstance(size, int)
        else (list(size.values()) if isinstance(size, dict) else size)[:2]
    )
    return torch.randn(batch, _find(config, "num_channels", "in_channels", "in_chans") or 3, height, width)


def inputs(model: nn.Module, kind: str, batch: int = BATCH, tokens: int = TOKENS) -> dict[str, Tensor]:
    """Returns the arguments of one call of a model."""
    config, parameters = model.config, inspect.signature(model.forward).parameters
    main = model.main_input_name
    chosen = MORE_INPUTS.get(kind) or (main if isinstance(main, str) else main[0],)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        chosen = (*chosen, "decoder_input_ids")
    compares = "logits_per_image" in str(inspect.getdoc(model.forward))  # texts with images, such as CLIP
    if compares and {"input_ids", "pixel_values"} <= parameters.keys():
        chosen = ("input_ids", "pixel_values")
    values: dict[str, Tensor] = {}
    for name in chosen:
        if name in ("input_ids", "decoder_input_ids"):
            values[name] = _tokens(config, batch, tokens)
        elif name == "pixel_values":
            values[name] = _image(config, batch)
        elif name in ("input_features", "audio_features"):
            frames = 2 * (_find(config, "max_source_positions") or 32)
            features = _find(config, "feature_projection_input_dim", "num_mel_bins", "feature_size") or 80
            sizes = (frames, features) if re.fullmatch(_FRAMES_FIRST, kind) else (features, frames)
            values[name] = torch.randn(batch, *sizes)
        elif name == "past_values":
            values[name] = torch.randn(batch, config.context_length, config.num_input_channels)
        elif name in ("input_values", "audio_values"):
            values[name] = torch.randn(batch, 4000)
        elif name == "inputs_embeds":
            values[name] = torch.randn(batch, tokens, _find(config, "hidden_size", "d_model"))
        else:
            raise ValueError(f"{kind}: no example of the input {name}")
    return values


def build(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a tiny model in eval mode and the arguments of one call, the same in every process."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        config = CONFIG_MAPPING[kind]()
        shrink(config)
        model = AutoModel.from_config(config).eval().requires_grad_(False)
        without_zero_weights(model)  # a router of zeros would choose among equal scores
        return model, inputs(model, kind)


class Positional(nn.Module):
    """Accepts tensors by position, and returns the floating-point tensors of the result."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *args: Tensor) -> list[Tensor]:
        """Returns the tensors of the result in the order of its fields."""
        result = self.model(**dict(zip(self.names, args, strict=True)))
        values = result.to_tuple() if hasattr(result, "to_tuple") else result
        return [
            leaf
            for leaf in pytree.tree_leaves(values)
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
        ]


def exact(module: nn.Module, args: tuple[Tensor, ...]) -> list[Tensor]:
    """Returns the results in float64. Converts the module in place."""
    with torch.no_grad():
        return module.double()(*(arg.double() if arg.is_floating_point() else arg for arg in args))
