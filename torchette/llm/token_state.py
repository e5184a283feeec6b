# SPDX-License-Identifier: BSD-3-Clause
# The state of a session: the tokens in the KV cache of its decoder. Tokens that a new prompt shares with it are not computed
# again. Sessions on one file share its tokenizer, chat template and grammars.
"""`TokenState`: a decoder and the tokens in its KV cache; `SharedModel`: the named data of a file."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from torchette.errors import ExecutionError, FormatError, InputError
from torchette.llm.grammar import Grammar, Matcher, Vocabulary, grammar_of
from torchette.llm.media import state_names
from torchette.llm.text import ChatTemplate, Tokenizer
from torchette.runtime import Method, Program


class SharedModel:
    """The tokenizer, the chat template and the grammars of sessions on one file."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        facts: Mapping[str, Any],
        tokenizer: Tokenizer | None,
        size: int,
        identity: object,
    ) -> None:
        self.files, self.tokenizer, self.identity = files, tokenizer, identity
        ends = facts.get("get_eos_ids", facts.get("get_eos_id", []))
        self.ends = tuple(int(end) for end in (ends if isinstance(ends, list) else [ends]) if 0 <= end < size)
        self.begin = int(facts.get("get_bos_id", -1))
        self.bytes = tokenizer.bytes_of(size) if tokenizer else [b""] * size
        for end in self.ends:
            self.bytes[end] = b""
        self.grammars: dict[str, Grammar] = {}
        self._vocabulary: Vocabulary | None = None
        self._template: ChatTemplate | None = None
        self.lock = threading.Lock()

    @property
    def vocabulary(self) -> Vocabulary:
        """The bytes of all tokens, for grammars."""
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self.bytes)
        return self._vocabulary

    @property
    def template(self) -> ChatTemplate:
        """The chat template of the file. Raises FormatError, code "no-chat-template", if it has none."""
        if self._template is None:
            if "chat_template.jinja" not in self.files:
                raise FormatError(
                    "the file has no chat template",
                    hints=["generate() takes a text"],
                    code="no-chat-template",
                )
            names = {"bos_token": self.begin, "eos_token": self.ends[0] if self.ends else -1}
            named = {k: self.tokenizer.name(v) if self.tokenizer else "" for k, v in names.items()}
            self._template = ChatTemplate(
                bytes(self.files["chat_template.jinja"]).decode("utf-8", "replace"), named
            )
        return self._template

    def defaults(self) -> dict[str, Any]:
        """The sampling options of the file's generation_config.json."""
        try:
            given = json.loads(bytes(self.files.get("generation_config.json", b"{}")))
        except ValueError:
            return {}
        names = ["temperature", "top_k", "top_p", "min_p"] if given.get("do_sample") else []
        if names:
            given.setdefault("temperature", 1.0)
        return {name: given[name] for name in [*names, "repetition_penalty"] if given.get(name) is not None}

    def matcher(self, grammar: str | Grammar | None, schema: object) -> Matcher | None:
        """The matcher of a grammar or a JSON schema; None without both. Keeps the last 16 grammars."""
        if schema is not None:
            if grammar is not None:
                raise InputError("grammar and schema are two ways to say one thing: give one")
            grammar = grammar_of(schema)
        if grammar is None:
            return None
        if not isinstance(grammar, Grammar):
            text = grammar
            with self.lock:
                made = self.grammars.get(text) if isinstance(text, str) else None
            grammar = made or Grammar(text)
            with self.lock:
                if len(self.grammars) >= 16:
                    self.grammars.pop(next(iter(self.grammars)))
                self.grammars[text] = grammar
        return Matcher(grammar, self.vocabulary)


class Decoder(Protocol):
    """A decoder with a KV cache."""

    vocab_size: int
    max_context: int
    """Positions of the KV cache."""
    max_tokens: int
    """The maximum number of tokens in one step."""
    memory: int
    """Bytes without the weights."""

    def step(self, tokens: Sequence[int], start_pos: int) -> np.ndarray:
        """Computes keys and values from start_pos on. Returns logits [1, vocabulary] of the last token, or
        [n, vocabulary] of all tokens."""

    def new(self) -> Decoder:
        """Returns a decoder on the same weights, with a separate state."""

    def state(self) -> dict[str, np.ndarray]:
        """Returns copies of the state by name; empty if the state is not accessible."""

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a state that state() returned."""

    def cancel(self) -> None:
        """Ends the current step, or the next one, with an ExecutionError."""


class ProgramDecoder:
    """The method `forward` of a program."""

    def __init__(self, program: Program, facts: Mapping[str, Any], threads: int | None) -> None:
        self._program, self._facts, self._threads = program, facts, threads
        self._method: Method = program.load_method("forward", threads=threads)
        meta = self._method.metadata
        shapes = [tuple(meta.input_tensor_meta(i).sizes()) for i in range(meta.num_inputs())]
        if len(shapes) != 2 or len(shapes[0]) != 2 or len(shapes[1]) != 1 or meta.num_outputs() != 1:
            raise FormatError(
                f"method {meta!r} is no step of a language model: (tokens [1, n], start_pos [1]) -> logits",
                hints=["torchette.llm.export makes one"],
            )
        tokens = meta.input_tensor_meta(0)
        if shapes[0][1] > 1 and not tokens.is_dynamic:
            raise FormatError(
                f"{meta!r} takes exactly {shapes[0][1]} tokens",
                hints=["compile it for one token, or a dynamic number"],
            )
        self.max_tokens = shapes[0][1]
        self.vocab_size = meta.output_tensor_meta(0).sizes()[-1]
        self.max_context = int(facts.get("get_max_context_len", facts.get("get_max_seq_len", 0)))
        if self.max_context < 1:
            raise FormatError(
                "the file does not say how long its context is",
                hints=["constant_methods={'get_max_context_len': ...}"],
            )
        self.max_tokens = min(self.max_tokens, self.max_context)
        self.memory = sum(meta.planned_sizes) + self._method.method_bytes
        self._names = state_names(meta, facts)

    def step(self, tokens: Sequence[int], start_pos: int) -> np.ndarray:
        """See `Decoder.step`."""
        logits = self._method.execute([np.array([tokens], np.int64), np.array([start_pos], np.int64)])[0]
        return np.asarray(logits).reshape(-1, self.vocab_size)

    def new(self) -> ProgramDecoder:
        """See `Decoder.new`."""
        return ProgramDecoder(self._program, self._facts, self._threads)

    def state(self) -> dict[str, np.ndarray]:
        """See `Decoder.state`."""
        return {name: self._method.get_attribute(name) for name in self._names}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """See `Decoder.set_state`."""
        for name, value in state.items():
            self._method.set_attribute(name, value)

    def cancel(self) -> None:
        """See `Decoder.cancel`."""
        self._method.cancel()


class Cancelled(Exception):
    """A step was cancelled."""


class TokenState:
    """A decoder and the tokens in its KV cache."""

    _decoder: Decoder
    _shared: SharedModel

    def _begin(self) -> None:
        self._tokens: list[int] = []
        self._cancelled = self._late_cancel = self._stepping = False
        self._lock = threading.Lock()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens in the KV cache. Tokens beyond the vocabulary represent images and sound."""
        return tuple(self._tokens)

    @property
    def max_context(self) -> int:
        """The maximum number of tokens."""
        return self._decoder.max_context

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary."""
        return self._decoder.vocab_size

    def rewind(self, count: int) -> None:
        """Keeps the first `count` tokens of the state."""
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(self._tokens):
            raise InputError(f"the session has {len(self._tokens)} tokens, it cannot go back to {count!r}")
        del self._tokens[count:]

    def _checked(self, tokens: Iterable[Any], placed: bool = False) -> list[int]:
        """Tokens of the vocabulary; with `placed` also those beyond it, of images and sound."""
        found, end = [], 1 << 62 if placed else self.vocab_size
        for token in tokens:
            if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or not 0 <= token < end:
                raise InputError(f"there is no token {token!r}, they are 0 to {self.vocab_size - 1}")
            found.append(int(token))
        return found

    def _step(self, tokens: Sequence[int]) -> np.ndarray:
        """Runs one step after the tokens of the state."""
        while True:
            with self._lock:
                if self._cancelled:
                    raise Cancelled
                self._stepping = True
            try:
                logits = self._decoder.step(tokens, len(self._tokens))
            except ExecutionError:
                with self._lock:
                    late, self._late_cancel = self._late_cancel, False
                    if late and self._cancelled:
                        raise Cancelled from None
                if late:  # the cancel was for an answer that had already ended
                    continue
                raise
            finally:
                self._stepping = False
            self._tokens += tokens
            return logits

    def _rows(self, tokens: Sequence[int]) -> np.ndarray:
        """Runs tokens. Returns the logits after each of them."""
        rows: list[np.ndarray] = []
        while len(rows) < len(tokens):
            part = tokens[len(rows) : len(rows) + self._decoder.max_tokens]
            logits = self._step(part)
            if len(logits) < len(part):  # the decoder returns the last logits only
                self.rewind(len(self._tokens) - len(part))
                rows += [self._step([token])[-1] for token in part]
            else:
                rows += list(logits)
        return np.stack(rows)

    def _ingest(self, tokens: Sequence[int]) -> np.ndarray:
        """Makes `tokens` the state and runs the new ones. Returns the last logits."""
        kept = min(common(self._tokens, tokens), len(tokens) - 1)
        self.rewind(kept)
        until = getattr(self._decoder, "until", lambda tokens, start: start + self._decoder.max_tokens)
        while (start := len(self._tokens)) < len(tokens):
            logits = self._step(tokens[start : until(tokens, start)])
        result: np.ndarray = logits[-1]
        return result

    def cancel(self) -> None:
        """Ends the current answer, from any thread. Its `finish_reason` is then "cancelled"."""
        with self._lock:
            self._cancelled = True
            if self._stepping:
                self._late_cancel = True
                self._decoder.cancel()


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of equal tokens at the beginning of both."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:count]) != np.asarray(other[:count]))
    return int(differ[0]) if len(differ) else count


def constants_of(program: Program) -> dict[str, Any]:
    """The outputs of constant methods, by name: methods without inputs and instructions."""
    found: dict[str, Any] = {}
    for name in program.method_names:
        meta = program.metadata(name)
        if meta.num_inputs() == 0 and meta.num_instructions == 0:
            values = program.load_method(name).execute([])
            found[name] = values[0] if len(values) == 1 else values
    return found
