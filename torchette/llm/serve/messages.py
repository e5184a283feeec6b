# SPDX-License-Identifier: BSD-3-Clause
# Messages as clients send them: images are data URLs, and clients write null for an empty content. The server fetches nothing.
"""`session_messages`: messages of a request in the form of `Session.chat`."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from torchette.llm.serve.refusal import Refusal, wrong


def session_messages(messages: object) -> list[Any]:
    """Returns the field `messages` in the form of `Session.chat`, with images as the bytes of their files.

    Raises:
        Refusal: status 400: a message is malformed.
    """
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", "messages must be a list with at least one message")
    return [session_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def session_message(where: str, message: object) -> dict[str, Any]:
    """Returns a message in the form of `Session.chat`. `where` is its path in the request, for errors."""
    if not isinstance(message, dict) or not isinstance(role := message.get("role"), str):
        raise _wrong(where, "must be an object with a role and a content")
    calls = message.get("tool_calls")
    fields = {key: value for key, value in message.items() if key != "tool_calls" or calls}
    fields["role"] = "system" if role == "developer" else role  # OpenAI's later name of the same role
    if calls:
        if not isinstance(calls, list):
            raise _wrong(f"{where}.tool_calls", "must be a list")
        for index, call in enumerate(calls):
            check_call(f"{where}.tool_calls[{index}]", call)
    content = fields.get("content")
    if "content" not in fields and role not in ("assistant", "tool"):
        raise _wrong(where, "has no content")
    if isinstance(content, list):
        return {**fields, "content": [_part(f"{where}.content[{i}]", part) for i, part in enumerate(content)]}
    if not isinstance(content, (str, type(None))):
        raise _wrong(f"{where}.content", "must be a text, a list of parts, or null")
    return {**fields, "content": content or ""}


def _wrong(where: str, problem: str) -> Refusal:
    return wrong(where.partition("[")[0], f"{where} {problem}")


def check_call(where: str, call: object) -> None:
    """Raises Refusal with the reason if a call in the history is broken."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(where, "must be of type function, with a function that has a name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str) and arguments:
        try:
            json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise _wrong(f"{where}.function.arguments", f"is not valid JSON: {error}") from None
    elif not isinstance(arguments, (str, dict)):
        raise _wrong(f"{where}.function.arguments", "must be a JSON object, or its text")


# The types of a part, and the field with the value. Those with a prefix are types of the Responses API.
_PARTS = {
    "text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal",
    "image_url": "image_url", "input_image": "image_url",
}  # fmt: skip


def _part(where: str, part: object) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str) or kind not in _PARTS:
        raise _wrong(where, f"is of type {kind!r}; types: {', '.join(_PARTS)}")
    value = part.get(_PARTS[kind])
    if _PARTS[kind] != "image_url":
        if not isinstance(value, str):
            raise _wrong(f"{where}.{_PARTS[kind]}", "must be a text")
        return {"type": "text", "text": value}
    url = value.get("url") if isinstance(value, dict) else value
    head, _, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not re.fullmatch(r"data:image/[\w.+-]+;base64", head):
        raise _wrong(
            where, "must have an image_url with a URL data:image/...;base64,...: the server fetches no files"
        )
    try:
        return {"type": "image", "image": base64.b64decode(data, validate=True)}
    except ValueError as error:
        raise _wrong(where, f"is not valid base64: {error}") from None
