# SPDX-License-Identifier: BSD-3-Clause
# A server in a thread, and clients with access to each header and byte of a response.

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import pytest

from torchette.llm.serve import Limits, Origins, Server
from torchette.llm.session import Session

LIMITS = Limits(
    body_bytes=20_000, answer_tokens=40, waiting=2, seconds=60.0, socket_seconds=60.0, connections=12
)
IMPATIENT = LIMITS._replace(socket_seconds=0.5)
PATIENCE = 120  # seconds until a test fails; long enough for a loaded machine


@contextlib.contextmanager
def serving(
    sessions: list[Session], name: str = "double", hosts: Any = (), origins: Any = (), **options: Any
) -> Iterator[Server]:
    allowed = Origins(options.get("host", "127.0.0.1"), hosts, origins)
    with Server(sessions, name, port=0, origins=allowed, **{"limits": LIMITS, **options}) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: Server,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    method: str | None = None,
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(
        method or ("GET" if data is None else "POST"),
        path,
        data,
        {"Content-Type": "application/json", **(headers or {})},
    )
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, json.loads(text) if response.headers[
        "Content-Type"
    ] == "application/json" else text.decode()


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@contextlib.contextmanager
def openai_client(server: Server, key: str = "none") -> Iterator[Any]:
    """OpenAI's client of a server. Skips the test if the client is not installed."""
    openai = pytest.importorskip("openai")
    url = f"http://127.0.0.1:{server.server_port}/v1"
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        yield client


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]


@contextlib.contextmanager
def connected(server: Server) -> Iterator[tuple[socket.socket, BinaryIO]]:
    with (
        socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE) as connection,
        connection.makefile("rb") as file,
    ):
        yield connection, file


def read_response(file: BinaryIO, has_body: bool = True) -> Response:
    """The next response of a connection."""
    status = file.readline()
    assert status.startswith(b"HTTP/1.1 "), status
    headers = {}
    while line := file.readline().strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(file.readline(), 16):
            body += file.read(size)
            assert file.readline() == b"\r\n"
        assert file.readline() == b"\r\n"
    elif has_body:
        body = file.read(int(headers.get("content-length", 0)))
    return Response(int(status.split()[1]), headers, body)


def request(
    path: str, body: object = None, method: str = "POST", version: str = "1.1", **headers: str
) -> bytes:
    """The bytes of a request. A name of a header has "_" for "-"."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Host": "localhost", "Content-Length": str(len(data))}
    lines.update({name.replace("_", "-"): value for name, value in headers.items()})
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"{method} {path} HTTP/{version}\r\n{head}\r\n".encode() + data


def chunked(path: str, body: object, *sizes: int, **headers: str) -> bytes:
    """A request with a body in chunks of these sizes, and the rest."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    chunks, at = b"", 0
    for size in (*sizes, len(data)):
        if part := data[at : at + size]:
            chunks += b"%x;note=1\r\n%s\r\n" % (len(part), part)
        at += size
    return (
        request(path, None, Content_Length="", Transfer_Encoding="chunked", **headers)
        + chunks
        + b"0\r\nX: y\r\n\r\n"
    )
