# SPDX-License-Identifier: BSD-3-Clause
# The fields of a request that constrain the form of an answer: OpenAI's response_format, and the fields of vLLM, SGLang, TGI and
# llama.cpp. Each becomes a JSON schema or a grammar of `Session.generate`.
"""`constraint`: the grammar or JSON schema of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torchette.errors import InputError
from torchette.llm.grammar import grammar_of_pattern
from torchette.llm.serve.refusal import unsupported, wrong

Constraint = tuple[str, Any]
"""The option of `Session.generate`, "schema" or "grammar", and its value."""
_Reader = Callable[[str, Any], Iterator[tuple[str, Constraint]]]
"""Yields the constraints of a field's value, with the path of each in the request."""

# Fields with these words constrain answers in some server. An unknown one must not be ignored.
_CONSTRAINT_WORDS = re.compile(
    r"guided|structur|grammar|schema|regex|ebnf|lark|gbnf|constrain|choices|json|pattern|^(output_)?format$",
    re.IGNORECASE,
)
_CHOSEN_BACKENDS = ("guided_decoding_backend",)  # selects vLLM's library, and changes no answer


def constraint(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the constraint of a request as an option of `Session.generate`; empty without one.

    Raises:
        Refusal: status 400: a constraint is malformed or unknown, or two constraints differ.
    """
    constraints: dict[str, Constraint] = {}
    for name, value in body.items():
        if reader := _FIELDS.get(name):
            constraints.update(reader(name, value))
        elif _CONSTRAINT_WORDS.search(name) and name not in _CHOSEN_BACKENDS:
            raise unsupported(
                name, f"{name} is not supported: the fields that constrain answers are {', '.join(_FIELDS)}"
            )
    if len({json.dumps(one) for one in constraints.values()}) > 1:
        raise wrong(
            list(constraints)[1],
            f"{' and '.join(constraints)} ask for different forms of the answer: remove all but one of them",
        )
    return dict([next(iter(constraints.values()))]) if constraints else {}


def _schema(where: str, value: object) -> Iterator[tuple[str, Constraint]]:
    """A JSON schema, or its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise wrong(where, f"{where} is not valid JSON: {error}") from None
    if not isinstance(value, (dict, bool)):
        raise wrong(where, f"{where} must be a JSON schema: an object")
    yield where, ("schema", value)


def _any_object(where: str, value: object) -> Iterator[tuple[str, Constraint]]:
    if not isinstance(value, bool):
        raise wrong(where, f"{where} must be true or false")
    if value:
        yield where, ("schema", {"type": "object"})


def _grammar(where: str, value: object) -> Iterator[tuple[str, Constraint]]:
    if isinstance(value, dict):  # TGI's grammar
        yield from _typed(where, value)
    elif not isinstance(value, str):
        raise wrong(where, f"{where} must be a text in GBNF")
    elif value:
        yield where, ("grammar", value)


def _choice(where: str, value: object) -> Iterator[tuple[str, Constraint]]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise wrong(where, f"{where} must be a list of texts that are not empty")
    yield where, ("grammar", "root ::= " + " | ".join(map(_literal, value)))


def _literal(text: str) -> str:
    """A text as a string of GBNF."""
    return '"' + "".join(c if c.isalnum() else f"\\U{ord(c):08x}" for c in text) + '"'


def _regex(where: str, value: object) -> Iterator[tuple[str, Constraint]]:
    if not isinstance(value, str):
        raise wrong(where, f"{where} must be a regular expression")
    try:
        if value:
            yield where, ("grammar", grammar_of_pattern(value))
    except InputError as error:
        raise unsupported(where, f"{where}: {error.message}") from None


def _named_schema(where: str, value: object) -> Iterator[tuple[str, Constraint]]:
    """OpenAI's object with a name and a schema; without a schema, any JSON."""
    if not isinstance(value, dict):
        raise wrong(where, f"{where} must be an object with a name and a schema")
    _check_keys(where, value, ("schema", *_NOTES))
    schema = value.get("schema")
    yield from _schema(f"{where}.schema", {} if schema is None else schema)


def _typed(where: str, value: object) -> Iterator[tuple[str, Constraint]]:
    """An object such as {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}."""
    if not isinstance(value, dict):
        raise wrong(where, f"{where} must be an object with a type")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise wrong(where, f"{where}.type must be one of {', '.join(_TYPES)}, got {kind!r}")
    readers = _TYPES[kind]
    _check_keys(where, value, ("type", *readers, *_NOTES))
    keys = [key for key in readers if value.get(key) is not None]
    for key in keys:
        yield from readers[key](f"{where}.{key}", value[key])
    if kind == "json_object" and not keys:
        yield from _any_object(where, True)
    elif readers and not keys:
        raise wrong(where, f"{where} of type {kind} needs {' or '.join(readers)}")


def _structured_outputs(where: str, value: object) -> Iterator[tuple[str, Constraint]]:
    """vLLM's object with one constraint."""
    if not isinstance(value, dict):
        raise wrong(where, f"{where} must be an object")
    fields = {key: part for key, part in value.items() if part is not None and part is not False}
    _check_keys(where, fields, (*_STRUCTURED, "disable_fallback"))
    for key, reader in _STRUCTURED.items():
        if key in fields:
            yield from reader(f"{where}.{key}", fields[key])


def _check_keys(where: str, value: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in value:
        if key not in known:
            raise unsupported(
                f"{where}.{key}", f"{where}.{key} is not supported: {where} has {', '.join(known)}"
            )


_NOTES = ("name", "strict", "description")  # change no answer: a schema always holds
# By type, the keys of the constraint and their readers.
_TYPES: dict[str, dict[str, _Reader]] = {
    "text": {},
    "json_object": {"schema": _schema, "value": _schema},
    "json_schema": {"json_schema": _named_schema, "schema": _schema, "value": _schema},
    "json": {"value": _schema, "schema": _schema},
    "regex": {"value": _regex, "regex": _regex, "pattern": _regex},
    "grammar": {"grammar": _grammar, "value": _grammar},
}
_STRUCTURED: dict[str, _Reader] = {
    "json": _schema, "json_object": _any_object, "regex": _regex, "choice": _choice, "grammar": _grammar,
}  # fmt: skip
_FIELDS: dict[str, _Reader] = {
    "response_format": _typed,
    "text.format": _typed,  # of the Responses API
    "grammar": _grammar,
    "json_schema": _schema,
    "regex": _regex,
    "ebnf": _grammar,
    "guided_json": _schema,
    "guided_json_object": _any_object,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "structured_outputs": _structured_outputs,
}
