# SPDX-License-Identifier: BSD-3-Clause
# In: a causal language model of transformers, or its folder. Out: one program with its caches, and in the same file what is
# needed to talk to it: tokenizer, chat template, defaults of generation.
"""`torchette.llm.export`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from torchette._compile import CompiledModel, compile
from torchette.errors import ModelNotFoundError
from torchette.exir.config import ExecutorchBackendConfig
from torchette.llm.decoder import Decoder

# Files of a model's folder that travel in the program, by the names of its named data.
_FILES = ("tokenizer.json", "chat_template.jinja", "generation_config.json", "config.json")


def export(
    model: Any,
    quantize: str | None = None,
    *,
    max_context: int | None = None,
    max_prefill: int = 128,
    backend: Any = "auto",
) -> CompiledModel:
    """Compile a causal language model of transformers.

    The program's `forward(tokens int64 [1, n], start_pos int64 [1])` returns the logits of the last token, float32
    [1, vocabulary]; n is 1 to `max_prefill`. It keeps keys and values of the positions start_pos to start_pos + n - 1.

    Args:
        model: the model, or the folder that it was saved to.
        quantize: how weights are stored.
        max_context: tokens that the caches hold; by default what the model was made for, at most 2048.
        max_prefill: tokens that one call takes.
        backend: as for `torchette.compile`.
    """
    folder = None
    if isinstance(model, (str, os.PathLike)):
        folder = Path(model)
        model = _load(folder)
    config = model.config.get_text_config()
    if max_context is None:
        max_context = min(getattr(config, "max_position_embeddings", 2048), 2048)
    max_prefill = min(max_prefill, max_context)
    named = named_files(model, folder)
    decoder = Decoder(model.eval(), max_context).eval()
    n = Dim("n", min=1, max=max_prefill)
    inputs = (torch.zeros(1, min(3, max_prefill), dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    return compile(
        decoder,
        inputs,
        dynamic_shapes=({1: n}, None),
        backend=backend,
        constant_methods=metadata(model, len(decoder.layers), max_prefill, max_context),
        config=ExecutorchBackendConfig(named_data=named, emit_mutable_buffer_names=True),
    )


def _load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(
            f"{folder} has no config.json", hints=["the folder of model.save_pretrained"]
        )
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)


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


def named_files(model: Any, folder: Path | None) -> dict[str, bytes]:
    """What travels in the file beside the program."""
    found = {name: (folder / name).read_bytes() for name in _FILES if folder and (folder / name).is_file()}
    found.setdefault("config.json", model.config.to_json_string().encode())
    if getattr(model, "generation_config", None) is not None:
        found.setdefault("generation_config.json", model.generation_config.to_json_string().encode())
    return found
