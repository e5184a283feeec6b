# SPDX-License-Identifier: BSD-3-Clause
# In: a compiled language model. Out: a server that OpenAI's clients talk to, until Ctrl-C.
"""Serve a language model at OpenAI's endpoints

/v1/models, /v1/completions and /v1/chat/completions, also streaming, with log-probabilities, JSON schemas as
response_format, and top_k, min_p, repetition_penalty and grammar beside OpenAI's own parameters. There is no password:
only this machine is served, unless --host says otherwise.

examples:
  torchette serve model.pte
  torchette serve model.pte --port 9000 --sessions 4 --max-tokens 512
"""

from __future__ import annotations

import argparse
import contextlib
import json

from torchette.cli import DONE, UsageError, _llm
from torchette.cli._console import note


def arguments(parser: argparse.ArgumentParser) -> None:
    _llm.arguments(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine alone)"
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="port to listen at (default: 8080; 0: a free one)"
    )
    parser.add_argument("--name", help="what clients call the model (default: the file's name)")
    parser.add_argument(
        "--sessions", metavar="N", type=int, default=1, help="requests that are answered at once (default: 1)"
    )
    parser.add_argument(
        "--max-tokens", metavar="N", type=int, default=4096, help="an answer's tokens at most (default: 4096)"
    )
    parser.add_argument(
        "--max-seconds",
        metavar="N",
        type=float,
        default=300,
        help="for a request, waiting included (default: 300)",
    )


def run(options: argparse.Namespace) -> int:
    from torchette.llm.serve import Limits, Server

    if (
        options.sessions < 1
        or options.max_tokens < 1
        or options.max_seconds <= 0
        or not 0 <= options.port < 1 << 16
    ):
        raise UsageError("--sessions, --max-tokens and --max-seconds are from 1, --port from 0 to 65535")
    session = _llm.session(options)
    sessions = [session, *(session.new() for _ in range(options.sessions - 1))]
    limits = Limits(answer_tokens=options.max_tokens, seconds=options.max_seconds)
    name = options.name or options.file.stem
    with Server(sessions, name, options.host, options.port, limits) as server:
        note(f"{json.dumps(name)} is at http://{options.host}:{server.server_port}/v1, Ctrl-C ends")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return DONE
