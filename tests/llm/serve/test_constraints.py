# SPDX-License-Identifier: BSD-3-Clause
# Constraints in the fields of several servers: the answer has the form, or the request is refused by the field's name.

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.llm.double import FakeDecoder, session
from tests.llm.serve.client import ask, serving
from torchette.llm.serve import Server
from torchette.llm.serve.constraints import _FIELDS, _TYPES, constraint
from torchette.llm.serve.refusal import Refusal

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= "yes" | "no"'
REGEX = "[a-c]{2}-[0-9]"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving([session(FakeDecoder(context=512))]) as running:
        yield running


def is_object(text: str) -> bool:
    return list(json.loads(text)) == ["ok"] and isinstance(json.loads(text)["ok"], bool)


def is_word(text: str) -> bool:
    return text in ("yes", "no")


def is_matched(text: str) -> bool:
    return re.fullmatch(REGEX, text) is not None


def is_any_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


HONOURED: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}}, is_object),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, is_object),
    ({"response_format": {"type": "json_schema", "name": "x", "strict": None, "schema": SCHEMA}}, is_object),
    ({"response_format": {"type": "json_schema", "value": SCHEMA}}, is_object),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, is_object),
    ({"response_format": {"type": "json_object"}}, is_any_object),
    ({"response_format": {"type": "json", "value": SCHEMA}}, is_object),
    ({"response_format": {"type": "regex", "value": REGEX}}, is_matched),
    ({"response_format": {"type": "grammar", "grammar": GRAMMAR}}, is_word),
    ({"response_format": {"type": "text"}, "guided_json": SCHEMA}, is_object),
    ({"guided_json": json.dumps(SCHEMA)}, is_object),
    ({"guided_json_object": True}, is_any_object),
    ({"guided_regex": REGEX}, is_matched),
    ({"guided_regex": f"^{REGEX}$", "guided_decoding_backend": "xgrammar"}, is_matched),
    ({"guided_choice": ["yes", "no"]}, is_word),
    ({"guided_grammar": GRAMMAR}, is_word),
    ({"structured_outputs": {"json": SCHEMA}}, is_object),
    ({"structured_outputs": {"json_object": True, "regex": None}}, is_any_object),
    ({"structured_outputs": {"regex": REGEX, "disable_fallback": True}}, is_matched),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, is_word),
    ({"structured_outputs": {"grammar": GRAMMAR}}, is_word),
    ({"grammar": GRAMMAR}, is_word),
    ({"grammar": {"type": "regex", "value": REGEX}}, is_matched),
    ({"grammar": {"type": "json", "value": SCHEMA}}, is_object),
    ({"json_schema": SCHEMA}, is_object),
    ({"json_schema": json.dumps(SCHEMA)}, is_object),
    ({"regex": REGEX}, is_matched),
    ({"ebnf": GRAMMAR}, is_word),
    ({"json_schema": SCHEMA, "response_format": {"type": "json", "value": SCHEMA}}, is_object),  # the same twice
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "fits"), HONOURED, ids=lambda value: getattr(value, "__name__", str(value))[:70]
)
def test_an_answer_has_the_form_that_a_field_asks_for(server, fields, fits):
    num_checked = 0
    for seed in range(4):
        for path, prompt in (
            ("/v1/completions", {"prompt": "?"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "?"}]}),
        ):
            status, body = ask(server, path, {**prompt, **fields, "seed": seed, "max_tokens": 40})
            assert status == 200, body
            choice = body["choices"][0]
            if choice["finish_reason"] == "stop":
                num_checked += 1
                assert fits(choice["text"] if "text" in choice else choice["message"]["content"])
    assert num_checked or fits is is_any_object


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "json"}, "response_format", "an object with a type"),
    ({"response_format": {}}, "response_format", "got None"),
    ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
    ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format", "'structural_tag'"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, "response_format.json_schema.type", "not supported"),
    ({"response_format": {"type": "json_schema", "json_schema": [1]}}, "response_format.json_schema", "an object"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format.json_schema.schema", "JSON schema"),
    ({"response_format": {"type": "json_object", "shema": {}}}, "response_format.shema", "not supported"),
    ({"response_format": {"type": "json"}}, "response_format", "needs value"),
    ({"guided_json": "{"}, "guided_json", "not valid JSON"),
    ({"guided_json": 5}, "guided_json", "JSON schema"),
    ({"guided_json_object": 1}, "guided_json_object", "true or false"),
    ({"guided_regex": 5}, "guided_regex", "regular expression"),
    ({"guided_regex": "("}, "guided_regex", "guided_regex: "),
    ({"structured_outputs": {"regex": "a(?=b)"}}, "structured_outputs.regex", "lookahead"),
    ({"guided_choice": []}, "guided_choice", "list of texts"),
    ({"guided_choice": ["a", 5]}, "guided_choice", "list of texts"),
    ({"guided_whitespace_pattern": " ?"}, "guided_whitespace_pattern", "not supported"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
    ({"structured_outputs": {"whitespace_pattern": "x"}}, "structured_outputs.whitespace_pattern", "not supported"),
    ({"structured_outputs": "json"}, "structured_outputs", "an object"),
    ({"grammar": 5}, "grammar", "GBNF"),
    ({"grammar_lazy": True}, "grammar_lazy", "guided_json"),
    ({"grammar_triggers": []}, "grammar_triggers", "not supported"),
    ({"structural_tag": "{}"}, "structural_tag", "not supported"),
    ({"format": "json"}, "format", "not supported"),
    ({"guided_lark": "x"}, "guided_lark", "not supported"),
    ({"output_schema": {}}, "output_schema", "not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED, ids=lambda value: str(value)[:70])
def test_an_unknown_or_malformed_constraint_is_refused_by_name(server, fields, param, reason):
    for path, prompt in (
        ("/v1/completions", {"prompt": "?"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "?"}]}),
    ):
        status, body = ask(server, path, {**prompt, **fields})
        assert (status, body["error"]["param"]) == (400, param), body
        assert reason in body["error"]["message"]


ONE_OF_EACH: dict[str, Any] = {
    "response_format": {"type": "json_object"}, "text.format": {"type": "json_object"}, "grammar": GRAMMAR,
    "json_schema": SCHEMA, "regex": REGEX, "ebnf": 'root ::= "a"', "guided_json": {"type": "null"},
    "guided_json_object": True, "guided_regex": "x", "guided_choice": ["y"], "guided_grammar": 'root ::= "z"',
    "structured_outputs": {"choice": ["w"]},
}  # fmt: skip
SAME = ({"response_format", "text.format", "guided_json_object"},)


@pytest.mark.parametrize("one", _FIELDS)
def test_two_constraints_that_differ_are_refused(one):
    for second in _FIELDS:
        pair = {one: ONE_OF_EACH[one], second: ONE_OF_EACH[second]}
        if one == second or any({one, second} <= same for same in SAME):
            assert constraint(pair)
            continue
        with pytest.raises(Refusal, match="different forms") as caught:
            constraint(pair)
        assert one in str(caught.value) and second in str(caught.value)
    with pytest.raises(Refusal, match=r"structured_outputs\.json and structured_outputs\.choice"):
        constraint({"structured_outputs": {"json": {}, "choice": ["a"]}})


@pytest.mark.parametrize("kind", _TYPES)
def test_every_type_of_an_object_refuses_unknown_keys(kind):
    good = {key: {"json_schema": {"schema": SCHEMA}, "regex": "x", "pattern": "x", "grammar": GRAMMAR}.get(key, SCHEMA) for key in list(_TYPES[kind])[:1]}  # fmt: skip
    if kind in ("regex", "grammar"):
        good = dict.fromkeys(good, REGEX if kind == "regex" else GRAMMAR)
    assert bool(constraint({"response_format": {"type": kind, **good}})) == (kind != "text")
    with pytest.raises(Refusal, match=r"response_format\.other is not supported"):
        constraint({"response_format": {"type": kind, **good, "other": 1}})


@pytest.mark.parametrize(
    "choices",
    [['a"b', "\\", "\n", "\u00e9\U0001f600", "a b", "]", "-^", "\x00", "$"], ["x"], ["ab", "abc"]],
    ids=repr,
)
def test_choices_may_have_any_character(server, choices):
    texts = set()
    for seed in range(12):
        body = ask(server, "/v1/completions", {"prompt": "?", "guided_choice": choices, "seed": seed})[1][
            "choices"
        ][0]
        if body["finish_reason"] == "stop":
            texts.add(body["text"])
    assert texts and texts <= set(choices)


@pytest.mark.parametrize(
    "pattern",
    ["a.c", r"\d{2}|x", "^a|b$", "[^a]", "(?:ab)+", "^$", r"a\$", r"\.\$$", r'"\\"|\t\n', "."],
    ids=repr,
)
def test_a_regular_expression_matches_the_whole_answer(server, pattern):
    num_checked = 0
    for seed in range(12):
        request = {"prompt": "?", "regex": pattern, "seed": seed, "max_tokens": 30}
        body = ask(server, "/v1/completions", request)[1]["choices"][0]
        if body["finish_reason"] == "stop":
            num_checked += 1
            assert re.fullmatch(pattern, body["text"]), body
    assert num_checked


def test_required_call_excludes_a_constraint(server):
    tool = {"type": "function", "function": {"name": "add"}}
    request = {
        "messages": [{"role": "user", "content": "?"}],
        "tools": [tool],
        "tool_choice": "required",
        "guided_json": SCHEMA,
    }
    status, body = ask(server, "/v1/chat/completions", request)
    assert (status, body["error"]["param"]) == (400, "tool_choice")


@pytest.mark.parametrize(
    "name", ["reasoning_format", "cache_prompt", "metadata", "service_tier", "chat_template_kwargs"]
)
def test_other_fields_are_not_constraints(server, name):
    assert ask(server, "/v1/completions", {"prompt": "?", "max_tokens": 1, name: {}})[0] == 200
