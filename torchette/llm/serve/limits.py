# SPDX-License-Identifier: BSD-3-Clause
# The limits that keep one client from using all of a server.
"""Limits of a server."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """The maximum that a server accepts or returns."""

    body_bytes: int = 10**6
    """Bytes of a request's body."""
    answer_tokens: int = 4096
    """Tokens of one answer."""
    choices: int = 16
    """Answers to one request."""
    images: int = 16
    """Images in one request."""
    connections: int = 64
    """Open connections; the server closes further ones at once."""
    waiting: int = 16
    """Requests that wait for a session; further requests get status 429."""
    seconds: float = 300.0
    """Seconds for a request, waiting included."""
    socket_seconds: float = 20.0
    """Seconds in which a client must send a request, or accept a part of an answer."""
    stored_responses: int = 64
    """Responses that `previous_response_id` can name; the server forgets the oldest."""
    stored_bytes: int = 64 * 10**6
    """Bytes of these responses' conversations."""
