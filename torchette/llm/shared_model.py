# SPDX-License-Identifier: BSD-3-Clause
# The parts of a file that its sessions share: named data, tokenizer and chat template.
"""`SharedModel`: the named data of a language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from torchette.llm.text import ChatTemplate, Tokenizer


class SharedModel:
    """The tokenizer and the chat template of sessions on one file."""

    def __init__(self, files: Mapping[str, bytes], tokenizer: Tokenizer | None, runner: Any) -> None:
        self.files, self.tokenizer = files, tokenizer
        self.reads: str
        """The contents of prompts: "tokens"; "images" and tokens; "audio" and tokens; or "text", for an encoder of text."""
        self.reads, self.image_placeholder, self.begin, self.end, ends = runner.model_info
        self.ends = frozenset(ends)
        size = int(runner.vocab_size)
        self.bytes = tokenizer.bytes_of(size) if tokenizer else [b""] * size
        self.place: Callable[[list[int], Sequence[Any], Any], Sequence[int]] | None = None
        """The function `place` of a decoder in Python, which inserts images and audio into a prompt."""
        self._template: ChatTemplate | None = None

    @property
    def template(self) -> ChatTemplate:
        """The chat template of the file. Raises FormatError, code "no-chat-template", if it has none."""
        if self._template is None:
            self._template = ChatTemplate.of_files(self.files, self.tokenizer, self.begin, self.end)
        return self._template


def common_prefix_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the number of equal tokens at the beginning of two sequences."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:count]) != np.asarray(other[:count]))
    return int(differ[0]) if len(differ) else count
