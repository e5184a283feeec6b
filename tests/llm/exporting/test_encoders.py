# SPDX-License-Identifier: BSD-3-Clause
# In: small random encoder-decoder models of transformers. Out: a session generates the tokens of the model.
"""Encoder-decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import zoo
from tests.sweep import sweep
from torchette.errors import InputError, UnsupportedError

_LIBRARY = zoo.declare_torchvision_operators()
transformers = pytest.importorskip("transformers")

llm = pytest.importorskip("torchette.llm")

CONTEXT, COUNT = 280, 256
_LAYERS = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
_TOKENS = {
    "vocab_size": 101,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
}
# Name -> class of the model, class of the configuration, its arguments.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5": (
        "T5ForConditionalGeneration", "T5Config",
        {**_TOKENS, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
    ),
    "flan_t5": (
        "T5ForConditionalGeneration", "T5Config",
        {**_TOKENS, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu",
         "tie_word_embeddings": False},
    ),
    "bart": (
        "BartForConditionalGeneration", "BartConfig",
        {**_TOKENS, **_LAYERS, "max_position_embeddings": 300, "forced_eos_token_id": None},
    ),
    "marian": (
        "MarianMTModel", "MarianConfig", {**_TOKENS, **_LAYERS, "max_position_embeddings": 300, "forced_eos_token_id": None},
    ),
    "whisper": (
        "WhisperForConditionalGeneration", "WhisperConfig",
        {**_TOKENS, **_LAYERS, "num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 300,
         "suppress_tokens": None, "begin_suppress_tokens": None},
    ),
    "moonshine": (
        "MoonshineForConditionalGeneration", "MoonshineConfig",
        {**_TOKENS, "hidden_size": 64, "intermediate_size": 64, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
         "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4, "max_position_embeddings": 300},
    ),
}  # fmt: skip


def build(name: str) -> Any:
    model, config, arguments = MODELS[name]
    torch.manual_seed(0)
    module = getattr(transformers, model)(getattr(transformers, config)(**arguments)).eval()
    for parameter in module.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return module


def question(model: Any, seed: int) -> tuple[dict[str, Any], torch.Tensor]:
    """Returns the same input in the form of a session and in the form of the model."""
    random = torch.Generator().manual_seed(seed)
    if model.main_input_name == "input_ids":
        tokens = torch.randint(4, 101, (1, 7 + 3 * seed), generator=random)
        return {"prompt": tokens[0].tolist()}, tokens
    if model.main_input_name == "input_values":
        sound = torch.randn(1, 384 * (20 + seed) + 127, generator=random)
        samples = sound[0].numpy()
        samples.flags.writeable = False  # as audio_of() returns them
        return {"prompt": [], "audio": samples}, sound
    features = torch.randn(1, 16, 100, generator=random)
    copy = features.numpy().copy()
    copy.flags.writeable = False
    return {"prompt": [], "audio": copy}, features


def expected(model: Any, inputs: torch.Tensor, count: int) -> list[int]:
    kwargs = {model.main_input_name: inputs, "decoder_input_ids": torch.tensor([[3]])}
    tokens = model.generate(**kwargs, max_new_tokens=count, do_sample=False, eos_token_id=None, num_beams=1)
    return tokens[0].tolist()[-count:]


@pytest.mark.parametrize("name", sweep(MODELS, "t5"))
def test_answers_equal_those_of_the_model(name: str, tmp_path: Path) -> None:
    model = build(name)
    path = llm.export(model, max_context=CONTEXT, max_prefill=16, full_logits=True).save(
        tmp_path / "model.pte"
    )
    session = llm.Session(path)
    (first, inputs), (second, second_inputs) = question(model, 1), question(model, 2)
    answer = session.generate(**first, max_tokens=COUNT, temperature=0, ignore_end=True, logprobs=0)
    logprobs = [piece.logprob for piece in answer if piece.token is not None]
    assert answer.tokens == expected(model, inputs, COUNT)
    with torch.no_grad():
        logits = model(
            **{model.main_input_name: inputs}, decoder_input_ids=torch.tensor([[3, *answer.tokens[:40]]])
        ).logits
    likely = logits[0, :40].log_softmax(-1).gather(1, torch.tensor(answer.tokens[:40])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(logprobs[:40]), likely, rtol=1e-4, atol=1e-4)
    # The encoded input is part of the state: forks, files and other prompts do not change it.
    session.generate(**first, max_tokens=9, temperature=0, ignore_end=True).run()
    session.save(tmp_path / "state")
    fork = session.fork()
    say = session.generate(**second, max_tokens=20, temperature=0, ignore_end=True).run().tokens
    assert say == expected(model, second_inputs, 20)
    session.load(tmp_path / "state")
    for one in (fork, session):
        assert (
            one.generate(**first, max_tokens=20, temperature=0, ignore_end=True).run().tokens
            == answer.tokens[:20]
        )
    if name == "whisper":
        session.generate([3], audio=np.zeros(16_000, np.float32), max_tokens=1).run()
    first_media = {key: value for key, value in first.items() if key != "prompt"}
    wrong = {"audio": np.zeros(5)} if model.main_input_name == "input_ids" else {}
    with pytest.raises(InputError, match="this model reads"):
        session.generate([3], **wrong)
    with pytest.raises(InputError, match="this model reads"):
        session.generate([3], images=[np.zeros((4, 4, 3), np.uint8)], **first_media)
    with pytest.raises(InputError, match="an image must be"):
        session.generate([3], images=[np.zeros(5)], **first_media)
    if name == "t5":
        with pytest.raises(InputError, match="the encoder accepts 1 to 280"):
            session.generate([5] * 281)


@pytest.mark.slow
def test_quantized_encoder_decoder() -> None:
    """The embedding table of encoder, decoder and last layer is stored once."""
    from torchette.llm.exporting.encoders import CrossDecoder, Encoder
    from torchette.llm.exporting.quantized import quantize_weights

    model = build("t5")
    model.tie_weights()
    program = llm.export(model, "int8-weight-only", max_context=40, max_prefill=8)
    tokens, decoded = torch.tensor([[5, 17, 3, 99]]), torch.tensor([[3, 7, 8]])
    stored = quantize_weights(model, "int8-weight-only")
    with torch.no_grad():
        floats = model(input_ids=tokens, decoder_input_ids=decoded).logits[0, -1]
        rounded = Encoder(stored)(tokens)
        decoder = CrossDecoder(model, 40, inputs=tokens, encoded=rounded)
        decoder.model = stored
        ours = decoder(decoded, rounded, torch.tensor([0]))[0]
    encoded = np.asarray(program.methods["encoder"](tokens.numpy()))
    logits = torch.as_tensor(
        np.asarray(program.methods["text_decoder"](decoded.numpy(), encoded, np.array([0])))
    )[0]
    torch.testing.assert_close(logits, ours, rtol=1e-3, atol=1e-3)
    assert (logits - floats).norm() < floats.norm() * 0.3
    named = sum(len(part) for part in program.program.named_data.values())
    numbers = sum(p.numel() for p in model.parameters())
    assert program.nbytes - named < 1.2 * numbers + 60_000
    assert "cpu::scaled_embedding.out" in program.program.operators()


def test_t5_requires_a_float_cache() -> None:
    """Only the engine's attention reads float16 and int8 caches, so models with other attention are rejected by name."""
    with pytest.raises(UnsupportedError, match=r"T5Attention .*requires a float32 KV cache"):
        llm.export(build("t5"), max_context=64, max_prefill=16, cache="float16")
