# SPDX-License-Identifier: BSD-3-Clause
# In: a JSON schema. Out: a grammar in GBNF of the JSON texts that fit it. What a grammar cannot say is refused by name, so
# that nothing is promised which does not hold.
"""JSON schemas as grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchette.errors import InputError

_MOST_DEPTH, _MOST_RULES, _MOST_DIGITS = 64, 20_000, 15
_BASE = r"""
ws ::= (" " | "\n" " "{0,16})?
char ::= [^"\\\x00-\x1f\x7f] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] hex hex hex | [dD] ([0-7] | [89abAB] hex hex "\\u" [dD] [c-fC-F]) hex hex))
hex ::= [0-9a-fA-F]
string ::= "\"" char* "\""
integer ::= "-"? ("0" | [1-9] [0-9]{0,14})
number ::= integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9] [0-9]?)?
boolean ::= "true" | "false"
null ::= "null"
object ::= "{" ws (string ws ":" ws value ws ("," ws string ws ":" ws value ws)*)? "}"
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
value ::= object | array | string | number | boolean | null
"""
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
# Of each type, what the grammar says; and what says nothing about which texts fit.
_KNOWN = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
_SILENT = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id", "$comment",
    "$defs", "definitions", "$anchor", "discriminator", "contentEncoding", "contentMediaType", "strict",
}  # fmt: skip
_DAY = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_HEX = "[0-9a-f]"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_NAME = r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
_FORMATS = {
    "date": _DAY,
    "time": _TIME,
    "date-time": f"{_DAY}T{_TIME}",
    "duration": r"P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H)?|T[0-9]{1,4}H([0-9]{1,4}M)?|T[0-9]{1,4}[MS])",
    "email": rf"[a-z0-9]([a-z0-9_+-]|\.[a-z0-9]){{0,30}}@{_NAME}(\.{_NAME}){{1,3}}",
    "hostname": rf"{_NAME}(\.{_NAME}){{0,3}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": f"({_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
}


def grammar_of(schema: object) -> str:
    """The grammar of a schema. InputError, code "bad-schema", names what it cannot say, and where.

    Objects have their properties in the schema's order, and others only where ``additionalProperties`` is given; ``oneOf``
    is read as ``anyOf``. Days of ``format: date`` go to 28.
    """
    converter = _Converter(schema)
    root = converter.convert(schema, "#", 0)
    return "\n".join([f"root ::= {root}", *converter.rules]) + _BASE


def _quoted(text: str) -> str:
    escaped = "".join(f"\\x{ord(c):02x}" if c < " " or c in '"\\' else c for c in text)
    return f'"{escaped}"'


def _written(value: object) -> str:
    return _quoted(json.dumps(value, ensure_ascii=False))


class _Converter:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.rules: list[str] = []
        self._references: dict[str, str] = {}

    def _error(self, where: str, what: str) -> InputError:
        return InputError(f"the schema at {where}: {what}", code="bad-schema")

    def _rule(self, text: str) -> str:
        if len(self.rules) >= _MOST_RULES:
            raise self._error("#", f"it needs more than {_MOST_RULES} rules")
        self.rules.append(f"r{len(self.rules)} ::= {text}")
        return f"r{len(self.rules) - 1}"

    def convert(self, schema: object, where: str, depth: int) -> str:
        """An expression of one schema, safe to stand among others."""
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, Mapping):
            raise self._error(where, f"it is {schema!r}, a schema is an object or true")
        if depth > _MOST_DEPTH:
            raise self._error(where, f"it is nested more than {_MOST_DEPTH} deep")
        given = {key: value for key, value in schema.items() if key not in _SILENT}
        if "$ref" in given:
            self._only(given, ("$ref",), where)
            return self._reference(given["$ref"], where, depth)
        if "const" in given or "enum" in given:
            self._only(given, ("const", "enum", "type"), where)
            values = [given["const"]] if "const" in given else self._list(given["enum"], f"{where}/enum")
            if not (values := [v for v in values if self._fits(v, given)]):
                raise self._error(where, "no value fits")
            return self._any([_written(value) for value in values])
        for key in ("anyOf", "oneOf"):
            if key in given:
                self._only(given, (key, "type"), where)
                branches = self._list(given[key], f"{where}/{key}")
                if "type" in given:  # said once for all
                    branches = [
                        {**b, "type": given["type"]}
                        if isinstance(b, Mapping) and b.get("type", given["type"]) == given["type"]
                        else False
                        for b in branches
                    ]
                return self._any(
                    [self.convert(b, f"{where}/{key}/{i}", depth + 1) for i, b in enumerate(branches)]
                )
        if "allOf" in given:
            return self.convert(self._merged(given, where, depth), where, depth + 1)
        kinds = given.pop("type", None)
        if kinds is None:
            kinds = [kind for kind in ("object", "array", "string", "number") if given.keys() & _KNOWN[kind]]
            if len(kinds) != 1:
                raise self._error(where, f"it needs a type beside {', '.join(sorted(given)) or 'nothing'}")
        kinds = [kinds] if isinstance(kinds, str) else self._list(kinds, f"{where}/type")
        if strange := [kind for kind in kinds if kind not in _TYPES]:
            raise self._error(where, f"there is no type {strange[0]!r}")
        known = set().union(*(_KNOWN.get(kind, set()) for kind in kinds))
        if strange := sorted(map(str, given.keys() - known)):
            raise self._error(where, f"{strange[0]} of {' or '.join(kinds)} cannot be held by a grammar")
        return self._any([self._typed(kind, given, where, depth) for kind in kinds])

    def _only(self, given: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
        if strange := sorted(map(str, given.keys() - set(keys))):
            raise self._error(where, f"{strange[0]} beside {keys[0]} cannot be held by a grammar")

    @staticmethod
    def _fits(value: object, given: Mapping[str, Any]) -> bool:
        """Whether a value is of the type, and of the list, where both are said."""
        names = {
            dict: "object",
            list: "array",
            str: "string",
            int: "integer",
            float: "number",
            bool: "boolean",
        }
        own, kinds = names.get(type(value), "null"), given.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        listed = "enum" not in given or value in given["enum"]
        return listed and (kinds is None or own in kinds or (own == "integer" and "number" in kinds))

    def _list(self, value: object, where: str) -> Sequence[Any]:
        if not isinstance(value, (list, tuple)) or not value:
            raise self._error(where, "a list that is not empty is expected")
        return value

    def _any(self, expressions: list[str]) -> str:
        return expressions[0] if len(expressions) == 1 else self._rule(" | ".join(expressions))

    def _resolved(self, target: object, where: str) -> Any:
        if not isinstance(target, str) or not target.startswith("#"):
            raise self._error(where, f"$ref {target!r} leads out of the schema")
        found = self.root
        for part in target[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(part)] if isinstance(found, list) else found[part]
            except (KeyError, IndexError, ValueError, TypeError):
                raise self._error(where, f"$ref {target!r} leads nowhere") from None
        return found

    def _reference(self, target: Any, where: str, depth: int) -> str:
        found = self._resolved(target, where)
        if target not in self._references:
            name = self._references[target] = f"d{len(self._references)}"
            self.rules.append(f"{name} ::= {self.convert(found, target, depth + 1)}")
        return self._references[target]

    def _merged(self, given: dict[str, Any], where: str, depth: int) -> dict[str, Any]:
        merged: dict[str, Any] = {k: v for k, v in given.items() if k != "allOf"}
        for part in self._list(given["allOf"], f"{where}/allOf"):
            for _ in range(_MOST_DEPTH):  # what a reference leads to may be one
                if isinstance(part, Mapping) and set(part) - _SILENT == {"$ref"}:
                    part = self._resolved(part["$ref"], where)
            if not isinstance(part, Mapping):
                raise self._error(where, "allOf has a part that is no schema")
            for key, value in part.items():
                if key in _SILENT or merged.get(key, value) == value:
                    merged.setdefault(key, value)
                elif key == "required" and isinstance(value, list) and isinstance(merged[key], list):
                    merged[key] = [*merged[key], *value]
                elif key == "properties" and not any(merged[key].get(k, v) != v for k, v in value.items()):
                    merged[key] = {**merged[key], **value}
                else:
                    raise self._error(where, f"allOf says two things of {key}")
        return merged

    def _typed(self, kind: str, given: Mapping[str, Any], where: str, depth: int) -> str:
        given = {key: value for key, value in given.items() if key in _KNOWN.get(kind, ())}
        if not given:
            return kind
        result: str = getattr(self, f"_{kind}")(given, where, depth)
        return result

    def _count(self, given: Mapping[str, Any], key: str, default: int | None, where: str) -> Any:
        value = given.get(key, default)
        if value is not default and (
            isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10_000
        ):
            raise self._error(where, f"{key} is {value!r}, it must be a whole number from 0 to 10000")
        return value

    # --- objects and arrays -------------------------------------------------------------------------------------

    def _object(self, given: Mapping[str, Any], where: str, depth: int) -> str:
        properties, required = given.get("properties", {}), given.get("required", [])
        more = given.get("additionalProperties", not properties)
        if not isinstance(properties, Mapping) or not (
            isinstance(required, (list, tuple)) and all(isinstance(n, str) for n in required)
        ):
            raise self._error(where, "properties is an object, required a list of names")
        if missing := [name for name in required if name not in properties]:
            if more is False:
                raise self._error(where, f"{missing[0]!r} is required, and may not be there")
            properties = {**properties, **dict.fromkeys(missing, more)}
        pairs = [
            (
                name in required,
                f'{_written(str(name))} ws ":" ws {self.convert(value, f"{where}/properties/{name}", depth + 1)} ws',
            )
            for name, value in properties.items()
        ]
        rest, first = '""', '""'
        if more is not False:
            value = self.convert(more, f"{where}/additionalProperties", depth + 1)
            pair = self._rule(f'{self._other_key([str(name) for name in properties])} ws ":" ws {value} ws')
            rest, first = self._rule(f'("," ws {pair})*'), self._rule(f'({pair} ("," ws {pair})*)?')
        for needed, pair in reversed(pairs):  # `first` where no pair has come yet, `rest` after one
            first = self._rule(f"{pair} {rest}" + ("" if needed else f" | {first}"))
            rest = self._rule(f'"," ws {pair} {rest}' + ("" if needed else f" | {rest}"))
        return f'"{{" ws {first} "}}"'

    def _other_key(self, names: list[str]) -> str:
        """A string without escapes that is none of these names."""
        if not names:
            return "string"
        plain = [name for name in names if "\\" not in json.dumps(name, ensure_ascii=False)]
        return f'"\\"" {self._other_than(plain, 0)} "\\""'

    def _other_than(self, names: list[str], depth: int) -> str:
        if depth > 200:
            raise self._error("#", "additionalProperties beside a name of more than 200 characters")
        starts = sorted({name[0] for name in names if name})
        plain = '[^"\\\\\\x00-\\x1f\\x7f' + "".join(f"\\U{ord(c):08x}" for c in starts) + "]"
        branches = [f'{plain} [^"\\\\\\x00-\\x1f\\x7f]*']
        branches += [
            f"{_quoted(c)} {self._other_than([name[1:] for name in names if name[:1] == c], depth + 1)}"
            for c in starts
        ]
        return self._rule(" | ".join(branches if "" in names else ['""', *branches]))

    def _array(self, given: Mapping[str, Any], where: str, depth: int) -> str:
        least, most = self._count(given, "minItems", 0, where), self._count(given, "maxItems", None, where)
        prefix = given.get("prefixItems", [])
        if not isinstance(prefix, (list, tuple)):
            raise self._error(where, "prefixItems is a list")
        firsts = [self.convert(item, f"{where}/prefixItems/{i}", depth + 1) for i, item in enumerate(prefix)]
        items = given.get("items", True)
        if items is False:
            most = len(firsts) if most is None else min(most, len(firsts))
        if most is not None:
            firsts = firsts[:most]
            if least > most:
                raise self._error(where, f"minItems is {least}, of {most} items at most")
        tail = ""
        if most is None or most > len(firsts):
            item = self._rule(self.convert(items, f"{where}/items", depth + 1) + " ws")
            low, high = max(least - len(firsts), 0), None if most is None else most - len(firsts)
            if firsts:
                tail = f'("," ws {item}){{{low},{"" if high is None else high}}}'
            else:
                more = "" if high is None else high - 1
                tail = f'{item} ("," ws {item}){{{max(low - 1, 0)},{more}}}'
                tail = tail if low else f"({tail})?"
        for i in reversed(range(len(firsts))):
            tail = ('"," ws ' if i else "") + f"{firsts[i]} ws {tail}"
            tail = self._rule(tail if i < least else f'{tail} | ""')
        return f'"[" ws {tail} "]"'

    # --- strings and numbers ------------------------------------------------------------------------------------

    def _string(self, given: Mapping[str, Any], where: str, depth: int) -> str:
        least, most = self._count(given, "minLength", 0, where), self._count(given, "maxLength", None, where)
        pattern = given.get("pattern")
        if pattern is None and given.get("format") in _FORMATS:
            pattern = f"^{_FORMATS[given['format']]}$"
        if pattern is None:
            if most is not None and least > most:
                raise self._error(where, f"minLength is {least}, maxLength {most}")
            return f'"\\"" char{{{least},{"" if most is None else most}}} "\\""'
        if "minLength" in given or "maxLength" in given:
            raise self._error(
                where, "minLength or maxLength beside pattern or format cannot be held by a grammar"
            )
        if not isinstance(pattern, str):
            raise self._error(where, f"pattern is {pattern!r}, no text")
        return f'"\\"" {self._rule(self._pattern(pattern, where))} "\\""'

    def _pattern(self, pattern: str, where: str) -> str:
        """Converts a regular expression to a grammar of unescaped characters."""
        text, before, after = pattern, "char* (", ") char*"
        if text.startswith("^"):
            text, before = text[1:], "("
        if text.endswith("$") and not re.search(r"(?<!\\)(\\\\)*\\\$$", text):
            text, after = text[:-1], ")"
        depth, at, found = 0, 0, [before]
        sets = {"d": "0-9", "w": "0-9A-Za-z_", "s": " "}
        never = '"\\\\\\x00-\\x1f\\x7f'
        spaces = "\\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff"

        def refuse(what: str) -> InputError:
            return self._error(where, f"pattern {pattern!r}: {what} cannot be held by a grammar")

        while at < len(text):
            c = text[at]
            at += 1
            if c == "\\":
                c = text[at : at + 1]
                at += 1
                if c in sets:
                    found.append(f"[{sets[c]}]")
                elif c.lower() in sets and c:
                    found.append(f"[^{sets[c.lower()]}{never}{spaces if c == 'S' else ''}]")
                elif not c or c.isalnum():
                    raise refuse(f"\\{c}")
                else:
                    found.append(_quoted(json.dumps(c)[1:-1]))
            elif c == "[":
                end = at + text.startswith("^", at)
                end += text.startswith("]", end)
                while end < len(text) and text[end] != "]":
                    end += 1 + (text[end] == "\\")
                if end >= len(text):
                    raise refuse("a class without an end")
                found.append(self._class(text[at:end], sets, never, refuse))
                at = end + 1
            elif c == "(":
                if text.startswith("?", at) and not text.startswith("?:", at):
                    raise refuse(text[at - 1 : at + 2])
                at += 2 * text.startswith("?:", at)
                depth += 1
                found.append("(")
            elif c == ")":
                depth -= 1
                if depth < 0:
                    raise refuse("a ) without a (")
                found.append(")")
            elif c in "*+?":
                if text[at : at + 1] in ("?", "+"):  # how it is searched changes nothing about what fits
                    at += 1
                found.append(c)
            elif c == "{" and (repeat := re.match(r"\d+(,\d*)?\}", text[at:])):
                found.append("{" + repeat[0])
                at += len(repeat[0])
            elif c == "|":
                if depth == 0 and text != pattern:
                    raise refuse("^ or $ of one alternative")
                found.append("|")
            elif c in "^$":
                raise refuse(f"{c} inside")
            elif c == ".":
                found.append("char")
            else:
                found.append(_quoted(json.dumps(c, ensure_ascii=False)[1:-1]))
        if depth:
            raise refuse("a ( without a )")
        return " ".join([*found, after])

    def _class(
        self, text: str, sets: Mapping[str, str], never: str, refuse: Callable[[str], Exception]
    ) -> str:
        negated = text.startswith("^")
        found, at = [], int(negated)
        while at < len(text):
            c = text[at]
            at += 1
            if c == "\\":
                c = text[at : at + 1]
                at += 1
                if c in sets:
                    found.append(sets[c])
                    continue
                if not c or c.isalnum():
                    raise refuse(f"\\{c} in a class")
            if c == "-" and 1 + negated < at < len(text) and text[at - 2] != "\\":
                found.append("-")
                continue
            if c in '"\\' or c < " ":
                if not negated:
                    raise refuse(f"{c!r} in a class")
                continue
            found.append(f"\\U{ord(c):08x}")
        return f"[{'^' if negated else ''}{''.join(found)}{never if negated else ''}]"

    def _integer(self, given: Mapping[str, Any], where: str, depth: int) -> str:
        bounds: dict[str, Any] = {"minimum": None, "maximum": None}
        for key, name, by in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
            for source, shift in ((name, 0), (key, by)):
                if source in given:
                    value = self._bound(given[source], source, where) + shift
                    old = bounds[name]
                    bounds[name] = value if old is None else max(old, value) if by > 0 else min(old, value)
        return self._rule(self._between(bounds["minimum"], bounds["maximum"], where))

    def _bound(self, value: object, name: str, where: str) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or value != value // 1
            or abs(value) >= 10**_MOST_DIGITS
        ):
            raise self._error(
                where, f"{name} is {value!r}, a grammar holds whole numbers of at most {_MOST_DIGITS} digits"
            )
        return int(value)

    def _between(self, low: int | None, high: int | None, where: str) -> str:
        """Whole numbers from low to high."""
        most = 10**_MOST_DIGITS - 1
        low, high = -most if low is None else low, most if high is None else high
        if low > high:
            raise self._error(where, f"no number is from {low} to {high}")
        parts = [f'"-" ({_natural(max(1, -high), -low)})'] if low < 0 else []
        return " | ".join(parts + ([_natural(max(low, 0), high)] if high >= 0 else []))

    def _number(self, given: Mapping[str, Any], where: str, depth: int) -> str:
        ends = []
        for name, sign in (("inimum", -1), ("aximum", 1)):
            found = [(sign * 10**_MOST_DIGITS - sign, False)]
            for key, is_open in ((f"m{name}", False), (f"exclusiveM{name}", True)):
                if key in given:
                    found.append((self._bound(given[key], key, where), is_open))
            ends.append(min(found, key=lambda end: (sign * end[0], not end[1])))
        (low, low_open), (high, high_open) = ends
        if low > high or (low == high and low_open | high_open):
            raise self._error(where, f"no number is from {low} to {high}")
        any_fraction, some = '("." [0-9]{1,15})?', '"." "0"{0,14} [1-9] [0-9]{0,14}'
        parts = []
        for minus, least, greatest, past_least, below_greatest in (
            ('"-" ', max(-high, 0), -low, high_open and high <= 0, low_open),
            ("", max(low, 0), high, low_open and low >= 0, high_open),
        ):
            if greatest > least:
                parts.append(f'{minus}"{least}" {some if past_least else any_fraction}')
            if greatest > least + 1:
                parts.append(f"{minus}({_natural(least + 1, greatest - 1)}) {any_fraction}")
            if greatest > least or (greatest == least and not past_least):
                parts += [] if below_greatest else [f'{minus}"{greatest}" ("." "0"{{1,15}})?']
        return self._rule(" | ".join(parts))


def _natural(low: int, high: int) -> str:
    """Numbers without a sign from low to high."""
    parts = []
    for digits in range(len(str(low)), len(str(high)) + 1):
        first, last = max(low, 10 ** (digits - 1) if digits > 1 else 0), min(high, 10**digits - 1)
        parts.append(_digits(str(first), str(last)))
    return " | ".join(parts)


def _digits(low: str, high: str) -> str:
    """Numbers of as many digits from low to high."""
    if not low:
        return '""'
    rest = len(low) - 1
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return f"[{low[0]}-{high[0]}] [0-9]{{{rest}}}"
    if low[0] == high[0]:
        return f'"{low[0]}" ({_digits(low[1:], high[1:])})'
    parts = [f'"{low[0]}" ({_digits(low[1:], "9" * rest)})']
    if int(high[0]) - int(low[0]) > 1:
        parts.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}] [0-9]{{{rest}}}")
    return " | ".join([*parts, f'"{high[0]}" ({_digits("0" * rest, high[1:])})'])
