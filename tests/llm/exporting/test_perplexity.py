# SPDX-License-Identifier: BSD-3-Clause
# In: a short form of `./dev bench perplexity`. Out: float32 programs have the perplexity of the model; quantized programs have a
# slightly higher one.
"""Perplexity of compiled language models."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from benchmarks import perplexity
from tests.models import zoo

_LIBRARY = zoo.declare_torchvision_operators()


@pytest.mark.slow
def test_quantization_increases_perplexity_slightly() -> None:
    learned, unseen = perplexity.tokens_of(perplexity.text())
    model, tokens = perplexity.trained(learned, 40), unseen[: 4 * perplexity.CONTEXT]
    with torch.no_grad():
        rows = torch.tensor(tokens).view(-1, perplexity.CONTEXT)
        theirs = math.exp(model(rows, labels=rows).loss.item())
    by_scheme = {
        scheme: perplexity.perplexity(perplexity.compiled(model, scheme), tokens)
        for scheme in (None, "int8-weight-only", "int4-weight-only", "8da4w")
    }
    assert by_scheme[None] == pytest.approx(theirs, rel=1e-4) and theirs < perplexity.VOCABULARY / 2
    for scheme, most in (("int8-weight-only", 1.005), ("int4-weight-only", 1.05), ("8da4w", 1.05)):
        assert by_scheme[scheme] / by_scheme[None] < most, (scheme, by_scheme)
