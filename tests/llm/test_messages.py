# SPDX-License-Identifier: BSD-3-Clause
# In: messages with parts, images and calls of functions; answers in the forms of several model families. Out: the contents that
# templates receive, and exactly the calls that an answer contains.

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.llm.double import BEGIN, FakeDecoder, session
from torchette.errors import InputError
from torchette.llm.grammar import Grammar, Matcher, Vocabulary
from torchette.llm.messages import Call, calls_in, functions, images_of
from torchette.llm.text import ChatTemplate

pytest.importorskip("tokenizers")

PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == 'image' %}<img>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
EITHER = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.type }}:{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
TEXTS = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}"
# The forms of functions and calls in templates of Qwen and of Llama.
TOOLS = "{% if tools %}Tools: {{ tools | tojson }}\n<tool_call>{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments.a }}{% endfor %}{% endfor %}"
OTHER = TOOLS.replace("<tool_call>", ' {"name": ..., "parameters": ...}')
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": 0, "maximum": 99},
                "deep": {"$ref": "#/$defs/none"},
            },
            "required": ["a"],
            "additionalProperties": False,
            "$defs": {"none": {"type": "null"}},
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
IMAGE = np.zeros((2, 2, 3), np.uint8)
SEEN = [{"role": "user", "content": [{"type": "text", "text": "See "}, {"type": "image", "image": IMAGE}]}]


@pytest.mark.parametrize(
    ("source", "takes", "rendered", "text"),
    [
        (PARTS, (False, True), "<user>See <img>", "<user>Hi"),
        (EITHER, (True, True), "[text:See ][image:]", "Hi"),
        (TEXTS, (True, False), "<user>See {picture}", "<user>Hi"),
    ],
    ids=["parts", "either", "texts"],
)
def test_contents_have_the_form_of_the_template(
    source: str, takes: tuple[bool, bool], rendered: str, text: str
) -> None:
    template = ChatTemplate(source, {})
    assert template.takes == takes
    assert template.render(SEEN, "{picture}") == rendered
    for content in ("Hi", [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]):
        assert template.render([{"role": "user", "content": content}]) == text
    (image,) = images_of(SEEN)
    assert image is IMAGE


@pytest.mark.parametrize(
    "messages",
    [
        [], "x", {"role": "user", "content": "x"}, [5], [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": 5}],
        [{"role": "user", "content": ["x"]}], [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"type": "video"}]}],
        [{"role": "assistant", "tool_calls": [5]}], [{"role": "assistant", "tool_calls": 5}], [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
    ],
    ids=str,
)  # fmt: skip
def test_invalid_messages_are_named(messages: Any) -> None:
    with pytest.raises(InputError, match="messages"):
        ChatTemplate(EITHER, {}).render(messages)


def test_earlier_calls_are_values_in_the_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]
    assert ChatTemplate(TOOLS, {}).render(messages, tools=[]) == "<assistant>3<tool>3"
    assert call["function"]["arguments"] == '{"a": 3}'


ADDS = Call("add", {"a": 1})


@pytest.mark.parametrize(
    ("text", "remaining", "calls"),
    [
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "", [ADDS]),
        ('I add.\n<tool_call>{"name": "add", "arguments": {"a": 1}}', "I add.", [ADDS]),
        ('<tool_call>{"name": "now"}</tool_call>\n<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>', "", [Call("now", {}), ADDS]),
        ('{"name": "add", "parameters": {"a": 1}}', "", [ADDS]),
        ('{"name": "add", "parameters": {"a": 1}}; {"name": "now"}', "", [ADDS, Call("now", {})]),
        (' [{"name": "add", "arguments": {"a": 1}}]\n', "", [ADDS]),
        ('{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}', "", [ADDS]),
        ('{"name": "other", "arguments": {}}', None, []), ('{"name": "add", "arguments": {}} and more', None, []), ('{"name": {}}', None, []),
        ("Just text.", None, []), ("", None, []), ("[1, 2]", None, []), ("<tool_call>{", None, []), ("[" * 5000, None, []), ('{"function": 5}', None, []),
    ],
)  # fmt: skip
def test_calls_are_found_as_models_write_them(text: str, remaining: str | None, calls: list[Call]) -> None:
    assert calls_in(text, ["add", "now"]) == (text if remaining is None else remaining, calls)


def test_required_call_matches_its_function() -> None:
    for source, choice in ((TOOLS, "required"), (OTHER, {"type": "function", "function": {"name": "add"}})):
        for seed in range(6):
            decoder = FakeDecoder(context=512)
            decoder.bias[list(b'"}')] = 3
            llm_session = session(decoder, template=source)
            tools = [ADD] if seed % 2 else [ADD, NOW]
            answer = llm_session.chat(
                [{"role": "user", "content": "?"}],
                tools=tools,
                tool_choice=choice,
                temperature=1.0,
                seed=seed,
                max_tokens=300,
            ).run()
            text, (call,) = calls_in(answer.text, functions(tools))
            assert answer.finish_reason == "stop" and text == ""
            assert answer.text.startswith("<tool_call>") == (source is TOOLS)
            assert ("parameters" in answer.text) == (source is OTHER)
            if call.name == "add":
                assert 0 <= call.arguments["a"] <= 99 and call.arguments.get("deep") is None
            else:
                assert seed % 2 == 0 and choice == "required"


def test_invalid_tools_are_named() -> None:
    llm_session = session(FakeDecoder(context=512))
    messages = [{"role": "user", "content": "?"}]
    with pytest.raises(InputError, match="does not support tools"):
        llm_session.chat(messages, tools=[ADD])
    for tools in (5, [5], [{}], [{"type": "function", "function": {"name": "a b"}}], [ADD, ADD]):
        with pytest.raises(InputError, match="tools are a list of functions"):
            functions(tools)
    for choice in ("other", 5, {"function": {"name": "sub"}}, {"function": 5}):
        with pytest.raises(InputError, match="tool_choice"):
            ChatTemplate(TOOLS, {}).grammar({"tools": [ADD], "tool_choice": choice})
    deep: Any = {"type": "array"}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    llm_session = session(FakeDecoder(context=512), template=TOOLS)
    for schema, code in ((deep, "bad-input"), ({"not": {}}, "bad-schema"), ("x", "bad-schema")):
        with pytest.raises(InputError) as caught:
            tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
            llm_session.chat(messages, tools=[tool], tool_choice="required")
        assert caught.value.code == code
    with pytest.raises(InputError, match="messages is not a variable"):
        llm_session.chat(messages, template={"messages": []})
    with pytest.raises(InputError, match="grammar"):
        llm_session.chat(messages, tools=[ADD], tool_choice="required", grammar='root ::= "a"')


def test_template_receives_the_given_names() -> None:
    llm_session = session(
        FakeDecoder(context=512), template="{{ messages[0].content }}{{ thinking }}{{ bos_token }}"
    )
    answer = llm_session.chat([{"role": "user", "content": "a"}], template={"thinking": "b"}, max_tokens=1)
    assert llm_session.tokens == ()
    next(answer)
    assert llm_session.tokens == (*b"ab", BEGIN)


def test_references_resolve_within_the_parameters_of_their_function() -> None:
    def tool(name: str, **parameters: Any) -> dict[str, Any]:
        schema = {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#y"}},
            **parameters,
        }
        return {
            "type": "function",
            "function": {"name": name, "parameters": {**schema, "required": ["a", "b"]}},
        }

    def defined(first: str, second: str) -> dict[str, Any]:
        return {"x": {"enum": [first]}, "y": {"$anchor": "y", "enum": [second]}}

    tools = [
        tool("f", **{"$defs": defined("f1", "f2")}),
        tool("g", **{"$defs": defined("g1", "g2"), "$id": "https://example.org/g"}),
    ]
    request = {"tools": tools, "tool_choice": "required"}
    matcher = Matcher(Grammar(ChatTemplate("{{ tools }}", {}).grammar(request) or ""), Vocabulary([]))
    for name in ("f", "g"):
        for function in ("f", "g"):
            text = json.dumps({"name": name, "arguments": {"a": f"{function}1", "b": f"{function}2"}})
            after = matcher.after_bytes(text.encode())
            assert (after is not None and after.accepts) == (name == function), text


def test_an_error_lists_all_names() -> None:
    tools = [{"type": "function", "function": {"name": f"function_{i}"}} for i in range(50)]
    request = {"tools": tools, "tool_choice": {"function": {"name": "other"}}}
    with pytest.raises(InputError) as caught:
        ChatTemplate(TOOLS, {}).grammar(request)
    names = ", ".join(f"function_{i}" for i in range(50))
    assert caught.value.message == f"tool_choice names 'other', tools have {names}"
