# SPDX-License-Identifier: BSD-3-Clause
# The named data of a file: tokenizer, chat template and defaults. Sessions on one file share them.
"""`SharedModel`."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from torchette.errors import FormatError, InputError
from torchette.llm.grammar import Grammar, Matcher, Vocabulary
from torchette.llm.schema import grammar_of
from torchette.llm.text import ChatTemplate, Tokenizer


class SharedModel:
    """The tokenizer, the chat template and the grammars of sessions on one file."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        facts: Mapping[str, Any],
        tokenizer: Tokenizer | None,
        size: int,
        identity: Any,
    ) -> None:
        self.files, self.tokenizer, self.identity = files, tokenizer, identity
        ends = facts.get("get_eos_ids", facts.get("get_eos_id", []))
        self.ends = tuple(int(end) for end in (ends if isinstance(ends, list) else [ends]) if 0 <= end < size)
        self.begin = int(facts.get("get_bos_id", -1))
        self.bytes = tokenizer.bytes_of(size) if tokenizer else [b""] * size
        for end in self.ends:
            self.bytes[end] = b""
        self.grammars: dict[str, Grammar] = {}
        self._vocabulary: Vocabulary | None = None
        self._template: ChatTemplate | None = None
        self.lock = threading.Lock()

    @property
    def vocabulary(self) -> Vocabulary:
        """The bytes of all tokens, for grammars."""
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self.bytes)
        return self._vocabulary

    @property
    def template(self) -> ChatTemplate:
        """The chat template of the file. Raises FormatError, code "no-chat-template", if it has none."""
        if self._template is None:
            if "chat_template.jinja" not in self.files:
                raise FormatError(
                    "the file has no chat template",
                    hints=["generate() takes a text"],
                    code="no-chat-template",
                )
            names = {"bos_token": self.begin, "eos_token": self.ends[0] if self.ends else -1}
            named = {k: self.tokenizer.name(v) if self.tokenizer else "" for k, v in names.items()}
            self._template = ChatTemplate(
                bytes(self.files["chat_template.jinja"]).decode("utf-8", "replace"), named
            )
        return self._template

    def defaults(self) -> dict[str, Any]:
        """The sampling options of the file's generation_config.json."""
        try:
            given = json.loads(bytes(self.files.get("generation_config.json", b"{}")))
        except ValueError:
            return {}
        names = ["temperature", "top_k", "top_p", "min_p"] if given.get("do_sample") else []
        if names:
            given.setdefault("temperature", 1.0)
        return {name: given[name] for name in [*names, "repetition_penalty"] if given.get(name) is not None}

    def matcher(self, grammar: str | Grammar | None, schema: Any) -> Matcher | None:
        """The matcher of a grammar or a JSON schema; None without both. Keeps the last 16 grammars."""
        if schema is not None:
            if grammar is not None:
                raise InputError("grammar and schema are two ways to say one thing: give one")
            grammar = grammar_of(schema)
        if grammar is None:
            return None
        if not isinstance(grammar, Grammar):
            text = grammar
            with self.lock:
                made = self.grammars.get(text) if isinstance(text, str) else None
            grammar = made or Grammar(text)
            with self.lock:
                if len(self.grammars) >= 16:
                    self.grammars.pop(next(iter(self.grammars)))
                self.grammars[text] = grammar
        return Matcher(grammar, self.vocabulary)
