# SPDX-License-Identifier: BSD-3-Clause
# JSON schemas on the device: the grammar that C++ makes of a schema is the text that Python makes of it, and what one refuses
# the other does.

from __future__ import annotations

import json
import random
import re
import subprocess
from typing import Any

import pytest

from tests.building import built
from tests.llm.test_grammar import BAD_SCHEMAS, NODE, random_schema
from torchette.errors import InputError
from torchette.llm.schema import grammar_of

EVERY: list[Any] = [
    True, {}, {"type": "null"}, {"type": ["string", "null"]}, {"title": "t", "type": "boolean", "default": 3}, {"title": "t"},
    {"const": {"b": [1, -0.0, 1e22, 1.5e-7, 0.1, 123456789012345678901234567890, "é\x01\n\t\"\\\x7f/\U0001f600"], "a": None}},
    {"enum": [1, 1.0, True, "1", None, [1], {"a": 1}], "type": ["integer", "array", "object"]}, {"const": 1, "enum": [1.0, 2]},
    {"enum": [2.5, 1e16, 1e15, 123456.0, 1e-4, 1e-5, 5e-324, 1.7976931348623157e308], "type": "number"},
    {"type": "string", "minLength": 2}, {"type": "string", "maxLength": 0}, {"minLength": 1}, {"type": "string", "maxLength": None},
    *({"type": "string", "format": f} for f in ("date", "time", "date-time", "uuid", "email")),
    *({"type": "string", "pattern": p} for p in (
        "a", "^a", "a$", r"^a\$", r"^a\\$", r"\d+\D*\w\W\s\S", "[a-z]", "[^a-z]", "[]a]", "[^]a]", r"[\d_\-\.]", r"[^\"\\]", "[a-]", "[-a]",
        "(?:a|b){2,3}?", "a{,3}", "a{3}b{3,}c*+d+?e??", "é.日", r"\é", r"\—\"\/", "\U0001f600{2}", "", "^$", '"/\t', "a(b(c)|)d", "^(a|b)$",
        "(?i)a", "a|b", "^a|b", "a^b", "a$b", "(", ")", "[a", r"[\b]", r"a\1", "a\\", '["]', "[\\", "(?<n>a)", "[\x01]",
    )),
    *({"type": t, **b} for t in ("integer", "number") for b in (
        {"minimum": 0}, {"maximum": -5}, {"minimum": -7, "maximum": 1234}, {"minimum": 99, "maximum": 99}, {"minimum": -10.0, "maximum": -1},
        {"minimum": 999999999999999}, {"minimum": 1000000000000000}, {"minimum": 1e14, "maximum": 123456789012345}, {"maximum": True},
        {"exclusiveMinimum": 0, "exclusiveMaximum": 100}, {"exclusiveMaximum": 3, "maximum": 1, "minimum": -3, "exclusiveMinimum": -2},
        {"minimum": 2, "maximum": 1}, {"minimum": "1"}, {"multipleOf": 2},
    )),
    {"type": "array"}, {"items": {"type": "null"}}, {"type": "array", "minItems": 2, "maxItems": 2}, {"type": "array", "maxItems": 0},
    {"type": "array", "prefixItems": [{"type": "null"}, {"const": 1}], "items": False}, {"prefixItems": [True], "minItems": 3},
    {"type": "array", "prefixItems": [True, True, True], "maxItems": 2, "minItems": 1}, {"prefixItems": [True], "maxItems": 4},
    {"type": "array", "minItems": True}, {"type": "array", "minItems": 1.0}, {"type": "array", "minItems": None}, {"prefixItems": 3},
    {"type": "object"}, {"properties": {}}, {"required": ["a", "b"]}, {"properties": {"a": True}, "required": ["b"]},
    {"properties": {"a": {}, "ab": {"type": "null"}, 'q"': True, "": True, "é日": True}, "required": ["ab"], "additionalProperties": {"type": "null"}},
    {"properties": {"a": {}}, "required": ["z"], "additionalProperties": True}, {"type": "object", "patternProperties": {}},
    {"properties": {"x" * 300: True}, "additionalProperties": True}, {"type": "object", "required": "a"}, {"type": "object", "": 1},
    {"anyOf": [{"type": "string"}, {"type": "null"}]}, {"oneOf": [{"minimum": 3}, {"maximum": 2}], "type": "integer"},
    {"anyOf": [{"type": "string"}, True], "type": "string"}, {"anyOf": [True], "minimum": 3}, {"anyOf": {}},
    {"allOf": [{"type": "object", "properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": True}, "required": ["b"]}]},
    {"allOf": [{"type": "integer"}, {"type": "number"}]}, {"allOf": [{"minimum": 1}, {"minimum": 1.0}], "type": "integer"},
    {"allOf": [{"properties": {"a": True}}, {"properties": {"a": {"type": "null"}}}]}, {"allOf": [True]}, {"allOf": [{"title": "a"}], "title": "b", "type": "null"},
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}}, {"$ref": "#/$defs/a~1b/0", "$defs": {"a/b": [{"type": "null"}]}}, {"$ref": "#/$defs"},
    {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "null"}}}, {"$ref": "#/x", "minimum": 1},
    {"properties": {"a": {"$ref": "#"}}, "required": []}, {"type": 5}, {"type": "array", "items": 5}, None, 1.5, "é",
]  # fmt: skip


def grammars(schemas: list[str]) -> list[tuple[str, str, str]]:
    """Of each, the error's name, the grammar, and what the log says."""
    done = subprocess.run(
        [built("torchette_converse"), "none"],
        input="\n".join(f"grammar\t{schema}" for schema in schemas).encode(),
        capture_output=True,
        check=True,
    )
    logs = [line for line in done.stderr.decode().splitlines() if "schema at" in line]
    found = []
    for line in done.stdout.decode().splitlines():
        error, _, text, *_ = line.split("|")
        said = logs.pop(0) if error == "InvalidArgument" else ""
        found.append((error, bytes.fromhex(text).decode(), said))
    assert len(found) == len(schemas) and not logs
    return found


def outcome(schema: Any) -> tuple[str, str]:
    """Python's grammar, or why there is none."""
    try:
        return grammar_of(schema), ""
    except InputError as refused:
        return "", str(refused).splitlines()[0].partition(": ")[2]


def compare(schemas: list[Any]) -> int:
    """How many have a grammar, which is the same; the others are refused by both, with the same words."""
    made = 0
    for schema, (error, text, said) in zip(schemas, grammars([json.dumps(s) for s in schemas]), strict=True):
        wanted, reason = outcome(schema)
        assert (error, text) == (("InvalidArgument", "") if reason else ("Ok", wanted)), schema
        # of the words, those that are no value of the schema's
        words = re.findall(r"[A-Za-z]{2,}", re.sub(r"(?<!\w)'.*'|True|False|None|\d", " ", reason))
        assert (words != []) == (reason != "") and all(word in said for word in words), (said, reason)
        made += not reason
    return made


def test_the_grammar_is_pythons() -> None:
    rng = random.Random(0)
    drawn = [{**s, "$defs": {"node": NODE}} for s in (random_schema(rng, 3) for _ in range(300))]
    bad = [schema for schema in BAD_SCHEMAS if "Infinity" not in json.dumps(schema)]
    made = compare([*EVERY, *bad, *drawn])
    assert 380 < made < len(EVERY) + 300


def test_texts_that_are_no_schema() -> None:
    deep = '{"items": ' * 300 + "true" + "}" * 300
    twice = '{"type": "null", "title": 1, "type": "boolean"}'
    texts = [
        "",
        "{",
        "nope",
        '{"type": "null"} x',
        "[01]",
        "1.",
        "-",
        "+1",
        "1e",
        '{"const": NaN}',
        "[" * 5000,
        deep,
        twice,
    ]
    found = grammars(texts)
    assert [error for error, *_ in found] == ["InvalidExternalData"] * 11 + ["InvalidArgument", "Ok"]
    assert "nested more than 64 deep" in found[-2][2] and found[-1][1] == grammar_of(json.loads(twice))


@pytest.mark.slow
def test_many_schemas() -> None:
    rng = random.Random(1)
    assert compare([{**random_schema(rng, 4), "$defs": {"node": NODE}} for _ in range(5000)]) == 5000
