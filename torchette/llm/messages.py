# SPDX-License-Identifier: BSD-3-Clause
# In: messages of a conversation and functions that a model may call, in OpenAI's form. Out: what chat templates take of them,
# and the calls that an answer makes.
"""Messages of conversations, and calls of functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchette.errors import InputError
from torchette.llm.schema import grammar_of

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def prepared(
    messages: Sequence[Mapping[str, Any]], texts: bool, parts: bool, image: str
) -> list[dict[str, Any]]:
    """Messages for a template: contents are `texts`, or lists of `parts`, or either. Without parts, an image is its token's
    name. InputError if they are no messages."""
    if isinstance(messages, (str, Mapping)) or not messages:
        raise InputError("messages are a list: [{'role': 'user', 'content': 'Hello'}]")
    found = []
    for number, given in enumerate(messages):
        calls = given.get("tool_calls") if isinstance(given, Mapping) else None
        content = given.get("content") if isinstance(given, Mapping) else None
        content = "" if content is None and calls else content
        if not isinstance(given, Mapping) or not isinstance(given.get("role"), str) or content is None:
            raise InputError(f"messages[{number}] needs a role and a content, both text")
        pieces = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(pieces, (list, tuple)) or not all(map(_is_part, pieces)):
            raise InputError(
                f"messages[{number}]: a content is text, or a list of parts of type text or image",
                hints=["{'type': 'text', 'text': 'Hello'}, {'type': 'image', 'image': array}"],
            )
        if parts and not (texts and all(piece["type"] == "text" for piece in pieces)):
            content = [{k: v for k, v in piece.items() if k in ("type", "text")} for piece in pieces]
        else:
            content = "".join(piece["text"] if piece["type"] == "text" else image for piece in pieces)
        message = {**given, "content": content}
        if calls and not isinstance(calls, (list, tuple)):
            raise InputError(f"messages[{number}]: tool_calls are a list")
        if calls:
            message["tool_calls"] = [_with_values(call, number) for call in calls]
        found.append(message)
    return found


def _is_part(part: object) -> bool:
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return kind == "image" or (kind == "text" and isinstance(part.get("text"), str))


def _with_values(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A call with arguments as values, not text, which templates write."""
    try:
        function = dict(call["function"])
        if isinstance(function.get("arguments"), str):
            function["arguments"] = json.loads(function["arguments"] or "{}")
        return {**call, "function": function}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"messages[{number}]: a call is {{'function': {{'name': ..., 'arguments': JSON}}}}"
        ) from None


def images_of(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The images in such messages, in their order."""
    contents = [m.get("content") for m in messages if isinstance(m, Mapping)]
    parts = [
        part for c in contents if isinstance(c, (list, tuple)) for part in c if isinstance(part, Mapping)
    ]
    return [part["image"] for part in parts if part.get("type") == "image" and "image" in part]


class Call(NamedTuple):
    """What a model asks for."""

    name: str
    arguments: Any


def functions(tools: object) -> dict[str, Any]:
    """Functions by name: JSON schemas of their arguments. InputError if they are none."""
    found: dict[str, Any] = {}
    for one in tools if isinstance(tools, (list, tuple)) else [None]:
        tool: Any = one if isinstance(one, Mapping) else {}
        function: Any = tool.get("function") if tool.get("type") == "function" else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,64}", name) or name in found:
            raise InputError(
                "tools are a list of functions with names of their own",
                hints=["{'type': 'function', 'function': {'name': 'add', 'parameters': {a JSON schema}}}"],
            )
        found[name] = function.get("parameters") or {"type": "object", "properties": {}}
    return found


def grammar_of_calls(tools: object, choice: object, template: str) -> str | None:
    """The grammar of an answer with a call; None if it needs none. `choice` is OpenAI's tool_choice."""
    known = functions(tools)
    if isinstance(choice, Mapping):
        named = choice.get("function")
        name = named.get("name") if isinstance(named, Mapping) else None
        if name not in known:
            raise InputError(f"tool_choice names {name!r}, tools have {', '.join(known)}")
        known = {name: known[name]}
    elif choice in ("auto", "none"):
        return None
    elif choice != "required":
        raise InputError(f"tool_choice is {choice!r}, it must be auto, none, required or a function")
    key = "arguments" if OPEN in template or '"parameters":' not in template else "parameters"
    try:
        defined = {name: _moved(schema, f"#/$defs/{name}") for name, schema in known.items()}
    except RecursionError:
        raise InputError("the parameters of tools are nested too deep", code="bad-schema") from None
    calls = [
        {"type": "object", "properties": {"name": {"const": name}, key: schema}, "required": ["name", key]}
        for name, schema in defined.items()
    ]
    text = grammar_of({"anyOf": calls, "$defs": defined})
    if OPEN in template:
        text = text.replace("root ::= ", f'root ::= "{OPEN}\\n" call "\\n{CLOSE}"\ncall ::= ', 1)
    return text


def _moved(schema: object, place: str) -> Any:
    """A schema whose references lead to `place`, where it now is."""
    if isinstance(schema, Mapping):
        return {
            k: place + v[1:] if k == "$ref" and isinstance(v, str) and v[:1] == "#" else _moved(v, place)
            for k, v in schema.items()
        }
    return [_moved(one, place) for one in schema] if isinstance(schema, list) else schema


def calls_in(text: str, names: Sequence[str] | Mapping[str, Any]) -> tuple[str, list[Call]]:
    """An answer's text and the functions that it calls: in <tool_call> and </tool_call>, or as JSON alone."""
    said, mark, rest = text.partition(OPEN)
    found: list[Call] = []
    for part in rest.split(OPEN) if mark else [text]:
        for value in _values(part.partition(CLOSE)[0]):
            for one in value if isinstance(value, list) else [value]:
                call = one.get("function", one) if isinstance(one, dict) else {}
                name = call.get("name") if isinstance(call, dict) else None
                if not isinstance(name, str) or name not in names:
                    return text, []
                found.append(Call(name, call.get("arguments", call.get("parameters", {}))))
    return (said.rstrip() if mark else "", found) if found else (text, [])


def _values(text: str) -> Iterator[Any]:
    """The JSON values of a text; None at the end for anything else."""
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip(" \n\r\t;"):
        at += len(text[at:]) - len(text[at:].lstrip(" \n\r\t;"))
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield value
