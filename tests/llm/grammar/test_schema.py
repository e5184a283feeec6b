# SPDX-License-Identifier: BSD-3-Clause
# JSON schemas: the grammar of a schema accepts the texts that are valid and no others; a keyword that no grammar
# expresses is named.

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from tests.llm.grammar.test_grammar import JSON, fits
from torchette.errors import InputError
from torchette.llm.grammar import Grammar, Matcher, Vocabulary, grammar_of

ANYTHING = ["{}", '{"a": [1, null]}', "[]", '"x"', "-2.5", "true", "null"]
STRINGS, NUMBERS = ['"x"', '""'], ["1", "-2"]


def string(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def texts(*values: object) -> list[str]:
    return [json.dumps(value, ensure_ascii=False) for value in values]


DEFS = {"$defs": {"a": {"$anchor": "here", "type": "null"}, "b": {"$ref": "#here"}, "n/~ %": {"const": 5}}}
NESTED = {
    "$id": "https://example.org/schemas/root.json",
    "$defs": {
        "a": {
            "$id": "sub/a.json",
            "$defs": {"x": {"const": 1}, "y": {"$anchor": "y", "const": 2}},
            "$ref": "#/$defs/x",
        },
        "b": {"$id": "/other/b", "const": 3},
        "c": {"$id": "urn:c", "$defs": {"z": {"const": 4}}},
    },
}
# Of each schema: valid texts, texts that are not.
CASES: list[tuple[Any, list[str], list[str]]] = [
    # any value
    *(
        (schema, ANYTHING, ["", "{", "nul"])
        for schema in (True, {}, {"title": "V"}, {"description": "d", "default": 3, "examples": [1], "$comment": "c"},
                       {"anyOf": [{"title": "V"}]}, {"anyOf": [{"type": "null"}, {"description": "any"}]}, {"allOf": [True]},
                       {"$ref": "#/$defs/v", "$defs": {"v": {"title": "V"}}}, {"$anchor": "a", "$dynamicAnchor": "b"})
    ),
    ({"properties": {"v": {"title": "V"}}, "required": ["v"]}, ['{"v": [1]}', '{"v":null}'], ["{}", '{"w":1}']),
    ({"items": {"title": "V"}}, ["[]", '[1, "a", {}]'], ["1"]),
    ({"type": "object", "additionalProperties": {"title": "V"}}, ["{}", '{"a":1,"b":[]}'], ["[]"]),
    ({"prefixItems": [{"title": "V"}], "items": False}, ["[]", "[{}]"], ["[1,2]"]),
    # types
    ({"type": "null"}, ["null"], ["1", ""]), ({"type": ["string", "null"]}, ["null", '"a"'], ["1"]),
    ({"title": "t", "type": "boolean", "default": 3}, ["true", "false"], ["3"]),
    ({"minLength": 1}, ['"a"'], ['""', "1"]), ({"type": "string", "minLength": 2}, ['"ab"', '"\\n\\u0041"'], ['"a"']),
    ({"type": "string", "maxLength": 0}, ['""'], ['"a"']), ({"type": "string", "maxLength": None}, STRINGS, ["1"]),
    # values
    ({"const": {"b": [1, -0.5, "\u00e9\x01\n\"\\/\U0001f600"], "a": None}},
     ['{"b": [1, -0.5, "\u00e9\\u0001\\n\\"\\\\/\U0001f600"], "a": null}'], ["{}"]),
    ({"enum": [1, 1.5, True, "1", None, [1], {"a": 1}], "type": ["integer", "array", "object"]}, ["1", "[1]", '{"a": 1}'],
     ["1.5", "true", '"1"', "null"]),
    ({"const": 1, "enum": [1.0, 2]}, ["1"], ["2"]), ({"enum": [True, 1]}, ["true", "1"], ["false", "0"]),
    ({"enum": [2.0, 2.5], "type": "integer"}, ["2.0"], ["2.5"]),
    ({"const": 123456789012345678901234567890}, ["123456789012345678901234567890"], ["123456789012345678901234567891"]),
    # arrays and objects
    ({"type": "array", "minItems": 2, "maxItems": 2}, ["[1,2]"], ["[]", "[1]", "[1,2,3]"]), ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    ({"prefixItems": [{"type": "null"}, {"const": 1}], "items": False}, ["[]", "[null]", "[null,1]"], ["[1]", "[null,1,1]"]),
    ({"prefixItems": [True], "minItems": 3}, ["[1,2,3]", "[1,2,3,4]"], ["[1,2]"]), ({"prefixItems": [True], "maxItems": 2}, ["[]", "[1,2]"], ["[1,2,3]"]),
    ({"prefixItems": [True, True, True], "maxItems": 2, "minItems": 1}, ["[1]", "[1,2]"], ["[]", "[1,2,3]"]),
    ({"required": ["a", "b"]}, ['{"a":1,"b":2}'], ['{"a":1}', "{}"]), ({"properties": {}}, ["{}", '{"a":1}'], ["[]"]),
    ({"properties": {"a": False, "b": True}}, ["{}", '{"b":1}'], ['{"a":1}']),
    ({"properties": {"a": {}, "ab": {"type": "null"}, 'q"': True, "": True, "\u00e9": True}, "required": ["ab"], "additionalProperties": {"const": 1}},
     ['{"ab":null}', '{"a":2,"ab":null,"\u00e9":3,"b":1,"abc":1}'], ['{"a":1}', '{"ab":null,"b":2}', '{"ab":null,"a":1}']),
    # combinations
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["null", '"a"'], ["1"]),
    ({"oneOf": [{"minimum": 3}, {"maximum": 2}], "type": "integer"}, ["3", "2", "-1"], ['"a"', "2.5"]),
    ({"anyOf": [{"type": "string"}, True], "type": "string"}, STRINGS, ["1"]), ({"anyOf": [{"type": "string"}, {"type": "null"}], "type": "null"}, ["null"], ['"a"']),
    ({"properties": {"a": True, "b": True}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a":1}', '{"b":1}', '{"a":1,"b":1}'], ["{}"]),
    ({"allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": True}, "required": ["b"]}]}, ['{"a":1,"b":2}'], ['{"a":1}', '{"b":1}']),
    ({"allOf": [{"type": "integer"}, {"type": "number"}]}, ["1"], ["1.5"]), ({"allOf": [{"minimum": 1}, {"minimum": 3, "maximum": 9}], "type": "integer"}, ["3", "9"], ["2", "10"]),
    ({"allOf": [{"properties": {"a": {"type": ["null", "string"]}}}, {"properties": {"a": {"type": ["null", "array"]}}}]}, ['{"a":null}'], ['{"a":"x"}']),
    ({"allOf": [{"properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}}]}, ["{}", '{"a":1}'], ['{"b":1}']),
    ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}], "type": "integer"}, ["2", "3"], ["1", "4"]), ({"allOf": [{"title": "a"}], "type": "null"}, ["null"], ["1"]),
    # references
    ({"$ref": "#here", **DEFS}, ["null"], ["1"]), ({"$ref": "#/$defs/b", **DEFS}, ["null"], ["1"]), ({"items": {"$ref": "#here"}, **DEFS}, ["[null]"], ["[1]"]),
    ({"$ref": "#/$defs/n~1~0%20%25", **DEFS}, ["5"], ["1", "null"]), ({"$ref": "#/$defs/a/0", "$defs": {"a": [{"type": "null"}]}}, ["null"], ["1"]),
    *(
        ({**NESTED, "$ref": reference}, [value], [str(other) for other in range(1, 5) if str(other) != value])
        for reference, value in (
            ("sub/a.json", "1"), ("https://example.org/schemas/sub/a.json#/$defs/y", "2"), ("./sub/../sub/a.json#y", "2"), ("../other/b", "3"),
            ("//example.org/other/b", "3"), ("urn:c#/$defs/z", "4"), ("root.json#/$defs/b", "3"), ("#/$defs/a", "1"),
        )
    ),
    ({"$ref": "#/$defs/i", "minimum": 3, "$defs": {"i": {"type": "integer"}}}, ["3"], ["2", "3.5"]),
    ({"$ref": "#/$defs/o", "properties": {"b": {"const": 1}}, "required": ["b"], "$defs": {"o": {"properties": {"a": {"const": 2}}, "required": ["a"]}}},
     ['{"b":1,"a":2}'], ['{"a":2}', '{"b":1}']),
    ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "null"}}}, ["null"], ["1"]),
    ({"properties": {"a": {"$ref": "#"}}}, ['{"a":{"a":{}}}'], ['{"a":1}']),
    ({"$ref": "#/$defs/t", "$defs": {"t": {"properties": {"v": {"const": 1}, "next": {"allOf": [{"$ref": "#/$defs/t"}], "title": "N"}}}}},
     ['{"v":1,"next":{"next":{"v":1}}}'], ['{"next":1}']),
    ({"$ref": "#/$defs/t", "$defs": {"t": {"properties": {"next": {"$ref": "#/$defs/t", "required": ["next"]}}}}}, ["{}"], ['{"next":{}}']),
    # patterns of ECMA-262
    (string("a"), texts("a", "xax\n"), texts("", "b")), (string("^a"), texts("ab"), texts("ba")), (string("a$"), texts("ba"), texts("ab", "a\n")),
    (string(r"^a\$"), texts("a$b"), texts("a")), (string(r"^a\\$"), texts("a\\"), texts("a")), (string(""), texts("", "x"), ["1"]), (string("^$"), texts(""), texts("a")),
    (string("^a$|^b$"), texts("a", "b"), texts("ab", "xa", "bx")), (string("^a|b"), texts("ax", "xb"), texts("xa")), (string("a|b$"), texts("xax", "xb"), texts("bx")),
    (string("(^|,)x(,|$)"), texts("x", "a,x", "x,b", "a,x,b"), texts("ax", "xb")), (string("(?:^a|b$)"), texts("ax", "xb"), texts("xax")),
    (string("(^a)?b"), texts("ab", "xb"), texts("a")), (string("^(?<year>\\d{4})-(?<m>\\d\\d)$"), texts("2024-05"), texts("2024-5")),
    (string(r"^\n\t\r\f\v\0$"), texts("\n\t\r\f\v\0"), texts("ntrfv0")), (string(r"^\x41\u4e00\u{1F600}\cJ\/$"), texts("A\u4e00\U0001f600\n/"), texts("x41")),
    (string(r"^\ud83d\ude00$"), texts("\U0001f600"), texts("a")), (string(r"^[\W]$"), texts("-", "\u00e9", "\n", '"'), texts("a", "_", "0")),
    (string(r"^[\w-.]$"), texts("a", "-", "."), texts(",", "/")), (string(r"^[\s\S]$"), texts("a", "\n", '"', "\\"), texts("", "ab")), (string("^[^]$"), texts("\n"), texts("")),
    (string("^.$"), texts("a", '"', "\t", "\U0001f600"), texts("\n", "\r", "\u2028", "")), (string(r"^\s$"), texts(" ", "\t", "\n", "\u00a0", "\ufeff"), texts("\u0085", "a")),
    (string(r"^[^\s\d]$"), texts("a", "\u0085"), texts(" ", "\n", "5")), (string("^[\"\\\\]$"), texts('"', "\\"), texts("a")), (string(r"^[\b]$"), texts("\b"), texts("b")),
    (string("^[a-c\\-x]$"), texts("b", "-", "x"), texts("d")), (string("^[a-]$"), texts("a", "-"), texts("b")), (string("^[-a]$"), texts("a", "-"), texts("b")),
    (string("^a{2}b{1,}c{0,1}d*?e+?$"), texts("aabce", "aabbdde"), texts("abce")), (string("^a{,3}$"), texts("a{,3}"), texts("aa")), (string("^]}$"), texts("]}"), texts("]")),
    (string("^(a(b|)|)d$"), texts("abd", "ad", "d"), texts("bd")), (string("^[^a]$"), texts("\n", '"', "b"), texts("a")), (string(r"^\—\-$"), texts("—-"), texts("—")),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=[str(case[0])[:60] for case in CASES])
def test_a_schema_accepts_the_valid_texts(schema, good, bad):
    for form in (schema, json.dumps(schema)):
        grammar = Grammar(grammar_of(form))
        assert [t for t in good if not fits(grammar, t)] == [] == [t for t in bad if fits(grammar, t)]


REFUSED = {
    "(?=a)b": "lookahead at character 1", "a(?!b)": "lookahead at character 2", "(?<=a)b": "lookbehind at character 1", "(?<!a)b": "lookbehind",
    r"(a)\1": r"the reference \1 to a group at character 4", r"(?<n>a)\k<n>": r"the reference \k to a group", r"\bx": r"the word boundary \b at character 1",
    r"x\B": r"the word boundary \B at character 2", r"\p{L}": r"the property \p", "(?i)a": "flags of (?i", "a^b": "a ^ inside of the pattern at character 2",
    "a$b": "a $ inside of the pattern at character 2", "(^a)*": "a repeat of ^ or $", "^*": "a repeat of ^ or $", "*a": "a repeat of nothing at character 1",
    "a**": "a repeat of nothing", "a{3,1}": "a maximum below its minimum", "a{99999}": "more than 10000", "(a": "a ( without a )", "a)": "a ) without a (",
    "[a": "a class without an end", "[]": "a class without characters", "[z-a]": "a range that goes down", "a\\": "without a character", r"\q": r"the escape \q",
    r"\x4": r"\x without 2 hexadecimal digits", r"\u12": r"\u without 4 hexadecimal digits", r"\u{110000}": "a code point", r"\ud800": "half of a surrogate pair",
    r"\u{d800}": "half of a surrogate pair at character 1", r"a\u{dfff}?": "half of a surrogate pair at character 2", r"[\u{dabc}]": "half of a surrogate pair",
    r"[^\0-\ud7ff\ue000-\u{10ffff}]": "a class without characters",
    r"[\1]": r"the escape \1", r"\01": "an octal escape", "(" * 60 + ")" * 60: "nested more than 40 deep", "(?<n": "a group name without a >",
}  # fmt: skip


@pytest.mark.parametrize(("pattern", "reason"), REFUSED.items(), ids=[p[:20] for p in REFUSED])
def test_unsupported_pattern_is_named(pattern, reason):
    with pytest.raises(InputError, match=re.escape(reason)) as caught:
        grammar_of({"type": "array", "items": string(pattern)})
    assert caught.value.code == "bad-schema" and "the schema at #/items: " in str(caught.value)


def random_pattern(rng: random.Random, depth: int) -> str:
    """Returns a random pattern with the same meaning in Python and ECMA-262, except $."""
    kind = rng.randrange(8 if depth else 4)
    if kind == 0:
        return rng.choice(["a", "b", "-", r"\.", r"\n", r"\x41", r"\u00e9", r"\t", '"', r"\\", "/"])
    if kind == 1:
        return rng.choice(
            ["[ab]", "[^ab]", r"[\w-]", r"[^\W]", r"[\s\S]", r"[\d.]", r'["\\]', "[!-/]", r"[\n-a]"]
        )
    if kind in (2, 3):
        return rng.choice([r"\d", r"\w", r"\D", r"\W"])
    inner = random_pattern(rng, depth - 1)
    if kind == 4:
        return inner + random_pattern(rng, depth - 1)
    if kind == 5:
        return f"(?:{inner}|{random_pattern(rng, depth - 1)})"
    if kind == 6:
        return f"({inner}){rng.choice(['*', '+', '?', '{2}', '{1,3}', '{2,}', '??', '*?'])}"
    return (
        rng.choice([f"(?:^{inner}|{random_pattern(rng, depth - 1)}$)", f"^{inner}", f"{inner}$"])
        if depth > 2
        else inner
    )


def test_patterns_accept_what_python_accepts():
    rng, compared = random.Random(5), 0
    for _ in range(250):
        pattern = random_pattern(rng, 3)
        if rng.random() < 0.5:
            pattern = f"^(?:{pattern})$" if rng.random() < 0.5 else f"^{pattern}|{random_pattern(rng, 2)}$"
        try:
            grammar = Grammar(grammar_of(string(pattern)))
        except InputError as error:
            assert "inside of the pattern" in str(error) or "a repeat of ^ or $" in str(error), pattern
            continue
        compiled = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
        for _ in range(40):
            text = "".join(rng.choice('abA-.\n\t"\\/é1_ ') for _ in range(rng.randrange(6)))
            assert fits(grammar, json.dumps(text, ensure_ascii=False)) == bool(compiled.search(text)), (
                pattern,
                text,
            )
            compared += 1
    assert compared > 5000


BOUNDS = [
    0,
    1,
    -1,
    9,
    10,
    99,
    2**31,
    -(2**31),
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    10**15,
    10**20,
    -(10**20),
    10**78 - 1,
]


def test_bounds_of_any_size_are_exact():
    rng = random.Random(6)
    for _ in range(120):
        low, high = sorted(rng.sample(BOUNDS, 2))
        exclusive = rng.random() < 0.3
        keys = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
        for kind in ("integer", "number"):
            try:
                grammar = Grammar(grammar_of({"type": kind, keys[0]: low, keys[1]: high}))
            except InputError:
                assert exclusive and high - low == 1 and kind == "integer"
                continue
            values = {b + d for b in (low, high, (low + high) // 2, 0) for d in (-10, -1, 0, 1, 10)}
            for value in values | {rng.randrange(low, high + 1) for _ in range(5)}:
                inside = low < value < high if exclusive else low <= value <= high
                assert fits(grammar, str(value)) == inside, (kind, low, high, value)
                assert fits(grammar, f"{value}.5") == (
                    kind == "number" and (low <= value < high if value >= 0 else low < value <= high)
                ), (low, high, value)


@pytest.mark.parametrize(("schema", "good", "bad"), [
    ('{"type": "integer", "maximum": 1e20}', ["1" + "0" * 20, "-5"], ["1" + "0" * 19 + "1" + "0", "100000000000000000001"]),
    ('{"type": "integer", "minimum": 12.5e1, "maximum": 9007199254740993.0}', ["125", "9007199254740993"], ["124", "9007199254740994"]),
    ('{"type": "integer", "minimum": 9007199254740993}', ["9007199254740993"], ["9007199254740992"]),
    ('{"type": "integer", "minimum": 9223372036854775807, "maximum": 9223372036854775807}', ["9223372036854775807"], ["9223372036854775806", "9223372036854775808"]),
    ('{"type": "integer", "minimum": 0}', ["0", "999999999999999"], ["-1", "-0"]),
])  # fmt: skip
def test_bounds_keep_their_digits(schema, good, bad):
    grammar = Grammar(grammar_of(schema))
    assert [t for t in good if not fits(grammar, t)] == [] == [t for t in bad if fits(grammar, t)]


@pytest.mark.parametrize(("schema", "reason"), [
    ({"properties": {"a": {"not": {}}}}, "#/properties/a: a grammar cannot express not"), ({"$dynamicRef": "#a"}, "cannot express $dynamicRef"),
    ({"$recursiveRef": "#"}, "cannot express $recursiveRef"), ({"$ref": "#nowhere"}, '$ref "#nowhere" leads to no part'), ({"$ref": "b.json"}, "leads to no part"),
    ({"type": "integer", "multipleOf": 2}, "cannot express multipleOf"), ({"type": "object", "patternProperties": {}}, "cannot express patternProperties"),
    ({"const": 1, "minimum": 0}, "minimum next to const"), ({"type": "string", "minimum": 1}, "minimum of string"), ({"minimum": 1, "minLength": 1}, "it needs a type next to"),
    ({"allOf": [string("a"), string("b")]}, "two values of pattern"), ({"allOf": [{"type": "null"}, {"type": "string"}]}, "no value is valid"),
    ({"type": "integer", "minimum": 10**100}, "integers of at most 80 digits"), ({"type": "number", "minimum": 0.5}, "minimum is 0.5"),
    ('{"type": "integer", "maximum": 1e999999999999999999999}', "at most 80 digits"), ({"properties": {"a": False}, "required": ["a"]}, "'a' is required, but"),
    ({"type": "array", "items": 5}, "#/items: 5 is not a schema"), (None, "null is not a schema"), ({"properties": {"a" * 300: {"not": {}}}}, "cannot express not"),
    ({1, 2}, "it is not JSON"), ({"const": float("nan")}, "it is not JSON"),
])  # fmt: skip
def test_errors_of_schemas_name_the_keyword(schema, reason):
    with pytest.raises(InputError, match=re.escape(reason).replace("'a'", "'?a'?")) as caught:
        grammar_of(schema)
    assert caught.value.code == "bad-schema"


@pytest.mark.parametrize(
    "text",
    ["", "{", "nope", '{"type": "null"} x', "[01]", "1.", "-", "+1", "1e", '{"const": NaN}', "[" * 5000],
)
def test_texts_that_are_not_json_are_named(text):
    with pytest.raises(InputError, match="the schema at #: ") as caught:
        grammar_of(text)
    assert caught.value.code == "bad-schema"


def test_the_last_of_two_equal_keys_counts():
    assert grammar_of('{"type": "null", "title": 1, "type": "boolean"}') == grammar_of({"type": "boolean"})


def valid(value: Any, schema: Any, root: Any) -> bool:
    """Returns whether a value is valid, for the keywords that grammars express. Implements the standard, not the grammar."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        definition = root
        for part in schema["$ref"].split("/")[1:]:
            definition = definition[part]
        return valid(value, definition, root)
    if "const" in schema and value != schema["const"]:
        return False
    if not all(valid(value, one, root) for one in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(valid(value, one, root) for one in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    kinds = {
        "object": isinstance(value, dict), "array": isinstance(value, list), "string": isinstance(value, str), "null": value is None,
        "boolean": isinstance(value, bool), "number": number, "integer": number and value == int(value),
    }  # fmt: skip
    if "type" in schema and not any(
        kinds[k] for k in ([schema["type"]] if isinstance(schema["type"], str) else schema["type"])
    ):
        return False
    if number and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return False
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1 << 30):
            return False
        if "pattern" in schema and not re.search(
            schema["pattern"].replace("$", r"\Z"), value, re.ASCII
        ):  # ECMA-262: $ is the end of the text
            return False
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        items = [*first, *[schema.get("items", True)] * len(value)]
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 30):
            return False
        return all(valid(v, s, root) for v, s in zip(value, items, strict=False))
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        more = schema.get("additionalProperties", not properties)
        if any(name not in value for name in schema.get("required", ())):
            return False
        return all(
            valid(v, properties[k], root) if k in properties else more is not False and valid(v, more, root)
            for k, v in value.items()
        )
    return True


def random_schema(rng: random.Random, depth: int) -> Any:
    kind = rng.choice(
        ["string", "integer", "number", "boolean", "null", "enum", "pattern"]
        + ["object", "array", "anyOf", "ref"] * (depth > 0)
    )
    if kind == "string":
        low = rng.randrange(3)
        return rng.choice(
            [{"type": "string"}, {"type": "string", "minLength": low, "maxLength": low + rng.randrange(6)}]
        )
    if kind in ("integer", "number"):
        low = rng.randrange(-300, 300)
        return rng.choice(
            [
                {"type": kind},
                {"type": kind, "minimum": low, "maximum": low + rng.randrange(1, 2000)},
                {"type": [kind, "null"]},
            ]
        )
    if kind == "enum":
        return {
            "enum": rng.sample(["a", 'quo"te', "é\n", 1, None, True, 2.5, ["x"], {"k": 1}], rng.randint(1, 4))
        }
    if kind == "pattern":
        return {
            "type": "string",
            "pattern": rng.choice(
                [r"^[a-f]+-\d{2,3}$", r"^(yes|no|\w{1,3})$", "b", r"^.x", r"[^a-z]$", r"^\S+\.\d*$"]
            ),
        }
    if kind == "object":
        names = rng.sample(["a", "ab", "name", "x y", 'q"', "é"], rng.randrange(4))
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {n: random_schema(rng, depth - 1) for n in names},
        }
        schema["required"] = [n for n in names if rng.random() < 0.5]
        if rng.random() < 0.3:
            schema["additionalProperties"] = random_schema(rng, depth - 1)
        return schema
    if kind == "array":
        schema = {"type": "array", "items": random_schema(rng, depth - 1)}
        if rng.random() < 0.5:
            schema["minItems"] = rng.randrange(3)
            schema["maxItems"] = schema["minItems"] + rng.randrange(3)
        if rng.random() < 0.3:
            schema["prefixItems"] = [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]
        return schema
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    return {"$ref": "#/$defs/node"} if kind == "ref" else {"type": kind}


NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["v", "next"],
}
TOKENS = [bytes([i]) for i in range(256)] + [
    t.encode()
    for t in (
        '":',
        '","',
        "},",
        '"}',
        "true",
        "null",
        "ing",
        " the",
        "00",
        ".5",
        "日本",
        "né",
        '{"',
        "\\n",
        "\\u00",
        "]}",
        " ",
        "\n  ",
    )
]


def sample(rng: np.random.Generator, grammar: Grammar, vocabulary: Vocabulary) -> bytes:
    """Returns a text of random allowed tokens; the longer it is, the more probable are tokens that end it."""
    closing = np.array([1.0 if re.fullmatch(rb'["\]}\\0-9,: nulrtefas-]+', t) else 0.0 for t in TOKENS])
    matcher, text = Matcher(grammar, vocabulary), b""
    while not matcher.is_done:
        if matcher.accepts and rng.random() < 0.3:
            break
        allowed = matcher.allowed(())
        weights = rng.random(len(allowed)) * allowed
        if len(text) > 40 and rng.random() < 0.7:
            weights *= 0.001 + closing
            if len(text) > 120:
                weights[list(b"]}")] *= 1e4
                weights[ord('"')] *= 1e8
        assert weights.any() and len(text) < 5000, text
        token = int(weights.argmax())
        text += TOKENS[token]
        matcher = matcher.after(token)
    return text


def check_samples(count: int, seed: int) -> None:
    rng, numbers, vocabulary = random.Random(seed), np.random.default_rng(seed), Vocabulary(TOKENS)
    for _ in range(count // 10):
        schema = random_schema(rng, 3)
        if isinstance(schema, dict):
            schema["$defs"] = {"node": NODE}
        grammar = Grammar(grammar_of(schema))
        for _ in range(10):
            text = sample(numbers, grammar, vocabulary)
            assert valid(json.loads(text), schema, schema), (text, schema)


def test_answers_under_a_schema_are_valid():
    check_samples(300, 0)


@pytest.mark.slow
def test_ten_thousand_texts_fit_their_schemas():
    check_samples(10_000, 1)


def test_schema_without_constraints_accepts_exactly_json():
    for value in ({"a": [1, -2.5e3, {}], "é": None}, [], 'x😀"\\', True, -0.5, {"": []}):
        assert fits(JSON, json.dumps(value)) and fits(JSON, json.dumps(value, ensure_ascii=False))
    for text in (
        "",
        "{",
        "[1,]",
        "01",
        "1.",
        "{'a':1}",
        '{"a":1,}',
        '"\n"',
        "nul",
        "NaN",
        '"\\q"',
        '"\\ud800"',
    ):
        assert not fits(JSON, text)


def test_bounds_apply_to_each_value():
    for low in range(-30, 31, 10):
        for high in range(low, 230, 37):
            integer, number = (
                Grammar(grammar_of({"type": t, "minimum": low, "maximum": high}))
                for t in ("integer", "number")
            )
            for value in range(-40, 260, 3):
                assert fits(integer, str(value)) == (low <= value <= high)
                for real in (value, value + 0.5):
                    assert fits(number, str(real)) == (low <= real <= high)
    for low in (-3, -1, 0, 2):
        for high in (-1, 0, 1, 4):
            for name, compares in (("maximum", float.__le__), ("exclusiveMaximum", float.__lt__)):
                if low < high:
                    grammar = Grammar(grammar_of({"type": "number", "exclusiveMinimum": low, name: high}))
                    for tenth in range(-45, 50):
                        text = f"{tenth / 10:.2f}"
                        assert fits(grammar, text) == (
                            low < tenth / 10 and compares(tenth / 10, float(high))
                        ), text
                        assert fits(grammar, str(tenth)) == (
                            low < tenth and compares(float(tenth), float(high))
                        )
    assert fits(Grammar(grammar_of({"type": "integer", "exclusiveMinimum": 3})), "4")
    assert not fits(Grammar(grammar_of({"type": "integer", "exclusiveMinimum": 3})), "3")


def test_formats_all_of_and_types_of_enums():
    both = {
        "allOf": [
            {"$ref": "#/$defs/a"},
            {"type": "object", "properties": {"y": {"type": "null"}}, "required": ["y"]},
        ],
        "$defs": {"a": {"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"]}},
    }
    assert fits(Grammar(grammar_of(both)), '{"x":1,"y":null}') and not fits(
        Grammar(grammar_of(both)), '{"x":1}'
    )
    assert fits(Grammar(grammar_of({"type": "string", "format": "date-time"})), '"2024-02-28T23:59:59Z"')
    assert not fits(Grammar(grammar_of({"type": "string", "format": "date"})), '"2024-13-01"')
    assert not fits(Grammar(grammar_of({"type": "string", "enum": ["a", 1]})), "1")
    formats = {
        "email": (["a@b.org", "x.y+z@ab-c.de.fr"], ["a@b", "@b.c", "a b@c.d", ".a@b.c", "a@-b.c"]),
        "ipv4": (["1.2.3.4", "255.0.199.250"], ["256.1.1.1", "1.2.3", "01.2.3.4"]),
        "ipv6": (["0:0:0:0:0:ffff:1:2"], ["1:2:3", "0:0:0:0:0:0:0:g"]),
        "hostname": (["a", "a-1.example"], ["-a", "a-", "a..b", ""]),
        "duration": (["P3W", "P1DT2H", "PT5M"], ["P", "5M", "PT"]),
    }
    for name, (good, bad) in formats.items():
        grammar = Grammar(grammar_of({"type": "string", "format": name}))
        assert all(fits(grammar, json.dumps(text)) for text in good), name
        assert not any(fits(grammar, json.dumps(text)) for text in bad), name


BAD_SCHEMAS = [
    5, "x", [], False, {"type": "strin"}, {"type": []}, {"type": "string", "minLength": -1}, {"type": "string", "minLength": 3, "maxLength": 2},
    {"not": {}}, {"$ref": "http://x"}, {"$ref": "#/nowhere"}, {"$ref": 5}, {"allOf": [{"$ref": "#"}]}, {"$ref": "#a"}, {"$ref": "other.json"}, {"$dynamicRef": "#a"}, {"$recursiveRef": "#"}, {"type": None},
    {"allOf": 3},
    {"type": "array", "uniqueItems": True}, {"type": "integer", "multipleOf": 2}, {"type": "number", "minimum": 0.5}, {"type": "number", "exclusiveMinimum": 3, "maximum": 3},
    {"type": "integer", "minimum": 5, "maximum": 4}, {"type": "integer", "minimum": 10**100}, {"type": "integer", "maximum": 1.5}, {"type": "number", "minimum": float("inf")},
    {"enum": []}, {"type": "object", "required": ["a"], "additionalProperties": False}, {"type": "object", "required": [[1]]},
    {"properties": []}, {"type": "string", "pattern": "(?=a)b"}, {"type": "string", "pattern": r"a\1"}, {"type": "string", "pattern": "(a"},
    {"type": "string", "pattern": "[a"}, {"type": "string", "pattern": "a)"}, {"anyOf": []},
    {"anyOf": [3]}, {"type": "array", "minItems": 10**9}, {"type": "array", "minItems": 3, "maxItems": 2},
]  # fmt: skip


@pytest.mark.parametrize("schema", BAD_SCHEMAS, ids=str)
def test_unsupported_schema_is_named(schema):
    with pytest.raises(InputError) as caught:
        grammar_of(schema)
    assert caught.value.code == "bad-schema" and str(caught.value).startswith("the schema at #")


def test_hostile_schemas_end_in_named_errors():
    deep: Any = {"type": "array"}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    wide = {
        "type": "object",
        "properties": {
            f"p{i}": {"type": "object", "properties": {f"q{j}": {} for j in range(200)}} for i in range(200)
        },
    }
    for schema in (deep, wide, {"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}):
        with pytest.raises(InputError) as caught:
            Grammar(grammar_of(schema))
        assert caught.value.code in ("bad-schema", "bad-grammar")
