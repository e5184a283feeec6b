# SPDX-License-Identifier: BSD-3-Clause
# In: a family's name. Out: a small random causal model of it, with what makes the family: windows that are passed, soft
# caps, experts, partial rotary positions.
"""Families of language models."""

from __future__ import annotations

from typing import Any

import torch

VOCABULARY = 101

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 320,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_WINDOW = 24
_ALTERNATING = ["sliding_attention", "full_attention"]
_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}

# Name -> (class of the configuration without "Config", its arguments).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _GROUPED),
    "llama3": (
        "Llama",
        {
            **_GROUPED,
            "tie_word_embeddings": True,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen2": ("Qwen2", _GROUPED),
    "qwen3": ("Qwen3", {**_GROUPED, "head_dim": 16}),
    "gemma": ("Gemma", {**_GROUPED, "head_dim": 16}),
    "gemma2": (
        "Gemma2",
        {**_GROUPED, "head_dim": 16, "sliding_window": _WINDOW, "layer_types": _ALTERNATING, "attn_logit_softcapping": 2.0,
         "final_logit_softcapping": 1.0},
    ),
    "gemma3": (
        "Gemma3Text",
        {**_GROUPED, "head_dim": 16, "sliding_window": _WINDOW, "layer_types": _ALTERNATING},
    ),
    "phi": ("Phi", _SIZES),
    "phi3": ("Phi3", {**_GROUPED, "sliding_window": _WINDOW}),
    "phi4": ("Phi3", {**_GROUPED, "partial_rotary_factor": 0.5, "tie_word_embeddings": True}),
    "smollm3": ("SmolLM3", {**_GROUPED, "no_rope_layers": [1, 0]}),
    "mistral": ("Mistral", {**_GROUPED, "sliding_window": _WINDOW}),
    "olmo": ("Olmo", {**_SIZES, "clip_qkv": 0.5}),
    "olmo2": ("Olmo2", _GROUPED),
    "olmo3": ("Olmo3", {**_GROUPED, "sliding_window": _WINDOW, "layer_types": _ALTERNATING}),
    "granite": ("Granite", {**_GROUPED, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5}),
    "stablelm": ("StableLm", {**_GROUPED, "partial_rotary_factor": 0.25, "use_qkv_bias": True}),
    "falcon": ("Falcon", {**_SIZES, "num_ln_in_parallel_attn": None, "alibi": False}),
    "falcon_alibi": ("Falcon", {**_SIZES, "alibi": True}),
    "gpt2": ("GPT2", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 320}),
    "gpt_neox": ("GPTNeoX", {**_SIZES, "partial_rotary_factor": 0.25}),
    "gptj": ("GPTJ", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 320, "rotary_dim": 4}),
    "opt": ("OPT", {**_SIZES, "ffn_dim": 64, "word_embed_proj_dim": 48}),
    "bloom": ("Bloom", {"vocab_size": VOCABULARY, "hidden_size": 48, "n_layer": 2, "n_head": 4}),
    "mpt": ("Mpt", {"vocab_size": VOCABULARY, "d_model": 48, "n_layers": 2, "n_heads": 4, "max_seq_len": 320}),
    "cohere": ("Cohere", _GROUPED),
    "starcoder2": ("Starcoder2", {**_GROUPED, "sliding_window": _WINDOW}),
    "gpt_oss": (
        "GptOss",
        {**_GROUPED, "head_dim": 16, "sliding_window": _WINDOW, "layer_types": _ALTERNATING, "num_local_experts": 4,
         "num_experts_per_tok": 2},
    ),
    "mixtral": ("Mixtral", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", {**_GROUPED, **_EXPERTS, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1}),
    "qwen3_moe": ("Qwen3Moe", {**_GROUPED, **_EXPERTS, "head_dim": 16, "decoder_sparse_step": 1}),
    "olmoe": ("Olmoe", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
}  # fmt: skip

# Name -> why: alibi is added up for as many keys as there are, and cut by a number.
REFUSED = {
    "falcon_alibi": "FalconForCausalLM does not run with caches of a fixed size",
    "mpt": "modeling_mpt.py",
}


def build(family: str, **more: Any) -> Any:
    """A model with random weights, the same each time."""
    import transformers

    name, arguments = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**arguments, **more})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    # Wider than models start with: attention then tells tokens apart.
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model
