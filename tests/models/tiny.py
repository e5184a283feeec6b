# SPDX-License-Identifier: BSD-3-Clause
# Tiny models of the architectures of transformers: the default configuration with reduced sizes, random weights, and inputs by
# the names of forward's parameters. Downloads nothing.
"""`build("llama")` returns a tiny model and its inputs; `names()` lists all architectures."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.models import zoo
from tests.models.architectures import without_zero_weights
from tests.models.tiny_inputs import HIDDEN, IMAGE, TOKENS, VOCABULARY, inputs

# Before the import of transformers, which looks for timm once.
_LIBRARY = zoo.declare_torchvision_operators()

HEADS, LAYERS = 4, 2

_DEPTH = r"(num_|n_)?(\w+_)?(layers?|blocks)|depth|n_layer"
# Names of integers in a configuration, except `_DEPTH` -> the maximum value of a tiny model. The first match counts.
SIZES: dict[str, int] = {
    r"mamba_(d_head|head_?dim)": 16,  # HEADS times 16 is 2 * HIDDEN
    r"(mamba_)?(d_state|ssm_state_size|state_size)": 8,
    r"codebook_size": 64,
    r"(?!type_).*vocab(ulary)?_size(_per_layer_input)?": VOCABULARY,
    r".*(key_value|kv)_heads": HEADS // 2,
    r"(.*_)?(n|num|nb)?_?(\w+_)?heads?|nhead": HEADS,
    r"(.*_)?head_dim|attention_head_size|d_kv|d_head|kv_channels|head_size|.*_lora_rank|head_v_dim|key_dim|value_dim": 8,
    r"(.*_)?(intermediate|ffn|feedforward|mlp|inner|ff)(_hidden)?(_size|_dim|_features)?|d_ff|dim_feedforward|n_inner": 64,
    r"(.*_)?(hidden|embed|embedding|embd|model|projection|state|output|input|decoder|encoder)_?(size|dim|channels)|"
    r"d_model|n_embd|emb_dim|dim|width|projection_dim|(.*_)?channels|(.*_)?hidden_size": HIDDEN,
    r"(.*_)?(max_)?(source_|target_|position_embeddings|positions|position_embedding|seq_len\w*|sequence_length)|n_ctx": 64,
    r"(.*_)?(num|n)_(routed_|local_|total_|moe_)?experts|num_experts_total": 4,
    r"index_topk": 16,  # all tokens: the scores of masked tokens, and those below zero, are equal
    r"(.*_)?(experts?_per_tok\w*|topk|top_k|moe_k|num_selected_experts)": 2,
    r"n_group|topk_group|num_expert_group": 1,
    r"(.*_)?(image|img|crop|pretrain_image)_size": IMAGE,
    r"patch_size": 8,
    r"(num_|n_)?(\w+_)?queries": 6,
    r"sliding_window|attention_window|window_size|local_attention|(attention_|mlp_)?chunk_size|context_size": 8,
}  # fmt: skip
_KEPT = r"qk_head_dim|num_channels|in_channels|in_chans|audio_channels|num_mel_bins|.*_token_id|chunk_size_feed_forward|.*ratio|type_vocab_size"


# Types (patterns) -> the names (patterns) that keep their default values.
KEPT: dict[str, str] = {
    r"efficientnet|align_vision_model": r"hidden_dim",
    r"align|clap\w*": r"projection_dim",
    r"omdet-turbo": r"text_projection_\w+|class_embed_dim|task_encoder_hidden_dim",
    r"sew(-d)?": r"num_feat_extract_layers",
    r"efficientloftr": r".*",
    r"clvp\w*": r"(?!num_hidden_layers).*",
    r"levit": r"patch_size",
    r"pvt": r"num_encoder_blocks",
    r"muse_spark_audio": r"num_hidden_layers",
    r"wavtokenizer\w*": r"\w*(hidden_size|dim)",
    r"sam2_hiera_det_model": r"hidden_size|num_attention_heads",
    r"textnet": r"stem_out_channels",
    r"superpoint|lightglue|clap_audio_model": r".*",
    r"fun_asr_nano_encoder": r"max_position_embeddings",
    r"hubert": r"num_feat_extract_layers",
    r"encodec": r"hidden_size",
}
# Further values of these types (patterns), after `SIZES`. A dot separates the name of a part from the name of its value.
OVERRIDES: dict[str, dict[str, Any]] = {
    r"rt_detr(_v2)?|d_fine|deimv2|pp_doclayout_v[34]": {"decoder_in_channels": [HIDDEN] * 3},
    r"swinv2|maskformer-swin": {"num_heads": [2, 4, 8, 16], "depths": [1, 1, 1, 1], "num_layers": 4},
    r"swin|donut-swin": {"num_heads": [2, 4, 8, 16], "depths": [1, 1, 1, 1], "num_layers": 4, "window_size": 2, "image_size": 64},
    r"wav2vec2-bert": {"vocab_size": 32},
    r"jetmoe": {"pad_token_id": 0},
    r"gptj|codegen": {"rotary_dim": 4},
    r"mamba2": {"head_dim": 16, "n_groups": 1},
    r"falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16},
    r"nemotron_h": {"n_groups": 1},
    r"lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    r"swin2sr": {"num_heads": [2, 2], "depths": [1, 1], "embed_dim": 32},
    r"deepseek_v2": {"topk_group": 1, "n_group": 1, "topk_method": "greedy", "num_experts_per_tok": 2},
    r"mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    r"lilt": {"channel_shrink_ratio": 1, "hidden_size": 24},
    r"dots1|mistral4|kimi_linear|bailing_hybrid|kolibri1": {"n_routed_experts": 4, "num_experts": 4, "num_experts_per_tok": 2},
    r"dots1": {"n_shared_experts": 1},
    r"mistral4": {"head_dim": 16},
    r"hunyuan_v1_(dense|moe)|hunyuan_vl_text|ministral": {"head_dim": 8},
    r"reformer": {"axial_pos_embds_dim": (16, 16), "axial_pos_shape": (4, 16)},
    r"patchtst|patchtsmixer": {"d_model": 32},
    r"vibevoice_acoustic_tokenizer": {"vae_std": 0.0},
    r"vits": {"noise_scale": 0.0, "noise_scale_duration": 0.0},
    r"perceiver": {"d_latents": 64, "num_latents": 16},
    r"vibevoice_acoustic_tokenizer_(en|de)coder": {"num_filters": 4},
    r"audio-spectrogram-transformer": {"max_length": 64},
    r"autoformer|informer|time_series_transformer": {"prediction_length": 8, "context_length": 16},
    r"blt_global_transformer": {"hidden_size": 64, "head_dim": 16},
    r"blt_local_(en|de)coder": {"hidden_size_global": 64},
    r"clvp": {"speech_config.vocab_size": 8194},
    r"blt": {"encoder_hash_byte_group_vocab": 100},
    r"bridgetower\w*": {"hidden_size": 64},
    r"bros": {"hidden_size": 64, "dim_bbox_projection": 16, "dim_bbox_sinusoid_emb_2d": 16, "dim_bbox_sinusoid_emb_1d": 2},
    r"chameleon|emu3": {"vocabulary_map": {"<image>": 98, "<|extra_200|>": 97}},
    r"cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}},
    r"dbrx": {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0},
    r"deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    r"depth_pro": {"patch_size": IMAGE, "image_size": 4 * IMAGE, "intermediate_hook_ids": (1, 0)},
    r"diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    r"edgetam_vision_model": {"backbone_channel_list": [1024, 512, 256, 64], "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    r"sam3_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    r"sam2_vision_model": {"backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]]},
    r"sam2_hiera_det_model": {"image_size": [128, 128], "blocks_per_stage": [1, 1, 2, 1], "global_attention_blocks": [3]},
    r"sam2_prompt_encoder": {"image_size": 128, "patch_size": 16},
    r"sam(_hq)?_vision_model": {"num_pos_feats": HIDDEN // 2},
    r"sam(_hq)?_prompt_encoder": {"image_embedding_size": 4},
    r"ernie4_5_vl_moe_text": {"rope_parameters.mrope_section": [1, 1, 2]},
    r"esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "emb_layer_norm_before": False},
    r"exaone4_5_vision|qwen2_5_vl_vision": {"window_size": 32},
    r"funnel": {"architectures": ["FunnelModel"]},
    r"gemma3n_text": {"num_kv_shared_layers": 0},
    r"gemma4_vision": {"pooling_kernel_size": 2},
    r"granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[1, 0]], "spatial_target_layers": [0, 0, 1, 1]},
    r"kosmos-2": {"latent_query_num": 6},
    r"layoutlmv3": {"coordinate_size": 6, "shape_size": 4, "input_size": IMAGE},
    r"levit|mobilevitv2": {"image_size": 64},
    r"lw_detr": {"projector_scale_factors": [1.0], "num_feature_levels": 1},
    r"lw_detr|rf_detr": {"backbone_config.num_hidden_layers": 4, "backbone_config.out_indices": [1, 2, 3, 4]},
    r"uvdoc": {"backbone_config.out_indices": [1, 2, 3, 4, 5, 6]},
    r"mimi\w*|pocket_tts_audio\w*": {"upsample_groups": HIDDEN},
    r"moonshine": {"encoder_num_key_value_heads": HEADS, "decoder_num_key_value_heads": HEADS},
    r"moonshine_streaming": {"num_key_value_heads": HEADS},
    r"nemotron": {"num_key_value_heads": 2},
    r"neomme": {"head_dim": 16},
    r"perception_lm": {"vision_config.architecture": "vit_tiny_patch16_224", "vision_config.model_args": {"embed_dim": 48, "depth": 2, "img_size": IMAGE}},
    r"align_vision_model": {"initializer_range": 0.2},
    r"(mm-)?grounding-dino": {"max_text_len": TOKENS},
    r"xcodec": {"codebook_dim": 2 * HIDDEN},
    r"omdet-turbo": {"text_config.hidden_size": 512, "vision_features_channels": [HIDDEN] * 3, "image_size": 640, "backbone_config.backbone": "swin_tiny_patch4_window7_224", "backbone_config.out_indices": [1, 2, 3]},
    r"neucodec|xcodec2": {"quantization_dim": 2 * HIDDEN},
    r"blip-2|instructblip|instructblipvideo": {"image_token_index": VOCABULARY - 1, "video_token_index": VOCABULARY - 1},
    r"pe_video_encoder": {"vision_config.model_args": {"embed_dim": HIDDEN, "depth": 2, "num_heads": HEADS, "img_size": IMAGE, "patch_size": 8}},
    r"qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8, "indexer_compress_ratio": 2},
    r"radio": {"patch_dim": 192},
    r"sapiens2": {"num_key_value_heads_per_layer": [HEADS, HEADS // 2]},
    r"seggpt": {"image_size": [64, 32]},
    r"step3p5": {"sliding_window": 8},
    r"t5gemma2_text": {"dropout_rate": 0.0},
    r"timm_backbone": {"backbone": "resnet18"},
    r"zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    r"zamba2?": {"attention_hidden_size": 64, "attention_head_dim": 16, "mamba_headdim": 16},
}  # fmt: skip
# The model is that of a part of the configuration.
PARTS = {r"musicgen|musicgen_melody": "decoder"}
# Types with so small initial weights that the results vanish: their weights keep the variance of the values.
_VANISHING = r"pp_ocrv\w+|mobilevit(v2)?|neucodec|xcodec2|sam(_hq)?_vision_model|vibevoice_acoustic_tokenizer_\w+|hgnet_v2|efficientnet|mobilenet_v[12]"
# Types without a tiny model -> the reason.
REASONS = {
    r"dinat": "requires natten",
    r"layoutlmv2": "requires detectron2",
    r"higgs_audio_v2_tokenizer": "requires torchaudio",
    r"(edgetam|sam2|sam3|sam3_tracker)_video": "the input is a session object",
    r"evolla|voxtral_realtime_text": "AutoModel of transformers has no class for it",
    r"glm_image_vqmodel|bark": "the base model has no forward",
    r"tvp": "accepts one image, not a batch",
    r"muse_glimmer_assistant": "requires the cache of another model",
    r"pp_ocrv6_(medium|small)_det": "the default configuration is incomplete",
    r"llama4": "transformers 5.24 raises AttributeError without an image",
}


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

    values, kind = dict(vars(config)), config.model_type or ""
    parts = [value for value in values.values() if isinstance(value, transformers.PreTrainedConfig)]
    tokens = sorted(name for name in values if name.endswith("_token_id"))
    kept = "|".join(names for pattern, names in KEPT.items() if re.fullmatch(pattern, kind))
    depth = values.get("num_hidden_layers")
    by_layer = {
        name: value for name, value in values.items() if isinstance(value, list) and len(value) == depth
    }
    by_layer |= {"layer_types": values["layer_types"]} if isinstance(values.get("layer_types"), list) else {}
    layers = max([LAYERS, *(_distinct(value) for value in by_layer.values())])
    for name, value in list(values.items()):
        if isinstance(value, bool) or name.startswith("_") or value is None or re.fullmatch(kept, name):
            continue
        maximum = layers if re.fullmatch(_DEPTH, name) else _maximum(name)
        if isinstance(value, int) and maximum is not None:
            if name.endswith("heads") and value == values.get("num_attention_heads"):
                maximum = HEADS  # each head has its own keys
            _set(config, name, min(value, maximum))
        elif isinstance(value, int) and name.endswith("_token_id") and value >= VOCABULARY:
            _set(config, name, VOCABULARY - 1 - tokens.index(name))
        elif name == "image_size" and isinstance(value, (list, tuple)):
            _set(config, name, [min(size, IMAGE) for size in value])
        elif name in by_layer and value is not None:
            _set(config, name, value[:layers])
    if all(
        isinstance(values.get(name), int) for name in ("qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim")
    ):
        _set(config, "qk_head_dim", config.qk_rope_head_dim + config.qk_nope_head_dim)
    for rotary in (values.get("rope_parameters"), values.get("rope_scaling")):
        if isinstance(rotary, dict) and not any(isinstance(value, dict) for value in rotary.values()):
            half = int(HIDDEN // HEADS * rotary.get("partial_rotary_factor", 1)) // 2
            count = len(rotary.get("mrope_section", (0, 0, 0)))
            rotary["mrope_section"] = [half - half // count * (count - 1), *[half // count] * (count - 1)]
    _set(config, "use_cache", False)
    for part in parts:
        shrink(part)
    for pattern, overrides in OVERRIDES.items():
        if re.fullmatch(pattern, kind):
            for name, value in overrides.items():
                _set(config, name, value)


def _distinct(values: list[Any]) -> int:
    """Returns how many of the first values contain all that occur, if the values are strings."""
    kinds = {value for value in values if isinstance(value, str)}
    return max((values.index(kind) + 1 for kind in kinds), default=0)


def _set(config: Any, name: str, value: Any) -> None:
    *path, name = name.split(".")
    for part in path:
        config = getattr(config, part)
    if isinstance(config, dict):
        config[name] = value
        return
    with contextlib.suppress(AttributeError, NotImplementedError):  # a property that another value determines
        setattr(config, name, value)


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Returns a tiny model in eval mode and the arguments of one call, the same in every process.

    Args:
        name: a model type, for its base model, or the name of a model class, such as "BertForMaskedLM".

    Raises:
        NotImplementedError: the architecture has no tiny model (`REASONS`).
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    own = None if name in CONFIG_MAPPING else getattr(transformers, name)
    kind = name if own is None else own.config_class.model_type
    reason = next((reason for pattern, reason in REASONS.items() if re.fullmatch(pattern, kind)), None)
    if reason is not None:
        raise NotImplementedError(reason)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        config = own.config_class() if own is not None else CONFIG_MAPPING[kind]()
        shrink(config)
        part = next((part for pattern, part in PARTS.items() if re.fullmatch(pattern, kind)), None)
        if own is not None:
            model = own(config)
        elif part is not None:
            model = MODEL_MAPPING[type(config)](getattr(config, part))
        else:
            model = AutoModel.from_config(config)
        model.eval().requires_grad_(False)
        without_zero_weights(model)  # a router of zeros would choose among equal scores
        if re.fullmatch(_VANISHING, kind):
            for weight in model.parameters():
                if weight.dim() > 1:
                    nn.init.kaiming_normal_(weight)
            for layer in model.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    nn.init.ones_(layer.weight)
        return model, inputs(model, kind)


class Positional(nn.Module):
    """Accepts tensors by position, and returns the floating-point tensors of the result, or all if there are none."""

    def __init__(self, model: nn.Module, inputs: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(name for name, value in inputs.items() if isinstance(value, Tensor))
        self.set_constants(inputs)

    def set_constants(self, inputs: dict[str, Any]) -> None:
        """Sets the arguments that are not tensors."""
        self.constants = {name: value for name, value in inputs.items() if name not in self.names}

    def args(self, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
        """Returns the tensors of a call."""
        return tuple(inputs[name] for name in self.names)

    def forward(self, *args: Tensor) -> list[Tensor]:
        """Returns the tensors of the result in the order of its fields."""
        result = self.model(**dict(zip(self.names, args, strict=True)), **self.constants)
        return tensors(result)


def tensors(result: Any) -> list[Tensor]:
    """Returns the floating-point tensors of a result in the order of its fields, or all tensors if there are none."""
    values = result.to_tuple() if hasattr(result, "to_tuple") else result
    leaves = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.is_floating_point()] or leaves


def exact(module: nn.Module, args: tuple[Tensor, ...]) -> list[Tensor]:
    """Returns the results in float64. Converts the module in place."""
    if isinstance(module, Positional) and module.model._can_set_experts_implementation():
        module.model.set_experts_implementation("eager")  # the grouped matmul of torch has no float64
    with torch.no_grad():
        return module.double()(*(arg.double() if arg.is_floating_point() else arg for arg in args))


@contextlib.contextmanager
def reversed_ties() -> Iterator[None]:
    """`torch.topk` selects the last of equal elements, not the first. The order of equal elements is undefined."""

    def topk(values: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        chosen, indices = torch.sort(values.flip(dim), dim=dim, descending=largest, stable=True)
        indices = values.shape[dim] - 1 - indices
        return torch.return_types.topk((chosen.narrow(dim, 0, k), indices.narrow(dim, 0, k)))

    with mock.patch.object(torch, "topk", topk), mock.patch.object(torch.Tensor, "topk", topk):
        yield
