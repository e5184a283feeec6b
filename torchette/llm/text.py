# SPDX-License-Identifier: BSD-3-Clause
# In: a tokenizer.json of Hugging Face, a chat template. Out: text to tokens, tokens to bytes, messages to a prompt.
# Tokens become bytes and not text: a stream shows a character when its last byte has come, and a grammar judges each byte.
"""Text of language models."""

from __future__ import annotations

import codecs
import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from torchette.errors import FormatError, InputError
from torchette.llm.exporting.vocabularies import byte_characters, converted
from torchette.llm.messages import prepared
from torchette.packages import require


def _unknown(what: str) -> FormatError:
    return FormatError(
        what, hints=["Session(file, tokenizer='tokenizer.json') uses another one"], code="unknown-tokenizer"
    )


class Tokenizer:
    """A tokenizer.json, or a file of SentencePiece or tiktoken.

    Raises:
        FormatError: code "unknown-tokenizer": it is none, or its decoder is unknown.
    """

    def __init__(self, data: bytes) -> None:
        require("tokenizers", "a tokenizer")
        from tokenizers import Tokenizer as Encoder

        try:
            if data.lstrip()[:1] != b"{":
                data = converted(data)
            record = json.loads(data)
            self._encoder = Encoder.from_str(bytes(data).decode())
            self._bytes = _bytes_of(record, self._encoder)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            raise _unknown(f"the tokenizer cannot be read: {error}") from None
        except BaseException as error:  # what tokenizers raises has no type of its own, and may be a panic
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise _unknown(f"the tokenizer cannot be read: {error}") from None

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Tokens of a text; with those that begin and end every text, if `special`."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"the text has half a surrogate pair at {error.start}, which is no character"
            ) from None
        return self._encoder.encode(text, add_special_tokens=special).ids

    def bytes_of(self, size: int) -> list[bytes]:
        """The bytes of tokens 0 to size - 1; none for special tokens and numbers without a token."""
        return [self._bytes.get(token, b"") for token in range(size)]

    def number(self, token: str) -> int | None:
        """The number of a token; None if there is none."""
        return self._encoder.token_to_id(token)

    def name(self, token: int) -> str:
        """What the tokenizer calls a token; empty if there is none."""
        return (self._encoder.id_to_token(token) if 0 <= token < 1 << 31 else None) or ""


def _parts(record: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if record is not None:
        if record["type"] == "Sequence":
            for part in record["decoders"]:
                yield from _parts(part)
        else:
            yield record


def _bytes_of(record: dict[str, Any], encoder: Any) -> dict[int, bytes]:
    """The bytes that each token adds to a text that goes on."""
    decoders = {part["type"]: part for part in _parts(record.get("decoder"))}
    replaced = [
        (p["pattern"].get("String"), p["content"])
        for p in _parts(record.get("decoder"))
        if p["type"] == "Replace"
    ]
    strange = decoders.keys() - {
        "ByteLevel",
        "Replace",
        "ByteFallback",
        "Fuse",
        "Strip",
        "Metaspace",
        "WordPiece",
        "BPEDecoder",
    }
    if strange or any(old is None for old, _ in replaced):
        raise _unknown(f"the tokenizer's decoder {', '.join(sorted(strange)) or 'Replace'} is not known")
    bytes_of_character = {c: b for b, c in byte_characters()}

    def decoded(token: str) -> bytes:
        if "ByteLevel" in decoders:
            if all(c in bytes_of_character for c in token):
                return bytes(bytes_of_character[c] for c in token)
            return token.encode()
        if "ByteFallback" in decoders and re.fullmatch("<0x[0-9A-F]{2}>", token):
            return bytes([int(token[3:5], 16)])
        for old, new in replaced:
            token = token.replace(old, new)
        if "Metaspace" in decoders:
            token = token.replace(decoders["Metaspace"]["replacement"], " ")
        if "WordPiece" in decoders:
            prefix = decoders["WordPiece"]["prefix"]
            token = token.removeprefix(prefix) if token.startswith(prefix) else " " + token
        if "BPEDecoder" in decoders:
            token = token.replace(decoders["BPEDecoder"]["suffix"], " ")
        return token.encode()

    found = {number: decoded(token) for token, number in encoder.get_vocab(with_added_tokens=False).items()}
    for number, added in encoder.get_added_tokens_decoder().items():
        found[number] = b"" if added.special else added.content.encode()
    return found


class TextStream:
    """Turns bytes of tokens into whole characters, up to the first stop string and never a part of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops, self._held = stops, ""

    def add(self, data: bytes, final: bool = False) -> tuple[str, bool]:
        """Text to show now, and whether a stop string came after it. With `final`, all that was held back."""
        text = self._held + self._decoder.decode(data, final)
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        held = 0
        if not final:
            held = max(
                (
                    n
                    for stop in self._stops
                    for n in range(1, min(len(stop), len(text) + 1))
                    if text.endswith(stop[:n])
                ),
                default=0,
            )
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False


class ChatTemplate:
    """A chat template, which runs in jinja2's sandbox.

    Raises:
        FormatError: it is no template.
    """

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        jinja2 = require("jinja2", "a chat template")
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> NoReturn:
            raise jinja2.TemplateError(message)

        class Generation(Extension):  # marks what is the assistant's
            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
        )
        environment.globals.update(
            raise_exception=refuse, strftime_now=lambda form: datetime.datetime.now().strftime(form)
        )
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(
            value, ensure_ascii=False, indent=indent
        )
        self.source, self._names = source, names
        self._takes: tuple[bool, bool] | None = None
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise FormatError(f"the chat template cannot be read: {error}") from None

    @property
    def takes(self) -> tuple[bool, bool]:
        """Whether contents may be texts, and whether they may be lists of parts, from its output of both."""
        if self._takes is None:
            probe, found = "torchette", []
            for content in (probe, [{"type": "text", "text": probe}]):
                try:
                    text = self._rendered([{"role": "user", "content": content}])
                except InputError:
                    text = ""
                found.append(probe in text and "'type'" not in text and '"type"' not in text)
            self._takes = (found[0] or not found[1], found[1])
        return self._takes

    def render(self, messages: Sequence[Mapping[str, Any]], image: str = "", **more: object) -> str:
        """The prompt of a conversation. InputError if the messages are none, or the template refuses them."""
        return self._rendered(prepared(messages, *self.takes, image), **more)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], **more: object) -> str:
        try:
            names = {"messages": messages, "add_generation_prompt": True, **self._names, **more}
            return self._template.render(names)
        except Exception as error:  # of jinja2, or of what the template computes
            raise InputError(f"the chat template refuses the messages: {error}") from None
