# SPDX-License-Identifier: BSD-3-Clause
# In: the generation configuration of a model. Out: generation_config.json of its program, in which each field that changes
# tokens has an implementation in torchette/llm/engine; others are refused by name.
"""`generation_json`: the defaults of generation that a program carries."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from torchette.errors import InputError, UnsupportedError
from torchette.llm.options import OPTIONS

# Fields that the engine applies: options of a request, and those of token_constraints.h.
APPLIED = frozenset((
    *(option.name for option in OPTIONS if option.is_sampling_number),
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "stop_strings", "do_sample", "top_h", "typical_p",
    "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "bos_token_id",
    "eos_token_id", "decoder_start_token_id",
))  # fmt: skip
# Fields that would change tokens -> values that do not, in addition to None.
REFUSED: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,), "num_beam_groups": (1,), "diversity_penalty": (0,), "constraints": (), "force_words_ids": (),
    "penalty_alpha": (0,), "dola_layers": (), "guidance_scale": (1,), "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,), "token_healing": (False,), "watermarking_config": (),
}  # fmt: skip
# Fields that do not change the tokens of an answer: speed, memory, outputs, beam search alone. forced_decoder_ids are in
# the prompt that a request has for Whisper, and only there transformers reads them.
WITHOUT_EFFECT = frozenset((
    "early_stopping", "length_penalty", "num_return_sequences", "max_time", "use_mtp", "use_cache", "cache_implementation",
    "cache_config", "max_cache_len", "renormalize_logits", "remove_invalid_values", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate", "pad_token_id", "is_assistant", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size",
    "assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type",
    "compile_config", "disable_compile", "continuous_batching_config", "low_memory", "prefill_chunk_size", "transformers_version",
    "_from_model_config", "forced_decoder_ids",
))  # fmt: skip


def generation_json(config: Mapping[str, Any], ignored: Collection[str] = ()) -> bytes:
    """Returns the configuration without the fields `ignored`, as JSON.

    Args:
        config: the fields of transformers' GenerationConfig.

    Raises:
        UnsupportedError: a field changes the tokens of answers and has no implementation; names all such fields.
        InputError: a field of `ignored` is unknown.
    """
    known = sorted((*APPLIED, *REFUSED))
    if unknown := sorted(set(ignored) - set(known)):
        raise InputError(
            f"ignore has {', '.join(map(repr, unknown))}, which is not a field of generation_config.json that changes tokens",
            hints=[f"fields: {', '.join(known)}"],
        )
    settings = {name: value for name, value in config.items() if name not in ignored}
    unsupported = [
        name
        for name, off in REFUSED.items()
        if settings.get(name) is not None and settings[name] not in (*off, list(off))
    ]
    if unsupported:
        raise UnsupportedError(
            f"generation_config.json of the model has {', '.join(f'{name} {settings[name]!r}' for name in unsupported)}, which is not "
            "supported: answers would have other tokens than those of transformers",
            hints=[
                f"export(..., ignore={unsupported!r}) or {' '.join(f'--ignore {name}' for name in unsupported)} leaves it out; answers then "
                "are those of transformers without it"
            ],
        )
    # The keys are tuples, or their texts in a file.
    if isinstance(biases := settings.get("sequence_bias"), Mapping):
        settings["sequence_bias"] = [
            [[int(one) for one in re.findall(r"\d+", str(tokens))], bias] for tokens, bias in biases.items()
        ]
    return json.dumps(settings, indent=1, default=str).encode()
