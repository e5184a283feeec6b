# SPDX-License-Identifier: BSD-3-Clause
# In: a causal language model of transformers, or its folder. Out: one program with its caches, and in the same file what is
# needed to talk to it: tokenizer, chat template, defaults of generation.
"""`torchette.llm.export`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from transformers import AutoModelForCausalLM

from torchette._compile import CompiledModel, compile
from torchette.errors import InputError, ModelNotFoundError
from torchette.exir.config import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.llm import gguf
from torchette.llm.decoder import CACHES, Decoder
from torchette.llm.quantized import SCHEMES, store_whole

# Files of a model's folder that travel in the program, by the names of its named data.
_FILES = ("tokenizer.json", "chat_template.jinja", "generation_config.json", "config.json")


def export(
    model: Any,
    quantize: str | None = None,
    *,
    max_context: int | None = None,
    max_prefill: int = 128,
    full_logits: bool = False,
    cache: str = "float32",
    backend: Any = "auto",
    progress: Callable[[str, str], None] | None = None,
) -> CompiledModel:
    """Compile a causal language model of transformers, from its own module.

    The program's `forward(tokens int64 [1, n], start_pos int64 [1])` returns the logits of the last token, float32
    [1, vocabulary]; n is 1 to `max_prefill`. It keeps keys and values of the positions start_pos to start_pos + n - 1 and
    reads those before them, so calling with a smaller start_pos goes back. Its metadata has the names that ExecuTorch's
    runner asks for; configuration, tokenizer, chat template and defaults of generation are its named data.

    Args:
        model: the model, which stays as it is; or the folder that it was saved to; or a GGUF file, whose whole numbers of 4
            and 8 bits with a scale (Q4_0, Q5_0, Q8_0, Q6_K) are kept as they are.
        quantize: weights of linear layers and of the table of tokens: "8da4w", 4 bits with a scale for each 32 inputs, times
            inputs of 8 bits; "int4", the same times floats; "int8", 8 bits with a scale for each output, times floats; None:
            as they are given.
        max_context: tokens that the caches hold; by default what the model was made for, at most 2048.
        max_prefill: tokens that one call takes.
        full_logits: return logits of all n tokens, [1, n, vocabulary]. Speculative decoding judges several with one call of
            such a program.
        cache: what keys and values are stored in: "float32", "float16", or "int8" with a scale for each row of a head.
        backend: as for `torchette.compile`.
        progress: called with (stage, step).

    Raises:
        UnsupportedError: its attention is not what a cache can serve, or a GGUF file has what is not read; says what.
        ExportError: `torch.export` cannot capture it; names the line of the model.
        FormatError: a GGUF file is damaged.
        ModelNotFoundError: there is no such folder or file.
        InputError: another scheme, or sizes that are none.
    """
    if quantize is not None and quantize not in SCHEMES:
        raise InputError(
            f"weights cannot be {quantize!r}", hints=[f"quantize is None or one of: {', '.join(SCHEMES)}"]
        )
    if cache not in CACHES:
        raise InputError(
            f"keys cannot be stored in {cache!r}", hints=[f"cache is one of: {', '.join(CACHES)}"]
        )
    step = progress or (lambda stage, name: None)
    whole: Callable[[str], Any] | None = None
    named: dict[str, bytes] = {}
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        step("load", path.name)
        if path.is_file():
            model, whole, named = gguf.load(path)
        else:
            model, named = _load(path)
    config = model.config.get_text_config()
    if max_context is None:
        max_context = min(getattr(config, "max_position_embeddings", 2048), 2048)
    if min(max_context, max_prefill) < 1:
        raise InputError(f"max_context {max_context} and max_prefill {max_prefill} must be positive")
    max_prefill = min(max_prefill, max_context)
    training = model.training
    try:
        decoder = Decoder(model.eval(), max_context, full_logits).eval()
        step("check", type(model).__name__)
        decoder.check()
        decoder.store(cache)
        if quantize is not None or whole is not None:
            given = whole or (lambda name: None)
            decoder.model = store_whole(model, quantize, given, lambda name: step("quantize", name))
        n = Dim("n", min=1, max=max_prefill)
        inputs = (torch.zeros(1, min(3, max_prefill), dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
        return compile(
            decoder,
            inputs,
            dynamic_shapes=({1: n} if max_prefill > 1 else None, None),
            backend=backend,
            constant_methods=metadata(model, len(decoder.layers), max_prefill, max_context),
            edge=EdgeCompileConfig(progress=progress),
            config=ExecutorchBackendConfig(
                named_data=_with_configuration(model, named), emit_mutable_buffer_names=True
            ),
        )
    finally:
        model.train(training)


def _load(folder: Path) -> tuple[Any, dict[str, bytes]]:
    """The model of a folder, in float32, and its files."""
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            f"{folder} is no folder with a config.json, and no file",
            hints=["the folder of model.save_pretrained, or a GGUF file"],
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"transformers cannot load {folder} as a causal language model: {error}") from error
    return model, {name: (folder / name).read_bytes() for name in _FILES if (folder / name).is_file()}


def metadata(model: Any, layers: int, max_prefill: int, max_context: int) -> dict[str, Any]:
    """What runners ask of a program, by the names that ExecuTorch's has for it."""
    config, generation = model.config.get_text_config(), getattr(model, "generation_config", None)

    def token(name: str) -> Any:
        found = getattr(generation, name, None)
        return getattr(config, name, None) if found is None else found

    end = token("eos_token_id")
    begin = token("bos_token_id")
    return {
        "get_max_seq_len": max_prefill,
        "get_max_context_len": max_context,
        "get_vocab_size": config.vocab_size,
        "get_n_layers": layers,
        "get_bos_id": -1 if begin is None else begin,
        "get_eos_ids": [] if end is None else list(end) if isinstance(end, (list, tuple)) else [end],
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
        "enable_dynamic_shape": True,
    }


def _with_configuration(model: Any, named: dict[str, bytes]) -> dict[str, bytes]:
    """What travels in the file beside the program."""
    found = {"config.json": model.config.to_json_string().encode(), **named}
    if getattr(model, "generation_config", None) is not None:
        found.setdefault("generation_config.json", model.generation_config.to_json_string().encode())
    return found
