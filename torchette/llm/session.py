# SPDX-License-Identifier: BSD-3-Clause
# In: a program of `torchette.llm.export`, or any with ExecuTorch's metadata of language models, and a prompt. Out: a stream
# of tokens and text. A session has one state, the keys and values of `tokens`; what a new prompt shares with it is not
# computed again, and going back is forgetting the end of it.
"""`Session`: conversations with a language model."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from torchette.errors import ExecutionError, FormatError, InputError, InputTypeError
from torchette.files import replacing
from torchette.format import pte
from torchette.llm import lora
from torchette.llm.grammar import Grammar, Matcher, Vocabulary
from torchette.llm.media import decoder_of, state_names
from torchette.llm.messages import grammar_of_calls, images_of
from torchette.llm.sampling import Random, Sampling, adjust, draw, log_softmax, probabilities, seeded
from torchette.llm.schema import grammar_of
from torchette.llm.text import ChatTemplate, TextStream, Tokenizer
from torchette.runtime import Method, Program, Runtime, xxh64

_MAGIC = b"torchette session 1\n"


class Decoder(Protocol):
    """What a session runs: keys and values of positions, and logits of what is to follow."""

    vocab_size: int
    max_context: int
    """Positions that there are."""
    max_tokens: int
    """Tokens that one step takes."""
    memory: int
    """Bytes of its own, weights left out."""

    def step(self, tokens: Sequence[int], start_pos: int) -> np.ndarray:
        """Stores what belongs to positions from start_pos on. Returns logits [1, vocabulary] of the last token, or
        [n, vocabulary] of all."""

    def new(self) -> Decoder:
        """Another one on the same weights, with a state of its own."""

    def state(self) -> dict[str, np.ndarray]:
        """Copies of its state by name; empty where it cannot tell."""

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes such a state."""

    def cancel(self) -> None:
        """Ends the step that runs, or else the next one, with an ExecutionError."""


class _ProgramDecoder:
    """Method `forward` of a program."""

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
        logits = self._method.execute([np.array([tokens], np.int64), np.array([start_pos], np.int64)])[0]
        return np.asarray(logits).reshape(-1, self.vocab_size)

    def new(self) -> _ProgramDecoder:
        return _ProgramDecoder(self._program, self._facts, self._threads)

    def state(self) -> dict[str, np.ndarray]:
        return {name: self._method.get_attribute(name) for name in self._names}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        for name, value in state.items():
            self._method.set_attribute(name, value)

    def cancel(self) -> None:
        self._method.cancel()


class Piece(NamedTuple):
    """What one token brought."""

    text: str
    """Whole characters; empty while one is not complete, or may begin a stop string."""
    token: int | None
    """None of what was held back to the end."""
    logprob: float | None = None
    """Its log-probability in the model's own distribution, where it was asked for."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens with their log-probabilities, as many as were asked for."""


class Statistics(NamedTuple):
    """What an answer has cost."""

    prompt_tokens: int
    reused_tokens: int
    """Of the prompt, that the session had already."""
    answer_tokens: int
    time_to_first_token: float
    """Seconds, the prompt included."""
    tokens_per_second: float
    """Of the answer's tokens after the first."""
    memory: int
    """Bytes of the session's own, weights left out."""
    peak_memory: int
    """The most bytes that the process ever had in memory."""
    drafted_tokens: int
    accepted_tokens: int
    """Of those that a draft model proposed."""


class _Cancelled(Exception):
    pass


class _Shared:
    """What sessions of one file share."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        facts: Mapping[str, Any],
        tokenizer: Tokenizer | None,
        size: int,
        identity: Any,
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
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self.bytes)
        return self._vocabulary

    @property
    def template(self) -> ChatTemplate:
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
        """What the file's generation_config.json says of sampling."""
        try:
            given = json.loads(bytes(self.files.get("generation_config.json", b"{}")))
        except ValueError:
            return {}
        names = ["temperature", "top_k", "top_p", "min_p"] if given.get("do_sample") else []
        if names:
            given.setdefault("temperature", 1.0)
        return {name: given[name] for name in [*names, "repetition_penalty"] if given.get(name) is not None}


class Session:
    """A language model with a state of its own.

    >>> session = torchette.llm.Session("model.pte")
    >>> for piece in session.generate("Once upon a time", max_tokens=50):
    ...     print(piece.text, end="")

    Args:
        source: the path of a .pte file or its bytes, a compiled model, or a `Decoder`.
        tokenizer: the path of a tokenizer.json, SentencePiece or tiktoken file, where the file has none or another is meant.
        data_files: paths of .ptd files with weights.
        adapter: as `set_adapter` takes it.
        threads: how many threads a step uses; see `Program.load_method`.

    Raises:
        FormatError: the file is no language model; code "unknown-tokenizer": its tokenizer is not known.
    """

    _opened: Callable[[Any], Decoder] | None = None

    def __init__(
        self,
        source: Any,
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        data_files: Sequence[str | os.PathLike[str]] = (),
        adapter: str | os.PathLike[str] | None = None,
        threads: int | None = None,
    ) -> None:
        self._adapter = adapter
        files: dict[str, Any] = {}
        facts: dict[str, Any] = {}
        identity: Any = b""
        if not hasattr(source, "step"):
            if not isinstance(source, (str, os.PathLike, bytes)):
                source = bytes(source)
            source = source if isinstance(source, bytes) else Path(source)
            file = pte.read(source) if isinstance(source, bytes) else pte.load_file(source)
            files, identity = file.named(), file.buffer
            given = source
            facts["adapter"] = set(lora.shapes(files))

            def opened(adapter: Any) -> Decoder:
                with lora.file_for(adapter, files) as more:
                    program = Runtime.get().load_program(given, data_files=[*more, *data_files])
                    facts.update(_facts(program))
                    kind: Any = decoder_of(program.method_names) or _ProgramDecoder
                    try:
                        return kind(program, facts, threads)
                    except (TypeError, IndexError) as error:
                        raise FormatError(
                            f"the file's methods are not those of a language model: {error}"
                        ) from None

            self._opened = opened
            source = opened(adapter)
        self._decoder: Decoder = source
        known = Path(tokenizer).read_bytes() if tokenizer is not None else files.get("tokenizer.json")
        self._shared = _Shared(
            files,
            facts,
            None if known is None else Tokenizer(bytes(known)),
            self._decoder.vocab_size,
            identity,
        )
        self._begin()

    def _begin(self) -> None:
        self._tokens: list[int] = []
        self._cancelled = self._late_cancel = self._stepping = False
        self._lock = threading.Lock()
        self._generation: Generation | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Those whose keys and values it has; numbers beyond the vocabulary stand for what is no text."""
        return tuple(self._tokens)

    @property
    def max_context(self) -> int:
        """Tokens that it can have."""
        return self._decoder.max_context

    @property
    def vocab_size(self) -> int:
        """Tokens that there are."""
        return self._decoder.vocab_size

    @property
    def sees(self) -> bool:
        """Whether prompts may have images."""
        return hasattr(self._decoder, "placeholder")

    # --- text ---------------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        """The file's own. FormatError, code "unknown-tokenizer", if it has none."""
        if self._shared.tokenizer is None:
            raise FormatError(
                "the file has no tokenizer",
                hints=["Session(file, tokenizer='tokenizer.json')", "prompts may be lists of tokens"],
                code="unknown-tokenizer",
            )
        return self._shared.tokenizer

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Tokens of a text; with those that begin every text, if `special`."""
        return self.tokenizer.encode(text, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out; bytes that are no characters become U+FFFD."""
        return b"".join(self._shared.bytes[token] for token in self._checked(tokens)).decode(
            "utf-8", "replace"
        )

    def render(self, messages: Sequence[Mapping[str, Any]], **names: Any) -> str:
        """The prompt that the file's chat template makes of messages, each a role and a content: text, or parts as
        {"type": "text", "text": ...} and {"type": "image"}. `names` are what the template asks for beside them.

        Raises:
            FormatError: code "no-chat-template".
            InputError: the template refuses the messages.
        """
        image = getattr(self._decoder, "placeholder", -1)  # a number of what stands for an image
        return self._shared.template.render(
            messages, self.tokenizer.name(image) if image >= 0 else "", **names
        )

    # --- state --------------------------------------------------------------------------------------------------

    def rewind(self, count: int) -> None:
        """Keeps the first `count` tokens of the state."""
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(self._tokens):
            raise InputError(f"the session has {len(self._tokens)} tokens, it cannot go back to {count!r}")
        del self._tokens[count:]

    def set_adapter(self, adapter: str | os.PathLike[str] | None) -> None:
        """Goes on with a LoRA adapter, of a model that was exported with one: a .ptd file or peft's folder; None: without.
        The state has no tokens then. Other sessions stay as they are."""
        if self._opened is None:
            raise InputError("a session on a decoder takes no adapters")
        self._decoder, self._adapter = self._opened(adapter), adapter
        self._begin()

    def new(self) -> Session:
        """Another session on the same weights, without tokens."""
        other = object.__new__(Session)
        other._decoder, other._shared = self._decoder.new(), self._shared
        other._opened, other._adapter = self._opened, self._adapter
        other._begin()
        return other

    def fork(self) -> Session:
        """Another session on the same weights that goes on from here by itself."""
        other = self.new()
        state = self._decoder.state()
        if state:
            other._decoder.set_state(state)
            other._tokens = list(self._tokens)
        elif self._tokens:  # a file without names for its state: compute it again
            other._ingest(self._tokens)
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state to a file, whole or not at all."""
        state = {name: self._used(array, len(self._tokens)) for name, array in self._decoder.state().items()}
        kept = [(name, str(array.dtype), list(array.shape)) for name, array in state.items()]
        head = json.dumps({"model": self._model(), "tokens": self._tokens, "state": kept}).encode()
        with replacing(path) as file:
            file.write(_MAGIC + len(head).to_bytes(8, "little") + head)
            for array in state.values():
                file.write(np.ascontiguousarray(array).tobytes())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Takes the state from such a file. FormatError, code "bad-state", if it is none, or another model's; the session
        then stays as it was."""
        whole = self._decoder.state()
        try:
            data = memoryview(Path(path).read_bytes())
            start = len(_MAGIC) + 8
            if data[: len(_MAGIC)] != _MAGIC:
                raise ValueError("it has another beginning")
            end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
            head = json.loads(bytes(data[start:end]))
            if head["model"] != self._model():
                raise ValueError("it is another model's")
            tokens = self._checked(head["tokens"], hasattr(self._decoder, "place"))
            if len(tokens) > self.max_context:
                raise ValueError("it has more tokens than the context")
            expected = [
                [name, str(a.dtype), list(self._used(a, len(tokens)).shape)] for name, a in whole.items()
            ]
            if head["state"] != expected:
                raise ValueError("its state has another form")
            for array in whole.values():
                part = self._used(array, len(tokens))
                following = end + part.nbytes
                part[...] = np.frombuffer(data[end:following], array.dtype).reshape(part.shape)
                end = following
            if end != len(data):
                raise ValueError("it goes on after its end")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError(
                f"{os.fspath(path)} is no state of this model: {error}", code="bad-state"
            ) from None
        if whole:
            self._decoder.set_state(whole)
            self._tokens = tokens
        else:
            self._tokens = []
            self._ingest(tokens)

    def _used(self, array: np.ndarray, count: int) -> np.ndarray:
        """The part of a state that tokens use, where it has a row for each position."""
        return array[:count] if array.ndim and array.shape[0] == self.max_context else array

    def _model(self) -> str:
        facts = (
            self.vocab_size,
            self.max_context,
            xxh64(self._shared.identity),
            *lora.identity(self._adapter),
        )
        return "-".join(map(str, facts))

    # --- steps --------------------------------------------------------------------------------------------------

    def _checked(self, tokens: Any, placed: bool = False) -> list[int]:
        """Tokens of the vocabulary; `placed`: or what stands beyond it for what is none."""
        found, end = [], 1 << 62 if placed else self.vocab_size
        for token in tokens:
            if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or not 0 <= token < end:
                raise InputError(f"there is no token {token!r}, they are 0 to {self.vocab_size - 1}")
            found.append(int(token))
        return found

    def _step(self, tokens: Sequence[int]) -> np.ndarray:
        """One step after the tokens that there are."""
        while True:
            with self._lock:
                if self._cancelled:
                    raise _Cancelled
                self._stepping = True
            try:
                logits = self._decoder.step(tokens, len(self._tokens))
            except ExecutionError:
                with self._lock:
                    late, self._late_cancel = self._late_cancel, False
                    if late and self._cancelled:
                        raise _Cancelled from None
                if late:  # it was meant for an answer that had ended before
                    continue
                raise
            finally:
                self._stepping = False
            self._tokens += tokens
            return logits

    def _rows(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits after each of the tokens."""
        rows: list[np.ndarray] = []
        while len(rows) < len(tokens):
            part = tokens[len(rows) : len(rows) + self._decoder.max_tokens]
            logits = self._step(part)
            if len(logits) < len(part):  # it gives the last ones alone
                self.rewind(len(self._tokens) - len(part))
                rows += [self._step([token])[-1] for token in part]
            else:
                rows += list(logits)
        return np.stack(rows)

    def _ingest(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits after these tokens, of which those are kept that the session has already."""
        kept = min(common(self._tokens, tokens), len(tokens) - 1)
        self.rewind(kept)
        until = getattr(self._decoder, "until", lambda tokens, start: start + self._decoder.max_tokens)
        while (start := len(self._tokens)) < len(tokens):
            logits = self._step(tokens[start : until(tokens, start)])
        return logits[-1]

    def cancel(self) -> None:
        """Ends the answer that is being generated, from any thread; its `finish_reason` is then "cancelled"."""
        with self._lock:
            self._cancelled = True
            if self._stepping:
                self._late_cancel = True
                self._decoder.cancel()

    # --- answers ------------------------------------------------------------------------------------------------

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: Any = "auto",
        template: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Generation:
        """The answer to a conversation. Parts of messages may be images: {"type": "image", "image": array}.

        Args:
            tools: functions that the model may call, in OpenAI's form; `calls_in` finds the calls in an answer.
            tool_choice: "auto"; "required": the answer is a call; or {"function": {"name": ...}}: of this function.
            template: what the chat template asks for beside messages and tools, such as {"enable_thinking": False}.
            options: as of `generate`.
        """
        asked = self._asked(messages, tools, tool_choice, template)
        if twice := asked.keys() & options.keys():
            raise InputError(f"{twice.pop()} is what the messages, or tools that must be called, say already")
        return self.generate(**asked, **options)

    def _asked(self, messages: Any, tools: Any, tool_choice: Any, template: Any) -> dict[str, Any]:
        """What a conversation is for `generate`."""
        names, asked = dict(template or {}), dict[str, Any]()
        if tools:
            source = self._shared.template.source
            if "tools" not in source:
                raise InputError("the chat template of this model takes no tools")
            if grammar := grammar_of_calls(tools, tool_choice, source):
                asked["grammar"] = grammar
            names["tools"] = list(tools)
        asked["prompt"] = self.encode(self.render(messages, **names), special=False)
        if images := images_of(messages):
            asked["images"] = images
        return asked

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        images: Sequence[Any] = (),
        audio: Any = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        grammar: str | Grammar | None = None,
        schema: Any = None,
        logprobs: int | None = None,
        on_full: str = "stop",
        keep: int | None = None,
        ignore_end: bool = False,
        draft: Session | None = None,
        draft_tokens: int = 4,
        **sampling: Any,
    ) -> Generation:
        """What follows a prompt, as an iterator of `Piece`; nothing is computed before it is asked for.

        Args:
            prompt: text or tokens. What it shares with `tokens` is not computed again.
            images: arrays, in the order of their places in the prompt; see `torchette.llm.media.ImageDecoder`.
            audio: what a model of speech hears: samples, or the features that it was made for. The prompt then is what the
                answer begins with.
            max_tokens: how many at most; by default until the model ends, or the context is full.
            stop: texts that end the answer; they are not part of it.
            seed: of what is drawn; the same seed gives the same answer.
            grammar: what the answer must be, in GBNF; see `Grammar`.
            schema: a JSON schema, as a dict, that the answer must fit; {} for any JSON.
            logprobs: report log-probabilities, of the token and so many of the likeliest.
            on_full: when the context is full, "stop", raise an "error", or "slide": forget the first half of what
                follows the first `keep` tokens, compute the rest again, and go on.
            keep: by default the token that begins every text.
            ignore_end: go on after the tokens that end a text.
            draft: a session of a small model with the same tokens, which proposes `draft_tokens` at a time. The answer is of
                the same distribution; greedy, it is the same.
            sampling: the fields of `Sampling`; what is not given is as the file's generation_config.json says.

        Raises:
            InputError: an option is out of range; code "prompt-too-long", "bad-grammar" or "bad-schema".
        """
        shared, place = self._shared, getattr(self._decoder, "place", None)
        tokens = self.encode(prompt, audio is None) if isinstance(prompt, str) else self._checked(prompt)
        if place is not None:
            tokens = place(tokens, images, audio)
        elif len(images) or audio is not None:
            raise InputError("this model reads text alone, no images and no audio")
        if not tokens:
            raise InputError("the prompt has no tokens")
        if len(tokens) > self.max_context:
            raise InputError(
                f"the prompt has {len(tokens)} tokens, the context {self.max_context}",
                hints=["shorten it, or export with a longer max_context"],
                code="prompt-too-long",
            )
        for name, value, least in (
            ("max_tokens", max_tokens, 1),
            ("logprobs", logprobs, 0),
            ("keep", keep, 0),
            ("draft_tokens", draft_tokens, 1),
        ):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InputError(f"{name} is {value!r}, it must be a whole number from {least}")
        stops = [stop] if isinstance(stop, str) else list(stop)
        if not all(isinstance(s, str) and s for s in stops):
            raise InputError(f"stop is {stop!r}, it must be texts that are not empty")
        if on_full not in ("stop", "slide", "error"):
            raise InputError(f"on_full is {on_full!r}, it must be 'stop', 'slide' or 'error'")
        if draft is not None and (draft is self or draft.vocab_size != self.vocab_size):
            raise InputError("draft must be a session of its own, of a model with the same tokens")
        try:
            chosen = Sampling(**{**shared.defaults(), **sampling})
        except TypeError as error:
            raise InputTypeError(f"generate: {error}") from None
        if any(not 0 <= token < self.vocab_size for token in chosen.logit_bias):
            raise InputError(f"logit_bias has a token that is not there, they are 0 to {self.vocab_size - 1}")
        if keep is None:
            keep = int(tokens[0] == shared.begin or tokens[0] >= self.vocab_size)
        if keep >= self.max_context - 1:
            raise InputError(f"keep is {keep}, and the context {self.max_context}: nothing could go")
        options = _Options(
            tokens, max_tokens, stops, seeded(seed), self._matcher(grammar, schema), logprobs, on_full, keep,
            () if ignore_end else shared.ends, draft, draft_tokens, chosen,
        )  # fmt: skip
        if self._generation is not None:
            self._generation.close()
        self._generation, self._cancelled = Generation(self, options), False
        return self._generation

    def _matcher(self, grammar: str | Grammar | None, schema: Any) -> Matcher | None:
        if schema is not None:
            if grammar is not None:
                raise InputError("grammar and schema are two ways to say one thing: give one")
            grammar = grammar_of(schema)
        if grammar is None:
            return None
        kept = self._shared.grammars
        if not isinstance(grammar, Grammar):
            text = grammar
            with self._shared.lock:
                made = kept.get(text) if isinstance(text, str) else None
            grammar = made or Grammar(text)
            with self._shared.lock:
                if len(kept) >= 16:
                    kept.pop(next(iter(kept)))
                kept[text] = grammar
        return Matcher(grammar, self._shared.vocabulary)


class _Options(NamedTuple):
    prompt: list[int]
    max_tokens: int | None
    stops: list[str]
    random: Random
    matcher: Matcher | None
    logprobs: int | None
    on_full: str
    keep: int
    ends: tuple[int, ...]
    draft: Session | None
    draft_tokens: int
    sampling: Sampling


class Generation:
    """An answer while it comes: an iterator of `Piece`. `tokens`, `text` and `finish_reason` say how far it is."""

    def __init__(self, session: Session, options: _Options) -> None:
        self._session, self._options = session, options
        self.tokens: list[int] = []
        """The answer's; what ends a text is not one."""
        self.text = ""
        self.finish_reason: str | None = None
        """"stop": the model has ended, a stop string has come, or the grammar is complete; "length": `max_tokens` or the
        context; "cancelled"; None while it goes on."""
        self._reused = self._drafted = self._accepted = 0
        self._times: list[float] = []
        self._pieces = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """Ends it here."""
        self._pieces.close()
        self.finish_reason = self.finish_reason or "cancelled"

    def run(self) -> Generation:
        """Goes on to the end."""
        for _ in self:
            pass
        return self

    @property
    def statistics(self) -> Statistics:
        """What it has cost so far."""
        times = self._times
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        first = times[1] - times[0] if len(times) > 1 else 0.0
        rate = (len(times) - 2) / (times[-1] - times[1]) if len(times) > 2 and times[-1] > times[1] else 0.0
        return Statistics(
            len(self._options.prompt), self._reused, len(self.tokens), first, rate,
            self._session._decoder.memory, peak, self._drafted, self._accepted,
        )  # fmt: skip

    def _run(self) -> Generator[Piece, None, None]:
        session, options = self._session, self._options
        stream = TextStream(options.stops)
        self._times.append(time.perf_counter())
        try:
            for token, row in self._chosen():
                self._times.append(time.perf_counter())
                if token in options.ends:
                    self.finish_reason = "stop"
                    break
                self.tokens.append(token)
                text, stopped = stream.add(session._shared.bytes[token])
                self.text += text
                if stopped:
                    self.finish_reason = "stop"
                elif len(self.tokens) == options.max_tokens:
                    self.finish_reason = "length"
                yield Piece(text, token, *self._logprobs(row, token))
                if self.finish_reason:
                    break
            else:
                self.finish_reason = self.finish_reason or "length"
        except _Cancelled:
            self.finish_reason = "cancelled"
        text, _ = stream.add(b"", final=True)
        self.text += text
        if text:
            yield Piece(text, None)

    def _logprobs(self, row: np.ndarray, token: int) -> tuple[Any, ...]:
        if self._options.logprobs is None:
            return ()
        logs, count = log_softmax(row), min(self._options.logprobs, len(row))
        likeliest = np.argpartition(-logs, count - 1)[:count] if count else []
        top = sorted(((int(i), float(logs[i])) for i in likeliest), key=lambda pair: -pair[1])
        return float(logs[token]), tuple(top)

    def _choice(
        self, session: Session, row: np.ndarray, answer: list[int], matcher: Matcher | None
    ) -> np.ndarray | int:
        """The distribution of the next token, or the token itself where there is no choice."""
        options = self._options
        allowed = None if matcher is None else matcher.allowed(session._shared.ends)
        said = [token for token in options.prompt if token < session.vocab_size]
        logits = adjust(row, options.sampling, said, answer, allowed)
        return (
            probabilities(logits, options.sampling) if options.sampling.temperature else int(logits.argmax())
        )

    def _chosen(self) -> Iterator[tuple[int, np.ndarray]]:
        """Tokens with the logits that they were chosen from, without end."""
        session, options = self._session, self._options
        matcher, answer, random = options.matcher, list[int](), options.random
        self._reused = min(common(session._tokens, options.prompt), len(options.prompt) - 1)
        row = session._ingest(options.prompt)
        token: int | None = None

        def ends_with(said: int) -> bool:
            """Adds a token to the answer. Whether the grammar is complete with it."""
            nonlocal matcher
            answer.append(said)
            if matcher is not None and said not in session._shared.ends:
                matcher = matcher.after(said)
                if matcher.is_done:
                    self.finish_reason = "stop"
                    return True
            return False

        while True:
            if token is None:
                choice = self._choice(session, row, answer, matcher)
                token = choice if isinstance(choice, int) else draw(choice, random)
            yield token, row
            if ends_with(token):
                return
            if len(session._tokens) >= session.max_context and not self._make_room():
                return
            guesses, chances = self._guesses(token, answer, matcher)
            rows = session._rows([token, *guesses]) if guesses else [session._step([token])[-1]]
            token, at, known = None, 0, len(session._tokens) - len(guesses)
            try:
                for guess, chance in zip(guesses, chances):
                    choice = self._choice(session, rows[at], answer, matcher)
                    token = _judged(choice, chance, guess, random)
                    if token is not None:
                        break
                    self._accepted += 1
                    yield guess, rows[at]
                    at += 1
                    if ends_with(guess):
                        return
            finally:  # also where the answer is left here: the state has no guess that was not said
                del session._tokens[known + at :]
            row = rows[at]

    def _guesses(self, token: int, answer: list[int], matcher: Matcher | None) -> tuple[list[int], list[Any]]:
        """What the draft model would say next, and what it chose from."""
        options, session, draft = self._options, self._session, self._options.draft
        guesses: list[int] = []
        chances: list[Any] = []
        if draft is None:
            return guesses, chances
        tokens = [*session._tokens, token]
        room = min(session.max_context, draft.max_context) - len(tokens)
        if options.max_tokens is not None:
            room = min(room, options.max_tokens - len(answer) - 1)
        draft._cancelled = False
        while len(guesses) < min(options.draft_tokens, room):
            row = draft._ingest([*tokens, *guesses])
            choice = self._choice(session, row, [*answer, *guesses], matcher)
            guesses.append(choice if isinstance(choice, int) else draw(choice, options.random))
            chances.append(choice)
            if guesses[-1] in session._shared.ends:
                break
            if matcher is not None:
                matcher = matcher.after(guesses[-1])
                if matcher.is_done:
                    break
        self._drafted += len(guesses)
        return guesses, chances

    def _make_room(self) -> bool:
        """Makes room in a context that is full; False where the answer ends instead."""
        session, options = self._session, self._options
        if options.on_full == "error":
            raise ExecutionError(
                f"the context of {session.max_context} tokens is full",
                hints=["on_full='slide' forgets the oldest, on_full='stop' ends the answer"],
                code="context-full",
            )
        if options.on_full == "stop":
            return False
        tail = session._tokens[options.keep :]
        session._ingest(session._tokens[: options.keep] + tail[(len(tail) + 1) // 2 :])
        return True


def _judged(choice: np.ndarray | int, chance: np.ndarray | int, guess: int, random: Random) -> int | None:
    """None where the guess, drawn from `chance`, stands as one drawn from `choice`; else what is to be said instead."""
    if isinstance(choice, int):
        return None if choice == guess else choice
    if random.random() * chance[guess] < choice[guess]:  # type: ignore[index]
        return None
    rest = np.maximum(choice - chance, 0)
    return draw(rest if rest.any() else choice, random)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:count]) != np.asarray(other[:count]))
    return int(differ[0]) if len(differ) else count


def _facts(program: Program) -> dict[str, Any]:
    """What methods return that take nothing and give constants, by name."""
    found: dict[str, Any] = {}
    for name in program.method_names:
        meta = program.metadata(name)
        if meta.num_inputs() == 0 and meta.num_instructions == 0:
            values = program.load_method(name).execute([])
            found[name] = values[0] if len(values) == 1 else values
    return found
