# SPDX-License-Identifier: BSD-3-Clause
# In: sessions of one language model, and requests as OpenAI's clients make them. Out: answers, whole or as they come.
# Nothing in a request can end the server: what is wrong with it is answered with an error object.
"""OpenAI's endpoints for a language model: /v1/models, /v1/completions, /v1/chat/completions."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from torchette.errors import InputError, TorchetteError
from torchette.llm.session import Generation, Piece, Session, common

_log = logging.getLogger("torchette")
# What would change the answer and is not there; null, and what it is without, are taken.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "suffix": ("",), "echo": (False,), "tools": ([],), "functions": ([],),
    "audio": (), "modalities": (["text"],), "prediction": (), "web_search_options": (),
}  # fmt: skip
_PLAIN = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "top_k",
    "min_p",
    "repetition_penalty",
    "grammar",
)


class Limits(NamedTuple):
    """What a server gives to its clients at most."""

    body_bytes: int = 1 << 20
    answer_tokens: int = 4096
    connections: int = 64
    waiting: int = 16
    """Requests that wait for a session; more are told to come again."""
    seconds: float = 300.0
    """For a request, waiting included."""
    socket_seconds: float = 20.0
    """For a client to say or take something."""


_LIMITS = Limits()


class Refusal(Exception):
    """A request that is not answered, as HTTP and OpenAI say it."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        name: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": name}}


class Server(ThreadingHTTPServer):
    """Answers requests with the sessions that it is given, each one request at a time.

    Args:
        sessions: of one model; as many requests are answered at once.
        name: what clients call the model.
        host: of the address. Where it is this machine's own, requests that name another host are refused, so that pages of
            other sites in a browser cannot reach it.
        port: 0 for any that is free; `server_port` has it.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        sessions: list[Session],
        name: str,
        host: str = "127.0.0.1",
        port: int = 8080,
        limits: Limits = _LIMITS,
    ) -> None:
        self.sessions, self.name, self.limits, self.created = list(sessions), name, limits, int(time.time())
        self.free = list(sessions)
        self.turn = threading.Condition()
        self.waiting = 0
        self.connections = threading.BoundedSemaphore(limits.connections)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.is_local = self.server_address[0] in ("127.0.0.1", "::1")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Gives a connection a thread, if there are not too many."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection ended in the middle: the others go on."""
        _log.info("a connection of %s ended", client_address[0], exc_info=True)

    def acquire(self, tokens: list[int], until: float) -> Session:
        """A free session, that which has most of the tokens already. Refusal where none gets free in time."""
        with self.turn:
            if not self.free and self.waiting >= self.limits.waiting:
                raise Refusal(
                    429,
                    "too many requests wait already: try again later",
                    "rate_limit_error",
                    "rate_limit_exceeded",
                )
            self.waiting += 1
            try:
                if not self.turn.wait_for(lambda: self.free, max(until - time.monotonic(), 0)):
                    raise Refusal(
                        503, "no session got free in time: try again later", "server_error", "timeout"
                    )
                best = max(self.free, key=lambda session: common(session.tokens, tokens))
                self.free.remove(best)
                return best
            finally:
                self.waiting -= 1

    def release(self, session: Session) -> None:
        """Gives a session back."""
        with self.turn:
            self.free.append(session)
            self.turn.notify()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server  # type: ignore[assignment]
    server_version, sys_version = "torchette", ""

    def setup(self) -> None:
        self.request.settimeout(self.server.limits.socket_seconds)
        super().setup()
        self._streaming = False

    def log_message(self, format: str, *args: Any) -> None:
        """Into logging, without control characters of the client's."""
        _log.info("%s %s", self.client_address[0], (format % args).encode("unicode_escape").decode())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server refuses, as OpenAI says it."""
        self.close_connection = True
        self._send(code, Refusal(code, message or self.responses.get(code, ("error",))[0]).body)

    def do_GET(self) -> None:
        """The model, or that it lives."""
        self._guard(self._get)

    def do_POST(self) -> None:
        """An answer."""
        self._guard(self._post)

    def _guard(self, answer: Any) -> None:
        try:
            self._check_host()
            answer()
        except Refusal as refusal:
            self._fail(refusal)
        except InputError as error:
            self._fail(Refusal(400, str(error), name=error.code))
        except TorchetteError as error:
            self._fail(Refusal(500, str(error), "server_error", error.code))
        except OSError:
            self.close_connection = True  # the client is gone, or too slow
        except Exception:
            _log.exception("a request failed")
            self._fail(
                Refusal(500, "the server has failed on this request", "server_error", "internal_error")
            )

    def _check_host(self) -> None:
        host = re.sub(r":\d*$", "", self.headers.get("Host") or "localhost")
        if self.server.is_local and host.strip("[]").lower() not in ("localhost", "127.0.0.1", "::1"):
            raise Refusal(403, "this server answers requests to localhost alone", name="forbidden_host")

    def _fail(self, refusal: Refusal) -> None:
        try:
            if self._streaming:
                self._event(refusal.body)
                self._chunk(b"")
            else:
                self._send(refusal.status, refusal.body)
        except OSError:
            pass
        self.close_connection = True  # a body that was not read would be taken for the next request

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _event(self, body: Any) -> None:
        self._chunk(b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n")

    def _get(self) -> None:
        server, path = self.server, self.path.split("?")[0].rstrip("/")
        model = {"id": server.name, "object": "model", "created": server.created, "owned_by": "torchette"}
        if path == "/v1/models":
            self._send(200, {"object": "list", "data": [model]})
        elif path == f"/v1/models/{server.name}":
            self._send(200, model)
        elif path == "/health":
            self._send(200, {"status": "ok"})
        else:
            raise Refusal(
                404,
                f"there is no {self.path[:200]!r}; there are /v1/models, /v1/completions, /v1/chat/completions",
                name="not_found",
            )

    def _body(self) -> dict[str, Any]:
        if self.headers.get("Transfer-Encoding"):
            raise Refusal(411, "a request says its length: Content-Length", name="length_required")
        length = self.headers.get("Content-Length") or ""
        if not (length.isascii() and length.isdigit() and len(length) < 19):
            raise Refusal(411, "a request says its length: Content-Length", name="length_required")
        if int(length) > self.server.limits.body_bytes:
            raise Refusal(
                413,
                f"a request has {self.server.limits.body_bytes} bytes at most, this one {length}",
                name="request_too_large",
            )
        until, data = time.monotonic() + self.server.limits.socket_seconds, bytearray()
        while len(data) < int(length):
            part = self.rfile.read1(int(length) - len(data))  # type: ignore[attr-defined]
            if not part or time.monotonic() > until:
                raise ConnectionError("the body does not come")
            data += part
        try:
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"the body is no JSON: {error}", name="invalid_json") from None
        if not isinstance(body, dict):
            raise Refusal(400, "the body must be a JSON object", name="invalid_json")
        return {key: value for key, value in body.items() if value is not None}

    def _post(self) -> None:
        path = self.path.split("?")[0].rstrip("/")
        if path not in ("/v1/completions", "/v1/chat/completions"):
            raise Refusal(404, f"there is no {self.path[:200]!r}", name="not_found")
        chat = path == "/v1/chat/completions"
        until = time.monotonic() + self.server.limits.seconds
        body = self._body()
        if body.get("model", self.server.name) != self.server.name:
            raise Refusal(
                404,
                f"there is no model {str(body['model'])[:200]!r}, there is {self.server.name!r}",
                name="model_not_found",
                param="model",
            )
        for name, taken in _REFUSED.items():
            if name in body and body[name] not in taken:
                raise Refusal(400, f"{name} is not supported", name="unsupported_parameter", param=name)
        tokens = self._prompt(body, chat)
        options = self._options(body, chat)
        session = self.server.acquire(tokens, until)
        try:
            answer = session.generate(tokens, **options)
            timer = threading.Timer(max(until - time.monotonic(), 0.01), session.cancel)
            timer.daemon = True
            timer.start()
            try:
                self._answer(answer, session, body, chat, until)
            finally:
                timer.cancel()
                timer.join()  # or it could end the next answer
                answer.close()
        finally:
            self.server.release(session)

    def _prompt(self, body: dict[str, Any], chat: bool) -> list[int]:
        session = self.server.sessions[0]
        if chat:
            messages = body.get("messages")
            if not isinstance(messages, list):
                raise Refusal(400, "messages must be a list", param="messages")
            return session.encode(session.render([_plain(m) for m in messages]), special=False)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if not isinstance(prompt, str) and not (
            isinstance(prompt, list) and all(isinstance(t, int) for t in prompt)
        ):
            raise Refusal(400, "prompt must be one text, or a list of tokens", param="prompt")
        return session.encode(prompt) if isinstance(prompt, str) else session._checked(prompt)

    def _options(self, body: dict[str, Any], chat: bool) -> dict[str, Any]:
        options = {name: body[name] for name in _PLAIN if name in body}
        options.setdefault("temperature", self.server.sessions[0]._shared.defaults().get("temperature", 1.0))
        most = body.get(
            "max_completion_tokens", body.get("max_tokens", self.server.limits.answer_tokens if chat else 16)
        )
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise Refusal(
                400, f"max_tokens is {most!r}, it must be a whole number from 1", param="max_tokens"
            )
        options["max_tokens"] = min(most, self.server.limits.answer_tokens)
        stop = body.get("stop", [])
        options["stop"] = stop if isinstance(stop, str) else list(stop) if isinstance(stop, list) else [stop]
        if len(options["stop"]) > (1000 if isinstance(stop, str) else 16) or any(
            len(str(one)) > 1000 for one in options["stop"]
        ):
            raise Refusal(400, "there are at most 16 stop texts of at most 1000 characters", param="stop")
        bias = body.get("logit_bias", {})
        try:
            if len(bias) > 1000:
                raise Refusal(400, "logit_bias has more than 1000 tokens", param="logit_bias")
            options["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
        except (AttributeError, TypeError, ValueError, OverflowError):
            raise Refusal(400, "logit_bias must be numbers by token", param="logit_bias") from None
        wanted = body.get("top_logprobs", 0) if chat else body.get("logprobs", 0)
        if isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 <= wanted <= 20:
            raise Refusal(
                400, "the likeliest tokens of which log-probabilities are given are 0 to 20", param="logprobs"
            )
        if body.get("logprobs") if chat else "logprobs" in body:
            options["logprobs"] = wanted
        form = body.get("response_format", {"type": "text"})
        kind = form.get("type") if isinstance(form, dict) else None
        if kind == "json_object":
            options["schema"] = {"type": "object"}
        elif kind == "json_schema" and isinstance(form.get("json_schema"), dict):
            options["schema"] = form["json_schema"].get("schema", {})
        elif kind != "text":
            raise Refusal(
                400,
                "response_format must be of type text, json_object or json_schema",
                param="response_format",
            )
        return options

    def _answer(
        self, answer: Generation, session: Session, body: dict[str, Any], chat: bool, until: float
    ) -> None:
        stream = body.get("stream", False)
        usage_too = isinstance(body.get("stream_options"), dict) and bool(
            body["stream_options"].get("include_usage")
        )
        head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex,
            "object": ("chat.completion" if chat else "text_completion")
            + (".chunk" if chat and stream else ""),
            "created": int(time.time()),
            "model": self.server.name,
        }
        if not stream:
            pieces = list(answer)
            self._check_end(answer, until)
            choice: dict[str, Any] = {
                "index": 0,
                "finish_reason": answer.finish_reason,
                "logprobs": _logprobs(pieces, session, chat),
            }
            choice.update(
                {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
                if chat
                else {"text": answer.text}
            )
            self._send(200, {**head, "choices": [choice], "usage": _usage(answer)})
            return
        pieces_left: Iterator[Piece] = iter(answer)
        first = next(pieces_left, None)  # what cannot be answered at all is still answered with a status
        self.close_connection = True
        self.send_response(200)
        for name, value in (
            ("Content-Type", "text/event-stream"),
            ("Cache-Control", "no-cache"),
            ("Transfer-Encoding", "chunked"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self._streaming = True

        def send(delta: Any, reason: str | None, logs: Any = None) -> None:
            part = {"index": 0, "finish_reason": reason, "logprobs": logs}
            part.update({"delta": delta} if chat else {"text": delta.get("content", "")})
            self._event({**head, "choices": [part], **({"usage": None} if usage_too else {})})

        if chat:
            send({"role": "assistant", "content": ""}, None)
        while first is not None:
            if first.text or first.logprob is not None:
                send({"content": first.text}, None, _logprobs([first], session, chat))
            first = next(pieces_left, None)
        self._check_end(answer, until)
        send({}, answer.finish_reason)
        if usage_too:
            self._event({**head, "choices": [], "usage": _usage(answer)})
        self._event(b"[DONE]")
        self._chunk(b"")

    def _check_end(self, answer: Generation, until: float) -> None:
        if answer.finish_reason == "cancelled":
            raise Refusal(
                504,
                f"the answer took more than {self.server.limits.seconds:g} seconds",
                "server_error",
                "timeout",
            )


def _plain(message: Any) -> Any:
    """A message whose content is text, where it comes in parts of text."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    parts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        for part in content
    ]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) != len(parts):
        raise Refusal(400, "a message's content is text, or parts of type text", param="messages")
    return {**message, "content": "".join(texts)}


def _usage(answer: Generation) -> dict[str, Any]:
    done = answer.statistics
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.answer_tokens,
        "total_tokens": done.prompt_tokens + done.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": done.reused_tokens},
    }


def _logprobs(pieces: list[Piece], session: Session, chat: bool) -> Any:
    """Log-probabilities in the form of either endpoint; None where they were not asked for."""
    told = [piece for piece in pieces if piece.logprob is not None and piece.token is not None]
    if not told:
        return None

    def text(token: Any) -> str:
        return session._shared.bytes[token].decode("utf-8", "replace")

    def entry(token: Any, log: float) -> dict[str, Any]:
        return {
            "token": text(token),
            "logprob": max(log, -9999.0),
            "bytes": list(session._shared.bytes[token]),
        }

    if chat:
        return {
            "content": [
                {**entry(p.token, p.logprob or 0.0), "top_logprobs": [entry(*pair) for pair in p.top]}
                for p in told
            ],
            "refusal": None,
        }
    texts = [text(p.token) for p in told]
    return {
        "tokens": texts,
        "token_logprobs": [p.logprob for p in told],
        "top_logprobs": [{text(token): log for token, log in p.top} for p in told],
        "text_offset": [sum(map(len, texts[:i])) for i in range(len(texts))],
    }
