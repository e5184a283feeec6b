# SPDX-License-Identifier: BSD-3-Clause
# Answers OpenAI's requests with sessions of one language model. An invalid request gets an error object; none ends the server.
"""OpenAI's endpoints for a language model: /v1/models, /v1/completions, /v1/chat/completions."""

from __future__ import annotations

import base64
import hmac
import json
import logging
import math
import re
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from torchette.errors import InputError, TorchetteError
from torchette.llm.features import image_of
from torchette.llm.generation import Generation, Piece
from torchette.llm.messages import OPEN, Call, calls_in, functions
from torchette.llm.session import Session
from torchette.llm.token_state import common

if TYPE_CHECKING:
    from socketserver import _RequestType

_log = logging.getLogger("torchette")
# What would change the answer and is not there; null, and what it is without, are taken.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,), "suffix": ("",), "echo": (False,), "functions": ([],), "function_call": ("none",),
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

    body_bytes: int = 10**6
    answer_tokens: int = 4096
    choices: int = 16
    """Answers to one request."""
    images: int = 16
    """In one request."""
    connections: int = 64
    waiting: int = 16
    """Requests that wait for a session; more are told to come again."""
    seconds: float = 300.0
    """For a request, waiting included."""
    socket_seconds: float = 20.0
    """For a client to say or take something."""


_LIMITS = Limits()
_LOOK = 0.2  # seconds between looks whether the client is still there


class Refusal(Exception):
    """A refused request, as OpenAI reports it."""

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


def _wrong(param: str, message: str) -> Refusal:
    return Refusal(400, message, param=param)


def _is_integer(value: object, least: int, most: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


class Server(ThreadingHTTPServer):
    """Answers requests, one at a time in each session.

    Args:
        sessions: of one model; the number of requests at a time.
        name: the model's name for clients.
        adapters: sessions with adapters, by the model's name with them.
        api_key: the key that clients must give; None: none.
        draft: see `Session.generate`.
        page: returns other files to send: by path, their bytes and types.
        host: the address. If it is local, requests that name another host are refused, such as those of other sites' pages.
        port: 0 for a free port, then `server_port`.
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
        adapters: Mapping[str, list[Session]] | None = None,
        api_key: str | None = None,
        draft: Session | None = None,
        page: Callable[[], Mapping[str, tuple[bytes, str]]] = dict,
    ) -> None:
        self.page = page
        self.models = {name: list(sessions), **(adapters or {})}
        self.name, self.limits, self.created, self.api_key = name, limits, int(time.time()), api_key
        self.free = [session for one in self.models.values() for session in one]
        self.drafts = {session: draft.new() for session in self.free} if draft else {}
        self.turn = threading.Condition()
        self.waiting = 0
        self.connections = threading.BoundedSemaphore(limits.connections)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.is_local = self.server_address[0] in ("127.0.0.1", "::1")

    def process_request(self, request: _RequestType, client_address: Any) -> None:
        """Gives a connection a thread, if there are not too many."""
        if not self.connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.release()
            raise

    def process_request_thread(self, request: _RequestType, client_address: Any) -> None:
        """Serves a connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: _RequestType, client_address: Any) -> None:
        """A connection ended in the middle: the others go on."""
        _log.info("a connection of %s ended", client_address[0], exc_info=True)

    def acquire(self, model: str, tokens: list[int], until: float, is_gone: Callable[[], bool]) -> Session:
        """Returns the free session that shares most tokens. Raises Refusal if none is free in time."""

        def free() -> list[Session]:
            return [session for session in self.free if session in self.models[model]]

        with self.turn:
            if not free() and self.waiting >= self.limits.waiting:
                raise Refusal(
                    429,
                    "too many requests wait already: try again later",
                    "rate_limit_error",
                    "rate_limit_exceeded",
                )
            self.waiting += 1
            try:
                while not free():
                    if (left := until - time.monotonic()) <= 0:
                        raise Refusal(
                            503, "no session got free in time: try again later", "server_error", "timeout"
                        )
                    if is_gone():
                        raise ConnectionError("the client is gone")
                    self.turn.wait(min(left, _LOOK))
                best = max(free(), key=lambda session: common(session.tokens, tokens))
                self.free.remove(best)
                return best
            finally:
                self.waiting -= 1

    def release(self, session: Session) -> None:
        """Gives a session back."""
        with self.turn:
            self.free.append(session)
            self.turn.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    server_version, sys_version = "torchette", ""

    def setup(self) -> None:
        self.request.settimeout(self.server.limits.socket_seconds)
        super().setup()
        self._streaming = False

    def log_message(self, format: str, *args: object) -> None:
        """Logs without the client's control characters."""
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

    def _guard(self, answer: Callable[[], None]) -> None:
        try:
            self._check_host()
            self._check_key()
            answer()
        except Refusal as refusal:
            self._fail(refusal)
        except InputError as error:
            name = "context_length_exceeded" if error.code == "prompt-too-long" else error.code
            self._fail(Refusal(400, str(error), name=name))
        except TorchetteError as error:
            # a grammar or logit_bias forbids all; a conversation with a model that has none
            is_asked = error.code in ("no-token", "no-chat-template", "unknown-tokenizer")
            kind = "invalid_request_error" if is_asked else "server_error"
            self._fail(Refusal(400 if is_asked else 500, str(error), kind, error.code))
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

    def _check_key(self) -> None:
        key, given = self.server.api_key, self.headers.get("Authorization") or ""
        is_right = key is None or hmac.compare_digest(
            f"Bearer {key}".encode(), given.encode("latin-1", "replace")
        )
        if not is_right and self.path != "/health" and self.path.partition("?")[0] not in self.server.page():
            raise Refusal(401, "the API key is missing or wrong", name="invalid_api_key")

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

    def _send(self, status: int, body: object, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._head(status, kind, ("Content-Length", str(len(data))))
        if self.command != "HEAD":
            self.wfile.write(data)

    def _head(self, status: int, kind: str, *more: tuple[str, str]) -> None:
        self.send_response(status)
        policy = ("Content-Security-Policy", "default-src 'self'; img-src data:")
        close = [("Connection", "close")] if self.close_connection else []
        for name, value in (("Content-Type", kind), policy, *more, *close):
            self.send_header(name, value)
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _event(self, body: object) -> None:
        self._chunk(b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n")

    def _get(self) -> None:
        server, path = self.server, self.path.split("?")[0].rstrip("/")
        models = {
            f"/v1/models/{name}": {
                "id": name, "object": "model", "created": server.created, "owned_by": "torchette",
                "max_model_len": sessions[0].max_context,
            }
            for name, sessions in server.models.items()
        }  # fmt: skip
        if path == "/v1/models":
            self._send(200, {"object": "list", "data": list(models.values())})
        elif unquote(path) in models:
            self._send(200, models[unquote(path)])
        elif path == "/health":
            self._send(200, {"status": "ok"})
        elif file := server.page().get(path or "/"):
            self._send(200, *file)
        else:
            raise Refusal(
                404,
                f"there is no {self.path[:200]!r}; there are /v1/models, /v1/completions, /v1/chat/completions",
                name="not_found",
            )

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length") or ""
        is_length = length.isascii() and length.isdigit() and len(length) < 19
        if not is_length or self.headers.get("Transfer-Encoding"):
            raise Refusal(411, "a request says its length: Content-Length", name="length_required")
        if int(length) > self.server.limits.body_bytes:
            raise Refusal(
                413,
                f"a request has {self.server.limits.body_bytes} bytes at most, this one {length}",
                name="request_too_large",
            )
        until, data = time.monotonic() + self.server.limits.socket_seconds, bytearray()
        while len(data) < int(length):
            part = self.rfile.read1(int(length) - len(data))
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
        model = body.setdefault("model", self.server.name)
        if not isinstance(model, str) or model not in self.server.models:
            raise Refusal(
                404,
                f"there is no model {str(model)[:200]!r}, there is {', '.join(map(repr, self.server.models))}",
                name="model_not_found",
                param="model",
            )
        for name, taken in _REFUSED.items():
            if name in body and body[name] not in taken:
                raise Refusal(400, f"{name} is not supported", name="unsupported_parameter", param=name)
        options = self._options(body, chat)
        prompts = self._prompts(body, chat)
        many = body.get("n", 1)
        most = self.server.limits.choices
        if not _is_integer(many, 1, most) or not 1 <= many * len(prompts) <= most:
            raise _wrong("n", f"n is {many!r}, a request has 1 to {most} answers")
        session = self.server.acquire(model, prompts[0]["prompt"], until, self._is_gone)
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(session, until, done), daemon=True)
        self._why: Exception | None = None
        watch.start()
        try:
            for prompt in prompts:
                prompt["images"] = [image_of(data) for data in prompt.get("images", ())]
            self._answer(session, [p for p in prompts for _ in range(many)], many, options, body, chat)
        finally:
            done.set()
            watch.join()  # or it could end the next answer
            self.server.release(session)

    def _is_gone(self) -> bool:
        """Whether the client has closed its connection."""
        look = select.poll()
        look.register(self.connection, select.POLLIN)
        try:
            return bool(look.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _watch(self, session: Session, until: float, done: threading.Event) -> None:
        """Ends the answer on a timeout or if the client is gone."""
        while not done.wait(min(_LOOK, max(until - time.monotonic(), 0.01))):
            if time.monotonic() >= until:
                text = f"the answer took more than {self.server.limits.seconds:g} seconds"
                self._why = Refusal(504, text, "server_error", "timeout")
            elif self._is_gone():
                self._why = ConnectionError("the client is gone")
            if self._why:
                session.cancel()

    def _prompts(self, body: dict[str, Any], chat: bool) -> list[dict[str, Any]]:
        """Returns the prompt for `Session.generate`; images as files."""
        session = self.server.models[body["model"]][0]
        if chat:
            messages, names = body.get("messages"), body.get("chat_template_kwargs", {})
            if not isinstance(messages, list) or not isinstance(names, dict):
                raise _wrong("messages", "messages must be a list, chat_template_kwargs an object")
            tools, choice = body.get("tools"), body.get("tool_choice", "auto")
            asked = session._asked([_plain(message) for message in messages], tools, choice, names)
            body["tools"] = functions(tools) if tools and choice != "none" else {}
            if len(asked.get("images", ())) > self.server.limits.images:
                raise _wrong("messages", f"a request has at most {self.server.limits.images} images")
            return [asked]
        prompt = body.get("prompt")
        if not isinstance(prompt, list) or (prompt and isinstance(prompt[0], int)):
            prompt = [prompt]
        if not all(isinstance(one, (str, list)) for one in prompt):
            raise _wrong("prompt", "prompt must be a text, a list of tokens, or a list of such")
        return [{"prompt": session.encode(p) if isinstance(p, str) else session._checked(p)} for p in prompt]

    def _options(self, body: dict[str, Any], chat: bool) -> dict[str, Any]:
        options = {name: body[name] for name in _PLAIN if name in body}
        shared = self.server.models[body["model"]][0]._shared
        options.setdefault("temperature", shared.defaults().get("temperature", 1.0))
        most = body.get(
            "max_completion_tokens", body.get("max_tokens", self.server.limits.answer_tokens if chat else 16)
        )
        if not _is_integer(most, 1, math.inf):
            raise _wrong("max_tokens", f"max_tokens is {most!r}, it must be an integer from 1")
        options["max_tokens"] = min(most, self.server.limits.answer_tokens)
        stop = body.get("stop", [])
        options["stop"] = stop if isinstance(stop, str) else list(stop) if isinstance(stop, list) else [stop]
        if len(options["stop"]) > (1000 if isinstance(stop, str) else 16) or any(
            len(str(one)) > 1000 for one in options["stop"]
        ):
            raise _wrong("stop", "there are at most 16 stop texts of at most 1000 characters")
        bias = body.get("logit_bias", {})
        try:
            if len(bias) > 1000:
                raise _wrong("logit_bias", "logit_bias has more than 1000 tokens")
            options["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
        except (AttributeError, TypeError, ValueError, OverflowError):
            raise _wrong("logit_bias", "logit_bias must be numbers by token") from None
        wanted = body.get("top_logprobs", 0) if chat else body.get("logprobs", 0)
        if not _is_integer(wanted, 0, 20):
            raise _wrong("logprobs", "log-probabilities are returned for the 0 to 20 likeliest tokens")
        if body.get("logprobs") if chat else "logprobs" in body:
            options["logprobs"] = wanted
        form = body.get("response_format", {"type": "text"})
        kind = form.get("type") if isinstance(form, dict) else None
        if kind == "json_object":
            options["schema"] = {"type": "object"}
        elif kind == "json_schema" and isinstance(form.get("json_schema"), dict):
            options["schema"] = form["json_schema"].get("schema", {})
        elif kind != "text":
            raise _wrong(
                "response_format", "response_format must be of type text, json_object or json_schema"
            )
        return options

    def _answer(
        self,
        session: Session,
        asked: list[Any],
        many: int,
        options: dict[str, Any],
        body: dict[str, Any],
        chat: bool,
    ) -> None:
        stream, choices, answers = body.get("stream", False), list[Any](), list[Generation]()
        usage_too = isinstance(body.get("stream_options"), dict) and bool(
            body["stream_options"].get("include_usage")
        )
        head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex,
            "object": ("chat.completion" if chat else "text_completion")
            + (".chunk" if chat and stream else ""),
            "created": int(time.time()),
            "model": body["model"],
        }

        def send(index: int, delta: Mapping[str, Any], reason: str | None, logs: object = None) -> None:
            part = {"index": index, "finish_reason": reason, "logprobs": logs}
            part.update({"delta": delta} if chat else {"text": delta.get("content", "")})
            self._event({**head, "choices": [part], **({"usage": None} if usage_too else {})})

        options["draft"] = self.server.drafts.get(session)
        for index, prompt in enumerate(asked):
            if self._why:
                raise self._why
            own = (
                {**options, "seed": options["seed"] + index % many}
                if index % many and "seed" in options
                else options
            )
            answers.append(answer := session.generate(**prompt, **own))
            try:
                if not stream:
                    choices.append(self._choice(index, answer, session, body, chat))
                    continue
                pieces = iter(answer)
                first = next(pieces, None)  # what cannot be answered at all is still answered with a status
                if not self._streaming:
                    self._begin_stream()
                self._stream(index, first, pieces, answer, session, body, chat, send)
            finally:
                answer.close()
        usage = _usage(answers, many)
        if not stream:
            self._send(200, {**head, "choices": choices, "usage": usage})
            return
        if usage_too:
            self._event({**head, "choices": [], "usage": usage})
        self._event(b"[DONE]")
        self._chunk(b"")

    def _choice(
        self, index: int, answer: Generation, session: Session, body: dict[str, Any], chat: bool
    ) -> dict[str, Any]:
        """A whole answer."""
        pieces = list(answer)
        if self._why:
            raise self._why
        choice: dict[str, Any] = {"index": index, "finish_reason": answer.finish_reason}
        choice["logprobs"] = _logprobs(pieces, session, chat)
        if not chat:
            return {**choice, "text": answer.text}
        said, calls = calls_in(answer.text, body["tools"]) if body.get("tools") else (answer.text, [])
        choice["message"] = {"role": "assistant", "content": said, "refusal": None}
        if calls:
            choice["message"].update(content=said or None, tool_calls=_calls(calls))
            choice["finish_reason"] = "tool_calls"
        return choice

    def _begin_stream(self) -> None:
        self.close_connection = self._streaming = True
        self._head(200, "text/event-stream", ("Cache-Control", "no-cache"), ("Transfer-Encoding", "chunked"))

    def _stream(
        self, index: int, first: Piece | None, pieces: Iterator[Piece], answer: Generation, session: Session,
        body: dict[str, Any], chat: bool, send: Callable[..., None],
    ) -> None:  # fmt: skip
        """Streams an answer. Holds a possible function call until it is complete."""
        tools, shown, reason = body.get("tools"), 0, None
        if chat:
            send(index, {"role": "assistant", "content": ""}, None)
        while first is not None:
            text = first.text
            if tools:
                text = answer.text[shown : _plainly(answer.text)]
                shown += len(text)
            if text or first.logprob is not None:
                send(index, {"content": text}, None, _logprobs([first], session, chat))
            first = next(pieces, None)
        if self._why:
            raise self._why
        if tools:
            if calls := calls_in(answer.text, tools)[1]:
                called = [{"index": i, **call} for i, call in enumerate(_calls(calls))]
                send(index, {"tool_calls": called}, None)
                reason = "tool_calls"
            elif answer.text[shown:]:
                send(index, {"content": answer.text[shown:]}, None)
        send(index, {}, reason or answer.finish_reason)


def _plainly(text: str) -> int:
    """The length of the text that cannot belong to a function call."""
    if text.lstrip()[:1] in ("", "{", "["):
        return 0
    if (at := text.find(OPEN)) >= 0:
        return at
    return len(text) - max(n for n in range(len(OPEN)) if text.endswith(OPEN[:n]))


def _calls(calls: list[Call]) -> list[dict[str, Any]]:
    """As OpenAI's clients take them."""
    return [
        {
            "id": "call_" + uuid.uuid4().hex[:24],
            "type": "function",
            "function": {
                "name": name,
                "arguments": given if isinstance(given, str) else json.dumps(given, ensure_ascii=False),
            },
        }
        for name, given in calls
    ]


def _plain(message: object) -> Any:
    """A message whose images are the files of their data URLs."""
    if not isinstance(message, dict) or not isinstance(content := message.get("content"), list):
        return message
    return {**message, "content": [_part(part) for part in content]}


def _part(given: object) -> dict[str, Any]:
    part = given if isinstance(given, dict) else {}
    kind = part.get("type")
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    url = part.get("image_url") if kind == "image_url" else None
    url = url.get("url") if isinstance(url, dict) else url
    head, _, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not re.fullmatch(r"data:image/[\w.+-]+;base64", head):
        raise _wrong(
            "messages",
            "a message's content is text, or parts of type text, or image_url with a URL data:image/...;base64,...",
        )
    try:
        return {"type": "image", "image": base64.b64decode(data, validate=True)}
    except ValueError as error:
        raise _wrong("messages", f"the image is no base64: {error}") from None


def _usage(answers: list[Generation], many: int) -> dict[str, Any]:
    done = [answer.statistics for answer in answers]
    prompt, said = sum(d.prompt_tokens for d in done[::many]), sum(d.answer_tokens for d in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": sum(d.reused_tokens for d in done[::many])},
    }


def _logprobs(pieces: list[Piece], session: Session, chat: bool) -> Any:
    """Log-probabilities in the form of either endpoint; None if not asked for."""
    told = [(p.token, p.logprob, p.top) for p in pieces if p.logprob is not None and p.token is not None]
    if not told:
        return None

    def text(token: int) -> str:
        return session._shared.bytes[token].decode("utf-8", "replace")

    def entry(token: int, log: float) -> dict[str, Any]:
        return {
            "token": text(token),
            "logprob": max(log, -9999.0),
            "bytes": list(session._shared.bytes[token]),
        }

    if chat:
        return {
            "content": [
                {**entry(token, log), "top_logprobs": [entry(*pair) for pair in top]}
                for token, log, top in told
            ],
            "refusal": None,
        }
    texts = [text(token) for token, _, _ in told]
    return {
        "tokens": texts,
        "token_logprobs": [log for _, log, _ in told],
        "top_logprobs": [{text(token): log for token, log in top} for _, _, top in told],
        "text_offset": [sum(map(len, texts[:i])) for i in range(len(texts))],
    }
