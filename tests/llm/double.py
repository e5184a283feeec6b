# SPDX-License-Identifier: BSD-3-Clause
# A test double of a language model: its logits depend on all earlier tokens through a cache, as those of a real decoder do.

from __future__ import annotations

import copy
import json
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from torchette.errors import ExecutionError
from torchette.llm.session import Session


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns log-probabilities in float64."""
    shifted: np.ndarray = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def probabilities(logits: np.ndarray, temperature: float, top_k: int = 0) -> np.ndarray:
    """Returns the distribution of the next token in float64."""
    chances = np.exp(log_softmax(logits.astype(np.float64) / temperature))
    if top_k:
        chances[chances < np.sort(chances)[-top_k]] = 0
    return chances / chances.sum()


class FakeDecoder:
    """A decoder with logits that are pseudo-random functions of its cache. `fed` counts the tokens of all steps."""

    def __init__(
        self,
        size: int = 259,
        context: int = 64,
        chunk: int = 8,
        every: bool = False,
        seed: int = 0,
        sharpness: float = 3.0,
    ) -> None:
        self.vocab_size, self.max_context, self.max_tokens = size, context, chunk
        self.every, self.seed, self.sharpness = every, seed, sharpness
        self.memory = 8 * context
        self.cache = np.full(context, -1, np.int64)
        self.fed = 0
        self.seconds = 0.0
        self.is_cancelled = False
        self.bias = np.zeros(size, np.float32)
        self.named_data: dict[str, bytes] = {}
        self.begin, self.ends = (BEGIN, [END]) if size > END else (-1, [])

    def step(self, tokens: Sequence[int], start_pos: int) -> np.ndarray:
        assert 1 <= len(tokens) <= self.max_tokens and 0 <= start_pos <= self.max_context - len(tokens)
        self.cache[start_pos : start_pos + len(tokens)] = tokens
        self.fed += len(tokens)
        time.sleep(self.seconds)
        if self.is_cancelled:
            self.is_cancelled = False
            raise ExecutionError("cancelled")
        ends = range(start_pos + 1, start_pos + len(tokens) + 1) if self.every else [start_pos + len(tokens)]
        return np.stack([self.logits(self.cache[:end]) for end in ends])

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the logits for these tokens, which must not depend on how a session reached them."""
        random = np.random.default_rng([self.seed, zlib.crc32(np.asarray(tokens, np.int64).tobytes())])
        return (random.standard_normal(self.vocab_size) * self.sharpness).astype(np.float32) + self.bias

    def new(self) -> FakeDecoder:
        copied = FakeDecoder(
            self.vocab_size, self.max_context, self.max_tokens, self.every, self.seed, self.sharpness
        )
        copied.seconds, copied.bias, copied.named_data = self.seconds, self.bias, self.named_data
        return copied

    def state(self) -> dict[str, np.ndarray]:
        return {"cache": self.cache.copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.cache = state["cache"].copy()

    def cancel(self) -> None:
        self.is_cancelled = True


class RecurrentDecoder(FakeDecoder):
    """A decoder that cannot rewind: a step continues after the last one, or starts at position 0."""

    is_recurrent = True

    def step(self, tokens: Sequence[int], start_pos: int) -> np.ndarray:
        if start_pos == 0:
            self.cache[:] = -1
        assert (self.cache >= 0).sum() == start_pos
        return super().step(tokens, start_pos)

    def new(self) -> FakeDecoder:
        return copy.deepcopy(self)

    def state(self) -> dict[str, np.ndarray]:
        return {"recurrent_cache": self.cache.copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.cache = state["recurrent_cache"].copy()


class Writer(FakeDecoder):
    """Answers with a fixed text, one byte per token, after the last <assistant>."""

    def __init__(self, text: str) -> None:
        super().__init__(context=2048)
        self.text = text.encode()

    def new(self) -> FakeDecoder:
        return copy.deepcopy(self)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        logits = super().logits(tokens) * 0
        last = bytes(int(token) for token in tokens if token < 256).rpartition(b"<assistant>")[2]
        logits[self.text[len(last)] if len(last) < len(self.text) else 257] = 99
        return logits


# A vocabulary of all bytes, a token that begins a text (256), one that ends it (257), and a word of ten characters (258).
SIZE, BEGIN, END = 259, 256, 257
TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def byte_characters() -> Iterator[tuple[int, str]]:
    """Returns the character of each byte in byte-level vocabularies: itself if printable, else one from U+0100."""
    characters = map(chr, range(0x100, 0x200))
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    yield from ((byte, chr(byte) if byte in printable else next(characters)) for byte in range(256))


class HeldDecoder(FakeDecoder):
    """A decoder that waits within a step, for tests of calls from another thread."""

    def __init__(self) -> None:
        super().__init__(context=4096)
        self.is_in_step, self.may_go = threading.Event(), threading.Event()

    def step(self, tokens: Sequence[int], start_pos: int) -> np.ndarray:
        self.is_in_step.set()
        self.may_go.wait(60)  # bounded, because a failing test does not release it
        return super().step(tokens, start_pos)


def tokenizer_json() -> bytes:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    letters = {character: byte for byte, character in byte_characters()}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken("<s>", special=True),
            AddedToken("</s>", special=True),
            AddedToken("torchette!", special=False),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", BEGIN)])
    return tokenizer.to_str().encode()


def session(
    decoder: FakeDecoder | None = None,
    generation: Mapping[str, object] | None = None,
    template: str = TEMPLATE,
    tokenizer: bytes | None = None,
) -> Session:
    """Returns a session on the double, with a tokenizer and a chat template."""
    decoder = decoder or FakeDecoder()
    decoder.named_data = {
        "tokenizer.json": tokenizer or tokenizer_json(),
        "chat_template.jinja": template.encode(),
        "generation_config.json": json.dumps(generation or {}).encode(),
    }
    return Session(decoder)


def program(more: Mapping[str, bytes] | None = None, seed: int = 0) -> bytes:
    """Returns a program with a tiny language model that has one row of a buffer per position.

    Args:
        more: further named data.
        seed: the seed of the weights.
    """
    import torch

    import torchette
    from torchette.exir.config import ExecutorchBackendConfig

    class Talker(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(seed)
            self.register_buffer("embedding", torch.randn(SIZE, 16, generator=generator))
            self.register_buffer("head", torch.randn(16, SIZE, generator=generator) * 2)
            self.register_buffer("cache", torch.zeros(256, 16))

        def forward(self, tokens: torch.Tensor, start_pos: torch.Tensor) -> torch.Tensor:
            positions = start_pos + torch.arange(tokens.shape[1])
            rows = self.embedding[tokens[0]] * (1 + positions.unsqueeze(1) % 7)
            self.cache.index_put_((positions,), rows)
            is_visible = torch.arange(256).unsqueeze(1) <= positions[-1]
            return torch.sin((self.cache * is_visible).sum(0, keepdim=True)) @ self.head

    files = {"tokenizer.json": tokenizer_json(), "chat_template.jinja": TEMPLATE.encode(), **(more or {})}
    compiled = torchette.compile(
        Talker().eval(),
        (torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)),
        dynamic_shapes=({1: torch.export.Dim("n", min=1, max=16)}, None),
        constant_methods={
            "get_max_seq_len": 16,
            "get_max_context_len": 256,
            "get_bos_id": BEGIN,
            "get_eos_ids": [END],
            "get_vocab_size": SIZE,
        },
        config=ExecutorchBackendConfig(named_data=files, emit_mutable_buffer_names=True),
    )
    return bytes(compiled)
