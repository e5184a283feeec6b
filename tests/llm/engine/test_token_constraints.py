# SPDX-License-Identifier: BSD-3-Clause
# In: random logits, conversations and generation configurations. Out: the C++ sampler chooses and excludes the same tokens as the
# logits processors of transformers.
"""`TokenConstraints` of generation_config.json."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.engine.sampling import choices, line
from tests.llm.engine.test_runner import CONTEXT, PROMPT, Small, converse, small

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZE, ENDS = 40, [2, 7]

__all__ = ["small"]  # the fixture


class Case:
    def __init__(self, seed: int, config: dict[str, Any], prompt: int, new: int, room: int) -> None:
        rng = random.Random(seed)
        self.config, self.prompt, self.room = config, prompt, room
        self.tokens = [rng.randrange(3 if seed % 2 else 9) for _ in range(prompt + new)]
        self.logits = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32) * 3
        self.logits[:9] += 3  # tokens of the conversation
        self.logits[:3] += 3 if seed % 2 else 0

    def line(self) -> str:
        written = dict(self.config)
        if "sequence_bias" in written:
            written["sequence_bias"] = [[list(key), value] for key, value in written["sequence_bias"].items()]
        return line(
            self.logits.tolist(), self.tokens, self.prompt, ends=ENDS,
            generation={"eos_token_id": ENDS, **written}, options={"max_new_tokens": self.room},
        )  # fmt: skip

    def expected(self, sample: bool) -> np.ndarray:
        """Returns the scores of the processors of transformers."""
        config = transformers.GenerationConfig(
            eos_token_id=ENDS, max_length=self.prompt + self.room, **{"do_sample": sample, **self.config}
        )
        config._eos_token_tensor = torch.tensor(ENDS)
        model = type(
            "Model",
            (transformers.GenerationMixin,),
            {"config": type("Config", (), {"is_encoder_decoder": True})()},
        )()
        processors = model._get_logits_processor(config, self.prompt, None, None, [], "cpu", {})
        scores = processors(torch.tensor([self.tokens]), torch.from_numpy(self.logits)[None].clone())
        return scores[0].double().numpy()


SEQUENCES = [[1], [2], [3, 4], [5, 6, 1], [0, 0], [8, 3], [39], [4, 38]]
PROCESSORS: list[dict[str, Any]] = [
    {"suppress_tokens": [*range(0, 38, 2), 99]},
    {"begin_suppress_tokens": [*range(0, 40, 3)]},
    {"begin_suppress_tokens": [*range(0, 40, 3)], "forced_bos_token_id": 11},
    {"forced_bos_token_id": 11},
    {"forced_eos_token_id": 7},
    {"forced_eos_token_id": [7, 2]},
    {"bad_words_ids": [*SEQUENCES, *([i] for i in range(10, 30)), *([i, j] for i in range(9) for j in range(30, 40))]},
    {"sequence_bias": {tuple(one): 5.0 - i * 1.5 for i, one in enumerate(SEQUENCES)}},
    {"sequence_bias": {(i, j): 9.0 if j % 3 else -9.0 for i in range(9) for j in range(9)}},
    *({"no_repeat_ngram_size": n} for n in (1, 2, 3, 5)),
    {"min_length": 6},
    {"min_new_tokens": 3},
    {"exponential_decay_length_penalty": [1, 1.5]},
    {"exponential_decay_length_penalty": [0, 3.0], "suppress_tokens": [7]},
    {"no_repeat_ngram_size": 2, "min_length": 4, "forced_eos_token_id": 2, "suppress_tokens": [3], "bad_words_ids": [[3, 4]]},
]  # fmt: skip
WARPERS: list[dict[str, Any]] = [
    *({"typical_p": p} for p in (0.1, 0.5, 0.9)),
    *({"epsilon_cutoff": e} for e in (0.001, 0.05, 0.9)),
    *({"eta_cutoff": e} for e in (0.001, 0.05, 0.9)),
    *({"top_h": h} for h in (0.1, 0.5, 0.9)),
    {"typical_p": 0.8, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02, "top_h": 0.9, "no_repeat_ngram_size": 2},
]  # fmt: skip


@pytest.mark.parametrize("config", PROCESSORS, ids=lambda one: "-".join(one))
def test_processors_choose_the_token_of_transformers(config: dict[str, Any]) -> None:
    cases = [
        Case(seed, config, prompt, new, new + 1 + (seed % 3))
        for seed in range(60)
        for prompt, new in ((1, 0), (1, 1), (1, 5), (4, 0), (6, 30), (2, 2))
    ]
    changed = 0
    results, _ = choices([case.line() for case in cases])
    for case, choice in zip(cases, results, strict=True):
        scores = case.expected(False)
        chosen = choice.error, int(choice.distribution.argmax()), choice.distribution.sum()
        assert chosen == ("Ok", int(scores.argmax()), 1), (case.tokens, case.prompt, case.room)
        changed += int(scores.argmax()) != int(case.logits.argmax())
    assert changed > 1  # the processor matters


@pytest.mark.parametrize("config", WARPERS, ids=lambda one: "-".join(one))
def test_warpers_keep_the_tokens_of_transformers(config: dict[str, Any]) -> None:
    cases = [Case(seed, {"do_sample": True, "top_k": 0, **config}, 3, 2, 9) for seed in range(40)]
    counts = set()
    for case, choice in zip(cases, choices([case.line() for case in cases])[0], strict=True):
        scores = case.expected(True)
        weights = np.exp(scores - scores.max())
        assert choice.error == "Ok"
        assert np.allclose(choice.distribution, weights / weights.sum(), rtol=1e-5, atol=1e-12)
        counts.add(int((choice.distribution > 0).sum()))
    assert min(counts) < SIZE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("suppress_tokens", "x"), ("suppress_tokens", [[1]]), ("bad_words_ids", [1]), ("bad_words_ids", [[]]), ("min_length", "x"),
        ("sequence_bias", {"1": 2}), ("sequence_bias", [[[1], "x"]]), ("forced_bos_token_id", "x"), ("no_repeat_ngram_size", -1),
        ("exponential_decay_length_penalty", [1]), ("typical_p", "x"),
    ],
)  # fmt: skip
def test_a_member_of_another_type_is_named(name: str, value: Any) -> None:
    ((error, *_),), log = choices([line([0, 1, 2], [1, 2], 1, generation={"do_sample": True, name: value})])
    assert error == "InvalidExternalData" and f"generation_config.json: {name} must be" in log


def test_excluding_all_tokens_is_an_error_with_the_reasons() -> None:
    ((error, *_),), log = choices([line([0, 1, 2], [1, 2], 1, generation={"suppress_tokens": [0, 1, 2]})])
    assert error == "InvalidArgument" and "generation_config.json" in log


def exported(model: Any, folder: Path, small: Small, config: dict[str, Any]) -> Path:
    from torchette import llm

    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes((small.folder / "tokenizer.json").read_bytes())
    return llm.export(folder, max_context=CONTEXT, max_prefill=8).save(folder / "model.pte")


def expected(model: Any, ids: list[int], config: dict[str, Any]) -> list[int]:
    model.generation_config = transformers.GenerationConfig(**config)
    inputs = torch.tensor([ids])
    return model.generate(inputs, attention_mask=torch.ones_like(inputs), pad_token_id=0)[0].tolist()


def test_answers_of_a_program_are_those_of_transformers(small: Small, tmp_path: Path) -> None:
    ids = small.tokenizer.encode(PROMPT).ids
    free = small.expected(ids, 40)[len(ids) :]
    config = {
        "eos_token_id": [2, small.end], "suppress_tokens": [free[0], free[3]], "bad_words_ids": [[free[1]], free[4:6]],
        "no_repeat_ngram_size": 2, "min_new_tokens": 20, "max_new_tokens": 40, "forced_eos_token_id": 2, "repetition_penalty": 1.1,
        "begin_suppress_tokens": [free[2]],
    }  # fmt: skip
    reference = expected(small.model, ids, config)
    assert reference[len(ids) :] != free and len(reference) >= len(ids) + 20
    path = exported(small.model, tmp_path, small, config)
    (result,) = converse(path, f"generate\t{PROMPT}\tdefaults=1\tspecial=1")
    assert (result.error, result.tokens) == ("Ok", reference)


@pytest.mark.slow
def test_answers_of_a_model_with_an_encoder_are_those_of_transformers(small: Small, tmp_path: Path) -> None:
    """As in mBART, the first token of an answer is its language."""
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=608, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=CONTEXT, eos_token_id=2, decoder_start_token_id=2,
        forced_eos_token_id=None,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    ids = small.tokenizer.encode(PROMPT).ids
    options = {
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_bos_token_id": 17,
        "forced_eos_token_id": 2,
        "max_length": 30,
    }
    reference = expected(model, ids, options)
    options |= {
        "begin_suppress_tokens": [reference[2]],
        "no_repeat_ngram_size": 3,
        "min_length": 8,
        "suppress_tokens": [reference[5]],
    }
    reference = expected(model, ids, options)
    assert reference[:2] == [2, 17]
    path = exported(model, tmp_path, small, options)
    (result,) = converse(path, f"generate\t{PROMPT}\tdefaults=1\tspecial=1")
    # the first token represents the decoder's start token and the encoded text
    assert (result.error, result.tokens[1:]) == ("Ok", reference[1:])
