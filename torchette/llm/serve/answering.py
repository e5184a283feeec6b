# SPDX-License-Identifier: BSD-3-Clause
# Runs the generations of a request and sends the answers, complete or as a stream. The form of an endpoint creates the JSON.
"""`answer_request`: the answers to one request."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from torchette.errors import TorchetteError
from torchette.llm.generation import Generation, Piece
from torchette.llm.media import image_of
from torchette.llm.messages import OPEN, Call, calls_in
from torchette.llm.options import find
from torchette.llm.serve.connection import Connection
from torchette.llm.serve.pool import CHECK_SECONDS, SessionPool
from torchette.llm.serve.refusal import Refusal, refusal_of
from torchette.llm.session import Session

_SEED = find("seed")


class Request(NamedTuple):
    """A checked request."""

    model: str
    prompts: list[dict[str, Any]]
    """Arguments of `Session.generate`. Images are files."""
    options: dict[str, Any]
    """Further arguments for all prompts."""
    num_answers: int = 1
    """Answers to each prompt."""
    parameters: Mapping[str, Any] = {}
    """Schemas of the functions that an answer may call, by name."""
    max_calls: int | None = None
    stream: bool = False


class Answer(NamedTuple):
    """A complete answer."""

    generation: Generation
    pieces: list[Piece]
    """The pieces of the text."""
    text: str
    """The text without the calls."""
    calls: list[Call]

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's finish_reason."""
        return "tool_calls" if self.calls else self.generation.finish_reason


class Form(Protocol):
    """The JSON objects of an endpoint. Events are pairs of a name, or None, and an object."""

    def start(self, index: int) -> Iterable[tuple[str | None, object]]:
        """Yields the events before an answer."""

    def part(
        self, index: int, text: str, pieces: list[Piece], session: Session
    ) -> Iterable[tuple[str | None, object]]:
        """Yields the events of a part of an answer's text; `pieces` have its log-probabilities."""

    def end(self, index: int, answer: Answer) -> Iterable[tuple[str | None, object]]:
        """Yields the events after an answer, with its calls."""

    def close(self, answers: list[Answer]) -> Iterable[tuple[str | None, object]]:
        """Yields the last events of a stream."""

    def whole(self, answers: list[Answer], session: Session) -> object:
        """Returns the response without a stream."""

    def failed(self, refusal: Refusal) -> Iterable[tuple[str | None, object]]:
        """Yields the events that end a stream with an error."""


class _Watch:
    """Cancels a session's generation when the time is over or the client has left."""

    def __init__(self, connection: Connection, session: Session, until: float) -> None:
        self._connection, self._session, self._until = connection, session, until
        self._reason: Exception | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()  # or it could cancel the next request's generation

    def check(self) -> None:
        """Raises the reason if the generation was cancelled."""
        if self._reason:
            raise self._reason

    def _run(self) -> None:
        while not self._done.wait(min(CHECK_SECONDS, max(self._until - time.monotonic(), 0.01))):
            if time.monotonic() >= self._until:
                text = f"the answer took more than {self._connection.limits.seconds:g} seconds"
                self._reason = Refusal(504, text, "server_error", "timeout")
            elif self._connection.is_gone():
                self._reason = ConnectionError("the client has left")
            if self._reason:
                self._session.cancel()


def answer_request(
    connection: Connection, pool: SessionPool, request: Request, form: Form, until: float
) -> list[Answer]:
    """Sends the answers to a request and returns them.

    Args:
        until: the time, as of `time.monotonic`, at which to give up.

    Raises:
        Refusal, TorchetteError: no part of a response was sent.
        ConnectionError: the client has left.
    """
    session = pool.acquire(request.model, request.prompts[0]["prompt"], until, connection.is_gone)
    try:
        with _Watch(connection, session, until) as watch:
            return _send_answers(connection, session, pool.drafts.get(session), request, form, watch)
    except (Refusal, TorchetteError) as error:
        if not connection.is_streaming:
            raise
        _send_events(connection, form.failed(refusal_of(error)))
        connection.end_stream()
        return []
    finally:
        pool.release(session)


def _send_answers(
    connection: Connection,
    session: Session,
    draft: Session | None,
    request: Request,
    form: Form,
    watch: _Watch,
) -> list[Answer]:
    answers: list[Answer] = []
    for index, arguments in enumerate(_arguments(request)):
        watch.check()
        generation = session.generate(draft=draft, **arguments)
        try:
            if not request.stream:
                answers.append(_answer(generation, list(generation), request))
            else:
                first = list(
                    itertools.islice(generation, 1)
                )  # an error before the first token has its own status
                if not connection.is_streaming:
                    connection.begin_stream()
                pieces = itertools.chain(first, generation)
                answers.append(_stream(connection, session, generation, pieces, index, request, form))
            watch.check()
        finally:
            generation.close()
        if request.stream:
            _send_events(connection, form.end(index, answers[-1]))
    if not request.stream:
        connection.send(200, form.whole(answers, session))
        return answers
    _send_events(connection, form.close(answers))
    connection.end_stream()
    return answers


def _arguments(request: Request) -> Iterator[dict[str, Any]]:
    """The arguments of `Session.generate` for each answer; the next answer to a prompt has the next seed."""
    for prompt in request.prompts:
        images = [image_of(data) for data in prompt.get("images", ())]
        for number in range(request.num_answers):
            options = dict(request.options)
            if number and "seed" in options:
                options["seed"] = (options["seed"] + number) % (int(_SEED.highest) + 1)
            yield {**options, **prompt, "images": images}


def _answer(generation: Generation, pieces: list[Piece], request: Request) -> Answer:
    text, calls = generation.text, list[Call]()
    if request.parameters:
        text, calls = calls_in(text, request.parameters)
    if calls:
        end = max(generation.text.find(OPEN), 0)
        begins = itertools.accumulate((len(piece.text) for piece in pieces), initial=0)
        pieces = [piece for piece, begin in zip(pieces, begins, strict=False) if begin < end]
    return Answer(generation, pieces, text, calls[: request.max_calls])


def _stream(
    connection: Connection,
    session: Session,
    generation: Generation,
    pieces: Iterable[Piece],
    index: int,
    request: Request,
    form: Form,
) -> Answer:
    """Sends the text of an answer while it is generated. Holds text back that may belong to a call, and its pieces."""
    _send_events(connection, form.start(index))
    shown, sent, received = 0, 0, list[Piece]()
    for piece in pieces:
        received.append(piece)
        text = piece.text
        if request.parameters:
            text = generation.text[shown : text_before_call(generation.text)]
        if text:
            _send_events(connection, form.part(index, text, received[sent:], session))
            shown, sent = shown + len(text), len(received)
    answer = _answer(generation, received, request)
    unsent_text, unsent_pieces = answer.text[shown:], answer.pieces[sent:]
    if unsent_text or any(piece.logprob is not None for piece in unsent_pieces):
        _send_events(connection, form.part(index, unsent_text, unsent_pieces, session))
    return answer


def _send_events(connection: Connection, events: Iterable[tuple[str | None, object]]) -> None:
    for name, event in events:
        connection.send_event(event, name)


def text_before_call(text: str) -> int:
    """Returns the length of the text that cannot belong to a call."""
    if text.lstrip()[:1] in ("", "{", "["):
        return 0
    if (at := text.find(OPEN)) >= 0:
        return at
    return len(text) - max(n for n in range(len(OPEN)) if text.endswith(OPEN[:n]))
