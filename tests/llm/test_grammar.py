# SPDX-License-Identifier: BSD-3-Clause
# In: grammars and schemas, good, random and hostile. Out: what they allow is what they say, tokens are masked by it, and
# what is wrong is named before long.

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import numpy as np
import pytest

from torchette.errors import InputError
from torchette.llm import grammar as engine
from torchette.llm.grammar import Grammar, Matcher, Vocabulary, _sequences
from torchette.llm.schema import grammar_of

JSON = Grammar(grammar_of({}))


def fits(grammar: Grammar, text: str | bytes) -> bool:
    state = grammar.advance(grammar.start, text.encode() if isinstance(text, str) else text)
    return state is not None and state.accepts


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "a"* "b"', ["b", "aaab"], ["", "aaa", "ba"]),
        ('root ::= ("a"?)* "b"', ["b", "aab"], ["a"]),
        ('root ::= [a-c]{2,3} x\nx ::= "é" | .', ["abé", "abc日", "abcé"], ["ab", "abcab", "dbé"]),
        ("root ::= [^a-c]{2}", ["日本", "xé"], ["日", "ax"]),
        ('root ::= "a" root "b" | "a" root "c" | ""', ["", "aaabcb"], ["aaabc", "ab "]),
        ('# pairs\nroot ::= item ("," item)+ # two at least\nitem ::=\n  "x" |\n  "y"', ["x,y", "x,x,y"], ["x", "x,"]),
        (r'root ::= "\x41\u00e9\n\"" [\]\-] [a-]', ['Aé\n"]-', 'Aé\n"-a'], ["Aé"]),
        ('root ::= "a"{3} "b"{2,} "c"{0,1}', ["aaabb", "aaabbbbc"], ["aabb", "aaab", "aaabbcc"]),
        ("root ::= a b a\na ::= \"x\"?\nb ::= a a", ["", "xxxx"], ["xxxxx"]),
        ('root ::= e\ne ::= t ("+" t)*\nt ::= "(" e ")" | [0-9]+', ["1+(2+3)", "((7))"], ["1+", "(1"]),
    ],
)  # fmt: skip
def test_what_a_grammar_allows(grammar, good, bad):
    made = Grammar(grammar)
    assert [text for text in good if not fits(made, text)] == [] == [text for text in bad if fits(made, text)]


def test_ranges_of_characters_are_their_bytes():
    for low, high in ((0, 0x10FFFF), (0x7F, 0x80), (0x1234, 0x12345), (0xD000, 0xE100), (0xFFFF, 0x10000)):
        found = 0
        for sequence in _sequences(low, high):
            found += int(np.prod([b - a + 1 for a, b in sequence]))
            bytes(a for a, _ in sequence).decode()
        assert found == sum(not 0xD800 <= c < 0xE000 for c in range(low, high + 1))


def test_a_grammar_takes_what_the_same_regular_expression_takes():
    rng = random.Random(4)

    def expression(depth: int) -> tuple[str, str]:
        kind = rng.randrange(5 if depth else 2)
        if kind < 2:
            c = rng.choice("ab")
            return f'"{c}"', c
        if kind == 2:
            parts = [expression(depth - 1) for _ in range(2)]
            return " ".join(p[0] for p in parts), "".join(p[1] for p in parts)
        if kind == 3:
            parts = [expression(depth - 1) for _ in range(2)]
            return f"({' | '.join(p[0] for p in parts)})", f"(?:{'|'.join(p[1] for p in parts)})"
        part, repeat = expression(depth - 1), rng.choice(["*", "+", "?", "{1,2}"])
        return f"({part[0]}){repeat}", f"(?:{part[1]}){repeat}"

    for _ in range(150):
        text, pattern = expression(4)
        made = Grammar(f"root ::= {text}")
        for _ in range(20):
            word = "".join(rng.choice("ab") for _ in range(rng.randrange(7)))
            assert fits(made, word) == bool(re.fullmatch(pattern, word)), (text, word)


def test_masks_are_what_each_token_would_do():
    rng = random.Random(1)
    words = [
        "".join(rng.choice('aeintru,:"{}[]0159 .é日\\') for _ in range(rng.randint(1, 6)))
        for _ in range(3000)
    ]
    tokens = (
        [bytes([i]) for i in range(256)]
        + [w.encode() for w in words]
        + [b"", "日".encode()[:2], "日".encode()[1:] + b'"']
    )
    vocabulary = Vocabulary(tokens)
    document = json.dumps({"true": [1, -2.5e3, {"né": "日\n\\"}], "c": None}, ensure_ascii=False).encode()
    state = JSON.start
    for byte in document:
        mask = JSON.mask(state, vocabulary)
        for token in rng.sample(range(len(tokens)), 120):
            allowed = bool(tokens[token]) and JSON.advance(state, tokens[token]) is not None
            assert mask[token] == allowed, tokens[token]
        np.testing.assert_array_equal(JSON.mask(state, vocabulary), mask)  # what is kept
        following = JSON.advance(state, bytes([byte]))
        assert following is not None and mask[byte]
        state = following
    assert state.accepts and not state.items
    assert Matcher(JSON, vocabulary, state).is_done


BAD = {
    'root ::= root "a" | "b"': "left recursion",
    'root ::= x "a"\nx ::= y? root | "c"\ny ::= "y"': "left recursion",
    'root ::= a\na ::= b\nb ::= a | "x"': "left recursion",
    'root ::= "a" root': "never comes to an end",
    "root ::= x\nx ::= y\ny ::= x": "never comes to an end",
    'root ::= "a': 'a " is expected',
    "root ::= a": "no rule 'a'",
    'x ::= "a"': "no rule 'root'",
    "": "no rule 'root'",
    'root ::= "a"{1,99999}': "repeats go up",
    'root ::= "a"{3,1}': "repeats go up",
    'root ::= "a"{': "a repeat is expected",
    "root ::= " + "(" * 10_000: "nested more than",
    "root ::= [z-a]": "ranges go up",
    "root ::= []": "no character",
    "root ::= [a": "a ] is expected",
    'root ::= "a" )': "a rule is expected",
    "root ::= *": "something to repeat",
    r"root ::= [\uD800]": "surrogates",
    r'root ::= "\uD800"': "surrogates",
    r'root ::= "\u12"': "hexadecimal",
    r'root ::= "\U99999999"': "hexadecimal",
    'root ::= "a"\nroot ::= "b"': "twice",
    "root ::= " + "(" * 6 + '("a"{9999} "b"){9999}' + "){9999}" * 6 + 'x{9999}{9999}{9999}{9999}{9999}{9999}{9999}{9999}{9999}{9999}{9999}\nx ::= "x" "y" "z"': "more than",
    "root ::= " + "a" * (1 << 21): "characters, at most",
    5: "a grammar is text",
}  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), BAD.items(), ids=lambda value: str(value)[:30])
def test_bad_and_hostile_grammars_are_named(text, reason):
    start = time.process_time()
    with pytest.raises(InputError, match=re.escape(reason)) as caught:
        Grammar(text)
    assert caught.value.code == "bad-grammar"
    assert time.process_time() - start < 20  # not a measurement: what multiplies would take hours


def test_ambiguity_does_not_multiply():
    made = Grammar('root ::= s\ns ::= "a" s "b" | "a" s "c" | "a" s | "a" s s | "b"')
    state = made.start
    for _ in range(60):
        state = made.advance(state, b"a")
        assert state is not None
    assert len(made._states) < 500 and len(state.items) < 5000


def test_too_many_readings_are_named(monkeypatch):
    made = Grammar("root ::= " + " | ".join(f'"a"{{{n},}} "b"' for n in range(200)))
    vocabulary = Vocabulary([b"a" * n for n in range(1, 300)])
    monkeypatch.setattr(engine, "_MOST_WORK", 10_000)  # enough for the first characters alone
    with pytest.raises(InputError, match="too many readings"):
        made.mask(made.start, vocabulary)
    monkeypatch.undo()
    assert made.mask(made.start, vocabulary).all()


def test_random_texts_are_a_grammar_or_a_named_error():
    rng = random.Random(2)
    parts = [
        "root",
        " ::= ",
        '"',
        "a",
        "[",
        "]",
        "(",
        ")",
        "|",
        "*",
        "{2,3}",
        "\n",
        "\\",
        "^",
        "-",
        "x",
        "#",
        ".",
        "é",
        "{",
    ]
    made = 0
    for _ in range(3000):
        text = "root ::= " + "".join(rng.choice(parts) for _ in range(rng.randrange(12)))
        try:
            Grammar(text)
            made += 1
        except InputError as error:
            assert error.code == "bad-grammar"
    assert 50 < made < 2000


# --- schemas ------------------------------------------------------------------------------------------------------------


def valid(value: Any, schema: Any, root: Any) -> bool:
    """Whether a value fits a schema, of the keywords that grammars hold; written from the standard, not from the grammar."""
    if schema is True:
        return True
    if "$ref" in schema:
        found = root
        for part in schema["$ref"].split("/")[1:]:
            found = found[part]
        return valid(value, found, root)
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
            schema["pattern"], value, re.ASCII
        ):  # as JSON schemas mean it
            return False
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        items = [*first, *[schema.get("items", True)] * len(value)]
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 30):
            return False
        return all(valid(v, s, root) for v, s in zip(value, items, strict=False))
    if isinstance(value, dict):
        own = schema.get("properties", {})
        more = schema.get("additionalProperties", not own)
        if any(name not in value for name in schema.get("required", ())):
            return False
        return all(
            valid(v, own[k], root) if k in own else more is not False and valid(v, more, root)
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
        made: dict[str, Any] = {
            "type": "object",
            "properties": {n: random_schema(rng, depth - 1) for n in names},
        }
        made["required"] = [n for n in names if rng.random() < 0.5]
        if rng.random() < 0.3:
            made["additionalProperties"] = random_schema(rng, depth - 1)
        return made
    if kind == "array":
        made = {"type": "array", "items": random_schema(rng, depth - 1)}
        if rng.random() < 0.5:
            made["minItems"] = rng.randrange(3)
            made["maxItems"] = made["minItems"] + rng.randrange(3)
        if rng.random() < 0.3:
            made["prefixItems"] = [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]
        return made
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
    """A text of random allowed tokens; those that come to an end are likelier as it grows."""
    closing = np.array(
        [1.0 if re.fullmatch(rb'["\]}\\0-9,: nulrtefas-]+', t) else 0.0 for t in vocabulary.tokens]
    )
    matcher, text = Matcher(grammar, vocabulary), b""
    while not matcher.is_done:
        if matcher.state.accepts and rng.random() < 0.3:
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
        text += vocabulary.tokens[token]
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


def test_what_a_schema_lets_a_model_say_fits_it():
    check_samples(300, 0)


@pytest.mark.slow
def test_ten_thousand_texts_fit_their_schemas():
    check_samples(10_000, 1)


def test_any_json_is_taken_and_nothing_else():
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


def test_bounds_hold_for_each_number():
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
            for name, made in (("maximum", float.__le__), ("exclusiveMaximum", float.__lt__)):
                if low < high:
                    grammar = Grammar(grammar_of({"type": "number", "exclusiveMinimum": low, name: high}))
                    for tenth in range(-45, 50):
                        text = f"{tenth / 10:.2f}"
                        assert fits(grammar, text) == (low < tenth / 10 and made(tenth / 10, float(high))), (
                            text
                        )
                        assert fits(grammar, str(tenth)) == (low < tenth and made(float(tenth), float(high)))
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
    {"not": {}}, {"$ref": "http://x"}, {"$ref": "#/nowhere"}, {"$ref": 5}, {"allOf": [{"$ref": "#"}]}, {"allOf": 3},
    {"type": "array", "uniqueItems": True}, {"type": "integer", "multipleOf": 2}, {"type": "number", "minimum": 0.5}, {"type": "number", "exclusiveMinimum": 3, "maximum": 3},
    {"type": "integer", "minimum": 5, "maximum": 4}, {"type": "integer", "minimum": 10**30}, {"type": "number", "minimum": float("inf")},
    {"enum": []}, {"type": "object", "required": ["a"], "additionalProperties": False}, {"type": "object", "required": [[1]]},
    {"properties": []}, {"type": "string", "pattern": "(?=a)b"}, {"type": "string", "pattern": r"a\1"}, {"type": "string", "pattern": "(a"},
    {"type": "string", "pattern": "[a"}, {"type": "string", "pattern": "^a|b$"}, {"type": "string", "pattern": "a)"}, {"anyOf": []},
    {"anyOf": [3]}, {"type": "array", "minItems": 10**9}, {"type": "array", "minItems": 3, "maxItems": 2},
]  # fmt: skip


@pytest.mark.parametrize("schema", BAD_SCHEMAS, ids=str)
def test_what_no_grammar_holds_is_named(schema):
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
