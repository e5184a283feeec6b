# SPDX-License-Identifier: BSD-3-Clause
# Answers OpenAI's requests with sessions of one language model. An invalid request gets an error response; none ends the server.
"""`Server`: /v1/models, /v1/completions, /v1/chat/completions and /v1/responses."""

from __future__ import annotations

import hmac
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from torchette.llm.options import checked
from torchette.llm.serve.answering import answer_request
from torchette.llm.serve.completions import ChatForm, CompletionForm, chat_request, completion_request
from torchette.llm.serve.connection import Connection
from torchette.llm.serve.limits import Limits
from torchette.llm.serve.messages import session_messages
from torchette.llm.serve.models import Models
from torchette.llm.serve.origins import Origins
from torchette.llm.serve.parameters import parsed
from torchette.llm.serve.pool import SessionPool
from torchette.llm.serve.refusal import Refusal, refusal_of
from torchette.llm.serve.responses import ResponseForm, ResponseStore, conversation, response_request
from torchette.llm.session import Session

if TYPE_CHECKING:
    from socketserver import _RequestType

_log = logging.getLogger("torchette")
_LIMITS = Limits()
_READS, _POSTS = "GET, HEAD, OPTIONS", "POST, OPTIONS"


class Server(ThreadingHTTPServer):
    """Answers requests, one at a time in each session.

    Args:
        sessions: sessions of one model; their number is the number of requests that are answered at once.
        name: the name of the model for clients.
        host: the address to listen at.
        port: 0 for a free port, then `server_port`.
        limits: the limits of requests.
        adapters: sessions with adapters, by the name of the model with the adapter.
        api_key: the key that clients must send; None for no key.
        draft: see `Session.generate`.
        page: returns further files to send: by path, their bytes and types.
        origins: the web pages that may use the server; by default its own.
        aliases: names of the model in addition to `name`; see `Models`.
        defaults: generation options of requests that do not set them, of the groups "sampling" and "ending" of options.def.

    Raises:
        InputError: an alias is the name of another model, or a default is not valid.
        OSError: the port is in use, or the address is not one of this machine.
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
        origins: Origins | None = None,
        aliases: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.defaults = checked(defaults or {})
        self.page, self.limits, self.api_key = page, limits, api_key
        self.pool = SessionPool({name: sessions, **(adapters or {})}, draft, limits.waiting)
        self.models = self.pool.models
        self.names = Models(
            {name: sessions[0].max_context for name, sessions in self.models.items()}, aliases
        )
        self.origins = origins or Origins(host)
        self.responses = ResponseStore(limits.stored_responses, limits.stored_bytes)
        self._connections = threading.BoundedSemaphore(limits.connections)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.is_local = self.server_address[0] in ("127.0.0.1", "::1")

    def process_request(self, request: _RequestType, client_address: object) -> None:
        """Starts a thread for a connection, if there are not too many."""
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._connections.release()
            raise

    def process_request_thread(self, request: _RequestType, client_address: object) -> None:
        """Serves a connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: _RequestType, client_address: tuple[str, int]) -> None:
        """Logs a connection that ended in the middle of a request. Other connections continue."""
        _log.info("a connection of %s ended", client_address[0], exc_info=True)


class _Handler(Connection):
    server: Server

    def setup(self) -> None:
        self.limits = self.server.limits
        super().setup()

    def do_GET(self) -> None:
        """Sends the models, the state of the server, or a file of its page."""
        self._guard(self._get)

    def do_HEAD(self) -> None:
        """Sends the headers of GET."""
        self._guard(self._get)

    def do_POST(self) -> None:
        """Sends answers of a model."""
        self._guard(self._post, writes=True)

    def do_DELETE(self) -> None:
        """Answers that nothing can be deleted."""
        self._guard(self._not_found, writes=True)

    def do_OPTIONS(self) -> None:
        """Tells a browser whether a page of another origin may send a request."""
        self._guard(self._preflight, needs_key=False)

    def _guard(self, action: Callable[[], None], *, writes: bool = False, needs_key: bool = True) -> None:
        """Runs an action. Every exception becomes an error response."""
        try:
            headers = self.headers
            origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
            self.server.origins.check(headers.get("Host"), origin, site, writes=writes)
            if needs_key:
                self._check_key()
            action()
        except OSError:
            self.close_connection = True  # the client has left, or is too slow
        except Exception as error:
            refusal = refusal_of(error)
            try:
                if (
                    self.is_streaming
                ):  # the response has begun: its end is missing, so the client sees an error
                    self.close_connection = True
                else:
                    self.send_refusal(refusal)
            except OSError:
                self.close_connection = True

    def _check_key(self) -> None:
        key, authorization = self.server.api_key, self.headers.get("Authorization") or ""
        is_right = key is None or hmac.compare_digest(
            f"Bearer {key}".encode(), authorization.encode("latin-1", "replace")
        )
        if not is_right and self._route != "/health" and self._path not in self.server.page():
            raise Refusal(401, "the API key is missing or wrong", name="invalid_api_key")

    def headers_of_every_response(self) -> list[tuple[str, str]]:
        """Returns the headers that tell browsers what other pages may do."""
        headers = [
            ("Content-Security-Policy", "default-src 'self'; img-src data:"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        origin = getattr(self, "headers", {}).get("Origin")
        if self.server.origins.origins:
            headers.append(("Vary", "Origin"))
            if origin and self.server.origins.allows(origin):
                headers.append(("Access-Control-Allow-Origin", origin))
        return headers

    @property
    def _path(self) -> str:
        """The path of the request; clients of proxies send a whole URL."""
        return re.sub("^https?://[^/?]*", "", self.path).partition("?")[0]

    @property
    def _route(self) -> str:
        return self._path.rstrip("/")

    def _get(self) -> None:
        route = self._route
        if route == "/v1/models":
            self.send(200, self.server.names.listed())
        elif route.startswith("/v1/models/"):
            self.send(200, self.server.names.described(unquote(route.removeprefix("/v1/models/"))))
        elif route == "/health":
            self.send(200, {"status": "ok"})
        elif file := self.server.page().get(route or "/"):
            self.send(200, *file)
        else:
            self._not_found()

    def _not_found(self) -> None:
        """Answers a path that does not exist, or has other methods."""
        is_read = self._route in ("/v1/models", "/health") or self._path in self.server.page()
        if methods := _POSTS if self._route in _ENDPOINTS else _READS if is_read else "":
            refusal = Refusal(405, f"{self._route} has the methods {methods}", name="method_not_allowed")
            self.send_refusal(refusal, ("Allow", methods))
            return
        if self._route.startswith("/v1/responses/"):
            raise Refusal(
                404,
                "a response cannot be read, cancelled or deleted: the server keeps its conversation for previous_response_id "
                "alone; a request with store false is not kept",
                name="not_found",
            )
        paths = ", ".join(("/v1/models", *_ENDPOINTS))
        raise Refusal(404, f"there is no {self._route[:200]!r}; paths: {paths}", name="not_found")

    def _preflight(self) -> None:
        methods = _POSTS if self._route in _ENDPOINTS else _READS
        headers = [("Allow", methods), ("Content-Length", "0")]
        if "Access-Control-Request-Method" in self.headers:
            headers += [("Access-Control-Allow-Methods", methods), ("Access-Control-Max-Age", "600")]
            header_names = self.headers.get("Access-Control-Request-Headers") or ""
            if re.fullmatch(r"[\w, -]{1,2000}", header_names, re.ASCII):
                headers.append(("Access-Control-Allow-Headers", header_names))
            if self.headers.get("Access-Control-Request-Private-Network") == "true":
                headers.append(("Access-Control-Allow-Private-Network", "true"))
        self.send_head(204, *headers)

    def _post(self) -> None:
        endpoint = _ENDPOINTS.get(self._route)
        if endpoint is None:
            self._not_found()
            return
        until = time.monotonic() + self.limits.seconds
        data = self.read_body()
        body = parsed(data, self.server.defaults)
        model = self.server.names.resolve(body.setdefault("model", self.server.names.default))
        endpoint(self, body, model, len(data), until)

    def _complete(self, body: dict[str, Any], model: str, size: int, until: float) -> None:
        request = completion_request(body, model, self.server.models[model][0], self.limits)
        answer_request(self, self.server.pool, request, CompletionForm(body, request), until)

    def _chat(self, body: dict[str, Any], model: str, size: int, until: float) -> None:
        messages = session_messages(body.get("messages"))
        request = chat_request(body, messages, model, self.server.models[model][0], self.limits)
        answer_request(self, self.server.pool, request, ChatForm(body, request), until)

    def _respond(self, body: dict[str, Any], model: str, size: int, until: float) -> None:
        history = conversation(body, self.server.responses, size)
        session = self.server.models[model][0]
        request = response_request(body, history.messages, model, session, self.limits)
        answer_request(
            self,
            self.server.pool,
            request,
            ResponseForm(body, request, history, self.server.responses),
            until,
        )


_ENDPOINTS: dict[str, Callable[[_Handler, dict[str, Any], str, int, float], None]] = {
    "/v1/completions": _Handler._complete,
    "/v1/chat/completions": _Handler._chat,
    "/v1/responses": _Handler._respond,
}
