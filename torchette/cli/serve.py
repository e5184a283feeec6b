# SPDX-License-Identifier: BSD-3-Clause
# In: a compiled language model. Runs a server for OpenAI clients until Ctrl-C.
"""Serve a language model at OpenAI's endpoints

The page / is a chat with the model. The endpoints are /v1/models, /v1/completions, /v1/chat/completions and
/v1/responses, with streams, several answers, log-probabilities, JSON schemas, grammars, tools, and images as data URLs.
The server listens on this machine only, unless --host sets another address; then clients should need a key. Web pages
of other origins cannot use the server, unless --cors-origin allows the origin.

examples:
  torchette serve model.pte
  torchette serve model.pte --port 9000 --sessions 4 --max-tokens 512
  torchette serve model.pte --temperature 0.2 --top-p 0.9   # defaults of requests
  torchette serve model.pte --adapter pirate.ptd --adapter poet=poems.ptd   # models "model", "pirate" and "poet"
  torchette serve model.pte --alias gpt-4o --cors-origin http://localhost:3000
  TORCHETTE_API_KEY=secret torchette serve model.pte --host 0.0.0.0 --allow-host models.example.org
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchette.cli import DONE, UsageError, _llm
from torchette.cli._console import note


def arguments(parser: argparse.ArgumentParser) -> None:
    _llm.arguments(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="port to listen at (default: 8080; 0: a free one)"
    )
    parser.add_argument("--name", help="name of the model for clients (default: the file's name)")
    parser.add_argument(
        "--alias",
        metavar="NAME",
        action="append",
        default=[],
        help="another name of the model, for clients with a fixed name; '*' for all names; may be repeated",
    )
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="another name of this server in the Host header, such as the name of a proxy; may be repeated",
    )
    parser.add_argument(
        "--cors-origin",
        metavar="URL",
        action="append",
        default=[],
        help="an origin with pages that may use the server, such as http://localhost:3000; '*' for all; may be repeated",
    )
    parser.add_argument(
        "--adapter",
        metavar="[NAME=]FILE",
        action="append",
        default=[],
        help="a LoRA adapter, a .ptd file or a folder that peft saved; clients select it as a model with this name; may be repeated",
    )
    _llm.draft_argument(parser)
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=os.environ.get("TORCHETTE_API_KEY"),
        help="key that clients must send (default: TORCHETTE_API_KEY, which other users of the machine cannot see)",
    )
    parser.add_argument(
        "--max-body",
        metavar="MB",
        type=int,
        help="maximum size of a request (default: 1; 16 if the model accepts images)",
    )
    parser.add_argument(
        "--sessions", metavar="N", type=int, default=1, help="number of concurrent requests (default: 1)"
    )
    parser.add_argument(
        "--max-tokens",
        metavar="N",
        type=int,
        default=4096,
        help="maximum number of tokens per answer (default: 4096)",
    )
    parser.add_argument(
        "--max-seconds",
        metavar="N",
        type=float,
        default=300,
        help="time limit of a request, including its wait (default: 300)",
    )
    _llm.option_arguments(parser, "sampling")


def run(options: argparse.Namespace) -> int:
    from torchette.llm.serve import Limits, Origins, Server
    from torchette.llm.session import Session

    least = min(options.sessions, options.max_tokens, 1 if options.max_body is None else options.max_body)
    if least < 1 or options.max_seconds <= 0 or not 0 <= options.port < 1 << 16:
        raise UsageError(
            "--sessions, --max-tokens, --max-body and --max-seconds must be at least 1, --port from 0 to 65535"
        )
    defaults = _llm.given_options(options)
    origins = Origins(options.host, options.allow_host, options.cors_origin)  # before a model is loaded
    name = options.name or options.file.stem
    models: dict[str, list[Any]] = {}
    for adapter in (None, *options.adapter):
        model_name, _, path = (adapter or "").rpartition("=")
        model_name = name if adapter is None else model_name or Path(path).stem
        if model_name in models:
            raise UsageError(
                f"two models have the name {model_name!r}; set another name with --adapter NAME=FILE"
            )
        if adapter is not None and model_name in options.alias:
            raise UsageError(f"--alias {model_name}: an adapter has this name")
        first = _llm.session(options, path or None)
        models[model_name] = [first, *(first.new() for _ in range(options.sessions - 1))]
    body = options.max_body or (16 if models[name][0].sees else 1)
    limits = Limits(body * 10**6, options.max_tokens, seconds=options.max_seconds)
    sessions = models.pop(name)
    draft = Session(options.draft, threads=options.threads) if options.draft else None
    server_args = (options.host, options.port, limits, models, options.api_key, draft, _page(name), origins)
    with Server(sessions, name, *server_args, options.alias, defaults) as server:
        names = ", ".join(map(json.dumps, server.models))
        url = f"http://{f'[{options.host}]' if ':' in options.host else options.host}:{server.server_port}"
        note(f"serving {names} at {url}/v1; press Ctrl-C to stop")
        note(f"chat in a browser: {url}/")
        if not server.is_local and options.api_key is None:
            note("other machines can use the server without a key; TORCHETTE_API_KEY sets a required key")
        if "*" in origins.origins and options.api_key is None:
            note("every web page in a browser can use the server; TORCHETTE_API_KEY sets a required key")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return DONE


def _page(name: str) -> Callable[[], dict[str, tuple[bytes, str]]]:
    """Returns a function that reads the chat page of the model on the first request."""

    @functools.cache
    def page() -> dict[str, tuple[bytes, str]]:
        from torchette.build.web.chat import served_page

        return served_page(name)

    return page
