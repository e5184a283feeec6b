# SPDX-License-Identifier: BSD-3-Clause
# In: a program of `torchette.llm.export`, or any program with ExecuTorch's metadata of language models, and a prompt. Out: a
# stream of tokens and text.
"""`Session`: conversations with a language model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchette.errors import FormatError, InputError, InputTypeError
from torchette.files import replacing
from torchette.format import pte
from torchette.llm.exporting import lora
from torchette.llm.generation import Generation, Options, Piece, Statistics, check_counts, checked_stops
from torchette.llm.grammar import Grammar
from torchette.llm.media import decoder_of
from torchette.llm.messages import grammar_of_calls, images_of
from torchette.llm.sampling import Sampling, seeded
from torchette.llm.text import Tokenizer
from torchette.llm.token_state import Decoder, ProgramDecoder, SharedModel, TokenState, constants_of
from torchette.runtime import Runtime, xxh64

__all__ = ["Decoder", "Generation", "Piece", "Session", "Statistics"]

_MAGIC = b"torchette session 1\n"


class Session(TokenState):
    """A language model with its own state.

    >>> session = torchette.llm.Session("model.pte")
    >>> for piece in session.generate("Once upon a time", max_tokens=50):
    ...     print(piece.text, end="")

    Args:
        source: the path of a .pte file or its bytes, a compiled model, or a `Decoder`.
        tokenizer: the path of a tokenizer.json, SentencePiece or tiktoken file; by default the program's.
        data_files: paths of .ptd files with weights.
        adapter: as for `set_adapter`.
        threads: see `Program.load_method`.

    Raises:
        FormatError: the file is not a language model; code "unknown-tokenizer": its tokenizer is not supported.
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

            def opened(adapter: str | os.PathLike[str] | None) -> Decoder:
                with lora.file_for(adapter, files) as more:
                    program = Runtime.get().load_program(given, data_files=[*more, *data_files])
                    facts.update(constants_of(program))
                    kind: Any = decoder_of(program.method_names) or ProgramDecoder
                    try:
                        result: Decoder = kind(program, facts, threads)
                        return result
                    except (TypeError, IndexError) as error:
                        raise FormatError(
                            f"the file's methods are not those of a language model: {error}"
                        ) from None

            self._opened = opened
            source = opened(adapter)
        self._decoder: Decoder = source
        known = Path(tokenizer).read_bytes() if tokenizer is not None else files.get("tokenizer.json")
        self._shared = SharedModel(
            files,
            facts,
            None if known is None else Tokenizer(bytes(known)),
            self._decoder.vocab_size,
            identity,
        )
        self._begin()

    def _begin(self) -> None:
        super()._begin()
        self._generation: Generation | None = None

    @property
    def sees(self) -> bool:
        """Whether prompts may have images."""
        return hasattr(self._decoder, "placeholder")

    # --- text ---------------------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the file. Raises FormatError, code "unknown-tokenizer", if the file has none."""
        if self._shared.tokenizer is None:
            raise FormatError(
                "the file has no tokenizer",
                hints=["Session(file, tokenizer='tokenizer.json')", "prompts may be lists of tokens"],
                code="unknown-tokenizer",
            )
        return self._shared.tokenizer

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Returns the tokens of a text, with the tokens that begin every text if `special`."""
        return self.tokenizer.encode(text, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens without special tokens; invalid bytes become U+FFFD."""
        return b"".join(self._shared.bytes[token] for token in self._checked(tokens)).decode(
            "utf-8", "replace"
        )

    def render(self, messages: Sequence[Mapping[str, Any]], **names: object) -> str:
        """Returns the prompt that the chat template of the file renders from messages, each a role and a content: text, or
        parts as {"type": "text", "text": ...} and {"type": "image"}. `names` are other variables of the template.

        Raises:
            FormatError: code "no-chat-template".
            InputError: the template rejects the messages.
        """
        image = getattr(self._decoder, "placeholder", -1)  # the token of an image
        return self._shared.template.render(
            messages, self.tokenizer.name(image) if image >= 0 else "", **names
        )

    # --- state --------------------------------------------------------------------------------------------------

    def set_adapter(self, adapter: str | os.PathLike[str] | None) -> None:
        """Uses a LoRA adapter, a .ptd file or a folder of peft, in a model that was exported with one; None: none. Removes
        all tokens. Other sessions do not change."""
        if self._opened is None:
            raise InputError("a session on a decoder takes no adapters")
        self._decoder, self._adapter = self._opened(adapter), adapter
        self._begin()

    def new(self) -> Session:
        """Returns a session on the same weights, without tokens."""
        other = object.__new__(Session)
        other._decoder, other._shared = self._decoder.new(), self._shared
        other._opened, other._adapter = self._opened, self._adapter
        other._begin()
        return other

    def fork(self) -> Session:
        """Returns a session on the same weights that continues independently from the same tokens."""
        other = self.new()
        state = self._decoder.state()
        if state:
            other._decoder.set_state(state)
            other._tokens = list(self._tokens)
        elif self._tokens:  # the state of a program without names is computed again
            other._ingest(self._tokens)
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state to a file, atomically."""
        state = {name: self._used(array, len(self._tokens)) for name, array in self._decoder.state().items()}
        kept = [(name, str(array.dtype), list(array.shape)) for name, array in state.items()]
        head = json.dumps({"model": self._model(), "tokens": self._tokens, "state": kept}).encode()
        with replacing(path) as file:
            file.write(_MAGIC + len(head).to_bytes(8, "little") + head)
            for array in state.values():
                file.write(np.ascontiguousarray(array).tobytes())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads the state from a file of `save`. Raises FormatError, code "bad-state", if the file is not a state of this
        model; the session then does not change."""
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
        """The used part of a state; all of it if it has no row for each position."""
        return array[:count] if array.ndim and array.shape[0] == self.max_context else array

    def _model(self) -> str:
        facts = (
            self.vocab_size,
            self.max_context,
            xxh64(self._shared.identity),
            *lora.identity(self._adapter),
        )
        return "-".join(map(str, facts))

    # --- answers ------------------------------------------------------------------------------------------------

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: object = "auto",
        template: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Generation:
        """Generates the answer to a conversation. Parts of messages may be images: {"type": "image", "image": array}.

        Args:
            tools: functions that the model may call, in OpenAI's form; `calls_in` finds the calls in an answer.
            tool_choice: "auto"; "required": the answer is a call; or {"function": {"name": ...}}: of this function.
            template: other variables of the chat template, such as {"enable_thinking": False}.
            options: as for `generate`.
        """
        asked = self._asked(messages, tools, tool_choice, template)
        if twice := asked.keys() & options.keys():
            raise InputError(f"{twice.pop()} is what the messages, or tools that must be called, say already")
        return self.generate(**asked, **options)

    def _asked(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        tool_choice: object,
        template: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The arguments of `generate` for a conversation."""
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
        audio: object = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        grammar: str | Grammar | None = None,
        schema: object = None,
        logprobs: int | None = None,
        on_full: str = "stop",
        keep: int | None = None,
        ignore_end: bool = False,
        draft: Session | None = None,
        draft_tokens: int = 4,
        **sampling: object,
    ) -> Generation:
        """Generates an answer to a prompt, as a lazy iterator of `Piece`.

        Args:
            prompt: text or tokens. Tokens that are equal to the beginning of `tokens` are not computed again.
            images: arrays in the order of the prompt; see `torchette.llm.media.ImageDecoder`.
            audio: samples or features for a speech model. The prompt then is the beginning of the answer.
            max_tokens: the maximum of new tokens; by default until the model ends, or the context is full.
            stop: texts that end the answer and are not in it.
            seed: of the random draws; the same seed, the same answer.
            grammar: a grammar in GBNF; see `Grammar`.
            schema: a JSON schema as a dict; {} for any JSON.
            logprobs: report log-probabilities of the token and this count of the most probable ones.
            on_full: for a full context: "stop", raise an "error", or "slide": drop the first half of the tokens after
                `keep`, compute the rest again, and continue.
            keep: by default the token that begins every text.
            ignore_end: continue after the tokens that end a text.
            draft: a session of a small model with the same tokens, which proposes `draft_tokens` per step. Answers keep
                their distribution.
            sampling: the fields of `Sampling`; the defaults are those of the file's generation_config.json.

        Raises:
            InputError: an option is out of range; code "prompt-too-long", "bad-grammar" or "bad-schema".
        """
        tokens = self._placed(prompt, images, audio)
        check_counts(
            max_tokens=(max_tokens, 1), logprobs=(logprobs, 0), keep=(keep, 0), draft_tokens=(draft_tokens, 1)
        )
        stops = checked_stops(stop)
        if on_full not in ("stop", "slide", "error"):
            raise InputError(f"on_full is {on_full!r}, it must be 'stop', 'slide' or 'error'")
        if draft is not None and (draft is self or draft.vocab_size != self.vocab_size):
            raise InputError("draft must be a session of its own, of a model with the same tokens")
        chosen = self._sampling(sampling)
        keep = self._num_kept(keep, tokens)
        options = Options(
            tokens, max_tokens, stops, seeded(seed), self._shared.matcher(grammar, schema), logprobs, on_full, keep,
            () if ignore_end else self._shared.ends, draft, draft_tokens, chosen,
        )  # fmt: skip
        if self._generation is not None:
            self._generation.close()
        self._generation, self._cancelled = Generation(self, options), False
        return self._generation

    def _placed(self, prompt: str | Sequence[int], images: Sequence[Any], audio: object) -> list[int]:
        """The tokens of a prompt, with the images and the sound in it."""
        place = getattr(self._decoder, "place", None)
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
        return tokens

    def _sampling(self, given: Mapping[str, Any]) -> Sampling:
        try:
            chosen = Sampling(**{**self._shared.defaults(), **given})
        except TypeError as error:
            raise InputTypeError(f"generate: {error}") from None
        if any(not 0 <= token < self.vocab_size for token in chosen.logit_bias):
            raise InputError(f"logit_bias has a token that is not there, they are 0 to {self.vocab_size - 1}")
        return chosen

    def _num_kept(self, keep: int | None, tokens: Sequence[int]) -> int:
        """The number of first tokens that a sliding context keeps."""
        if keep is None:
            keep = int(tokens[0] == self._shared.begin or tokens[0] >= self.vocab_size)
        if keep >= self.max_context - 1:
            raise InputError(f"keep is {keep}, and the context {self.max_context}: nothing could go")
        return keep
