# SPDX-License-Identifier: BSD-3-Clause
# The interface of decoders that Python implements. torchette/pybindings/llm_engine.cpp calls them.
"""`Decoder`: a language model that Python code implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np


class Decoder(Protocol):
    """A decoder with a KV cache.

    Optional attributes:
        named_data: mapping of the named data that a program would contain, such as "chat_template.jinja".
        begin: the token that begins every text.
        ends: the tokens that end a text.
        is_recurrent: whether parts of the state, named "recurrent_...", depend on all earlier tokens. A step then starts at
            position 0, which ignores the state, or where the last step ended.
        placeholder: the token of an image in chat templates.
        place: function (tokens, images, audio) -> tokens, in which values from `vocab_size` represent images and audio.
    """

    vocab_size: int
    max_context: int
    """Positions of the KV cache."""
    max_tokens: int
    """The maximum number of tokens in one step."""
    memory: int
    """Bytes without the weights."""

    def step(self, tokens: Sequence[int], start_pos: int) -> np.ndarray:
        """Computes keys and values at the positions from start_pos.

        Returns:
            Logits, float32 [1, vocabulary] of the last token or [n, vocabulary] of all tokens.
        """

    def new(self) -> Decoder:
        """Returns a decoder on the same weights, with a separate state."""

    def state(self) -> dict[str, np.ndarray]:
        """Returns copies of the state by name; empty if the state is not accessible."""

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a state of `state()`."""

    def cancel(self) -> None:
        """Ends the current step, or the next one, with an ExecutionError."""
