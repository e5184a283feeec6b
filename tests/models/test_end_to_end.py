# SPDX-License-Identifier: BSD-3-Clause
# Every reference model from module to .pte and runtime with torchette.compile, compared with eager and with stored
# figures.

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchette
from tests.models import artifacts, figures, zoo
from tests.models.artifacts import each_model

GENERATED_TOKENS = 32


@each_model
def test_equals_eager_twice(name: str) -> None:
    model = artifacts.compiled(name)
    first = model(*artifacts.args(name))
    artifacts.assert_equal_to_eager(first, name)
    # The second call of the decoder overwrites the same cache position, so it must return the same result.
    assert torch.equal(model(*artifacts.args(name)), first)


@each_model
def test_saved_file_equals_eager(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    artifacts.compiled(name).save(path)
    artifacts.assert_equal_to_eager(torchette.load(path)(*artifacts.args(name)), name)


@each_model
def test_arguments_are_not_modified(name: str) -> None:
    before = [a.clone() for a in artifacts.args(name)]
    artifacts.compiled(name)(*artifacts.args(name))
    assert all(torch.equal(a, b) for a, b in zip(artifacts.args(name), before))


@each_model
def test_figures_do_not_grow(name: str) -> None:
    measured, stored = figures.measure(name), figures.stored()[name]
    for figure in ("file_bytes", "arena_bytes", "method_bytes"):
        assert measured[figure] <= 1.01 * stored[figure], f"{figure} grew; see {figures.__name__}"
    assert measured["arena_bytes"] <= 1.02 * measured["bound_bytes"], "the plan is above its lower bound"


@pytest.mark.xdist_group("llama")
def test_decoder_generates_as_eager_does() -> None:
    expected = _generate(artifacts.fresh_module("llama"), first_token=1)
    assert len(set(expected)) > GENERATED_TOKENS // 4, "the text has too few distinct tokens"
    model = torchette.compile(artifacts.fresh_module("llama"), artifacts.args("llama"))
    assert _generate(model, first_token=1) == expected
    # Every token of the second text overwrites the cache position before reading it, so no reset is needed.
    assert _generate(model, first_token=7) == _generate(artifacts.fresh_module("llama"), first_token=7)


@torch.no_grad()
def _generate(decoder, first_token: int) -> list[int]:
    """Greedy decoding: the input of each step is the most likely token of the previous step."""
    tokens = [first_token]
    for position in range(GENERATED_TOKENS):
        logits = decoder(torch.tensor([[tokens[-1]]]), torch.tensor([position]))
        tokens.append(int(logits.argmax()))
    return tokens[1:]


@pytest.mark.xdist_group("digits")
def test_digits_are_recognized_as_in_eager() -> None:
    images, labels = zoo.digits_data(held_back=True)
    model, module = artifacts.compiled("digits"), artifacts.fresh_module("digits")
    ours = torch.cat([model(image[None]) for image in images]).argmax(1)
    eager = module(images).argmax(1)
    assert torch.equal(ours, eager)
    assert (ours == labels).float().mean() > 0.9


@pytest.mark.xdist_group("minilm")
def test_sentences_rank_as_in_eager() -> None:
    model, module = artifacts.compiled("minilm"), artifacts.fresh_module("minilm")
    sentences = ["How do I bake bread?", "A recipe for sourdough loaves", "The stock market fell today", ""]
    for sentence in sentences:
        tokens = module.tokenize(sentence)
        torch.testing.assert_close(model(*tokens), module(*tokens), rtol=artifacts.RTOL, atol=artifacts.ATOL)
    question, recipe, stocks = (model(*module.tokenize(sentence))[0] for sentence in sentences[:3])
    assert question @ recipe > question @ stocks + 0.2


@pytest.mark.slow
def test_bytes_are_reproducible_in_another_process() -> None:
    """Covers weights, state and unrolled steps. Another process has a different hash seed and different addresses."""
    names = ["mobilenet_v3_small", "llama", "lstm"]
    program = (
        "import hashlib; from tests.models import artifacts;"
        f"print(*(hashlib.sha256(bytes(artifacts.compiled(name))).hexdigest() for name in {names}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    digests = [hashlib.sha256(bytes(artifacts.compiled(name))).hexdigest() for name in names]
    assert done.stdout.split()[-len(names) :] == digests
