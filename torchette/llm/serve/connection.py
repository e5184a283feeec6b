# SPDX-License-Identifier: BSD-3-Clause
# HTTP/1.1 on one connection: reads bodies, sends JSON and event streams, and keeps the connection usable after an error.
"""`Connection`: requests and responses of one HTTP connection."""

from __future__ import annotations

import json
import logging
import re
import select
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

from torchette.llm.serve.limits import Limits
from torchette.llm.serve.refusal import Refusal

_log = logging.getLogger("torchette")
_MAX_LINE = 8192  # bytes of a chunk's head, or of a trailer
_MAX_TRAILERS = 100


class Connection(BaseHTTPRequestHandler):
    """An HTTP connection. A subclass has the methods do_GET, do_POST, ... and sets `limits` before `setup`."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "torchette", ""
    limits: Limits

    def setup(self) -> None:
        """Sets the timeout of the connection."""
        self.request.settimeout(self.limits.socket_seconds)
        self.is_streaming = self._is_chunked = self._expects_continue = self._is_closing = False
        self._body: Iterator[bytes] | None = None
        super().setup()

    def finish(self) -> None:
        """Closes the connection. A client that is still sending reads the last response before it sees the end."""
        if self._is_closing:
            self._drain()
        super().finish()

    def _drain(self) -> None:
        """Discards input until the client ends or the time is over. The kernel resets a connection that is closed with
        unread input, and the client then loses the response."""
        deadline = time.monotonic() + self.limits.socket_seconds
        try:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.connection.recv(1 << 16):
                    return
        except OSError:
            pass

    # --- requests -----------------------------------------------------------------------------------------------

    def parse_request(self) -> bool:
        """Reads the head of a request. Returns False after an error response."""
        self.is_streaming = self._expects_continue = False
        self._body = None
        if not super().parse_request():
            return False
        try:
            self._body = self._framed_body()
        except Refusal as refusal:
            self.close_connection = True
            self.send_refusal(refusal)
            return False
        return True

    def handle_expect_100(self) -> bool:
        """Delays the interim response until the body is read: a client need not send the body of a refused request."""
        self._expects_continue = True
        return True

    def _framed_body(self) -> Iterator[bytes] | None:
        """The parts of the body; None without a body."""
        lengths = set(self.headers.get_all("Content-Length", []))
        coding = ", ".join(self.headers.get_all("Transfer-Encoding", [])).strip().lower()
        if coding:
            if lengths:
                raise Refusal(400, "a request has either Content-Length or Transfer-Encoding, not both")
            if coding != "chunked":
                raise Refusal(501, f"the Transfer-Encoding {coding[:100]!r} is not supported: use chunked")
            return self._chunks()
        if not lengths:
            return None
        length = lengths.pop().strip()
        if lengths or not (length.isascii() and length.isdigit() and len(length) < 19):
            raise Refusal(400, "the header Content-Length must be one integer")
        self._length = int(length)
        return self._exactly(self._length) if self._length else None

    def _exactly(self, count: int) -> Iterator[bytes]:
        while count:
            part = self.rfile.read1(min(count, 1 << 16))
            if not part:
                raise ConnectionError("the body is incomplete")
            count -= len(part)
            yield part

    def _chunks(self) -> Iterator[bytes]:
        """The parts of a chunked body. Its trailers are discarded."""
        while size := self._chunk_size():
            yield from self._exactly(size)
            if self.rfile.readline(3) not in (b"\r\n", b"\n"):
                raise self._malformed("a chunk is longer than its size")
        for _ in range(_MAX_TRAILERS):
            if self.rfile.readline(_MAX_LINE) in (b"\r\n", b"\n", b""):
                return
        raise self._malformed("the trailers are too long")

    def _chunk_size(self) -> int:
        line = self.rfile.readline(_MAX_LINE)
        if not line:
            raise ConnectionError("the body is incomplete")
        match = re.fullmatch(rb"([0-9a-fA-F]{1,15})[ \t]*(;.*)?\r?\n", line)
        if not match:
            raise self._malformed("a chunk has no valid size")
        return int(match[1], 16)

    def _malformed(self, problem: str) -> Refusal:
        self.close_connection, self._body = True, None
        return Refusal(400, f"the chunked body is malformed: {problem}")

    def read_body(self) -> bytes:
        """Returns the body of the request.

        Raises:
            Refusal: the body is missing, malformed or too long. The connection then ends after the response.
            ConnectionError: the body does not arrive in time.
        """
        if self._body is None:
            if self.headers.get("Content-Length"):
                return b""
            self.close_connection = True  # a client that forgets the header may send a body nevertheless
            raise Refusal(
                411, "the request needs a body and the header Content-Length", name="length_required"
            )
        if (self.headers.get("Content-Encoding") or "identity").lower() != "identity":
            raise Refusal(415, "the body must not have a Content-Encoding")
        return b"".join(self._parts_of_body())

    def _parts_of_body(self) -> Iterator[bytes]:
        """Reads the body to its end, in limited time and space."""
        limit, size = self.limits.body_bytes, 0
        announced = 0 if self.headers.get("Transfer-Encoding") else self._length
        deadline = time.monotonic() + self.limits.socket_seconds
        if announced <= limit and self._expects_continue:
            self._expects_continue = False
            self.send_response_only(100)
            self.end_headers()
        while announced <= limit and self._body is not None:
            part = next(self._body, None)
            if part is None:
                self._body = None
                return
            size += len(part)
            if size > limit:
                break
            if time.monotonic() > deadline:
                raise ConnectionError("the body does not arrive")
            yield part
        self.close_connection = True
        raise Refusal(
            413,
            f"the body of a request has at most {limit} bytes, this one has {announced or f'more than {limit}'}",
            name="request_too_large",
        )

    def _discard_body(self) -> None:
        """Reads the rest of a body that no code needs, so that the next request follows. Ends the connection if the body is
        too long, or if the client waits for permission to send it."""
        if self._body is None or self.close_connection:
            return
        if self._expects_continue:
            self.close_connection = True
            return
        try:
            for _ in self._parts_of_body():
                pass
        except (Refusal, OSError):
            self.close_connection = True

    def is_gone(self) -> bool:
        """Whether the client has closed its connection."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        try:
            return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    # --- responses ----------------------------------------------------------------------------------------------

    def headers_of_every_response(self) -> list[tuple[str, str]]:
        """Returns the headers that all responses to the current request have."""
        return []

    def send_head(self, status: int, *headers: tuple[str, str]) -> None:
        """Sends the status and the headers of a response."""
        self._discard_body()
        self._is_closing |= self.close_connection
        self.send_response(status)
        for name, value in (*headers, *self.headers_of_every_response()):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def send(
        self, status: int, body: object, kind: str = "application/json", *headers: tuple[str, str]
    ) -> None:
        """Sends a response: bytes as they are, other objects as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_head(status, ("Content-Type", kind), ("Content-Length", str(len(data))), *headers)
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_refusal(self, refusal: Refusal, *headers: tuple[str, str]) -> None:
        """Sends an error response."""
        self.send(refusal.status, {"error": refusal.error}, "application/json", *headers)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers what is not an HTTP request, or has an unknown method."""
        self.close_connection = True
        self.send_refusal(Refusal(code, message or self.responses.get(code, ("error",))[0]))

    def begin_stream(self) -> None:
        """Begins a stream of server-sent events. Clients of HTTP/1.0 do not know chunks: the end of the connection ends
        their stream."""
        self._is_chunked = self.request_version >= "HTTP/1.1"
        self.close_connection |= not self._is_chunked
        self.is_streaming = True
        coding = [("Transfer-Encoding", "chunked")] if self._is_chunked else []
        self.send_head(200, ("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache"), *coding)

    def send_event(self, data: object, name: str | None = None) -> None:
        """Sends an event: bytes as they are, other objects as JSON."""
        text = data if isinstance(data, bytes) else json.dumps(data).encode()
        head = b"" if name is None else b"event: " + name.encode() + b"\n"
        self._write(head + b"data: " + text + b"\n\n")

    def end_stream(self) -> None:
        """Ends a stream."""
        self._write(b"")

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if self._is_chunked else data)

    def log_message(self, format: str, *args: object) -> None:
        """Logs without the client's control characters."""
        _log.info("%s %s", self.client_address[0], (format % args).encode("unicode_escape").decode())
