# SPDX-License-Identifier: BSD-3-Clause
# In: the documentation in torch's sources, which every installation contains. Out: a small Llama that is trained on it here, and
# the perplexity of its compiled programs on the tenth of it that is excluded from training, as a table.
"""Perplexity of programs with quantized weights and KV caches compared with float32, on a language model that is trained here."""

from __future__ import annotations

import argparse
import ast
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.models import ROOT
from tests.models.zoo import declare_torchvision_operators

FOLDER = ROOT / ".torchette" / "perplexity"
VOCABULARY, CONTEXT = 1024, 256
SOURCES = (
    "_torch_docs.py", "_tensor_docs.py", "functional.py", "nn/*.py", "nn/modules/*.py", "nn/utils/*.py", "optim/*.py",
    "distributions/*.py", "linalg/*.py", "fft/*.py", "special/*.py", "sparse/*.py", "autograd/*.py", "utils/data/*.py",
)  # fmt: skip
# The rows of the table: weights and KV cache.
SCHEMES: tuple[tuple[str | None, str], ...] = (
    (None, "float32"), (None, "float16"), (None, "int8"), ("int8-weight-only", "float32"), ("int4-weight-only", "float32"), ("8da4w", "float32"),
    ("8da4w", "int8"),
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench perplexity", description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=400, metavar="N", help="steps of training (default: 400)"
    )
    parser.add_argument(
        "--tokens", type=int, default=8_192, metavar="N", help="tokens of the evaluation (default: 8192)"
    )
    options = parser.parse_args(arguments)
    _library = declare_torchvision_operators()  # transformers imports torchvision
    began = time.process_time()
    learned, unseen = tokens_of(text())
    folder = FOLDER / str(options.steps)
    model = trained(learned, options.steps, folder)
    seconds = time.process_time() - began
    print(
        f"{len(learned):,} training tokens, {seconds:.0f} processor seconds (few if the model was cached)\n"
    )
    print("| weights | caches | perplexity | of float32 | bytes of the file |\n|---|---|---|---|---|")
    first = 0.0
    for scheme, cache in SCHEMES:
        program = compiled(model, scheme, cache)
        value = perplexity(program, unseen[: options.tokens])
        first = first or value
        print(
            f"| {scheme or 'float32'} | {cache} | {value:.3f} | {value / first:.4f} | {program.nbytes:,} |",
            flush=True,
        )
    return 0


def text() -> list[str]:
    """Returns the documents: the longer string literals of torch's sources, in the order of their files."""
    folder = Path(torch.__file__).parent
    documents = (
        node.value.strip() + "\n\n"
        for pattern in SOURCES
        for path in sorted(folder.glob(pattern))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 200
    )
    return list(dict.fromkeys(documents))


class Split(NamedTuple):
    """Returns the tokens for training, and those of each tenth document for evaluation."""

    learned: list[int]
    unseen: list[int]


def tokens_of(documents: list[str]) -> Split:
    """Encodes both parts with a byte-level BPE that is trained on the first part only."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    parts = [d for i, d in enumerate(documents) if i % 10], documents[::10]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(parts[0], trainer)
    return Split(*(tokenizer.encode("".join(part)).ids for part in parts))


def trained(learned: list[int], steps: int, folder: Path | None = None) -> Any:
    """Returns a trained Llama with 0.9 million weights, from the folder if it contains one. Training is reproducible with the same
    torch and processor."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if folder is not None and (folder / "config.json").is_file():
        return LlamaForCausalLM.from_pretrained(folder).eval()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, tie_word_embeddings=True,
    )  # fmt: skip
    model, data = LlamaForCausalLM(config), torch.tensor(learned)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    warm = min(40, max(1, steps // 4))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda at: min((at + 1) / warm, 0.05 + 0.95 * math.cos(math.pi / 2 * at / steps) ** 2)
    )
    for _ in range(steps):
        starts = torch.randint(len(data) - CONTEXT, (8,))
        rows = torch.stack([data[at : at + CONTEXT] for at in starts.tolist()])
        model(rows, labels=rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad()
    if folder is not None:
        model.save_pretrained(folder)
    return model.eval()


def compiled(model: Any, scheme: str | None, cache: str = "float32") -> Any:
    """Returns the program, which returns the logits of all tokens of a call."""
    from torchette import llm

    return llm.export(model, scheme, max_context=CONTEXT, max_prefill=64, full_logits=True, cache=cache)


def perplexity(program: Any, tokens: list[int]) -> float:
    """Returns the perplexity: exp of the mean negative log-probability of a token after the earlier tokens of its window."""
    surprise, count = 0.0, 0
    for start in range(0, len(tokens) - CONTEXT + 1, CONTEXT):
        window = np.array(tokens[start : start + CONTEXT])
        for at in range(0, CONTEXT, 64):
            logits = np.array(program(window[None, at : at + 64], np.array([at])), np.float64)[0]
            after = window[at + 1 : at + 65]
            logits = logits[: len(after)]
            most = logits.max(1)
            total = most + np.log(np.exp(logits - most[:, None]).sum(1))
            surprise += float((total - logits[np.arange(len(after)), after]).sum())
            count += len(after)
    return math.exp(surprise / count)
