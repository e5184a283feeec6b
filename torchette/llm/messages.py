# SPDX-License-Identifier: BSD-3-Clause
# In: messages of a conversation and functions that a model may call, in OpenAI's form. Out: messages for chat templates, the
# grammar of calls, and the calls in an answer. The work is in torchette/llm/engine/chat.cpp and tools.cpp.
"""Messages of conversations, and calls of functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from torchette.errors import InputError
from torchette.llm.text import json_text, messages_text
from torchette.runtime import native

OPEN = "<tool_call>"
T = TypeVar("T")


def _called(work: Callable[[Any], T]) -> T:
    binding = native.module()
    try:
        return work(binding.llm)
    except binding.Fault as fault:
        code = "bad-schema" if fault.args[1] == native.NOT_SUPPORTED else None
        raise InputError(fault.args[2], code=code) from None


def prepared(
    messages: Sequence[Mapping[str, Any]], texts: bool, parts: bool, image: str
) -> list[dict[str, Any]]:
    """Returns messages in the form that a template accepts: contents are `texts`, or lists of `parts`, or either. Without
    parts, the text `image` is in the place of an image. Raises InputError if they are not messages."""
    given = messages_text(messages)
    found: list[dict[str, Any]] = json.loads(
        _called(lambda llm: llm.prepare_messages(given, texts, parts, image))
    )
    return found


def images_of(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns the images in such messages, in their order."""
    contents = [m.get("content") for m in messages if isinstance(m, Mapping)]
    parts = [
        part for c in contents if isinstance(c, (list, tuple)) for part in c if isinstance(part, Mapping)
    ]
    return [part["image"] for part in parts if part.get("type") == "image" and "image" in part]


class Call(NamedTuple):
    """A call that an answer makes."""

    name: str
    arguments: Any


def functions(tools: object) -> dict[str, Any]:
    """Returns the JSON schemas of functions' arguments by name. Raises InputError if `tools` are not functions."""
    given = json_text(tools, "tools")
    return {name: json.loads(schema) for name, schema in _called(lambda llm: llm.functions_of(given))}


def grammar_of_calls(tools: object, choice: object, template: str) -> str | None:
    """Returns the grammar of an answer that must be a call, or None if `choice`, OpenAI's tool_choice, demands no call.

    Raises:
        InputError: `tools` are not functions, or `choice` is unknown; code "bad-schema": a grammar cannot express the
            parameters of a function.
    """
    try:
        given = json_text(tools, "tools")
    except InputError as error:
        raise InputError(error.message, code="bad-schema") from None
    chosen = json_text(choice, "tool_choice")
    return _called(lambda llm: llm.grammar_of_calls(given, chosen, template)) or None


def calls_in(text: str, names: Iterable[str]) -> tuple[str, list[Call]]:
    """Returns an answer's text and the functions that it calls: between <tool_call> and </tool_call>, or as JSON alone.

    Args:
        text: the answer.
        names: the functions that it may call. An answer that calls another function is only text.
    """
    said, calls = native.module().llm.calls_in(text, list(names))
    return said, [Call(name, json.loads(arguments)) for name, arguments in calls]
