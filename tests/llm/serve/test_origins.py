# SPDX-License-Identifier: BSD-3-Clause
# Pages of other sites cannot use the server, neither directly nor through a host name with its address. Allowed origins can.

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.build import chromium
from tests.llm.double import FakeDecoder, session
from tests.llm.serve.client import Response, connected, read_response, request, serving
from torchette import cli
from torchette.errors import InputError
from torchette.llm.serve import Server
from torchette.llm.serve.origins import Origins
from torchette.llm.serve.refusal import Refusal

BODY = {"prompt": "x", "max_tokens": 2}
APP = "http://app.example:3000"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    sessions = [session(FakeDecoder(context=512))]
    with serving(
        sessions, api_key="key", hosts=["proxy.example"], origins=[f"{APP}/", "app://notes"]
    ) as running:
        yield running


def answered(server: Server, path: str, method: str = "POST", **headers: str) -> Response:
    with connected(server) as (connection, file):
        body = BODY if method == "POST" else None
        connection.sendall(request(path, body, method, **{"Authorization": "Bearer key", **headers}))
        return read_response(file)


OTHERS = ["http://evil.example", "https://evil.example", "null", "http://localhost.evil.example", "http://localhost:1", "https://localhost:1",
          "http://app.example", "https://app.example:3000", f"{APP}.evil.example", "app://other", "file://", "http://", "localhost", "", "http://x@localhost"]  # fmt: skip


@pytest.mark.parametrize("origin", OTHERS)
def test_pages_of_other_origins_cannot_use_the_server(server, origin):
    """Also with requests that browsers send without asking first: forms, and texts of fetch."""
    if not origin:
        return
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
            response = answered(server, path, Origin=origin, Content_Type=kind)
            assert (response.status, response.error["code"]) == (403, "forbidden_origin")
            assert not [name for name in response.headers if name.startswith("access-control")]
    for method in ("GET", "OPTIONS"):
        response = answered(server, "/v1/models", method, Origin=origin, Access_Control_Request_Method="POST")
        assert response.status == 403
    assert answered(server, "/v1/completions").status == 200


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:80",
        "127.0.0.1:8080",
        "[::1]:80",
        "app.localhost:1",
        "proxy.example",
        "192.168.1.5:80",
    ],
)
def test_page_of_the_server_can_use_it_under_every_name(server, host):
    for scheme in ("http", "https"):
        for origin in (f"{scheme}://{host}", f"{scheme}://{host.lower()}"):
            assert answered(server, "/v1/completions", Host=host, Origin=origin).status == 200
    assert answered(server, "/v1/completions", Host=host, Origin="http://evil.example").status == 403
    assert answered(
        server, "/v1/completions", Host=host, Origin=f"http://{host.partition(':')[0]}:99"
    ).status == 403 or host.startswith("[")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "a@localhost",
        "[::1",
        "proxy.example.evil",
        "1.2.3",
    ],
)
def test_hosts_of_dns_rebinding_are_rejected(server, host):
    for path, method in (("/v1/completions", "POST"), ("/v1/models", "GET"), ("/health", "GET"), ("/", "GET"), ("/v1/completions", "OPTIONS")):  # fmt: skip
        response = answered(server, path, method, Host=host, Origin=f"http://{host}")
        assert (response.status, response.error["code"]) == (403, "forbidden_host")
        assert "--allow-host" in response.error["message"]


def test_a_server_for_other_machines_has_the_same_checks():
    with serving([session(FakeDecoder())], host="0.0.0.0") as server:
        assert answered(server, "/v1/completions", Host="evil.example").status == 403
        assert answered(server, "/v1/completions", Origin="http://evil.example").status == 403
        for host in ("10.0.0.1:8080", socket.gethostname(), f"{socket.gethostname()}.local:80"):
            assert answered(server, "/v1/completions", Host=host, Origin=f"http://{host}").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_form_without_an_origin_is_refused(server, site):
    assert answered(server, "/v1/completions", Sec_Fetch_Site=site).status == 403
    assert answered(server, "/v1/models", "GET", Sec_Fetch_Site=site).status == 200  # a link to the page
    for fetch_site in ("same-origin", "none"):
        assert answered(server, "/v1/completions", Sec_Fetch_Site=fetch_site).status == 200


@pytest.mark.parametrize("origin", [APP, "app://notes", "APP://notes"])
def test_named_origins_get_the_headers_of_cors(server, origin):
    for path, method, headers, status in (
        ("/v1/completions", "POST", {}, 200), ("/v1/models", "GET", {}, 200), ("/v1/nothing", "POST", {}, 404),
        ("/v1/completions", "POST", {"Authorization": ""}, 401), ("/v1/completions", "GET", {}, 405),
    ):  # fmt: skip
        response = answered(server, path, method, Origin=origin, **headers)
        assert response.status == status
        assert (response.headers["access-control-allow-origin"], response.headers["vary"]) == (
            origin,
            "Origin",
        )


def test_a_preflight_needs_no_key_and_allows_the_headers_of_clients(server):
    headers = "authorization, content-type, x-stainless-os"
    response = answered(
        server, "/v1/chat/completions", "OPTIONS", Authorization="", Origin=APP, Access_Control_Request_Method="POST",
        Access_Control_Request_Headers=headers, Access_Control_Request_Private_Network="true",
    )  # fmt: skip
    assert response.status == 204 and response.headers["access-control-allow-origin"] == APP
    assert response.headers["access-control-allow-methods"] == "POST, OPTIONS"
    assert response.headers["access-control-allow-headers"] == headers
    assert response.headers["access-control-allow-private-network"] == "true"
    strange = answered(server, "/v1/models", "OPTIONS", Origin=APP, Access_Control_Request_Method="GET", Access_Control_Request_Headers="a\tb;c")  # fmt: skip
    assert "access-control-allow-headers" not in strange.headers


def test_all_origins_are_allowed_only_on_request():
    with serving([session(FakeDecoder())], origins=["*"]) as server:
        for origin in ("http://evil.example", "null"):
            response = answered(server, "/v1/completions", Origin=origin)
            assert (response.status, response.headers["access-control-allow-origin"]) == (200, origin)
        assert answered(server, "/v1/completions", Host="evil.example").status == 403
    with serving([session(FakeDecoder())]) as server:
        assert (
            "access-control-allow-origin"
            not in answered(server, "/v1/completions", Origin="http://localhost").headers
        )


@pytest.mark.parametrize(
    "origin", ["localhost:3000", "http://a/b", "http://", "", "http://a b", "http://a?b", "http://u@a"]
)
def test_a_malformed_origin_is_an_error(origin):
    with pytest.raises(InputError, match="origin"):
        Origins("localhost", (), [origin])


@pytest.mark.parametrize("host", ["http://a", "a/b", "a:80", "", "a b"])
def test_a_malformed_host_is_an_error(host):
    with pytest.raises(InputError, match="host"):
        Origins("localhost", [host])


@pytest.mark.parametrize(
    ("option", "value"), [("--cors-origin", "localhost:3000"), ("--allow-host", "http://a")]
)
def test_the_command_checks_them_before_it_loads_a_model(option, value, capsys):
    assert cli.main(["serve", "no-such-file.pte", option, value]) == 2
    assert f"{value!r} is malformed" in capsys.readouterr().err


def test_a_request_of_http_1_0_needs_no_host():
    Origins("localhost").check(None, None, None, writes=True)
    with pytest.raises(Refusal):
        Origins("localhost").check(None, "http://localhost", None, writes=True)


@pytest.mark.gate
def test_a_page_of_another_origin_in_a_browser():
    """In Chromium: fetch with and without CORS, and a form. The server computes nothing, except for a named origin."""
    chromium.find()
    decoder = FakeDecoder(context=512)
    script = """(async () => { try {
        const body = '{"prompt": "x", "max_tokens": 2}';
        const response = await fetch('%s/v1/completions', {method: 'POST', mode: '%s', body});
        return response.type + ' ' + response.status; } catch (error) { return 'refused'; } })()"""
    with plain_page(b"<body>other</body>") as origin, chromium.Chromium() as page:
        for origins, expected in (([], "refused"), ([origin], "cors 200")):
            with serving([session(decoder)], origins=origins) as server:
                page.open(f"{origin}/", "document.body.textContent === 'other'")
                url = f"http://127.0.0.1:{server.server_port}"
                assert page.value(script % (url, "cors")) == expected
                page.value(
                    script % (url, "no-cors")
                )  # the page sees nothing in either case, and the server must not compute
                assert bool(decoder.fed) == bool(origins)


@contextlib.contextmanager
def plain_page(data: bytes) -> Iterator[str]:
    """A site without our headers. Yields its origin."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as page_server:
        thread = threading.Thread(target=page_server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{page_server.server_port}"
        page_server.shutdown()
        thread.join()
