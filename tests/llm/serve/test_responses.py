# SPDX-License-Identifier: BSD-3-Clause
# The Responses API: complete and streamed answers, calls of functions, and conversations that the server stores.

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.llm.double import FakeDecoder, session
from tests.llm.serve.client import LIMITS, ask, openai_client, serving
from tests.llm.serve.test_tools import writer
from tests.llm.test_messages import ADD, NOW
from torchette.llm.serve import Server
from torchette.llm.serve.refusal import Refusal
from torchette.llm.serve.responses import Conversation, ResponseStore

RESPONSES = "/v1/responses"
HELLO = {"input": "Hi", "temperature": 0, "max_output_tokens": 9}
FLAT = [{"type": "function", **tool["function"]} for tool in (ADD, NOW)]
CALLED = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving([session(FakeDecoder(context=512))]) as running:
        yield running


@pytest.fixture(scope="module")
def caller() -> Iterator[Server]:
    with serving(
        [writer(f"I add. {CALLED}\n{CALLED}")], limits=LIMITS._replace(answer_tokens=500)
    ) as running:
        yield running


def expected(*messages: dict[str, Any], **options: Any) -> Any:
    return session(FakeDecoder(context=512)).chat(list(messages), **{"max_tokens": 9, **options}).run()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(body: Any) -> str:
    return "".join(
        part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]
    )


def streamed(server: Server, request: dict[str, Any]) -> list[Any]:
    """Returns the events of a stream; the name of each event must be its type."""
    status, text = ask(server, RESPONSES, {**request, "stream": True})
    assert status == 200 and "[DONE]" not in text
    events_of_stream = []
    for part in text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        events_of_stream.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events_of_stream[-1]['type']}"
    assert [event["sequence_number"] for event in events_of_stream] == list(range(len(events_of_stream)))
    return events_of_stream


def test_response_equals_the_answer_of_a_session(server):
    status, body = ask(server, RESPONSES, HELLO)
    answer = expected(user("Hi"))
    assert status == 200 and said(body) == answer.text and body["object"] == "response"
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    counts = answer.statistics
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (counts.prompt_tokens, 9)
    assert body["usage"]["total_tokens"] == counts.prompt_tokens + 9
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    form = {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["a"]}, "strict": True}}
    body = ask(server, RESPONSES, {**HELLO, "text": form})[1]
    assert (said(body), body["status"], body["text"]) == ('"a"', "completed", form)


def test_inputs_are_messages(server):
    parts = [{"type": "input_text", "text": "H"}, {"type": "input_text", "text": "i"}]
    for request_input in (
        [user("Hi")],
        [{"type": "message", **user("Hi")}],
        [{"role": "user", "content": parts}],
    ):
        assert said(ask(server, RESPONSES, {**HELLO, "input": request_input})[1]) == expected(user("Hi")).text
    system = {"role": "system", "content": "be"}
    answer = expected(system, user("Hi")).text
    for role in ("system", "developer"):
        assert (
            said(ask(server, RESPONSES, {**HELLO, "input": [{**system, "role": role}, user("Hi")]})[1])
            == answer
        )
    assert said(ask(server, RESPONSES, {**HELLO, "instructions": "be"})[1]) == answer
    both = ask(server, RESPONSES, {**HELLO, "instructions": "a", "input": [system, user("Hi")]})[1]
    assert said(both) == expected({**system, "content": "a\n\nbe"}, user("Hi")).text
    history = [
        user("Hi"),
        {"role": "assistant", "content": [{"type": "output_text", "text": "Yes"}]},
        user("So"),
    ]
    body = ask(server, RESPONSES, {**HELLO, "input": history})[1]
    assert said(body) == expected(user("Hi"), {"role": "assistant", "content": "Yes"}, user("So")).text


@pytest.mark.parametrize(
    "fields", [HELLO, {**HELLO, "include": ["message.output_text.logprobs"], "top_logprobs": 2}]
)
def test_a_stream_has_the_parts_of_the_response(server, fields):
    response = ask(server, RESPONSES, fields)[1]
    events = streamed(server, fields)
    names = [event["type"].removeprefix("response.") for event in events]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(names[4:-4]) == {"output_text.delta"}
    assert "".join(event["delta"] for event in events[4:-4]) == said(response) == events[-4]["text"]
    last = events[-1]["response"]
    for field in ("status", "incomplete_details", "instructions", "text", "tools", "temperature"):
        assert last[field] == response[field]
    assert last["output"][0]["content"] == response["output"][0]["content"]
    assert {event["item_id"] for event in events if "item_id" in event} == {last["output"][0]["id"]}
    assert last["usage"]["total_tokens"] == response["usage"]["total_tokens"]
    logprobs = [entry for event in events[4:-4] for entry in event["logprobs"]]
    assert len(logprobs) == (9 if "include" in fields else 0)
    assert logprobs == response["output"][0]["content"][0]["logprobs"]


def test_calls_are_items(caller):
    request = {"input": "x", "temperature": 0, "tools": FLAT}
    body = ask(caller, RESPONSES, request)[1]
    assert [item["type"] for item in body["output"]] == ["message", "function_call", "function_call"]
    assert said(body) == "I add." and body["status"] == "completed" and body["tools"] == FLAT
    call = body["output"][1]
    assert (call["name"], json.loads(call["arguments"]), call["status"]) == ("add", {"a": 1}, "completed")
    assert call["call_id"] != body["output"][2]["call_id"]
    one = ask(caller, RESPONSES, {**request, "parallel_tool_calls": False})[1]
    assert [item["type"] for item in one["output"]] == ["message", "function_call"]
    assert said(ask(caller, RESPONSES, {**request, "tool_choice": "none"})[1]).count("tool_call") == 4
    events = streamed(caller, request)
    names = [event["type"].removeprefix("response.") for event in events]
    call_names = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert names[-9:] == [*call_names, *call_names, "completed"]
    items = events[-1]["response"]["output"]
    assert [item["type"] for item in items] == [item["type"] for item in body["output"]]
    assert (events[-9]["item"]["arguments"], events[-8]["delta"]) == ("", items[1]["arguments"])
    assert [event["output_index"] for event in events[-9:-1]] == [1] * 4 + [2] * 4


def test_results_of_calls_follow_their_calls(caller):
    """A conversation by items, by messages of chats, and by the stored response has one prompt."""
    tools = {"tools": FLAT, "max_output_tokens": 1}
    first = ask(caller, RESPONSES, {"input": "x", "tools": FLAT})[1]
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "7"}
        for item in first["output"][1:]
    ]
    items = [user("x"), *first["output"], *outputs]
    by_items = ask(caller, RESPONSES, {"input": items, **tools})[1]["usage"]["input_tokens"]
    stored = {"previous_response_id": first["id"], "input": outputs}
    by_store = ask(caller, RESPONSES, {**stored, **tools})[1]["usage"]["input_tokens"]
    calls = [{"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}} for item in first["output"][1:]]  # fmt: skip
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in calls]
    messages = [user("x"), {"role": "assistant", "content": "I add.", "tool_calls": calls}, *results]
    # The template renders tools in the order of the request's keys, which does not change the number of tokens.
    chat = ask(caller, "/v1/chat/completions", {"messages": messages, "tools": [ADD, NOW], "max_tokens": 1})[
        1
    ]
    assert by_items == by_store == chat["usage"]["prompt_tokens"]
    broken = {**first["output"][1], "arguments": '{"a": '}
    status, body = ask(caller, RESPONSES, {"input": [user("x"), broken], **tools})
    assert status == 400 and "input[1].function.arguments is not valid JSON" in body["error"]["message"]


def test_a_call_with_arguments_that_are_not_json_is_an_answer():
    """Such a call is returned to the client. Only a history that contains it is rejected."""
    answer = '<tool_call>{"name": "add", "arguments": "one"}</tool_call>'
    with serving([writer(answer)], limits=LIMITS._replace(answer_tokens=500)) as server:
        request = {"input": "x", "temperature": 0, "tools": FLAT, "max_output_tokens": 100}
        body = ask(server, RESPONSES, request)[1]
        assert [item["arguments"] for item in body["output"]] == ["one"]
        assert streamed(server, request)[-1]["response"]["output"][0]["arguments"] == "one"
        status, body = ask(server, RESPONSES, {**request, "previous_response_id": body["id"]})
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")


def test_a_conversation_continues_by_its_last_response(server):
    first = ask(server, RESPONSES, {**HELLO, "instructions": "be"})[1]
    second = ask(server, RESPONSES, {**HELLO, "input": "So", "previous_response_id": first["id"]})[1]
    messages = [user("Hi"), {"role": "assistant", "content": said(first)}, user("So")]
    assert said(second) == expected(*messages).text  # without the instructions, as OpenAI defines it
    assert second["previous_response_id"] == first["id"]
    third = streamed(server, {**HELLO, "input": "And", "previous_response_id": second["id"]})[-1]["response"]
    messages += [{"role": "assistant", "content": said(second)}, user("And")]
    assert said(third) == expected(*messages).text
    again = ask(server, RESPONSES, {**HELLO, "input": "So", "previous_response_id": first["id"]})[1]
    assert said(again) == said(second)
    unstored = ask(server, RESPONSES, {**HELLO, "store": False})[1]
    for name in (unstored["id"], "resp_x", 5):
        status, body = ask(server, RESPONSES, {**HELLO, "previous_response_id": name})
        assert (status, body["error"]["code"]) == (400, "previous_response_not_found")


def test_the_oldest_responses_are_forgotten():
    store = ResponseStore(3, 100)
    for number in range(5):
        store.add(str(number), Conversation([{"number": number}], 10))
    for number in range(5):
        if number < 2:
            with pytest.raises(Refusal, match="not stored"):
                store.get(str(number))
        else:
            assert store.get(str(number)).messages == [{"number": number}]
    store.add("large", Conversation([], 95))
    with pytest.raises(Refusal):
        store.get("4")
    assert store.get("large").size == 95
    store.add("too large", Conversation([], 101))
    with pytest.raises(Refusal):
        store.get("too large")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": []}, "input", "at least one item"),
    ({"input": 5}, "input", "text, or a list"),
    ({"input": [5]}, "input", "input[0] must be an object"),
    ({"input": [user("x"), {"type": "item_reference", "id": "x"}]}, "input", "input[1] is of type 'item_reference'"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input", "'reasoning'"),
    ({"input": [{"role": 5, "content": "x"}]}, "input", "input[0] must be an object with a role"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input", "input[0].content[0] is of type 'input_file'"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://a/b.png"}]}]}, "input", "fetches no files"),
    ({"input": [{"type": "function_call", "name": 5}]}, "input", "a function that has a name"),
    ({"input": [{"type": "function_call_output", "output": 5}]}, "input", "input[0].output must be"),
    ({"instructions": 5}, "instructions", "a text"),
    ({"text": 5}, "text", "an object"),
    ({"text": {"format": {"type": "xml"}}}, "text.format", "'xml'"),
    ({"include": 5}, "include", "a list"),
    ({"store": "no"}, "store", "true or false"),
    ({"background": True}, "background", "not supported"),
    ({"conversation": "x"}, "conversation", "not supported"),
    ({"truncation": "auto"}, "truncation", "not supported"),
    ({"max_tool_calls": 3}, "max_tool_calls", "not supported"),
    ({"n": 2}, "n", "not supported"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]", "'web_search'"),
    ({"tools": [{"type": "custom", "name": "sh"}]}, "tools[0]", "'custom'"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"top_logprobs": 21}, "top_logprobs", "0 to 20"),
    ({"guided_lark": "x"}, "guided_lark", "not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED, ids=lambda value: str(value)[:70])
def test_unsupported_fields_are_rejected_by_name(server, fields, param, reason):
    status, body = ask(server, RESPONSES, {**HELLO, **fields})
    assert (status, body["error"]["param"]) == (400, param), body
    assert reason in body["error"]["message"]


def test_an_error_in_a_stream_fails_the_response():
    decoder = FakeDecoder(context=100_000)
    decoder.seconds = 0.2
    with serving([session(decoder)], limits=LIMITS._replace(seconds=2.0, answer_tokens=10_000)) as server:
        request = {"input": "x", "stream": True, "logit_bias": {"257": -100}}
        events = streamed(server, request)
        assert events[-1]["type"] == "response.failed" and events[-1]["response"]["status"] == "failed"
        assert events[-1]["response"]["error"]["code"] == "timeout"
        text = ask(server, "/v1/completions", {**request, "prompt": "x"})[1]
        assert json.loads(text.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "timeout"
        assert ask(server, RESPONSES, {**HELLO, "max_output_tokens": 1})[0] == 200


def test_openais_client_gets_responses(server, caller):
    openai = pytest.importorskip("openai")
    with openai_client(server) as client:
        response = client.responses.create(model="double", **HELLO)
        assert response.output_text == expected(user("Hi")).text and response.usage.output_tokens == 9
        following = {**HELLO, "input": "So", "previous_response_id": response.id}
        assert client.responses.create(model="double", **following).output_text
        form = {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["a"]}}}
        with client.responses.stream(model="double", text=form, **HELLO) as stream:
            parts = [event.delta for event in stream if event.type == "response.output_text.delta"]
            assert "".join(parts) == '"a"' == stream.get_final_response().output_text
        with pytest.raises(openai.BadRequestError, match="web_search"):
            client.responses.create(model="double", input="x", tools=[{"type": "web_search"}])
    with openai_client(caller) as client:
        called = client.responses.create(model="double", input="x", tools=FLAT)
        assert [item.name for item in called.output if item.type == "function_call"] == ["add", "add"]


def test_responses_have_the_fields_of_openais_types(server, caller):
    """Unlike the client, the types check that each field is present and has its type."""
    types, pydantic = pytest.importorskip("openai.types.responses"), pytest.importorskip("pydantic")
    types.Response.model_validate(ask(server, RESPONSES, HELLO)[1])
    types.Response.model_validate(ask(caller, RESPONSES, {"input": "x", "tools": FLAT})[1])
    adapter = pydantic.TypeAdapter(types.ResponseStreamEvent)
    for events in (streamed(server, HELLO), streamed(caller, {"input": "x", "tools": FLAT})):
        for event in events:
            assert adapter.validate_python(event).type == event["type"]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]
)
def test_a_response_cannot_be_read_or_deleted(server, method, path):
    status, body = ask(server, "/v1/responses", {"input": "x", "max_output_tokens": 2})
    assert status == 200
    status, answer = ask(server, f"/v1/responses/{body['id']}{path}", method=method)
    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert "for previous_response_id alone" in answer["error"]["message"]
    further = {"input": "y", "max_output_tokens": 2, "previous_response_id": body["id"]}
    assert ask(server, "/v1/responses", further)[0] == 200
