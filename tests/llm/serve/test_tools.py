# SPDX-License-Identifier: BSD-3-Clause
# Tools in the forms that clients send: the server accepts them, or names the tool that it rejects and the reason.

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.llm.double import Writer, session
from tests.llm.serve.client import LIMITS, ask, events, serving
from tests.llm.test_messages import ADD, NOW, TOOLS
from torchette.llm.serve import Server
from torchette.llm.serve.refusal import Refusal
from torchette.llm.serve.tools import tools_of

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "x"}]}


def writer(text: str) -> Any:
    return session(Writer(text), template=TOOLS + "<assistant>")


def function(name: object, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    calls = "\n".join(f'<tool_call>{{"name": "{name}", "arguments": {{"a": 1}}}}</tool_call>' for name in ("add", "now", "add"))  # fmt: skip
    with serving([writer(f"I add. {calls}")], limits=LIMITS._replace(answer_tokens=500)) as running:
        yield running


def called(server: Server, **fields: Any) -> list[str]:
    """The names of the functions that an answer calls, whole and streamed."""
    request = {**HELLO, "temperature": 0, "tools": [ADD, NOW], **fields}
    status, body = ask(server, CHAT, request)
    assert status == 200, body
    choice = body["choices"][0]
    names = [call["function"]["name"] for call in choice["message"].get("tool_calls", [])]
    parts = [part["choices"][0] for part in events(ask(server, CHAT, {**request, "stream": True})[1])]
    streamed = [call["function"]["name"] for part in parts for call in part["delta"].get("tool_calls", [])]
    assert names == streamed and parts[-1]["finish_reason"] == choice["finish_reason"]
    assert (choice["finish_reason"] == "tool_calls") == bool(names)
    text = "".join(part["delta"].get("content") or "" for part in parts)
    assert text.rstrip() == choice["message"]["content"].rstrip()
    return names


def test_parallel_tool_calls_false_is_at_most_one_call(server):
    assert called(server) == called(server, parallel_tool_calls=True) == ["add", "now", "add"]
    assert called(server, parallel_tool_calls=False) == ["add"]


def test_allowed_tools_are_the_tools_that_the_model_sees(server):
    def allowed(mode: str, *names: str) -> dict[str, Any]:
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": mode, "tools": [function(name) for name in names]},
        }

    assert called(server, tool_choice=allowed("auto", "now", "add")) == ["add", "now", "add"]
    assert (
        called(server, tool_choice=allowed("auto", "now")) == []
    )  # the answer contains a call of add, which is then text
    prompt = ask(server, CHAT, {**HELLO, "tools": [NOW], "max_tokens": 1})[1]["usage"]["prompt_tokens"]
    request = {**HELLO, "tools": [ADD, NOW], "tool_choice": allowed("auto", "now"), "max_tokens": 1}
    assert ask(server, CHAT, request)[1]["usage"]["prompt_tokens"] == prompt
    tools = tools_of({"tools": [ADD, NOW], "tool_choice": allowed("required", "now")})
    assert (tools.choice, list(tools.parameters), tools.must_call) == ("required", ["now"], True)
    flat = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}
    assert tools_of({"tools": [ADD, NOW], "tool_choice": flat}).offered == [NOW]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('I add. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "I add. "),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', ""),
        ('[x] <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "[x]"),
        ('{"name": "add", "arguments": {"a": 1}}', ""),
        ('{"name": "add" and no call', '{"name": "add" and no call'),
        ("No <tool", "No <tool"),
        ("", ""),
    ],
    ids=repr,
)  # fmt: skip
def test_log_probabilities_and_parts_are_those_of_the_text(text: str, content: str) -> None:
    """Calls alone make a message without content, as clients of OpenAI's streams assemble it."""
    has_call = "}" in text
    request = {**HELLO, "temperature": 0, "tools": [ADD], "logprobs": True, "stream": True}
    with serving([writer(text)], limits=LIMITS._replace(answer_tokens=500)) as server:
        choice = ask(server, CHAT, {**request, "stream": False})[1]["choices"][0]
        parts = [part["choices"][0] for part in events(ask(server, CHAT, request)[1])]
        response = {
            "input": "x",
            "temperature": 0,
            "tools": [ADD],
            "include": ["message.output_text.logprobs"],
        }
        output = ask(server, "/v1/responses", response)[1]["output"]
        streamed = ask(server, "/v1/responses", {**response, "stream": True})[1]
    deltas = [part["delta"] for part in parts]
    assert deltas[0] == {"role": "assistant", "content": "" if content or not has_call else None}
    texts = [delta["content"] for delta in deltas[1:] if "content" in delta]
    assert "".join(texts) == content and "" not in texts
    assert choice["message"]["content"] == (content.strip() or (None if has_call else ""))
    log_probabilities = [first for part in parts if part["logprobs"] for first in part["logprobs"]["content"]]
    assert log_probabilities == ((choice["logprobs"] or {}).get("content") or [])
    assert "".join(first["token"] for first in log_probabilities).strip() == content.strip()
    last = json.loads(streamed.split("data: ")[-1])["response"]["output"]
    kinds = ["message"] * bool(content or not has_call) + ["function_call"] * has_call
    assert [item["type"] for item in output] == [item["type"] for item in last] == kinds
    if kinds[0] == "message":
        (first,), (last_part,) = output[0]["content"], last[0]["content"]
        assert first["logprobs"] == last_part["logprobs"] and len(first["logprobs"]) == len(log_probabilities)


def test_strict_functions_are_accepted(server):
    strict = json.loads(json.dumps(ADD))
    strict["function"]["strict"] = True
    assert called(server, tools=[strict, NOW]) == ["add", "now", "add"]
    assert called(server, tool_choice="none") == []


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [ADD, function("a b")]}, "tools[1]", "function.name is 'a b' (3 characters): tools are a list of functions with names"),
    ({"tools": [function("x" * 1000)]}, "tools[0]", "(1000 characters)"),
    ({"tools": [function("")]}, "tools[0]", "(0 characters)"),
    ({"tools": [function(5)]}, "tools[0]", "an object with a name"),
    ({"tools": [ADD, NOW, ADD]}, "tools[2]", "has the name 'add'"),
    ({"tools": [{"type": "custom", "custom": {"name": "sh"}}]}, "tools[0]", "of type 'custom'"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]", "of type 'web_search'"),
    ({"tools": [{"name": "add"}]}, "tools[0]", "of type None"),
    ({"tools": [5]}, "tools[0]", "an object"),
    ({"tools": {"a": 1}}, "tools", "a list"),
    ({"tools": [function("a", parameters=5)]}, "tools[0]", "JSON schema"),
    ({"tools": [function("a", strict="yes")]}, "tools[0]", "true or false"),
    ({"tools": [ADD], "parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
    ({"tools": [ADD], "tool_choice": "any"}, "tool_choice", "'any'"),
    ({"tools": [ADD], "tool_choice": function("sub")}, "tool_choice", "names the tool 'sub': the tools are add"),
    ({"tools": [ADD], "tool_choice": {"type": "custom", "custom": {"name": "add"}}}, "tool_choice", "'custom'"),
    ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("sub")]}}},
     "tool_choice", "allowed_tools.tools[0] names the tool 'sub'"),
    ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "never", "tools": [function("add")]}}},
     "tool_choice", "auto or required"),
    ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "allowed_tools": 5}}, "tool_choice", "a list of tools"),
    ({"tool_choice": "required"}, "tool_choice", "has no tools"),
    ({"tool_choice": function("add")}, "tool_choice", "has no tools"),
    ({"functions": [{"name": "add"}]}, "functions", "not supported"),
    ({"tools": [ADD], "function_call": {"name": "add"}}, "function_call", "not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED, ids=lambda value: str(value)[:70])
def test_invalid_tools_are_rejected_with_the_reason(server, fields, param, reason):
    status, body = ask(server, CHAT, {**HELLO, **fields})
    assert (status, body["error"]["param"]) == (400, param), body
    assert reason in body["error"]["message"]


def test_every_kind_of_choice_needs_its_tool():
    for choice in ("auto", "none", "required", function("add"), {"type": "function", "name": "add"}):
        tools_of({"tools": [ADD], "tool_choice": choice})
        if choice not in ("auto", "none"):
            with pytest.raises(Refusal):
                tools_of({"tool_choice": choice})
