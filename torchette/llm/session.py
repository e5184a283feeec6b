# SPDX-License-Identifier: BSD-3-Clause
# In: a program of `torchette.llm.export`, or any program with ExecuTorch's metadata of language models, and a prompt. Out: a
# stream of tokens and text. The engine is C++ (torchette/llm/engine); this module checks arguments and raises its errors.
"""`Session`: conversations with a language model."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from torchette.errors import (
    ExecutionError,
    FormatError,
    InputError,
    InputTypeError,
    TorchetteError,
    not_copyable,
)
from torchette.files import replacing
from torchette.format import pte
from torchette.llm.exporting import lora
from torchette.llm.generation import Generation, Piece, Statistics
from torchette.llm.grammar import Grammar, grammar_of
from torchette.llm.messages import images_of
from torchette.llm.options import as_json, checked, described, find
from torchette.llm.shared_model import SharedModel
from torchette.llm.text import Tokenizer
from torchette.runtime import Runtime, native

__all__ = ["Generation", "Piece", "Session", "Statistics"]


@contextmanager
def _engine_errors(kind: type[TorchetteError], lead: str = "", code: str | None = None) -> Iterator[None]:
    """Raises errors of the engine as `kind`."""
    try:
        yield
    except native.module().Fault as fault:
        _, number, text, _ = fault.args
        message = text or f"the engine returns error {number}"
        if number == native.INVALID_STATE and "another thread" in text:
            raise ExecutionError(
                "another thread uses this session",
                hints=["session.fork() or session.new() creates a session for each thread"],
                code="session-busy",
            ) from None
        if "no token can be chosen" in message:
            raise ExecutionError(message, code="no-token") from None
        if number == native.OUT_OF_RESOURCES and kind is InputError:
            hint = "shorten it, or export with a longer max_context"
            raise InputError(message, hints=[hint], code="prompt-too-long") from None
        raise kind(lead + message, code=code) from None


class Session:
    """A language model with its own state. One thread at a time may use a session, except `cancel`.

    >>> session = torchette.llm.Session("model.pte")
    >>> for piece in session.generate("Once upon a time", max_tokens=50):
    ...     print(piece.text, end="")

    Args:
        source: the path of a .pte file or its bytes, a compiled model, or a `torchette.llm.decoder.Decoder`.
        tokenizer: the path of a tokenizer.json, SentencePiece or tiktoken file; by default that of the program.
        data_files: paths of .ptd files with weights.
        adapter: as for `set_adapter`.
        threads: see `Program.load_method`.

    Raises:
        FormatError: the file is not a language model; code "unknown-tokenizer": its tokenizer is not supported.
    """

    def __init__(
        self,
        source: Any,
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        data_files: Sequence[str | os.PathLike[str]] = (),
        adapter: str | os.PathLike[str] | None = None,
        threads: int | None = None,
    ) -> None:
        engine = native.module().llm
        has_decoder = hasattr(source, "step")
        if has_decoder:
            files = getattr(source, "named_data", {})
        else:
            if not isinstance(source, (str, os.PathLike, bytes)):
                source = bytes(source)
            source = source if isinstance(source, bytes) else Path(source)
            files = (pte.read(source) if isinstance(source, bytes) else pte.load_file(source)).named()
        tokenizer_data = (
            Path(tokenizer).read_bytes() if tokenizer is not None else files.get("tokenizer.json")
        )
        session_tokenizer = None if tokenizer_data is None else Tokenizer(bytes(tokenizer_data))
        if has_decoder:
            begin, ends = getattr(source, "begin", -1), list(getattr(source, "ends", ()))
            self._runner = engine.Runner(
                source, session_tokenizer and session_tokenizer.native, dict(files), begin, ends
            )
        else:
            program = Runtime.get().load_program(source, data_files=data_files)
            with _engine_errors(FormatError, "the file's methods are not those of a language model: "):
                self._runner = engine.Runner(
                    program._program, session_tokenizer and session_tokenizer.native, threads or 0
                )
        self._shared = SharedModel(files, session_tokenizer, self._runner)
        if has_decoder and hasattr(source, "place"):
            self._shared.reads, self._shared.image_placeholder = "images", source.placeholder
            self._shared.place = source.place
        self._has_decoder = has_decoder
        self._generation: Generation | None = None
        if adapter is not None:
            self.set_adapter(adapter)

    def __reduce__(self) -> Any:
        raise not_copyable(
            "a session", "session.fork() makes another one; session.save(path) writes its state"
        )

    @property
    def sees(self) -> bool:
        """Whether prompts may have images."""
        return self._shared.reads == "images"

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens in the KV cache. Tokens beyond the vocabulary represent images and audio."""
        with _engine_errors(ExecutionError):
            tokens: tuple[int, ...] = self._runner.tokens
        return tokens

    @property
    def max_context(self) -> int:
        """The maximum number of tokens of the state."""
        return int(self._runner.max_context)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary."""
        return int(self._runner.vocab_size)

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
        """Returns the tokens of a text.

        Args:
            text: any text without half surrogate pairs.
            special: whether to add the tokens that begin every text.

        Raises:
            FormatError: the file has no tokenizer.
            InputError: the text is invalid, or too long for a pattern of the tokenizer.
        """
        return self.tokenizer.encode(text, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without special tokens. Invalid bytes become U+FFFD.

        Args:
            tokens: integers from 0 to `vocab_size` - 1.

        Raises:
            InputError: a token is not in the vocabulary.
        """
        return b"".join(self._shared.bytes[token] for token in self._checked(tokens)).decode(
            "utf-8", "replace"
        )

    def render(self, messages: Sequence[Mapping[str, Any]], **names: object) -> str:
        """Returns the prompt that the chat template of the file renders.

        Args:
            messages: each has a role and a content: a text, or a list of parts {"type": "text", "text": ...} and
                {"type": "image"}.
            names: other variables of the template.

        Raises:
            FormatError: the file has no chat template (code "no-chat-template").
            InputError: the template rejects the messages.
        """
        return self._shared.template.render(messages, self._image_text, **names)

    @property
    def _image_text(self) -> str:
        """The text of an image in templates without parts."""
        image = self._shared.image_placeholder
        return self.tokenizer.name(image) if image >= 0 else ""

    # --- state --------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Ends the current answer."""
        if self._generation is not None:
            self._generation.close()

    def rewind(self, count: int) -> None:
        """Keeps the first tokens of the state, and ends the current answer.

        Args:
            count: the number of tokens to keep.

        Raises:
            InputError: the session has fewer tokens.
        """
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(self.tokens):
            raise InputError(f"the session has {len(self.tokens)} tokens; it cannot keep the first {count!r}")
        self._end()
        self._rewind(count)

    def _rewind(self, count: int) -> None:
        with _engine_errors(ExecutionError):
            self._runner.rewind(count)

    def cancel(self) -> None:
        """Ends the current answer, from any thread. Its `finish_reason` is then "cancelled"."""
        self._runner.cancel()

    def set_adapter(self, adapter: str | os.PathLike[str] | None) -> None:
        """Uses a LoRA adapter and removes all tokens. Other sessions do not change.

        Args:
            adapter: a .ptd file, or a folder of peft; None for no adapter.

        Raises:
            InputError: the model was exported without adapters, or the adapter does not fit.
            FormatError: a file is damaged.
        """
        if self._has_decoder:
            raise InputError("a session on a decoder does not support adapters")
        self._end()
        if adapter is None:
            with _engine_errors(FormatError):
                self._runner.set_adapter("")
            return
        with (
            lora.file_for(adapter, self._shared.files) as paths,
            _engine_errors(FormatError, "the adapter: "),
        ):
            self._runner.set_adapter(os.fspath(paths[0]))

    def new(self) -> Session:
        """Returns a session on the same weights, without tokens."""
        return self._copy(with_state=False)

    def fork(self) -> Session:
        """Returns a session on the same weights that continues independently from the same tokens."""
        return self._copy(with_state=True)

    def _copy(self, with_state: bool) -> Session:
        copy = object.__new__(Session)
        with _engine_errors(ExecutionError):
            copy._runner = self._runner.fork(with_state)
        copy._shared, copy._has_decoder, copy._generation = self._shared, self._has_decoder, None
        return copy

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state to a file, atomically; `load` reads it.

        Args:
            path: the file.
        """
        with _engine_errors(ExecutionError):
            state = self._runner.state()
        with replacing(path) as file:
            file.write(state)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads the state from a file that `save` wrote.

        Args:
            path: the file.

        Raises:
            FormatError: the file is not a state of this model (code "bad-state"); the session does not change.
        """
        state = Path(path).read_bytes()
        self._end()
        with _engine_errors(FormatError, f"{os.fspath(path)}: ", code="bad-state"):
            self._runner.set_state(state)

    def _checked(self, tokens: Iterable[Any]) -> list[int]:
        """Returns tokens as a list of int. Raises InputError if one is not in the vocabulary."""
        checked = []
        for token in tokens:
            if (
                isinstance(token, bool)
                or not isinstance(token, (int, np.integer))
                or not 0 <= token < self.vocab_size
            ):
                raise InputError(f"{token!r} is not a token; tokens are 0 to {self.vocab_size - 1}")
            checked.append(int(token))
        return checked

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
        """Generates the answer to a conversation. A part of a message may be an image: {"type": "image", "image": array}.

        Args:
            messages: the complete conversation, as for `render`. Tokens of earlier turns are not computed again.
            tools: functions that the model may call, in OpenAI's form; `calls_in` finds the calls in an answer.
            tool_choice: "auto"; "required": the answer is a call; {"function": {"name": ...}}: the answer is a call of this
                function; or OpenAI's allowed_tools: the model receives only these tools.
            template: other variables of the chat template, such as {"enable_thinking": False}.
            options: as for `generate`.

        Returns:
            The answer: an iterator of `Piece`.

        Raises:
            FormatError: the file has no chat template.
            InputError: the messages, the tools or an option are invalid; see also `generate`.
        """
        arguments = self._chat_arguments(messages, tools, tool_choice, template)
        if conflicts := arguments.keys() & options.keys():
            raise InputError(
                f"{conflicts.pop()} conflicts with the messages, or with tools that must be called: remove it"
            )
        return self.generate(**arguments, **options)

    def _chat_arguments(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        tool_choice: object,
        template: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Returns the arguments of `generate` for a conversation."""
        request = {"tools": tools or (), "tool_choice": tool_choice, "template": template}
        chat, arguments = self._shared.template, dict[str, Any]()
        if grammar := chat.grammar(request):
            arguments["grammar"] = grammar
        prompt = chat.prompt(messages, request, self._image_text)
        arguments["prompt"] = self.encode(prompt, special=False)
        if images := images_of(messages):
            arguments["images"] = images
        return arguments

    @described("sampling", "ending", "form", "context", "output")
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        images: Sequence[Any] = (),
        audio: object = None,
        on_full: str = "stop",
        draft: Session | None = None,
        draft_tokens: int = 4,
        **options: Any,
    ) -> Generation:
        """Generates an answer to a prompt.

        Args:
            prompt: text or tokens. Tokens that are equal to the beginning of `tokens` are not computed again.
            images: arrays in the order of the prompt: uint8 [height, width, 3], or float32 [3, height, width] in the form that
                the encoder requires. The prompt has the token of an image once for each image.
            audio: samples or features for a speech model. The prompt then is the beginning of the answer.
            on_full: for a full context: "stop", raise an "error", or "slide": drop the first half of the tokens after
                `keep`, compute the rest again, and continue.
            draft: a session of a small model with the same tokens. Answers keep their distribution.
            draft_tokens: the number of tokens that `draft` proposes per step.
            {options}

        The defaults of the options are those of the file's generation_config.json, or else temperature 0. Without a seed, each
        call draws different random values.

        Returns:
            The answer: an iterator of `Piece`, which generates a token per step.

        Raises:
            InputError: an option is out of range; the prompt does not fit into the context (code "prompt-too-long"); the grammar
                or the schema is invalid ("bad-grammar", "bad-schema").
            InputTypeError: an option is unknown.
        """
        tokens = self._encode_prompt(prompt, images, audio)
        generation_options = self._options(options)
        if on_full not in ("stop", "slide", "error"):
            raise InputError(f"on_full must be 'stop', 'slide' or 'error', got {on_full!r}")
        if isinstance(draft_tokens, bool) or not isinstance(draft_tokens, int) or draft_tokens < 1:
            raise InputError(f"draft_tokens must be an integer of at least 1, got {draft_tokens!r}")
        if draft is not None and (draft is self or draft.vocab_size != self.vocab_size):
            raise InputError("draft must be a separate session, of a model with the same tokens")
        if on_full == "slide":
            generation_options["slide"] = True
        self._end()
        if draft is not None:
            draft._end()
        with _engine_errors(InputError):
            self._runner.begin(tokens, as_json(generation_options), draft and draft._runner, draft_tokens)
        self._generation = Generation(
            self, fails_when_full=on_full == "error", ignore_end=generation_options.get("ignore_eos", False)
        )
        return self._generation

    @property
    def default_options(self) -> dict[str, float]:
        """The sampling options in the file's generation_config.json; temperature 0 if it disables sampling."""
        with _engine_errors(FormatError):
            options: dict[str, float] = self._runner.default_options()
        return options

    def _next(self) -> tuple[Any, ...]:
        with _engine_errors(ExecutionError):
            piece: tuple[Any, ...] = self._runner.next()
        return piece

    def _encode_prompt(self, prompt: str | Sequence[int], images: Sequence[Any], audio: object) -> list[int]:
        """Returns the tokens of a prompt, in which values from `vocab_size` represent images and audio."""
        tokens = self.encode(prompt, audio is None) if isinstance(prompt, str) else self._checked(prompt)
        if self._shared.place is not None:
            return list(self._shared.place(tokens, images, audio))
        if self._shared.reads == "audio" and audio is None:
            raise InputError("this model reads audio: pass it as audio=")
        samples = features = None
        if audio is not None:
            array = np.ascontiguousarray(audio, np.float32)
            if array.ndim == 1:
                samples = array
            else:
                features = array.reshape((1,) * (3 - array.ndim) + array.shape)
        with _engine_errors(InputError):
            prompt_tokens: list[int] = self._runner.place(tokens, [*map(_planar, images)], samples, features)
        return prompt_tokens

    def _options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the checked options of an answer, with the schema converted to the text of a grammar."""
        try:
            named = [find(name) for name in options]
        except InputError as error:
            raise InputTypeError(f"generate: {error.message}", hints=error.hints) from None
        for option in named:
            if option.group == "prompt" or option.name == "warming":
                raise InputTypeError(
                    f"generate: {option.name} is an option of the C++ runner, not of a session"
                )
        parsed = {name: value.text for name, value in options.items() if isinstance(value, Grammar)}
        checked_options = checked({**options, **parsed})
        if "" in checked_options.get("stop", ()):
            raise InputError("stop has an empty text, which would end every answer")
        if any(token >= self.vocab_size for token in checked_options.get("logit_bias", ())):
            raise InputError(f"logit_bias has an unknown token; tokens are 0 to {self.vocab_size - 1}")
        if "schema" in checked_options:
            if "grammar" in checked_options:
                raise InputError("grammar and schema constrain the same answer; set one of them")
            checked_options["grammar"] = grammar_of(checked_options.pop("schema"))
        elif "grammar" in checked_options and not parsed:
            Grammar(checked_options["grammar"])
        checked_options.setdefault("seed", secrets.randbits(53))
        return checked_options


def _planar(image: Any) -> np.ndarray:
    """Returns an image, uint8 [height, width, 3] or float [3, height, width], as an array [channels, height, width]."""
    array = np.asarray(image)
    if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3 and array.size:
        return np.ascontiguousarray(array.transpose(2, 0, 1))
    array = np.ascontiguousarray(array, np.float32)
    return array[0] if array.ndim == 4 and len(array) == 1 else array
