# SPDX-License-Identifier: BSD-3-Clause
# Requests on one connection: after each response, the next request is answered, or the response says that the connection ends.

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.llm.double import FakeDecoder, session
from tests.llm.serve.client import IMPATIENT, LIMITS, chunked, connected, read_response, request, serving
from torchette.llm.serve import Server

COMPLETIONS = "/v1/completions"
GOOD = {"prompt": "x", "max_tokens": 2, "temperature": 0}
LARGE = b"x" * (LIMITS.body_bytes + 1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving([session(FakeDecoder(context=512))], api_key="key", hosts=["proxy"]) as running:
        yield running


def sent(path: str, body: object, form: str = "plain", **headers: str) -> bytes:
    headers = {"Authorization": "Bearer key", **headers}
    return chunked(path, body, 1, 2, **headers) if form == "chunked" else request(path, body, **headers)


ERRORS: dict[str, tuple[int, str, object, dict[str, str]]] = {
    "not JSON": (400, COMPLETIONS, b"{" * 500, {}),
    "invalid value": (400, COMPLETIONS, {"prompt": "x", "n": 0}, {}),
    "no model": (404, COMPLETIONS, {"prompt": "x", "model": "other"}, {}),
    "no path": (404, "/v1/nothing", {"prompt": "x" * 5000}, {}),
    "no key": (401, COMPLETIONS, {"prompt": "x" * 5000}, {"Authorization": ""}),
    "another host": (403, COMPLETIONS, {"prompt": "x" * 5000}, {"Host": "evil.example"}),
    "another origin": (403, COMPLETIONS, {"prompt": "x" * 5000}, {"Origin": "http://evil.example"}),
    "another method": (405, "/v1/models", {"prompt": "x" * 5000}, {}),
    "coded body": (415, COMPLETIONS, {"prompt": "x"}, {"Content-Encoding": "gzip"}),
}  # fmt: skip


@pytest.mark.parametrize("form", ["plain", "chunked"])
@pytest.mark.parametrize("name", ERRORS)
def test_after_an_error_the_connection_continues(server, name, form):
    status, path, body, headers = ERRORS[name]
    with connected(server) as (connection, file):
        for _ in range(3):
            connection.sendall(sent(path, body, form, **headers))
            response = read_response(file)
            assert response.status == status and response.error["message"]
            assert "connection" not in response.headers
            connection.sendall(sent(COMPLETIONS, GOOD, form))
            assert read_response(file).status == 200


@pytest.mark.parametrize("name", ERRORS)
def test_pipelined_requests_are_answered_in_order(server, name):
    status, path, body, headers = ERRORS[name]
    parts = [sent(COMPLETIONS, GOOD), sent(path, body, **headers), sent(path, body, "chunked", **headers)]
    with connected(server) as (connection, file):
        connection.sendall(b"".join([*parts, *parts, request("/health", method="GET")]))
        assert [read_response(file).status for _ in range(7)] == [200, status, status] * 2 + [200]


@pytest.mark.parametrize("form", ["plain", "chunked"])
def test_a_body_over_the_limit_gets_413_before_the_connection_ends(server, form):
    """This also works if the client sends the complete body, which exceeds the kernel's buffers, before it reads."""
    for body in (LARGE, LARGE * 200):
        with connected(server) as (connection, file):
            connection.sendall(sent(COMPLETIONS, body, form))
            response = read_response(file)
            assert (response.status, response.headers["connection"]) == (413, "close")
            assert response.error["code"] == "request_too_large" and "20000" in response.error["message"]
            assert file.read() == b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ({"Content-Length": "-5"}, 400), ({"Content-Length": "5, 6"}, 400), ({"Content-Length": "\u0665"}, 400),
        ({"Content-Length": "9" * 20}, 400), ({"Content-Length": "5", "Transfer-Encoding": "chunked"}, 400),
        ({"Transfer-Encoding": "gzip"}, 501), ({"Transfer-Encoding": "gzip, chunked"}, 501), ({}, 411),
    ],
    ids=str,
)  # fmt: skip
def test_a_body_without_a_clear_length_ends_the_connection(server, head, status):
    """The following bytes could be the body or the next request."""
    data = request(COMPLETIONS, None, Authorization="Bearer key", **{"Content-Length": "", **head})
    with connected(server) as (connection, file):
        connection.sendall(data + request("/health", method="GET"))
        response = read_response(file)
        assert (response.status, response.headers["connection"]) == (status, "close")
        assert file.read() == b""


@pytest.mark.parametrize(
    "body",
    [
        b"z\r\n",
        b"5\r\nabc\r\n0\r\n\r\n",
        b"-1\r\n",
        b"1\r\n{",
        b"\r\n",
        b"0\r\n" + b"a: b\r\n" * 200,
        b"1" * 9000,
    ],
)
def test_malformed_chunks_are_refused(server, body):
    head = request(
        COMPLETIONS, None, Content_Length="", Transfer_Encoding="chunked", Authorization="Bearer key"
    )
    with connected(server) as (connection, file):
        connection.sendall(head + body + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = read_response(file)
        assert (response.status, response.headers["connection"]) == (400, "close")
        assert "chunked body is malformed" in response.error["message"] and file.read() == b""


def test_server_requests_only_bodies_that_it_reads(server):
    head, _, body = sent(COMPLETIONS, GOOD, Expect="100-continue").partition(b"\r\n\r\n")
    with connected(server) as (connection, file):
        for _ in range(2):
            connection.sendall(head + b"\r\n\r\n")
            assert read_response(file).status == 100
            connection.sendall(body)
            assert read_response(file).status == 200
    for refused, status in (
        (sent(COMPLETIONS, GOOD, Expect="100-continue", Authorization=""), 401),
        (sent(COMPLETIONS, LARGE, Expect="100-continue"), 413),
        (sent("/v1/nothing", GOOD, Expect="100-continue"), 404),
    ):
        with connected(server) as (connection, file):
            connection.sendall(refused.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
            response = read_response(file)
            assert (response.status, response.headers["connection"]) == (status, "close")


def test_head_has_the_headers_of_get_and_no_body(server):
    for path in ("/health", "/v1/models", "/v1/nothing"):
        with connected(server) as (connection, file):
            connection.sendall(request(path, method="GET", Authorization="Bearer key"))
            expected = read_response(file)
            connection.sendall(request(path, method="HEAD", Authorization="Bearer key"))
            actual = read_response(file, has_body=False)
            connection.sendall(request("/health", method="GET"))
            assert read_response(file).body == b'{"status": "ok"}'
        for response in (expected, actual):
            response.headers.pop("date")
        assert (actual.status, actual.headers) == (expected.status, expected.headers)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/completions", "POST, OPTIONS"), ("GET", "/v1/responses", "POST, OPTIONS"), ("HEAD", "/v1/chat/completions/", "POST, OPTIONS"),
     ("POST", "/v1/models", "GET, HEAD, OPTIONS"), ("POST", "/health", "GET, HEAD, OPTIONS")],
)  # fmt: skip
def test_wrong_method_error_lists_the_allowed_methods(server, method, path, allowed):
    with connected(server) as (connection, file):
        connection.sendall(request(path, method=method, Authorization="Bearer key"))
        response = read_response(file, has_body=method != "HEAD")
        assert (response.status, response.headers["allow"]) == (405, allowed)
        connection.sendall(request(path, method="OPTIONS"))
        response = read_response(file)
        assert (response.status, response.headers["allow"], response.body) == (204, allowed, b"")


def test_a_stream_does_not_end_the_connection(server):
    with connected(server) as (connection, file):
        for _ in range(3):
            connection.sendall(sent(COMPLETIONS, {**GOOD, "stream": True}))
            response = read_response(file)
            assert response.status == 200 and response.body.endswith(b"data: [DONE]\n\n")


def test_a_client_of_http_1_0_gets_a_stream_without_chunks(server):
    with connected(server) as (connection, file):
        data = {**GOOD, "stream": True}
        connection.sendall(request(COMPLETIONS, data, version="1.0", Authorization="Bearer key"))
        response = read_response(file)
        assert response.status == 200 and "transfer-encoding" not in response.headers
        lines = file.read().decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""] and json.loads(lines[0].removeprefix("data: "))["id"]


def test_missing_body_ends_the_connection_in_time():
    with serving([session(FakeDecoder())], limits=IMPATIENT) as server:
        for form in ("plain", "chunked"):
            with connected(server) as (connection, file):
                connection.sendall(sent(COMPLETIONS, GOOD, form)[:-20])
                assert file.read() == b""


def test_request_may_contain_the_full_url(server):
    """As clients of proxies do."""
    with connected(server) as (connection, file):
        for url in ("http://localhost/health", "http://localhost:1/health?x=1"):
            connection.sendall(request(url, method="GET"))
            assert read_response(file).status == 200
        connection.sendall(sent("http://localhost/v1/completions", GOOD))
        assert read_response(file).status == 200


def test_a_get_with_a_body_is_answered(server):
    with connected(server) as (connection, file):
        connection.sendall(request("/health", {"a": 1}, method="GET") * 2)
        assert [read_response(file).status for _ in range(2)] == [200, 200]
