# SPDX-License-Identifier: BSD-3-Clause
# In: the name of a family. Out: a small random causal model with the characteristics of the family, such as sliding windows that
# the tests exceed, soft caps, experts and partial rotary embeddings.
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

_MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2}
_MAMBA_HEADS = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2}
_DELTA_HEADS = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

_GPT_OSS = {**_GROUPED, "head_dim": 16, "sliding_window": _WINDOW, "layer_types": _ALTERNATING, "num_local_experts": 4,
    "num_experts_per_tok": 2}  # fmt: skip

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
    "falcon_groups": ("Falcon", {**_SIZES, "alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_alibi": ("Falcon", {**_SIZES, "alibi": True}),
    "gpt2": ("GPT2", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 320}),
    "gpt_neox": ("GPTNeoX", {**_SIZES, "partial_rotary_factor": 0.25}),
    "gptj": ("GPTJ", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 320, "rotary_dim": 4}),
    "opt": ("OPT", {**_SIZES, "ffn_dim": 64, "word_embed_proj_dim": 48}),
    "bloom": ("Bloom", {"vocab_size": VOCABULARY, "hidden_size": 48, "n_layer": 2, "n_head": 4}),
    "mpt": ("Mpt", {"vocab_size": VOCABULARY, "d_model": 48, "n_layers": 2, "n_heads": 4, "max_seq_len": 320}),
    "cohere": ("Cohere", _GROUPED),
    "starcoder2": ("Starcoder2", {**_GROUPED, "sliding_window": _WINDOW}),
    "gpt_oss": ("GptOss", _GPT_OSS),
    "mixtral": ("Mixtral", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", {**_GROUPED, **_EXPERTS, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1}),
    "qwen3_moe": ("Qwen3Moe", {**_GROUPED, **_EXPERTS, "head_dim": 16, "decoder_sparse_step": 1}),
    "olmoe": ("Olmoe", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "flex_olmo": ("FlexOlmo", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2}),
    "ministral": ("Ministral", {**_GROUPED, "head_dim": 16, "sliding_window": _WINDOW, "layer_types": _ALTERNATING}),
    "ministral3": ("Ministral3", {**_GROUPED, "head_dim": 16}),
    "exaone4": ("Exaone4", {**_GROUPED, "sliding_window": _WINDOW, "layer_types": _ALTERNATING}),
    "glm": ("Glm", {**_GROUPED, "head_dim": 16}),
    "glm4": ("Glm4", {**_GROUPED, "head_dim": 16}),
    "glm4_moe": (
        "Glm4Moe",
        {**_GROUPED, "head_dim": 16, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
    "hunyuan": ("HunYuanDenseV1", {**_GROUPED, "head_dim": 16}),
    "hunyuan_moe": ("HunYuanMoEV1", {**_GROUPED, "head_dim": 16, "num_experts": 4, "moe_topk": 2}),
    "ernie4_5": ("Ernie4_5", {**_GROUPED, "head_dim": 16}),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        {**_GROUPED, "moe_intermediate_size": 32, "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 0},
    ),
    "seed_oss": ("SeedOss", {**_GROUPED, "head_dim": 16}),
    "arcee": ("Arcee", _GROUPED),
    "apertus": ("Apertus", _GROUPED),
    "helium": ("Helium", {**_GROUPED, "head_dim": 16}),
    "nemotron": ("Nemotron", _GROUPED),
    "granitemoe": ("GraniteMoe", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "granitemoeshared": (
        "GraniteMoeShared",
        {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 32},
    ),
    "cohere2": ("Cohere2", {**_GROUPED, "sliding_window": _WINDOW, "layer_types": _ALTERNATING}),
    "phimoe": ("Phimoe", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "persimmon": ("Persimmon", _SIZES),
    "biogpt": ("BioGpt", _SIZES),
    "codegen": (
        "CodeGen",
        {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 320, "rotary_dim": 4},
    ),
    "gpt_bigcode": ("GPTBigCode", {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 320}),
    "xglm": (
        "XGLM",

         {"vocab_size": VOCABULARY, "d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64,
         "max_position_embeddings": 320},
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {**_SIZES, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {**_SIZES, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    ),
    "kimi_k2": (
        "DeepseekV3",
        {**_SIZES, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
         "rope_scaling": {"rope_type": "yarn", "factor": 5.0, "original_max_position_embeddings": 64, "beta_fast": 1.0,
         "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "minicpm3": (
        "MiniCPM3",
        {**_SIZES, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 16, "v_head_dim": 16},
    ),
    "minimax_m2": ("MiniMaxM2", {**_GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "minimax": (
        "MiniMax",
        {**_GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 16,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
    "llama4": (
        "Llama4Text",
        {**_GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size_mlp": 64,
         "attention_chunk_size": _WINDOW, "no_rope_layers": [1, 0], "floor_scale": 64},
    ),
    "gemma3n": (
        "Gemma3nText",
        {**_GROUPED, "intermediate_size": [64, 64], "head_dim": 16, "sliding_window": _WINDOW,
         "layer_types": _ALTERNATING, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
         "laurel_rank": 8, "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.5, 0.0], "altup_num_inputs": 2},
    ),
    "gemma3n_shared": (
        "Gemma3nText",
        {**_GROUPED, "num_hidden_layers": 4, "intermediate_size": [64] * 4, "head_dim": 16, "sliding_window": _WINDOW,
         "layer_types": _ALTERNATING * 2, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
         "laurel_rank": 8, "num_kv_shared_layers": 2,
         "activation_sparsity_pattern": [0.5, 0.0] * 2, "altup_num_inputs": 2},
    ),
    "gemma4": (
        "Gemma4Text",
        {**_GROUPED, "head_dim": 16, "global_head_dim": 16, "sliding_window": _WINDOW, "layer_types": _ALTERNATING,
         "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0},
    ),
    "vaultgemma": ("VaultGemma", {**_GROUPED, "head_dim": 16, "sliding_window": _WINDOW, "layer_types": _ALTERNATING}),
    "dots1": (
        "Dots1",
        {**_GROUPED, "head_dim": 16, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "first_k_dense_replace": 1, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
         "layer_types": ["full_attention"] * 2},
    ),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        {**_SIZES, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1},
    ),
    "exaone_moe": ("ExaoneMoe", {**_GROUPED, **_EXPERTS, "head_dim": 16}),
    "hy_v3": ("HYV3", {**_GROUPED, **_EXPERTS, "head_dim": 16}),
    "laguna": ("Laguna", {**_GROUPED, **_EXPERTS, "head_dim": 16}),
    "solar_open": (
        "SolarOpen",
        {**_GROUPED, "head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "mimo_v2_flash": ("MiMoV2Flash", {**_GROUPED, "head_dim": 16}),
    "jais2": ("Jais2", _GROUPED),
    "youtu": (
        "Youtu",
        {**_SIZES, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 16, "v_head_dim": 16},
    ),
    "lfm3": (
        "Lfm3",
        {**_GROUPED, "num_hidden_layers": 3, "head_dim": 16, "sliding_window": _WINDOW,
         "layer_types": ["conv", "sliding_attention", "full_attention"]},
    ),
    "zaya": ("Zaya", _GROUPED),
    "bitnet": ("BitNet", _GROUPED),
    "exaone": ("Exaone", _GROUPED),
    "internlm3": ("InternLM3", {**_GROUPED, "head_dim": 16}),
    "nanochat": ("NanoChat", _GROUPED),
    "diffllama": ("DiffLlama", _GROUPED),
    "jetmoe": ("JetMoe", {**_GROUPED, "kv_channels": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "afmoe": (
        "Afmoe",
        {**_GROUPED, "head_dim": 16, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
         "num_dense_layers": 1, "sliding_window": _WINDOW, "layer_types": _ALTERNATING},
    ),
    "modernbert_decoder": ("ModernBertDecoder", {**_SIZES, "global_attn_every_n_layers": 2, "local_attention": _WINDOW}),
    "gpt_oss_yarn": (
        "GptOss",
        {**_GPT_OSS,
         "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
         "beta_slow": 1.0, "truncate": False}},
    ),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        {**_GROUPED, "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 32,
         "layer_types": ["attention", "attention"]},
    ),
    "qwen2_yarn": (
        "Qwen2",
        {**_GROUPED, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    ),
    "lfm2": ("Lfm2", {**_GROUPED, "layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": (
        "Lfm2Moe",
        {**_GROUPED, **_EXPERTS, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    ),
    "mamba": ("Mamba", _MAMBA),
    "falcon_mamba": ("FalconMamba", _MAMBA),
    "mamba2": ("Mamba2", {**_MAMBA, "num_heads": 8, "head_dim": 16, "n_groups": 2}),
    "falcon_h1": ("FalconH1", {**_GROUPED, **_MAMBA_HEADS, "mamba_d_ssm": 128}),
    "bamba": ("Bamba", {**_GROUPED, **_MAMBA_HEADS, "attn_layer_indices": [1]}),
    "granitemoehybrid_mamba": (
        "GraniteMoeHybrid",
        {**_GROUPED, **_MAMBA_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 32,
         "layer_types": ["mamba", "attention"]},
    ),
    "nemotron_h": (
        "NemotronH",
        {**_GROUPED, "num_hidden_layers": 3, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
         "n_groups": 2, "layers_block_type": ["mamba", "attention", "mlp"]},
    ),
    "jamba": (
        "Jamba",
        {**_GROUPED, "num_experts": 4, "mamba_dt_rank": 8, "attn_layer_period": 2, "attn_layer_offset": 1,
         "expert_layer_period": 2, "expert_layer_offset": 1},
    ),
    "zamba": (
        "Zamba",
        {**_GROUPED, "num_hidden_layers": 4, "num_key_value_heads": 4, "attention_head_dim": 32, "attention_hidden_size": 128,
         "mamba_dt_rank": 8, "n_mamba_heads": 2, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    ),
    "zamba2": (
        "Zamba2",
        {**_GROUPED, "num_hidden_layers": 4, "mamba_d_state": 16, "n_mamba_heads": 8, "mamba_headdim": 16, "mamba_ngroups": 2,
         "num_mem_blocks": 1, "layers_block_type": ["linear_attention", "hybrid"] * 2,
         # With a limit, transformers computes other values for one token than for several.
         "time_step_min": 1e-30},
    ),
    "qwen3_next": (
        "Qwen3Next",
        {**_GROUPED, **_EXPERTS, **_DELTA_HEADS, "head_dim": 16, "shared_expert_intermediate_size": 32,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
    "qwen3_5": ("Qwen3_5Text", {**_GROUPED, **_DELTA_HEADS, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}),
    "qwen3_5_moe": (
        "Qwen3_5MoeText",
        {**_GROUPED, **_EXPERTS, **_DELTA_HEADS, "head_dim": 16, "shared_expert_intermediate_size": 32,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
    "olmo_hybrid": ("OlmoHybrid", {**_GROUPED, **_DELTA_HEADS, "linear_num_key_heads": 4, "layer_types": ["linear_attention", "full_attention"]}),
    "kimi_linear": (
        "KimiLinear",
        {**_SIZES, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 16, "v_head_dim": 16, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_token": 2,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
    "recurrent_gemma": ("RecurrentGemma", {**_GROUPED, "num_hidden_layers": 3, "lru_width": 64, "attention_window_size": _WINDOW}),
    "rwkv": ("Rwkv", {**_MAMBA, "num_hidden_layers": 3, "rescale_every": 2}),
    "xlstm": ("xLSTM", {**_MAMBA, "embedding_dim": 64, "num_blocks": 2, "num_heads": 4, "chunk_size": 16, "qk_dim_factor": 1.0}),
    "gpt_neo": (
        "GPTNeo",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 320,
         "attention_types": [[["global", "local"], 1]], "window_size": _WINDOW},
    ),
}  # fmt: skip

# Family -> part of the error. falcon_alibi and mpt slice alibi by the number of keys;
# gpt_neo implements its own mask, zaya its own convolution state.
REFUSED = {
    "falcon_alibi": "FalconForCausalLM does not run with a KV cache of fixed size",
    "mpt": "modeling_mpt.py",
    "gpt_neo": "computes different logits",
    "zaya": "has state other than a KV cache",
}


def build(family: str, **more: Any) -> Any:
    """Returns a model of a family with reproducible random weights."""
    import transformers

    name, arguments = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**arguments, **more})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    # With the larger standard deviation, attention differs between tokens.
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model
