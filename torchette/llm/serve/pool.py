# SPDX-License-Identifier: BSD-3-Clause
# Lends sessions to requests. A session serves one request at a time; further requests wait.
"""`SessionPool`: the sessions of a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from torchette.llm.serve.refusal import Refusal
from torchette.llm.session import Session
from torchette.llm.shared_model import common_prefix_length

CHECK_SECONDS = 0.2
"""Seconds between checks that the client is still connected."""


class SessionPool:
    """The sessions of each model.

    Args:
        models: sessions by the model's name.
        draft: see `Session.generate`; each session gets its own copy.
        max_waiting: requests that may wait for a session.
    """

    def __init__(self, models: Mapping[str, list[Session]], draft: Session | None, max_waiting: int) -> None:
        self.models = {name: list(sessions) for name, sessions in models.items()}
        self.free = [session for sessions in self.models.values() for session in sessions]
        self.drafts = {session: draft.new() for session in self.free} if draft else {}
        self.turn = threading.Condition()
        self.waiting = 0
        self._max_waiting = max_waiting

    def acquire(self, model: str, tokens: list[int], until: float, is_gone: Callable[[], bool]) -> Session:
        """Returns the free session of the model that has computed most of the tokens. Waits for one if none is free.

        Args:
            until: the time, as of `time.monotonic`, at which to give up.
            is_gone: whether the client has left.

        Raises:
            Refusal: too many requests wait (429), or no session is free in time (503).
            ConnectionError: the client has left.
        """

        def free() -> list[Session]:
            return [session for session in self.free if session in self.models[model]]

        with self.turn:
            if not free() and self.waiting >= self._max_waiting:
                raise Refusal(
                    429,
                    "too many requests are waiting: try again later",
                    "rate_limit_error",
                    "rate_limit_exceeded",
                )
            self.waiting += 1
            try:
                while not free():
                    if (left := until - time.monotonic()) <= 0:
                        raise Refusal(
                            503, "no session was free in time: try again later", "server_error", "timeout"
                        )
                    if is_gone():
                        raise ConnectionError("the client has left")
                    self.turn.wait(min(left, CHECK_SECONDS))
                best = max(free(), key=lambda session: common_prefix_length(session.tokens, tokens))
                self.free.remove(best)
                return best
            finally:
                self.waiting -= 1

    def release(self, session: Session) -> None:
        """Returns a session to the pool."""
        with self.turn:
            self.free.append(session)
            self.turn.notify_all()
