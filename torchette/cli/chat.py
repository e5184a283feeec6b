# SPDX-License-Identifier: BSD-3-Clause
# In: a compiled language model and lines of a user. Out: its answers, as they come.
"""Talk with a language model

Each line is a message. /reset begins a new conversation, /exit or Ctrl-D ends, Ctrl-C ends an answer. What the context
no longer holds is forgotten, the oldest first.

examples:
  torchette chat model.pte
  torchette chat model.pte --system "Answer in one sentence." --temperature 0.7
  echo "Name three rivers." | torchette chat model.pte --schema rivers.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from torchette.cli import DONE, UsageError, _llm
from torchette.cli._console import note

_NUMBERS = {
    "temperature": (float, "0 takes the likeliest token"),
    "top-k": (int, "of so many of the likeliest tokens alone"),
    "top-p": (float, "of the likeliest tokens with this probability together"),
    "min-p": (float, "of tokens with this part of the likeliest one's probability"),
    "repetition-penalty": (float, "above 1, what was said is less likely"),
    "seed": (int, "of what is drawn"),
    "max-tokens": (int, "an answer's tokens at most"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    _llm.arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before")
    for name, (kind, text) in _NUMBERS.items():
        parser.add_argument(f"--{name}", metavar="N", type=kind, help=text)
    parser.add_argument("--grammar", metavar="FILE", type=Path, help="a grammar in GBNF that answers keep to")
    parser.add_argument("--schema", metavar="FILE", type=Path, help="a JSON schema that answers keep to")
    parser.add_argument(
        "--statistics", action="store_true", help="print tokens, times and memory after each answer"
    )


def run(options: argparse.Namespace) -> int:
    session = _llm.session(options)
    asked: dict[str, Any] = {
        name.replace("-", "_"): getattr(options, name.replace("-", "_")) for name in _NUMBERS
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    if options.grammar:
        asked["grammar"] = options.grammar.read_text(encoding="utf-8")
    if options.schema:
        try:
            asked["schema"] = json.loads(options.schema.read_bytes())
        except ValueError as error:
            raise UsageError(f"{options.schema} is no JSON: {error}") from None
    first = [] if options.system is None else [{"role": "system", "content": options.system}]
    messages = list(first)
    terminal = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if terminal else "").strip()
        except EOFError:
            return DONE
        if line == "/exit":
            return DONE
        if line == "/reset":
            messages = list(first)
            continue
        if line:
            messages.append({"role": "user", "content": line})
            messages.append(
                {
                    "role": "assistant",
                    "content": _answer(session, messages, len(first), asked, options.statistics),
                }
            )


def _answer(
    session: Any, messages: list[dict[str, str]], first: int, asked: dict[str, Any], statistics: bool
) -> str:
    while True:
        tokens = session.encode(session.render(messages), special=False)
        if len(tokens) < session.max_context or len(messages) <= first + 1:
            break
        del messages[first : first + 2]  # the oldest question and its answer
    answer = session.generate(tokens, **asked)
    try:
        for piece in answer:
            print(piece.text, end="", flush=True)
    except KeyboardInterrupt:
        answer.close()
    print(flush=True)
    if answer.finish_reason == "length":
        note("the answer was cut short: max-tokens, or the context is full")
    if statistics:
        done = answer.statistics
        note(
            f"{done.prompt_tokens} tokens of prompt, {done.reused_tokens} known before, {done.answer_tokens} of answer; first after "
            f"{done.time_to_first_token:.2f} s, then {done.tokens_per_second:.1f} a second; {done.peak_memory / 1e6:.0f} MB"
        )
    return answer.text
