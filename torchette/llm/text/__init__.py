# SPDX-License-Identifier: BSD-3-Clause
# In: a tokenizer.json of Hugging Face, a file of SentencePiece or tiktoken, a chat template. Out: text to tokens, tokens to
# bytes, messages to a prompt. The C++ files of this folder and torchette/llm/engine/chat.cpp do the work.
"""Text of language models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torchette.errors import FormatError, InputError
from torchette.runtime import native


class Tokenizer:
    """A tokenizer.json, or a file of SentencePiece or tiktoken.

    Attributes:
        native: the C++ tokenizer, for the other classes of the native module.

    Raises:
        FormatError: code "unknown-tokenizer": the file is not a tokenizer, or has a part that is not supported.
    """

    def __init__(self, data: bytes) -> None:
        try:
            self.native = native.module().llm.Tokenizer(bytes(data))
        except native.module().Fault as fault:
            raise FormatError(
                f"the tokenizer cannot be read: {fault.args[2]}",
                hints=["Session(file, tokenizer='tokenizer.json') uses another one"],
                code="unknown-tokenizer",
            ) from None

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Returns the tokens of a text, with the tokens that begin and end every text if `special`.

        Raises:
            InputError: the text has half a surrogate pair, or is too long for a pattern of the tokenizer.
        """
        try:
            tokens: list[int] = self.native.encode(_characters(text), special)
        except native.module().Fault as fault:
            raise InputError(fault.args[2]) from None
        return tokens

    def bytes_of(self, size: int) -> list[bytes]:
        """Returns the bytes of tokens 0 to size - 1; none for special tokens and indices without a token."""
        tokens: list[bytes] = self.native.bytes_of(size)
        return tokens

    def name(self, token: int) -> str:
        """Returns the text of a token in the file of the tokenizer; empty if there is no such token."""
        piece: str = self.native.piece_of(token) if 0 <= token < 1 << 64 else ""
        return piece


def _characters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text has half a surrogate pair at {error.start}, which is not a character"
        ) from None
    return text


class ChatTemplate:
    """A chat template in Jinja.

    Args:
        source: the template.
        names: variables of all prompts, such as the text of `bos_token`. A name that is absent is undefined.
        tool_source: the template of conversations with tools; by default `source`.

    Raises:
        FormatError: it is not a template, or has a part of Jinja that is not supported.
    """

    def __init__(self, source: str, names: Mapping[str, object], tool_source: str = "") -> None:
        try:
            self._format = native.module().llm.ChatFormat(
                _characters(source), _characters(tool_source), json_text(names, "names")
            )
        except native.module().Fault as fault:
            raise FormatError(fault.args[2]) from None

    @classmethod
    def of_files(
        cls, files: Mapping[str, bytes], tokenizer: Tokenizer | None, begin: int, end: int
    ) -> ChatTemplate:
        """Returns the template of a program with these named data. `begin` and `end` are the tokens that begin and end a text.

        Raises:
            FormatError: code "no-chat-template": the program has no template; else as the constructor.
        """
        instance = object.__new__(cls)
        binding = native.module()
        template_files = {
            name: bytes(data) for name, data in files.items() if name.endswith((".jinja", "_map.json"))
        }
        try:
            instance._format = binding.llm.ChatFormat.of_files(
                template_files, tokenizer and tokenizer.native, begin, end
            )
        except binding.Fault as fault:
            if fault.args[1] == native.NOT_FOUND:
                raise FormatError(
                    fault.args[2], hints=["generate() accepts a text"], code="no-chat-template"
                ) from None
            raise FormatError(fault.args[2]) from None
        return instance

    @property
    def takes(self) -> tuple[bool, bool]:
        """Whether contents may be texts, and whether they may be lists of parts."""
        contents: tuple[bool, bool] = self._format.contents(False)
        return contents

    def render(self, messages: Sequence[Mapping[str, Any]], image: str = "", **more: object) -> str:
        """Returns the prompt of a conversation. `image` is an image in templates without parts; `more` are further variables.

        Raises:
            InputError: `messages` are not messages, or the template rejects them.
        """
        try:
            prompt: str = self._format.render(messages_text(messages), json_text(more, "variables"), image)
        except native.module().Fault as fault:
            raise InputError(fault.args[2]) from None
        return prompt

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], request: Mapping[str, Any], image: str = ""
    ) -> str:
        """Returns the prompt of a request. `image` is as for `render`.

        Args:
            request: `tools`, `tool_choice`, and `template`, the further variables of the template; all are optional. The
                template gets the tools that `tool_choice` permits.

        Raises:
            InputError: as `render`, or the request is malformed.
        """
        try:
            prompt: str = self._format.prompt(messages_text(messages), _request_text(request), image)
        except native.module().Fault as fault:
            raise InputError(fault.args[2]) from None
        return prompt

    def grammar(self, request: Mapping[str, Any]) -> str | None:
        """Returns the grammar of the answer to a request, or None if the answer need not be a call.

        Args:
            request: as for `prompt`.

        Raises:
            InputError: the request is malformed; code "bad-schema": a grammar cannot express the parameters of a function.
        """
        try:
            grammar: str = self._format.grammar(_request_text(request))
        except native.module().Fault as fault:
            code = "bad-schema" if fault.args[1] == native.NOT_SUPPORTED else None
            raise InputError(fault.args[2], code=code) from None
        return grammar or None


def _request_text(request: Mapping[str, Any]) -> str:
    members = [f"{json.dumps(name)}: {json_text(value, name)}" for name, value in request.items()]
    return f"{{{', '.join(members)}}}"


def json_text(value: object, name: str) -> str:
    """Returns a value as JSON. Raises InputError, which calls the value `name`, if it has no form in JSON."""
    try:
        return _characters(json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} must be JSON: {error}") from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


def messages_text(messages: object) -> str:
    """Returns messages as JSON, in which parts of type image have no image."""
    if isinstance(messages, (list, tuple)):
        messages = [_without_images(one) for one in messages]
    return json_text(messages, "messages")


def _without_images(message: object) -> object:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(content, (list, tuple)):
        return message
    parts = [
        {key: value for key, value in part.items() if key != "image"} if isinstance(part, Mapping) else part
        for part in content
    ]
    return {**message, "content": parts}
