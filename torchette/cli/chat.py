# SPDX-License-Identifier: BSD-3-Clause
# In: a compiled language model and lines of a user. Out: generated text, as a stream.
"""Chat with a language model

Each line is a message, except lines that begin with / (/help lists them). Ctrl-C ends an answer, Ctrl-D ends the
conversation. If the context is full, the oldest messages are removed. --prompt completes a text without a chat
template; use it for models that translate or transcribe.

examples:
  torchette chat model.pte
  torchette chat model.pte --system "Answer in one sentence." --temperature 0.7
  torchette chat smolvlm.pte --image photo.jpg
  torchette chat llama.pte --adapter pirate.ptd
  echo "Name three rivers." | torchette chat model.pte --schema rivers.json
  torchette chat base.pte --prompt "Once upon a time" --max-tokens 100
  torchette chat t5.pte --prompt "translate English to German: Hello"
  torchette chat whisper.pte --audio speech.wav
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchette.cli import DONE, UsageError, _llm
from torchette.cli._console import note, print_values
from torchette.errors import InputError, did_you_mean
from torchette.units import byte_text

if TYPE_CHECKING:
    from torchette.llm.generation import Generation
    from torchette.llm.session import Session

_COMMANDS = {
    "/help": "print this list",
    "/image FILE": "send an image with the next message",
    "/reset": "begin a new conversation",
    "/exit": "end the program, like Ctrl-D; Ctrl-C ends an answer",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    _llm.arguments(parser)
    parser.add_argument(
        "--adapter",
        metavar="FILE",
        type=Path,
        help="a LoRA adapter: a .ptd file, or a folder that peft saved",
    )
    parser.add_argument(
        "--image",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="an image that is sent with the first message; may be repeated",
    )
    _llm.draft_argument(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="complete this text, and exit")
    parser.add_argument(
        "--audio",
        metavar="FILE.wav",
        type=Path,
        help="audio input, 16 kHz; the answer begins with the prompt",
    )
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    _llm.option_arguments(parser, "sampling", "ending", "form")
    parser.add_argument(
        "--statistics", action="store_true", help="print tokens, times and memory after each answer"
    )


def run(options: argparse.Namespace) -> int:
    from torchette.llm.media import audio_of, image_of
    from torchette.llm.session import Session

    session = _llm.session(options, options.adapter)
    generation_options: dict[str, Any] = _llm.given_options(options)
    if options.draft:
        generation_options["draft"] = Session(options.draft, threads=options.threads)
    if options.audio:
        generation_options["audio"] = audio_of(options.audio.read_bytes())
    first = [] if options.system is None else [{"role": "system", "content": options.system}]
    messages: list[dict[str, Any]] = list(first)
    images = [image_of(path.read_bytes()) for path in options.image]
    terminal = sys.stdin.isatty()
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  enables arrow keys and history
        note("/help lists the commands")
    if options.audio or options.prompt is not None:
        _said(session.generate(options.prompt or "", images=images, **generation_options), options.statistics)
        return DONE
    while True:
        try:
            line = input("> " if terminal else "").rstrip()
        except EOFError:
            return DONE
        command, _, argument = line.partition(" ") if line.startswith("/") else ("", "", "")
        line = line.strip()
        if command == "/exit":
            return DONE
        if command == "/help":
            print_values(
                [*_COMMANDS.items(), (" /...", "a message that begins with /, because of the space")]
            )
        elif command == "/reset":
            messages = list(first)
        elif command == "/image":
            try:
                images.append(image_of(Path(argument.strip()).expanduser().read_bytes()))
            except (OSError, InputError) as error:
                if not terminal:
                    raise
                note(str(error))
        elif command:
            _refuse(command, terminal)
        elif line:
            parts = [{"type": "image", "image": image} for image in images]
            content = [*parts, {"type": "text", "text": line}] if parts else line
            images = []
            messages.append({"role": "user", "content": content})
            try:
                answer = _answer(session, messages, len(first), generation_options, options.statistics)
            except InputError as error:
                if not terminal:
                    raise
                note(str(error))
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})


def _refuse(command: str, terminal: bool) -> None:
    """Reports an unknown command. Raises UsageError if the input is not a terminal."""
    text = (
        f"unknown command {command!r}{did_you_mean(command, (name.partition(' ')[0] for name in _COMMANDS))}"
    )
    text += " (/help lists the commands; a line that begins with a space is a message)"
    if not terminal:
        raise UsageError(text)
    note(text)


def _answer(
    session: Session,
    messages: list[dict[str, Any]],
    first: int,
    generation_options: dict[str, Any],
    statistics: bool,
) -> str:
    while True:
        try:
            answer = session.chat(messages, **generation_options)
        except InputError as error:
            if error.code != "prompt-too-long" or len(messages) <= first + 1:
                raise
            answer = None
        if answer and (answer.statistics.prompt_tokens < session.max_context or len(messages) <= first + 1):
            return _said(answer, statistics)
        del messages[first : first + 2]  # the oldest question and its answer


def _said(answer: Generation, statistics: bool) -> str:
    try:
        for piece in answer:
            print(piece.text, end="", flush=True)
    except KeyboardInterrupt:
        answer.close()
    print(flush=True)
    if answer.finish_reason == "length":
        note("the answer was truncated: it reached --max-new-tokens, or the context is full")
    if statistics:
        done = answer.statistics
        note(
            f"{done.prompt_tokens} prompt tokens, {done.reused_tokens} of them cached; {done.answer_tokens} generated tokens; first "
            f"token after {done.time_to_first_token:.2f} s, then {done.tokens_per_second:.1f} tokens/s; {byte_text(done.peak_memory)}"
        )
    return str(answer.text)
