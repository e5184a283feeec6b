# SPDX-License-Identifier: BSD-3-Clause
# An answer in generation. The engine (torchette/llm/engine) generates; this module presents its pieces.
"""`Generation`: an answer of a session."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchette.errors import ExecutionError


class Piece(NamedTuple):
    """The output of one step.

    Example:
        >>> text = "".join(piece.text for piece in session.generate("Once", max_tokens=3))
    """

    text: str
    """Complete characters; empty while a character is incomplete or the text may begin a stop string."""
    token: int | None
    """None for text that was held back until the end."""
    logprob: float | None = None
    """The log-probability in the distribution of the model, if it was requested."""
    top: tuple[tuple[int, float], ...] = ()
    """The requested count of most probable tokens with their log-probabilities."""


class Statistics(NamedTuple):
    """The token counts, times and memory of an answer.

    Example:
        >>> session.generate("Once", max_tokens=3).run().statistics.answer_tokens
        3
    """

    prompt_tokens: int
    reused_tokens: int
    """Tokens of the prompt that were in the KV cache."""
    answer_tokens: int
    """Tokens of the answer, including the token that ends it."""
    time_to_first_token: float
    """Seconds from the start to the first token, including the prompt."""
    tokens_per_second: float
    """Rate of the tokens after the first one."""
    memory: int
    """Bytes that the session reserves, without weights. Unused positions of its KV cache are not resident."""
    peak_memory: int
    """The peak resident bytes of the process."""
    drafted_tokens: int
    accepted_tokens: int
    """Tokens of the draft model that were accepted."""


class Generation:
    """An answer of `Session.generate`: an iterator of `Piece` that generates a token per step.

    >>> answer = session.generate("Once upon a time").run()
    >>> answer.text, answer.finish_reason
    """

    def __init__(self, session: Any, *, fails_when_full: bool, ignore_end: bool) -> None:
        self._session = session
        self._fails_when_full, self._ignore_end = fails_when_full, ignore_end
        self.tokens: list[int] = []
        """The tokens of the answer, without the token that ends it."""
        self.text = ""
        self.finish_reason: str | None = None
        """"stop": an end token, a stop string or a complete grammar; "length": `max_tokens` or a full context; "cancelled";
        None while the answer is incomplete."""
        self._has_ended = False
        self._stats: dict[str, Any] = session._runner.stats()
        self._memory = session._runner.memory
        self._times = [time.perf_counter()]

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        if self._has_ended:
            raise StopIteration
        try:
            text, token, logprob, top, self._has_ended = self._session._next()
        except BaseException:
            self._has_ended = True
            raise
        self._stats = self._session._runner.stats()
        if token is not None:
            self._times.append(time.perf_counter())
            if self._ignore_end or token not in self._session._shared.ends:
                self.tokens.append(token)
            else:
                token = None
        self.text += text
        if self._has_ended:
            self.finish_reason = self._stats["finish_reason"]
            if self._fails_when_full and self._stats["is_full"]:
                raise ExecutionError(
                    f"the context of {self._session.max_context} tokens is full",
                    hints=["on_full='slide' drops the oldest tokens, on_full='stop' ends the answer"],
                    code="context-full",
                )
            if token is None and not text:
                raise StopIteration
        return Piece(text, token) if token is None else Piece(text, token, logprob, top)

    def close(self) -> None:
        """Ends the answer. The `finish_reason` of an incomplete answer becomes "cancelled"."""
        if not self._has_ended:
            self._session._rewind(len(self._session.tokens))
            self._has_ended = True
        self.finish_reason = self.finish_reason or "cancelled"

    def run(self) -> Generation:
        """Returns the answer after generating it to its end."""
        for _ in self:
            pass
        return self

    @property
    def statistics(self) -> Statistics:
        """The statistics so far."""
        times = self._times
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        first = times[1] - times[0] if len(times) > 1 else 0.0
        rate = (len(times) - 2) / (times[-1] - times[1]) if len(times) > 2 and times[-1] > times[1] else 0.0
        stats = self._stats
        return Statistics(
            stats["prompt_tokens"], stats["reused_tokens"], stats["generated_tokens"], first, rate,
            self._memory, peak, stats["drafted_tokens"], stats["accepted_tokens"],
        )  # fmt: skip
