# SPDX-License-Identifier: BSD-3-Clause
# /v1/completions and /v1/chat/completions: from a request's fields to the arguments of a session, and the forms of answers.
"""OpenAI's completions and chat completions."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from torchette.llm.generation import Piece
from torchette.llm.messages import Call
from torchette.llm.serve.answering import Answer, Request
from torchette.llm.serve.constraints import constraint
from torchette.llm.serve.limits import Limits
from torchette.llm.serve.parameters import (
    check_supported,
    flag,
    max_tokens,
    num_answers,
    num_logprobs,
    sampling_options,
)
from torchette.llm.serve.refusal import Refusal, wrong
from torchette.llm.serve.tools import tools_of
from torchette.llm.session import Session

_DEFAULT_TOKENS = 16  # of /v1/completions, as OpenAI defines it


def completion_request(body: Mapping[str, Any], model: str, session: Session, limits: Limits) -> Request:
    """Returns the checked request of /v1/completions. Raises Refusal or InputError."""
    check_supported(body)
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or (prompt and isinstance(prompt[0], int)):
        prompt = [prompt]
    if not prompt or not all(isinstance(one, (str, list)) for one in prompt):
        raise wrong(
            "prompt", "prompt must be a text, a list of tokens, or a list of texts or lists of tokens"
        )
    options = _options(body, session, _DEFAULT_TOKENS, limits)
    if "logprobs" in body:
        options["logprobs"] = num_logprobs(body, "logprobs")
    options.update(constraint(body))
    count = num_answers(body, len(prompt), limits)
    prompts = [
        {"prompt": session.encode(one) if isinstance(one, str) else session._checked(one)} for one in prompt
    ]
    return Request(model, prompts, options, count, stream=flag(body, "stream"))


def chat_request(
    body: Mapping[str, Any], messages: list[Any], model: str, session: Session, limits: Limits
) -> Request:
    """Returns the checked request of a chat with messages in the form of `Session.chat`. Raises Refusal or InputError."""
    check_supported(body)
    names = body.get("chat_template_kwargs", {})
    if not isinstance(names, dict):
        raise wrong("chat_template_kwargs", "chat_template_kwargs must be an object")
    options = _options(body, session, limits.answer_tokens, limits)
    top_logprobs = num_logprobs(body, "top_logprobs")
    if flag(body, "logprobs"):
        options["logprobs"] = top_logprobs
    tools, form = tools_of(body), constraint(body)
    if form and tools.must_call:
        raise wrong(
            "tool_choice",
            "tool_choice asks for a call, and another field constrains the answer: remove one of them",
        )
    arguments = session._chat_arguments(messages, tools.offered, tools.choice, names)
    if len(arguments.get("images", ())) > limits.images:
        raise wrong("messages", f"a request has at most {limits.images} images")
    return Request(
        model, [arguments], {**options, **form}, num_answers(body, 1, limits), tools.parameters, tools.max_calls,
        flag(body, "stream"),
    )  # fmt: skip


def _options(
    body: Mapping[str, Any], session: Session, default_tokens: int, limits: Limits
) -> dict[str, Any]:
    options = sampling_options(body, session.default_options["temperature"] or 1.0)
    options["max_tokens"] = max_tokens(body, default_tokens, limits)
    return options


class _Form:
    """What the forms of both endpoints share."""

    prefix = kind = ""

    def __init__(self, body: Mapping[str, Any], request: Request) -> None:
        options = body.get("stream_options", {})
        self._reports_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        self._num_answers = request.num_answers
        kind = f"{self.kind}.chunk" if request.stream and self.kind == "chat.completion" else self.kind
        self._head = {
            "id": self.prefix + uuid.uuid4().hex, "object": kind, "created": int(time.time()), "model": body["model"],
        }  # fmt: skip

    def _chunk(
        self, index: int, part: Mapping[str, Any], reason: str | None, logprobs: object
    ) -> tuple[None, object]:
        choice = {"index": index, "finish_reason": reason, "logprobs": logprobs, **part}
        return None, {**self._head, "choices": [choice], **({"usage": None} if self._reports_usage else {})}

    def close(self, answers: list[Answer]) -> Iterator[tuple[None, object]]:
        """Yields the last events of a stream."""
        if self._reports_usage:
            yield None, {**self._head, "choices": [], "usage": usage(answers, self._num_answers)}
        yield None, b"[DONE]"

    def failed(self, refusal: Refusal) -> Iterator[tuple[None, object]]:
        """Yields the events of an error."""
        yield None, {"error": refusal.error}

    def whole(self, answers: list[Answer], session: Session) -> object:
        """Returns the response without a stream."""
        choices = [
            {"index": index, "finish_reason": answer.finish_reason, **self._choice(answer, session)}
            for index, answer in enumerate(answers)
        ]
        return {**self._head, "choices": choices, "usage": usage(answers, self._num_answers)}

    def _choice(self, answer: Answer, session: Session) -> dict[str, Any]:
        raise NotImplementedError


class CompletionForm(_Form):
    """The form of /v1/completions."""

    prefix, kind = "cmpl-", "text_completion"

    def start(self, index: int) -> Iterator[tuple[None, object]]:
        """Yields the events before an answer."""
        yield from ()

    def part(
        self, index: int, text: str, pieces: list[Piece], session: Session
    ) -> Iterator[tuple[None, object]]:
        """Yields the events of a part of the text."""
        yield self._chunk(index, {"text": text}, None, _text_logprobs(pieces, session))

    def end(self, index: int, answer: Answer) -> Iterator[tuple[None, object]]:
        """Yields the events after an answer."""
        yield self._chunk(index, {"text": ""}, answer.finish_reason, None)

    def _choice(self, answer: Answer, session: Session) -> dict[str, Any]:
        return {"text": answer.text, "logprobs": _text_logprobs(answer.pieces, session)}


class ChatForm(_Form):
    """The form of /v1/chat/completions."""

    prefix, kind = "chatcmpl-", "chat.completion"

    def __init__(self, body: Mapping[str, Any], request: Request) -> None:
        super().__init__(body, request)
        self._may_call = bool(request.parameters)
        self._opened = set[int]()  # the answers with a message in the stream

    def start(self, index: int) -> Iterator[tuple[None, object]]:
        """Yields the events before an answer. If it may be calls alone, the first part or the end opens the message."""
        if not self._may_call:
            yield from self._open(index, "")

    def _open(self, index: int, content: str | None) -> Iterator[tuple[None, object]]:
        if index not in self._opened:
            self._opened.add(index)
            yield self._chunk(index, {"delta": {"role": "assistant", "content": content}}, None, None)

    def part(
        self, index: int, text: str, pieces: list[Piece], session: Session
    ) -> Iterator[tuple[None, object]]:
        """Yields the events of a part of the text."""
        yield from self._open(index, "")
        logprobs = _chat_logprobs(pieces, session)
        yield self._chunk(index, {"delta": {"content": text}}, None, logprobs)

    def end(self, index: int, answer: Answer) -> Iterator[tuple[None, object]]:
        """Yields the events after an answer."""
        yield from self._open(index, None if answer.calls else "")
        if answer.calls:
            called = [{"index": i, **_call(call)} for i, call in enumerate(answer.calls)]
            yield self._chunk(index, {"delta": {"tool_calls": called}}, None, None)
        yield self._chunk(index, {"delta": {}}, answer.finish_reason, None)

    def _choice(self, answer: Answer, session: Session) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.calls:
            message.update(content=answer.text or None, tool_calls=[_call(call) for call in answer.calls])
        return {"message": message, "logprobs": _chat_logprobs(answer.pieces, session)}


def arguments_text(call: Call) -> str:
    """Returns the arguments of a call as clients expect them: the text of a JSON object."""
    arguments = call.arguments
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def call_id() -> str:
    """Returns a new name of a call, by which its result refers to it."""
    return "call_" + uuid.uuid4().hex[:24]


def _call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments_text(call)}
    return {"id": call_id(), "type": "function", "function": function}


def usage(answers: list[Answer], num_answers: int) -> dict[str, Any]:
    """Returns the token counts of a request; the answers to one prompt count its tokens once."""
    done = [answer.generation.statistics for answer in answers]
    prompt, completion = sum(d.prompt_tokens for d in done[::num_answers]), sum(d.answer_tokens for d in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(d.reused_tokens for d in done[::num_answers])},
    }


def _reported(pieces: list[Piece]) -> list[tuple[int, float, tuple[tuple[int, float], ...]]]:
    return [(p.token, p.logprob, p.top) for p in pieces if p.logprob is not None and p.token is not None]


def _bytes_of(token: int, session: Session) -> bytes:
    """The bytes of a token, which may be a part of a character."""
    data: bytes = session._shared.bytes[token]
    return data


def token_logprobs(pieces: list[Piece], session: Session) -> list[dict[str, Any]]:
    """Returns the log-probabilities of tokens in the form of chats and responses."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = _bytes_of(token, session)
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": max(logprob, -9999.0),
            "bytes": list(data),
        }

    return [
        {**entry(token, logprob), "top_logprobs": [entry(*pair) for pair in top]}
        for token, logprob, top in _reported(pieces)
    ]


def _chat_logprobs(pieces: list[Piece], session: Session) -> dict[str, Any] | None:
    content = token_logprobs(pieces, session)
    return {"content": content, "refusal": None} if content else None


def _text_logprobs(pieces: list[Piece], session: Session) -> dict[str, Any] | None:
    reported = _reported(pieces)
    if not reported:
        return None

    def text(token: int) -> str:
        return _bytes_of(token, session).decode("utf-8", "replace")

    texts = [text(token) for token, _, _ in reported]
    return {
        "tokens": texts,
        "token_logprobs": [max(logprob, -9999.0) for _, logprob, _ in reported],
        "top_logprobs": [
            {text(token): max(logprob, -9999.0) for token, logprob in top} for _, _, top in reported
        ],
        "text_offset": [sum(map(len, texts[:i])) for i in range(len(texts))],
    }
