# SPDX-License-Identifier: BSD-3-Clause
# In: messages of a conversation and functions that a model may call, in OpenAI's form. Out: images, functions, and the calls
# in an answer. torchette/llm/engine/tools.cpp implements it; torchette.llm.text.ChatTemplate renders the prompts.
"""Messages of conversations, and calls of functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torchette.errors import InputError
from torchette.llm.text import json_text
from torchette.runtime import native

OPEN = "<tool_call>"


def images_of(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns the images in such messages, in their order."""
    contents = [m.get("content") for m in messages if isinstance(m, Mapping)]
    parts = [
        part for c in contents if isinstance(c, (list, tuple)) for part in c if isinstance(part, Mapping)
    ]
    return [part["image"] for part in parts if part.get("type") == "image" and "image" in part]


class Call(NamedTuple):
    """A function call in an answer.

    Attributes:
        name: the function.
        arguments: the parsed JSON value.
    """

    name: str
    arguments: Any


def functions(tools: object) -> dict[str, Any]:
    """Returns the JSON schemas of functions' arguments by name. Raises InputError if `tools` are not functions."""
    binding = native.module()
    try:
        schemas = binding.llm.functions_of(json_text(tools, "tools"))
    except binding.Fault as fault:
        raise InputError(fault.args[2]) from None
    return {name: json.loads(schema) for name, schema in schemas}


def calls_in(text: str, names: Iterable[str]) -> tuple[str, list[Call]]:
    """Finds the calls in an answer: JSON between <tool_call> and </tool_call>, or an answer that is only JSON.

    Args:
        text: the answer.
        names: the functions that it may call. An answer that calls another function is only text.

    Returns:
        The text before the calls, and the calls.

    Example:
        >>> text, calls = calls_in('{"name": "add", "arguments": {"a": 1}}', ["add"])
        >>> calls[0].name, calls[0].arguments
        ('add', {'a': 1})
    """
    answer_text, calls = native.module().llm.calls_in(text, list(names))
    return answer_text, [Call(name, json.loads(arguments)) for name, arguments in calls]
