# SPDX-License-Identifier: BSD-3-Clause
# In: a server on the double; valid and hostile requests. Out: the answers of a session, complete or streamed; an error object in
# OpenAI's form for an invalid request, after which the server answers the next request.

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.build import chromium
from tests.llm.double import END, FakeDecoder, session
from tests.llm.serve.client import IMPATIENT, LIMITS, PATIENCE, ask, events, openai_client, serving
from tests.llm.test_messages import ADD, TOOLS
from torchette.cli import serve
from torchette.errors import InputError
from torchette.llm.serve import Limits, Server
from torchette.llm.serve.answering import text_before_call
from torchette.llm.session import Session

pytest.importorskip("tokenizers")


class Eyes(FakeDecoder):
    """Replaces a placeholder token by images; uses only the shapes of the images."""

    placeholder = ord("@")

    def place(self, tokens: list[int], images: Any, audio: Any) -> list[int]:
        self.seen = [np.asarray(image).shape for image in images]
        assert tokens.count(self.placeholder) == len(images)
        return tokens


class Guide(FakeDecoder):
    """Counts the tokens of all copies."""

    steps: ClassVar[list[int]] = []

    def new(self) -> Guide:
        return Guide(context=self.max_context)

    def step(self, tokens: Sequence[int], start_pos: int) -> np.ndarray:
        Guide.steps.append(len(tokens))
        return super().step(tokens, start_pos)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    first = session(FakeDecoder(context=512))
    with serving([first, first.new()], "double") as running:
        yield running


def lives(server: Server) -> None:
    status, body = ask(server, "/v1/completions", {"prompt": "Hi", "max_tokens": 3, "temperature": 0})
    expected = session(FakeDecoder(context=512)).generate("Hi", max_tokens=3).run()
    assert status == 200 and body["choices"][0]["text"] == expected.text
    with server.pool.turn:
        assert server.pool.turn.wait_for(lambda: len(server.pool.free) == 2, PATIENCE)


def test_models(server):
    status, body = ask(server, "/v1/models")
    assert status == 200 and [m["id"] for m in body["data"]] == ["double"]
    assert ask(server, "/v1/models/double")[1]["object"] == "model"
    assert ask(server, "/health") == (200, {"status": "ok"})


@pytest.mark.parametrize("key", [None, "key-1"])
def test_chat_page_loads_only_files_of_the_server(key):
    """The page's files need no key and refer only to each other; its model is that of the server."""
    page = serve._page('a "b')
    with Server([session(FakeDecoder())], 'a "b', port=0, limits=LIMITS, api_key=key, page=page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        status, index = ask(server, "/?model=x")
        assert status == 200 and ask(server, "/llm.js")[0] == 200 == ask(server, "/worker.js")[0]
        sources = [index, *(ask(server, f"/{name}")[1] for name in ("chat.js", "worker.js", "llm.js"))]
        for named in re.findall(r'(?:href="|src="|from "|Worker\(")(?:\./)?([\w.]+)"', "".join(sources)):
            assert ask(server, f"/{named}")[0] == 200, named
        assert not re.search("https?:", "".join(sources))
        url = "/" + re.search('data-model="(.*?)"', index)[1]
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        model = ask(server, url, headers=headers)[1]
        assert model["id"] == 'a "b' and model["max_model_len"] == 64
        assert ask(server, url)[0] == (401 if key else 200)
        assert ask(server, "/server.js")[0] == ask(server, "/../serve.py")[0] == (401 if key else 404)
        server.shutdown()


@pytest.mark.gate
def test_chat_page_shows_the_answer_of_a_session():
    """In Chromium: the answer, the server's error while the context is too small, and an answer that is stopped."""
    chromium.find()
    decoder = FakeDecoder(context=512)
    expected = session(decoder.new()).chat(CHAT["messages"], max_tokens=30).run()
    served = serve._page("double")
    with (
        Server([session(decoder)], "double", port=0, limits=LIMITS, page=served) as server,
        chromium.Chromium() as page,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.open(f"http://127.0.0.1:{server.server_port}/", "document.body.dataset.ready === ''")
        assert page.value("document.getElementById('facts').textContent") == "512 tokens of context"
        ask_for = (
            "document.getElementById('most').value = {}; document.getElementById('temperature').value = 0;"
            "document.getElementById('question').value = {!r}; document.getElementById('form').requestSubmit()"
        )
        script = "[...document.querySelectorAll('#messages .assistant')].map((item) => item.textContent)"
        facts = "document.getElementById('facts').textContent"
        page.value(ask_for.format(30, CHAT["messages"][0]["content"]))
        page.wait(f"{facts}.includes('tokens ·')")
        assert page.value(script) == [expected.text]
        assert page.value(facts).startswith(f"{expected.statistics.answer_tokens} tokens")
        decoder.seconds = 0.05
        page.value(ask_for.format(40, "More"))
        page.wait("document.querySelectorAll('#messages .assistant')[1]?.textContent.length > 0")
        page.value("document.getElementById('form').requestSubmit()")
        page.wait(f"{facts}.includes('tokens ·') && document.getElementById('send').textContent === 'Send'")
        decoder.seconds = 0
        page.value("document.getElementById('clear').click()")
        page.value(ask_for.format(9, "x" * 600))
        page.wait(f"{facts}.startsWith('OutOfResources: ')")
        server.shutdown()


def test_completion_equals_the_answer_of_a_session(server):
    request = {
        "model": "double",
        "prompt": "Once",
        "max_tokens": 12,
        "temperature": 0.7,
        "seed": 3,
        "logprobs": 2,
        "stop": ["zzz"],
    }
    expected = session(FakeDecoder(context=512)).generate(
        "Once", max_tokens=12, temperature=0.7, seed=3, logprobs=2, stop="zzz"
    )
    pieces = [p for p in expected if p.token is not None]
    status, body = ask(server, "/v1/completions", request)
    choice = body["choices"][0]
    assert (
        status == 200
        and choice["text"] == expected.text
        and choice["finish_reason"] == expected.finish_reason == "length"
    )
    assert choice["logprobs"]["token_logprobs"] == pytest.approx([p.logprob for p in pieces])
    assert body["usage"]["completion_tokens"] == 12 and body["usage"]["prompt_tokens"] == 5
    status, text = ask(
        server, "/v1/completions", {**request, "stream": True, "stream_options": {"include_usage": True}}
    )
    parts = events(text)
    assert "".join(p["choices"][0]["text"] for p in parts if p["choices"]) == expected.text
    assert parts[-1]["usage"] == {
        **body["usage"],
        "prompt_tokens_details": parts[-1]["usage"]["prompt_tokens_details"],
    }
    assert ask(server, "/v1/completions", {**request, "prompt": [1, 2, 3]})[0] == 200
    assert (
        ask(server, "/v1/completions", {**request, "prompt": ["Once"], "n": 1, "user": "x", "suffix": None})[
            1
        ]["choices"][0]["text"]
        == expected.text
    )


def test_chat_equals_the_answer_of_a_session(server):
    messages = [
        {"role": "system", "content": "be"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    plain = [messages[0], {"role": "user", "content": "Hi"}]
    request = {
        "model": "double",
        "messages": messages,
        "max_completion_tokens": 9,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 1,
    }
    expected = session(FakeDecoder(context=512)).chat(plain, max_tokens=9, temperature=0).run()
    body = ask(server, "/v1/chat/completions", request)[1]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert len(body["choices"][0]["logprobs"]["content"]) == 9
    parts = events(ask(server, "/v1/chat/completions", {**request, "stream": True})[1])
    assert "".join(p["choices"][0]["delta"].get("content", "") for p in parts) == expected.text
    assert [p["choices"][0]["finish_reason"] for p in parts][-1] == expected.finish_reason
    assert (
        parts[0]["choices"][0]["delta"]["role"] == "assistant"
        and parts[0]["object"] == "chat.completion.chunk"
    )


def test_answers_match_schemas_and_grammars(server):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for seed in range(5):
        request = {"messages": [{"role": "user", "content": "?"}], "seed": seed}
        body = ask(server, "/v1/chat/completions", {**request, "response_format": form})[1]["choices"][0]
        if body["finish_reason"] == "stop":
            assert isinstance(json.loads(body["message"]["content"])["ok"], bool)
        body = ask(server, "/v1/chat/completions", {**request, "grammar": 'root ::= "yes" | "no"'})[1][
            "choices"
        ][0]
        assert body["message"]["content"] in ("yes", "no") and body["finish_reason"] == "stop"


def test_concurrent_requests_get_the_answers_of_single_requests(server):
    responses: dict[int, Any] = {}

    def one(number: int) -> None:
        responses[number] = ask(
            server, "/v1/completions", {"prompt": f"p{number}", "max_tokens": 20, "temperature": 0}
        )

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (status, body) in responses.items():
        assert status == 200
        assert (
            body["choices"][0]["text"]
            == session(FakeDecoder(context=512)).generate(f"p{number}", max_tokens=20).run().text
        )


PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
CHAT = {"messages": [{"role": "user", "content": "x"}]}
BAD: list[tuple[str, Any, int]] = [
    ("/v1/completions", b"{", 400), ("/v1/completions", b"[]", 400), ("/v1/completions", b"\xff\xfe", 400), ("/v1/completions", b"[" * 9000, 400),
    ("/v1/completions", {}, 400), ("/v1/completions", {"prompt": 5}, 400), ("/v1/completions", {"prompt": ["a", 5]}, 400), ("/v1/completions", {"prompt": [[1], [2.5]]}, 400), ("/v1/completions", {"prompt": ["a"] * 99}, 400),
    ("/v1/completions", {"prompt": [99999]}, 400), ("/v1/completions", {"prompt": [True]}, 400), ("/v1/completions", {"prompt": []}, 400),
    ("/v1/completions", {"prompt": "x" * 600}, 400), ("/v1/completions", {"prompt": "\ud800"}, 400), ("/v1/completions", b"x" * 30_000, 413),
    ("/v1/completions", {"prompt": "x", "model": "other"}, 404), ("/v1/nothing", {}, 404), ("/v1/nothing", None, 404),
    ("/v1/completions", {"prompt": "x", "n": 0}, 400), ("/v1/completions", {"prompt": "x", "n": 99}, 400), ("/v1/completions", {"prompt": ["x", "y"], "n": True}, 400), ("/v1/completions", {"prompt": "x", "logprobs": 21}, 400),
    ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400), ("/v1/completions", {"prompt": "x", "max_tokens": "9"}, 400),
    ("/v1/completions", {"prompt": "x", "temperature": "hot"}, 400), ("/v1/completions", b'{"prompt": "x", "temperature": NaN}', 400),
    ("/v1/completions", {"prompt": "x", "top_p": 7}, 400), ("/v1/completions", {"prompt": "x", "seed": -2}, 400),
    ("/v1/completions", {"prompt": "x", "stop": [5]}, 400), ("/v1/completions", {"prompt": "x", "stop": {"a": 1}}, 400), ("/v1/completions", {"prompt": "x", "stop": ["a"] * 17}, 400),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"1": 1e300}}, 400), ("/v1/completions", {"prompt": "x", "grammar": "root ::= \"a\"", "logit_bias": {"97": -1e300}}, 400),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"a": 1}}, 400), ("/v1/completions", {"prompt": "x", "logit_bias": {"999": 1}}, 400), ("/v1/completions", {"prompt": "x", "logit_bias": 5}, 400),
    ("/v1/completions", {"prompt": "x", "grammar": "root ::= root"}, 400), ("/v1/completions", {"prompt": "x", "grammar": 5}, 400),
    ("/v1/chat/completions", {"messages": "x"}, 400), ("/v1/chat/completions", {"messages": []}, 400), ("/v1/chat/completions", {"messages": [5]}, 400),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function"}]}, 400), ("/v1/chat/completions", {**CHAT, "response_format": "json"}, 400),
    ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, 400),
    ("/v1/chat/completions", {**CHAT, "tools": 5}, 400), ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": 5}, 400),
    ("/v1/chat/completions", {**CHAT, "stream": True, "grammar": "x"}, 400), ("/v1/chat/completions", {**CHAT, "top_logprobs": 99}, 400),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status"), BAD, ids=lambda value: str(value)[:60])
def test_invalid_request_is_an_error_object(server, path, body, status):
    actual, answer = ask(server, path, body)
    assert actual == status, answer
    assert set(answer["error"]) == {"message", "type", "param", "code"} and answer["error"]["message"]


def test_a_prompt_beyond_the_context_has_openais_code(server):
    body = ask(server, "/v1/completions", {"prompt": "x" * 600})[1]
    assert (
        body["error"]["code"] == "context_length_exceeded" and "the context 512" in body["error"]["message"]
    )


def test_server_answers_after_all_errors(server):
    lives(server)


def test_other_methods_and_hosts_are_rejected(server):
    assert ask(server, "/v1/models", headers={"Host": "evil.example"})[0] == 403
    assert ask(server, "/v1/models", headers={"Host": f"localhost:{server.server_port}"})[0] == 200
    assert ask(server, "/v1/models", headers={"Host": "[::1]:80"})[0] == 200
    for method, expected in (("DELETE", 405), ("PUT", 501)):
        status, body = ask(server, "/v1/models", method=method)
        assert status == expected and body["error"]["message"]
    lives(server)


RAW = [
    b"", b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"A" * 70_000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: \xff\x00\r\n\r\n",
]  # fmt: skip


def test_invalid_http_ends_only_its_connection(server):
    rng = random.Random(0)
    for data in [*RAW, *(rng.randbytes(rng.randrange(200)) + b"\r\n\r\n" for _ in range(30))]:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
            except OSError:
                pass
    lives(server)


def test_slow_or_closed_clients_block_no_resources(server):
    with serving([session(FakeDecoder())], limits=IMPATIENT) as impatient:
        slow = [
            socket.create_connection(("127.0.0.1", impatient.server_port)) for _ in range(20)
        ]  # more connections than the limit
        slow[0].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        for one in slow:
            one.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionResetError):
                while one.recv(1 << 16):  # until the server ends the connection
                    pass
            one.close()
        assert ask(impatient, "/health")[0] == 200
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.server_port)) as one:
            body = json.dumps({"prompt": "x", "max_tokens": 40, "stream": True}).encode()
            one.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body), body)
            )
            one.recv(10)
    lives(server)


def test_random_bodies_are_answered(server):
    rng = random.Random(3)
    values = [
        None,
        True,
        0,
        -1,
        1e308,
        "",
        "x",
        "\u0000",
        [],
        {},
        [[]],
        {"type": "text"},
        [{"role": "user", "content": "a"}],
        3,
        0.5,
        "root ::= [a-c]+",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}],
        [ADD],
    ]
    names = [
        "prompt",
        "messages",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "seed",
        "logprobs",
        "stream",
        "grammar",
        "response_format",
        "logit_bias",
        "n",
        "model",
        "top_logprobs",
        "stream_options",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
        "input",
        "instructions",
        "text",
        "include",
        "store",
        "previous_response_id",
        "guided_choice",
        "guided_regex",
        "structured_outputs",
        "parallel_tool_calls",
        "max_output_tokens",
    ]
    for _ in range(240):
        body = {name: rng.choice(values) for name in rng.sample(names, rng.randrange(len(names)))}
        body.setdefault("max_tokens", 3)
        path = rng.choice(["/v1/completions", "/v1/chat/completions", "/v1/responses"])
        if rng.random() < 0.5:
            body.update(
                {"prompt": "x"}
                if path == "/v1/completions"
                else {"messages": CHAT["messages"], "input": "x"},
                n=None,
                model=None,
            )
        status, answer = ask(server, path, body)
        assert status in (200, 400, 404), answer
        assert status == 200 or answer["error"]["message"]
    lives(server)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of keys of each value within a value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*path, key)
        yield from places(part, (*path, key))


def test_requests_with_an_invalid_part_are_answered(further):
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    schema = {"type": "object", "properties": {"a": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"$ref": "#/$defs/x"}]}},
              "$defs": {"x": {"enum": ["u", None]}}}  # fmt: skip
    good = [
        ("/v1/chat/completions", {"messages": [*CHAT["messages"], {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": [{"type": "text", "text": "2"}]}],
         "tools": [ADD], "tool_choice": {"function": {"name": "add"}}, "n": 2, "logprobs": True, "top_logprobs": 2, "chat_template_kwargs": {"x": 1}}),
        ("/v1/chat/completions", {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}, "stream": True}),
        ("/v1/completions", {"prompt": ["ab", [1, 2]], "n": 2, "grammar": 'root ::= [a-c]+ ("x" | r){1,3}\nr ::= "z" r | ""', "logit_bias": {"5": 1}}),
        ("/v1/responses", {"input": [*CHAT["messages"], {"role": "user", "content": [{"type": "input_text", "text": "a"}]}, {"type": "function_call", **call["function"]},
         {"type": "function_call_output", "output": "2"}], "tools": [{"type": "function", **ADD["function"]}], "include": ["message.output_text.logprobs"], "store": True,
         "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}, "text": {"format": {"type": "text"}}}),
        ("/v1/completions", {"prompt": "x", "structured_outputs": {"choice": ["a", "b"]}, "stop": ["x"], "seed": 1}),
        ("/v1/completions", {"prompt": "x", "response_format": {"type": "regex", "value": "[ab]"}, "stream_options": {"include_usage": True}}),
    ]  # fmt: skip
    junk = [True, 0, -1, 1.5, 1 << 63, 1e308, "", "x", "\0\uffff", [], {}, [[]], [None], "a" * 2000, {"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}, "root ::= root"]  # fmt: skip
    rng = random.Random(5)
    statuses = [ask(further, path, {**body, "max_tokens": 2}, KEY)[0] for path, body in good]
    assert statuses == [200] * len(good)
    for _ in range(400):
        path, body = rng.choice(good)
        body = json.loads(json.dumps({**body, "max_tokens": 2}))
        for _ in range(rng.choice([1, 1, 2])):
            *within, key = rng.choice(list(places(body)) or [("prompt",)])
            part: Any = body
            for one in within:
                part = part[one]
            if rng.random() < 0.3:
                del part[key]
            else:
                part[key] = rng.choice(junk)
        status, answer = ask(further, path, body, KEY)
        statuses.append(status)
        assert status in (200, 400, 404), (body, answer)
    assert 40 < statuses.count(400) < 380


def test_exceeded_limits_are_named():
    decoder = FakeDecoder(context=100_000)
    decoder.seconds = 0.02
    limits = Limits(seconds=2.0, waiting=1, answer_tokens=10_000)
    with Server([session(decoder)], "slow", port=0, limits=limits) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        responses: list[tuple[int, Any]] = []
        body = {"prompt": "x", "max_tokens": 9000, "logit_bias": {str(END): -100}}
        threads = [
            threading.Thread(target=lambda: responses.append(ask(server, "/v1/completions", body)))
            for _ in range(4)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert (
            sorted(status for status, _ in responses)[:2] == [429, 429]
            or [s for s, _ in responses].count(429) >= 1
        )
        assert {status for status, _ in responses} <= {429, 503, 504} and 504 in {
            status for status, _ in responses
        }
        assert all(answer["error"]["code"] in ("rate_limit_exceeded", "timeout") for _, answer in responses)
        assert ask(server, "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
        server.shutdown()
        thread.join()


def test_several_answers_and_several_prompts(server):
    request = {"prompt": ["Once", [1, 2, 3]], "n": 2, "max_tokens": 6, "temperature": 0.9, "seed": 4}
    body = ask(server, "/v1/completions", request)[1]
    fresh = session(FakeDecoder(context=512))
    expected = [
        fresh.generate(prompt, max_tokens=6, temperature=0.9, seed=seed).run()
        for prompt in request["prompt"]
        for seed in (4, 5)
    ]
    assert [c["text"] for c in body["choices"]] == [one.text for one in expected]
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 5 + 3
    assert body["usage"]["completion_tokens"] == sum(len(one.tokens) for one in expected)
    texts = [""] * 4
    for part in events(ask(server, "/v1/completions", {**request, "stream": True})[1]):
        texts[part["choices"][0]["index"]] += part["choices"][0]["text"]
    assert texts == [one.text for one in expected]


def test_draft_changes_no_answer_and_file_without_tokenizer_accepts_tokens():
    guide = Guide(context=512)
    with Server(
        [session(FakeDecoder(context=512, every=True))], "double", port=0, draft=session(guide)
    ) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        body = ask(server, "/v1/completions", {"prompt": "x", "max_tokens": 20, "temperature": 0, "n": 2})[1]
        expected = session(FakeDecoder(context=512)).generate("x", max_tokens=20).run().text
        assert [choice["text"] for choice in body["choices"]] == [expected] * 2
        assert sum(Guide.steps) >= 20
        server.models["double"][0]._shared = Session(FakeDecoder())._shared
        for path, request, code in (
            ("/v1/chat/completions", CHAT, "no-chat-template"),
            ("/v1/completions", {"prompt": "x"}, "unknown-tokenizer"),
        ):
            status, body = ask(server, path, request)
            assert (status, body["error"]["code"]) == (400, code)
        assert ask(server, "/v1/completions", {"prompt": [1, 2], "max_tokens": 2})[0] == 200
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def further() -> Iterator[Server]:
    """A server with a key, a second model, and a template with tools."""
    decoders = FakeDecoder(context=512), FakeDecoder(context=512, seed=1)
    for decoder in decoders:
        decoder.bias[list(b'"}')] = 3
    first, second = (session(decoder, template=TOOLS) for decoder in decoders)
    with Server(
        [first],
        "double",
        port=0,
        limits=LIMITS._replace(answer_tokens=120),
        adapters={"pirate/2": [second]},
        api_key="key-1",
    ) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


KEY = {"Authorization": "Bearer key-1"}


def test_requests_without_the_key_are_rejected(further):
    for headers in ({}, {"Authorization": "Bearer \u00ff"}, {"Authorization": KEY["Authorization"][7:]}):
        status, body = ask(further, "/v1/models", headers=headers)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert ask(further, "/v1/completions", {"prompt": "x"}, headers)[0] == 401
    assert ask(further, "/health")[0] == 200 and ask(further, "/v1/models", headers=KEY)[0] == 200


def test_adapters_are_models(further):
    assert [m["id"] for m in ask(further, "/v1/models", headers=KEY)[1]["data"]] == ["double", "pirate/2"]
    assert ask(further, "/v1/models/pirate%2F2", headers=KEY)[1]["id"] == "pirate/2"
    for seed, name in enumerate(["double", "pirate/2"]):
        decoder = FakeDecoder(context=512, seed=seed)
        decoder.bias[list(b'"}')] = 3
        body = ask(
            further, "/v1/completions", {"model": name, "prompt": "x", "max_tokens": 9, "temperature": 0}, KEY
        )[1]
        assert body["model"] == name
        assert body["choices"][0]["text"] == session(decoder).generate("x", max_tokens=9).run().text
    assert ask(further, "/v1/completions", {"model": ["double"], "prompt": "x"}, KEY)[0] == 404


def test_answers_call_functions(further):
    request = {"messages": CHAT["messages"], "tools": [ADD], "tool_choice": "required"}
    called = 0
    for seed in range(6):
        body = ask(further, "/v1/chat/completions", {**request, "seed": seed}, KEY)[1]["choices"][0]
        parts = events(
            ask(further, "/v1/chat/completions", {**request, "seed": seed, "stream": True}, KEY)[1]
        )
        deltas = [part["choices"][0]["delta"] for part in parts]
        if body["finish_reason"] != "tool_calls":  # 120 tokens were too few
            assert body["finish_reason"] == parts[-1]["choices"][0]["finish_reason"] == "length"
            continue
        called += 1
        (call,) = body["message"]["tool_calls"]
        assert body["message"]["content"] is None and call["function"]["name"] == "add"
        assert 0 <= json.loads(call["function"]["arguments"])["a"] <= 99
        ((streamed,),) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
        assert (streamed["index"], streamed["function"]) == (0, call["function"])
        assert not any(delta.get("content") for delta in deltas)
        assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert called > 2
    for choice in ("auto", "none"):  # text stays text, streamed and whole
        free = {**request, "tool_choice": choice, "seed": 3}
        message = ask(further, "/v1/chat/completions", free, KEY)[1]["choices"][0]["message"]
        parts = events(ask(further, "/v1/chat/completions", {**free, "stream": True}, KEY)[1])
        assert "tool_calls" not in message and len(parts) > 3
        assert "".join(p["choices"][0]["delta"].get("content", "") for p in parts) == message["content"]


@pytest.mark.parametrize(
    "text", ["I add. <tool_call>{", "<tool", "<toot", " {", "  x", "", "[", "a<tool_call>b"]
)
def test_text_that_may_be_a_call_is_held_back(text):
    held = text[text_before_call(text) :]
    assert held in ("", " {", "<tool_call>{", "<tool", "[", "<tool_call>b") and (
        held != "" or text in ("<toot", "  x", "")
    )


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_leaves_ends_its_answer():
    decoder = FakeDecoder(context=100_000)
    decoder.seconds = 0.01
    with Server([session(decoder)], "slow", port=0, limits=Limits(answer_tokens=50_000)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        body = json.dumps({"prompt": "x", "max_tokens": 50_000, "logit_bias": {str(END): -100}}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        first = socket.create_connection(("127.0.0.1", server.server_port))
        first.sendall(head + body)
        until(lambda: not server.pool.free)
        with socket.create_connection(("127.0.0.1", server.server_port)) as waiting:
            waiting.sendall(head + body)
            until(lambda: server.pool.waiting > 0)
        first.close()  # closes the other connection too
        with server.pool.turn:
            assert server.pool.turn.wait_for(lambda: server.pool.free and not server.pool.waiting, PATIENCE)
        assert ask(server, "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200
        assert decoder.fed < 5000
        server.shutdown()
        thread.join()


def test_images_come_as_data_urls():
    pytest.importorskip("PIL")
    eyes = Eyes(context=512)
    with Server([session(eyes)], "eyes", port=0, limits=LIMITS._replace(images=2)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()

        def see(*urls: Any, **more: Any) -> tuple[int, Any]:
            parts = [
                {"type": "text", "text": "See"},
                *({"type": "image_url", "image_url": url} for url in urls),
            ]
            request = {
                "messages": [{"role": "user", "content": parts}],
                "max_tokens": 5,
                "temperature": 0,
                **more,
            }
            return ask(server, "/v1/chat/completions", request)

        status, body = see({"url": PIXEL}, PIXEL)
        assert status == 200, body
        image = np.array([[[255, 0, 0]]], np.uint8)
        content = [{"type": "text", "text": "See"}, *[{"type": "image", "image": image}] * 2]
        expected = session(Eyes(context=512)).chat([{"role": "user", "content": content}], max_tokens=5).run()
        assert body["choices"][0]["message"]["content"] == expected.text
        assert eyes.seen == [(1, 1, 3), (1, 1, 3)]
        for bad in (
            "http://example.org/x.png", "file:///etc/passwd", "data:text/html;base64,AAAA", "data:image/png;base64,$$", "data:image/png,xx",
            "data:image/png;base64,AAAA", PIXEL[:60] + "AAAA" + PIXEL[64:], {"url": 5}, None, {},
        ):  # fmt: skip
            status, body = see(bad)
            assert status == 400 and body["error"]["message"], bad
        assert see(PIXEL, PIXEL, PIXEL)[0] == 400  # more than the limit
        assert see(PIXEL)[0] == 200
        server.shutdown()
        thread.join()
    plain = session(FakeDecoder(context=512))
    with pytest.raises(InputError, match="not images or audio"):
        plain.chat([{"role": "user", "content": [{"type": "image", "image": image}]}])


def test_openais_own_client(server):
    openai = pytest.importorskip("openai")
    with openai_client(server) as client:
        assert [model.id for model in client.models.list()] == ["double"]
        request: Any = {"model": "double", "messages": CHAT["messages"], "max_tokens": 12, "temperature": 0}
        expected = (
            session(FakeDecoder(context=512)).chat(CHAT["messages"], max_tokens=12, temperature=0).run()
        )
        answer = client.chat.completions.create(**request, logprobs=True, top_logprobs=2)
        assert answer.choices[0].message.content == expected.text and answer.usage.completion_tokens == 12
        assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
        stream = client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        parts = list(stream)
        assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == expected.text
        assert parts[-1].usage.prompt_tokens == answer.usage.prompt_tokens
        text = client.completions.create(
            model="double", prompt="Once", max_tokens=5, temperature=0, logprobs=1
        )
        assert (
            text.choices[0].text
            == session(FakeDecoder(context=512)).generate("Once", max_tokens=5).run().text
        )
        two = client.chat.completions.create(**{**request, "temperature": 1.0}, n=2, seed=1)
        assert len(two.choices) == 2 and two.choices[0].message.content != two.choices[1].message.content
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{**request, "temperature": -1})
        assert caught.value.body["message"].startswith("temperature")
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**{**request, "model": "other"})


def test_openais_client_calls_functions_with_a_key(further):
    openai = pytest.importorskip("openai")
    with openai_client(further, "key-1") as client:
        tool: Any = ADD
        request: Any = {
            "model": "pirate/2",
            "messages": CHAT["messages"],
            "tools": [tool],
            "tool_choice": "required",
        }
        for seed in range(20):
            answer = client.chat.completions.create(**request, seed=seed).choices[0]
            if answer.finish_reason == "tool_calls":
                break
        call = answer.message.tool_calls[0]
        history = [
            *CHAT["messages"],
            answer.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "7"},
        ]
        assert client.chat.completions.create(
            model="double", messages=history, max_tokens=3
        ).usage.completion_tokens
        streamed = [
            c.choices[0].delta for c in client.chat.completions.create(**request, seed=seed, stream=True)
        ]
        ((tool_call,),) = [delta.tool_calls for delta in streamed if delta.tool_calls]
        assert tool_call.function.arguments == call.function.arguments
    with openai_client(further, "other") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
