# SPDX-License-Identifier: BSD-3-Clause
# Errors as OpenAI's clients expect them: an HTTP status and an object with message, type, param and code.
"""`Refusal`: the error that answers a request."""

from __future__ import annotations

import logging

from torchette.errors import InputError, TorchetteError

_log = logging.getLogger("torchette")
# Errors of the model that the request causes: a grammar that allows no token, or a prompt that the file cannot encode.
_CAUSED_BY_THE_REQUEST = ("no-token", "no-chat-template", "unknown-tokenizer")


class Refusal(Exception):
    """An error response.

    Args:
        status: the HTTP status.
        message: the problem and its remedy.
        kind: the error's `type`.
        name: the error's `code`.
        param: the field of the request that has the problem.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        name: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": kind, "param": param, "code": name}


def wrong(param: str, message: str) -> Refusal:
    """Returns the refusal of an invalid value."""
    return Refusal(400, message, param=param)


def unsupported(param: str, message: str) -> Refusal:
    """Returns the refusal of a field or value that this server does not implement."""
    return Refusal(400, message, name="unsupported_parameter", param=param)


def refusal_of(error: Exception) -> Refusal:
    """Returns the error response for an exception. Logs exceptions that are defects of the server."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InputError):
        code = "context_length_exceeded" if error.code == "prompt-too-long" else error.code
        return Refusal(400, str(error), name=code)
    if isinstance(error, TorchetteError):
        if error.code in _CAUSED_BY_THE_REQUEST:
            return Refusal(400, str(error), name=error.code)
        return Refusal(500, str(error), "server_error", error.code)
    _log.error("a request failed", exc_info=error)
    return Refusal(500, "the server failed on this request", "server_error", "internal_error")
