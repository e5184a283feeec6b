# SPDX-License-Identifier: BSD-3-Clause
# In: language models of transformers, small and random. Out: the compiled program's tokens are the model's own.
"""`torchette.llm.export`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import torchette
from tests.models import zoo

_LIBRARY = zoo.declare_torchvision_operators()
transformers = pytest.importorskip("transformers")

llm = pytest.importorskip("torchette.llm")

CONTEXT = 300


def small_llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=101,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config).eval()


def greedy(program: Any, prompt: list[int], count: int) -> list[int]:
    """The tokens that follow, each the likeliest."""
    tokens, given, start = list(prompt), list(prompt), 0
    for _ in range(count):
        logits = program(np.array([given]), np.array([start]))
        start += len(given)
        given = [int(np.asarray(logits)[0].argmax())]
        tokens += given
    return tokens


def expected(model: Any, prompt: list[int], count: int) -> list[int]:
    with torch.no_grad():
        return model.generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0].tolist()


def test_tokens_are_the_models_own() -> None:
    model = small_llama()
    program = llm.export(model, max_context=CONTEXT, max_prefill=32)
    prompt = [5, 17, 3, 99, 42]
    assert greedy(program, prompt, 256) == expected(model, prompt, 256)
    assert program.get_max_seq_len() == 32
    assert program.get_max_context_len() == CONTEXT


def test_a_prompt_in_parts_and_a_rewind_give_the_same_logits(tmp_path: Any) -> None:
    model = small_llama()
    path = llm.export(model, max_context=64, max_prefill=16).save(tmp_path / "model.pte")
    program = torchette.load(path)
    tokens = torch.randint(0, 101, (1, 20), generator=torch.Generator().manual_seed(1))
    for start, count in ((0, 7), (7, 1), (8, 12), (3, 16), (0, 1), (1, 4)):
        with torch.no_grad():
            whole = model(tokens[:, : start + count]).logits[:, -1]
        given = tokens[:, start : start + count].numpy()
        torch.testing.assert_close(
            torch.as_tensor(program(given, np.array([start]))), whole, rtol=1e-4, atol=1e-5
        )
