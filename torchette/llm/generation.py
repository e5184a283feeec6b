# SPDX-License-Identifier: BSD-3-Clause
# The tokens of an answer: sampling, grammars, stop strings, speculative decoding and a context that slides.
"""`Generation`: an answer of a session."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from torchette.errors import ExecutionError, InputError
from torchette.llm.grammar import Matcher
from torchette.llm.sampling import Random, Sampling, adjust, draw, log_softmax, probabilities
from torchette.llm.text import TextStream
from torchette.llm.token_state import Cancelled, TokenState, common


class Piece(NamedTuple):
    """The output of one step."""

    text: str
    """Complete characters; empty while a character is incomplete or the text may begin a stop string."""
    token: int | None
    """None for text that was held back until the end."""
    logprob: float | None = None
    """The log-probability in the distribution of the model, if it was requested."""
    top: tuple[tuple[int, float], ...] = ()
    """The requested count of most probable tokens with their log-probabilities."""


class Statistics(NamedTuple):
    """The costs of an answer."""

    prompt_tokens: int
    reused_tokens: int
    """Tokens of the prompt that were in the KV cache."""
    answer_tokens: int
    time_to_first_token: float
    """Seconds, with the prompt."""
    tokens_per_second: float
    """The rate after the first token."""
    memory: int
    """Bytes of the session without the weights."""
    peak_memory: int
    """The peak resident bytes of the process."""
    drafted_tokens: int
    accepted_tokens: int
    """Tokens of the draft model that were accepted."""


class Options(NamedTuple):
    """The checked arguments of `Session.generate`."""

    prompt: list[int]
    max_tokens: int | None
    stops: list[str]
    random: Random
    matcher: Matcher | None
    logprobs: int | None
    on_full: str
    keep: int
    ends: tuple[int, ...]
    draft: TokenState | None
    draft_tokens: int
    sampling: Sampling


class Generation:
    """An answer in generation: an iterator of `Piece`. `tokens`, `text` and `finish_reason` are its state."""

    def __init__(self, session: TokenState, options: Options) -> None:
        self._session, self._options = session, options
        self.tokens: list[int] = []
        """The tokens of the answer, without the one that ends it."""
        self.text = ""
        self.finish_reason: str | None = None
        """"stop": an end token, a stop string or a complete grammar; "length": `max_tokens` or a full context; "cancelled";
        None while the answer is incomplete."""
        self._reused = self._drafted = self._accepted = 0
        self._times: list[float] = []
        self._pieces = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """Ends the answer."""
        self._pieces.close()
        self.finish_reason = self.finish_reason or "cancelled"

    def run(self) -> Generation:
        """Generates the rest of the answer."""
        for _ in self:
            pass
        return self

    @property
    def statistics(self) -> Statistics:
        """The costs so far."""
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
        except Cancelled:
            self.finish_reason = "cancelled"
        text, _ = stream.add(b"", final=True)
        self.text += text
        if text:
            yield Piece(text, None)

    def _logprobs(self, row: np.ndarray, token: int) -> tuple[Any, ...]:
        if self._options.logprobs is None:
            return ()
        logs, count = log_softmax(row), min(self._options.logprobs, len(row))
        likeliest: Iterable[int] = np.argpartition(-logs, count - 1)[:count] if count else []
        top = sorted(((int(i), float(logs[i])) for i in likeliest), key=lambda pair: -pair[1])
        return float(logs[token]), tuple(top)

    def _choice(
        self, session: TokenState, row: np.ndarray, answer: list[int], matcher: Matcher | None
    ) -> np.ndarray | int:
        """The distribution of the next token, or the token itself if the temperature is 0."""
        options = self._options
        allowed = None if matcher is None else matcher.allowed(session._shared.ends)
        said = [token for token in options.prompt if token < session.vocab_size]
        logits = adjust(row, options.sampling, said, answer, allowed)
        return (
            probabilities(logits, options.sampling) if options.sampling.temperature else int(logits.argmax())
        )

    def _chosen(self) -> Iterator[tuple[int, np.ndarray]]:
        """Tokens with the logits that they were chosen from, until the grammar or the context ends."""
        session, options = self._session, self._options
        matcher, answer, random = options.matcher, list[int](), options.random
        self._reused = min(common(session._tokens, options.prompt), len(options.prompt) - 1)
        row = session._ingest(options.prompt)
        token: int | None = None

        def ends_with(said: int) -> bool:
            """Adds a token to the answer. Returns whether it completes the grammar."""
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
            finally:  # also when the caller closes the generator: the state keeps accepted tokens only
                del session._tokens[known + at :]
            row = rows[at]

    def _guesses(self, token: int, answer: list[int], matcher: Matcher | None) -> tuple[list[int], list[Any]]:
        """Tokens that the draft model proposes, and the distribution of each."""
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
        """Makes room in a full context. Returns False if the answer ends instead."""
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
    """Returns None if `guess`, drawn from `chance`, is accepted for `choice`; else the token that replaces it."""
    if isinstance(choice, int):
        return None if choice == guess else choice
    if random.random() * chance[guess] < choice[guess]:  # type: ignore[index]
        return None
    rest = np.maximum(choice - chance, 0)
    return draw(rest if rest.any() else choice, random)


def check_counts(**counts: tuple[Any, int]) -> None:
    """Raises InputError if a value is neither None nor an integer of at least its minimum."""
    for name, (value, minimum) in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < minimum):
            raise InputError(f"{name} is {value!r}, it must be a whole number from {minimum}")


def checked_stops(stop: str | Sequence[str]) -> list[str]:
    """Returns stop strings as a list. Raises InputError if one is empty or not a string."""
    stops = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(one, str) and one for one in stops):
        raise InputError(f"stop is {stop!r}, it must be texts that are not empty")
    return stops
