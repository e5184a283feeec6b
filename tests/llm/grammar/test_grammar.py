# SPDX-License-Identifier: BSD-3-Clause
# Grammars in GBNF, valid, random and hostile: the texts and tokens that they allow, and the errors that name what is wrong.

from __future__ import annotations

import json
import random
import re
import time

import numpy as np
import pytest

from torchette.errors import InputError
from torchette.llm.grammar import Grammar, Matcher, Vocabulary, grammar_of

BYTES = Vocabulary([bytes([i]) for i in range(256)])
JSON = Grammar(grammar_of({}))


def fits(grammar: Grammar, text: str | bytes) -> bool:
    """Returns whether the grammar accepts the complete text."""
    after = Matcher(grammar, BYTES).after_bytes(text.encode() if isinstance(text, str) else text)
    return after is not None and after.accepts


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
def test_grammar_accepts_its_texts_only(grammar, good, bad):
    parsed = Grammar(grammar)
    assert (
        [text for text in good if not fits(parsed, text)]
        == []
        == [text for text in bad if fits(parsed, text)]
    )


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0x10FFFF), (0x7F, 0x80), (0x1234, 0x12345), (0xD000, 0xE100), (0xFFFF, 0x10000)]
)
def test_a_class_accepts_the_encoded_characters_of_its_range(low, high):
    grammar = Grammar(f"root ::= [\\U{low:08x}-\\U{high:08x}]")
    edges = {c + d for c in (low, high, 0x7F, 0x7FF, 0xFFFF, 0xD7FF, 0xE000) for d in (-1, 0, 1)}
    for c in edges | set(range(0, 0x110000, 997)):
        if 0 <= c <= 0x10FFFF and not 0xD800 <= c < 0xE000:
            assert fits(grammar, chr(c)) == (low <= c <= high), hex(c)
    for text in (b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xe1\x88"):
        assert not fits(grammar, text)


def test_grammar_accepts_the_texts_of_the_equal_regular_expression():
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
        parsed = Grammar(f"root ::= {text}")
        for _ in range(20):
            word = "".join(rng.choice("ab") for _ in range(rng.randrange(7)))
            assert fits(parsed, word) == bool(re.fullmatch(pattern, word)), (text, word)


def test_masks_agree_with_single_tokens():
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
    matcher = Matcher(JSON, vocabulary)
    for byte in document:
        mask = matcher.allowed(())
        for token in rng.sample(range(len(tokens)), 120):
            allowed = bool(tokens[token]) and matcher.after_bytes(tokens[token]) is not None
            assert mask[token] == allowed, tokens[token]
        np.testing.assert_array_equal(matcher.allowed(()), mask)  # the kept mask
        assert mask[byte]
        matcher = matcher.after(byte)
    assert matcher.accepts and matcher.is_done
    with pytest.raises(InputError, match="does not allow token"):
        matcher.after(65)


def test_end_tokens_are_allowed_if_the_text_may_end():
    matcher = Matcher(Grammar('root ::= "a"*'), Vocabulary([b"a", b"b", b"", b"aa"]))
    assert matcher.allowed([2]).tolist() == [True, False, True, True]
    matcher = Matcher(Grammar('root ::= "a"+'), Vocabulary([b"a", b"b", b"", b"aa"]))
    assert matcher.allowed([2]).tolist() == [True, False, False, True]
    assert matcher.after(3).allowed([2]).tolist() == [True, False, True, True]


def test_masks_of_two_vocabularies_are_separate():
    grammar = Grammar('root ::= "ab"*')
    first, second = Vocabulary([b"a", b"b"]), Vocabulary([b"b", b"ab", b"aba"])
    for _ in range(2):
        assert Matcher(grammar, first).allowed(()).tolist() == [True, False]
        assert Matcher(grammar, second).allowed(()).tolist() == [False, True, True]


def test_older_positions_stay_valid_when_states_are_replaced():
    grammar = Grammar('root ::= "x"{0,10000} "y" root | "end"')
    first = Matcher(grammar, BYTES)
    matcher = first
    for _ in range(6):  # 10,000 states each, of which 20,000 are kept
        following = matcher.after_bytes(b"x" * 9990 + b"y")
        assert following is not None
        matcher = following
    assert grammar._native.num_states < 40_000
    for position in (first, matcher):
        assert position.after_bytes(b"x" * 5 + b"yend") is not None
        assert position.allowed(()).nonzero()[0].tolist() == sorted(b"xye")


BAD = {
    'root ::= root "a" | "b"': "left recursion",
    'root ::= x "a"\nx ::= y? root | "c"\ny ::= "y"': "left recursion",
    'root ::= a\na ::= b\nb ::= a | "x"': "left recursion",
    'root ::= "a" root': "never comes to an end",
    "root ::= x\nx ::= y\ny ::= x": "never comes to an end",
    'root ::= "a': 'expected "',
    "root ::= a": "no rule 'a'",
    'x ::= "a"': "no rule 'root'",
    "": "no rule 'root'",
    'root ::= "a"{1,99999}': "a repeat must be ascending",
    'root ::= "a"{3,1}': "a repeat must be ascending",
    'root ::= "a"{': "expected a repeat",
    "root ::= " + "(" * 10_000: "nested more than",
    "root ::= [z-a]": "a range must be ascending",
    "root ::= []": "no character",
    "root ::= [a": "expected ]",
    'root ::= "a" )': "expected a rule",
    "root ::= *": "something to repeat",
    r"root ::= [\uD800]": "surrogates",
    r'root ::= "\uD800"': "surrogates",
    r'root ::= "\u12"': "hexadecimal",
    r'root ::= "\U99999999"': "hexadecimal",
    'root ::= "a"\nroot ::= "b"': "twice",
    "root ::= " + "(" * 6 + '("a"{9999} "b"){9999}' + "){9999}" * 6 + 'x{9999}{9999}{9999}{9999}{9999}{9999}{9999}{9999}{9999}{9999}{9999}\nx ::= "x" "y" "z"': "more than",
    "root ::= " + "a" * (1 << 21): "at most",
    5: "a grammar is text",
}  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), BAD.items(), ids=lambda value: str(value)[:30])
def test_invalid_and_hostile_grammars_are_errors(text, reason):
    start = time.process_time()
    with pytest.raises(InputError, match=re.escape(reason)) as caught:
        Grammar(text)
    assert caught.value.code == "bad-grammar"
    assert time.process_time() - start < 20  # not a measurement: exponential growth would need hours


@pytest.mark.parametrize(("text", "line"), [('root ::= "a"\n\nx ::= [', 3), ("root ::= *", 1)])
def test_errors_name_the_line(text, line):
    with pytest.raises(InputError, match=f"the grammar, line {line}: "):
        Grammar(text)


def test_the_root_may_have_another_name():
    assert fits(Grammar('x ::= "a" y\ny ::= "b"', root="x"), "ab")
    with pytest.raises(InputError, match="no rule 'root'"):
        Grammar('x ::= "a"')


def test_ambiguity_does_not_multiply():
    parsed = Grammar('root ::= s\ns ::= "a" s "b" | "a" s "c" | "a" s | "a" s s | "b"')
    matcher = Matcher(parsed, BYTES)
    for _ in range(60):
        matcher = matcher.after(ord("a"))
    assert parsed._native.num_states < 500


def test_too_ambiguous_grammar_is_an_error():
    parsed = Grammar('root ::= s\ns ::= "a" s "b" | "a" s "c" | "a" s | "a" s s | "b"')
    vocabulary = Vocabulary([b"a", b"a" * 20_000])
    with pytest.raises(InputError, match="too many readings") as caught:
        Matcher(parsed, vocabulary).after(1)
    assert caught.value.code == "bad-grammar"
    with pytest.raises(InputError, match="too many readings"):
        Matcher(parsed, vocabulary).allowed(())
    assert Matcher(parsed, Vocabulary([b"a", b"aa", b"c"])).allowed(()).tolist() == [True, True, False]


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
    num_grammars = 0
    for _ in range(3000):
        text = "root ::= " + "".join(rng.choice(parts) for _ in range(rng.randrange(12)))
        try:
            Grammar(text)
            num_grammars += 1
        except InputError as error:
            assert error.code == "bad-grammar"
    assert 50 < num_grammars < 2000
