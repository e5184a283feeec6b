# SPDX-License-Identifier: BSD-3-Clause
# Records the command line in a terminal. In: a small Llama, trained here on the rows of docs/glossary.md. Out: the commands, the
# typed lines and the printed text as an SVG that plays once. Requires transformers and a POSIX terminal.
"""`chat()`; docs/site/figures.py writes the files."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional

from torchette.devtools import drawing

GLOSSARY = Path(__file__).resolve().parents[1] / "glossary.md"
QUESTIONS = ("kernel", "memory planning", "kernel registry")
TEMPLATE = (
    "<user>{{ messages[-1].content }}<assistant>"  # each question alone: the model learns no conversations
)
MAX_ANSWER = 160  # characters; rows with longer answers are not learned
VOCABULARY, STEPS, RATE = 512, 300, 4e-3
IGNORED = -100  # a label that the loss ignores
COLUMNS, LINE, CHARACTER = 92, 20, 7.85  # characters of a line; pixels
SECONDS_TO_TYPE, SECONDS_OF_A_PIECE = 1.0, 0.06  # of the film; the model is faster
PATIENCE = 120  # seconds until a command must print


class Piece(NamedTuple):
    """Text of the terminal in one colour, and the second at which it appears."""

    words: str
    kind: str
    second: float


def chat() -> Callable[[str], str]:
    """Trains, compiles and questions the model; returns the drawing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "glossary", rows(GLOSSARY.read_text(encoding="utf-8")))
        lines = recorded(
            folder,
            ["torchette", "llm", "compile", "glossary", "--quantize", "int8-dynamic", "-o", "glossary.pte"],
            (),
            0.0,
        )
        begin = lines[-1][-1].second + SECONDS_TO_TYPE
        lines += recorded(folder, ["torchette", "chat", "glossary.pte"], QUESTIONS, begin)
    return lambda theme: film(lines, theme)


# ---- the model ----


def rows(text: str) -> dict[str, str]:
    """Returns the terms of the glossary and their meanings, without markup and links."""
    terms = {}
    for term, meaning in re.findall(r"^\| \*\*(.+?)\*\*.*? \| (.+) \|$", text, re.M):
        plain = re.sub(r" \(\[[^)]*\)\)", "", meaning)  # a reference to another page
        plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", plain)
        plain = re.sub(r"[`*]", "", plain)
        if len(plain) <= MAX_ANSWER and plain.isascii():
            terms[term] = plain
    return terms


def save_model(folder: Path, answers: dict[str, str]) -> None:
    """Trains a Llama of two layers until it recites the answers, and writes it in the format of transformers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<user>", "<assistant>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*answers, *answers.values()], trainer)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, max_position_embeddings=512, bos_token_id=0, eos_token_id=1, **sizes
        )
    )
    learn(model, [examples(tokenizer, term, answer) for term, answer in answers.items()])
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def examples(tokenizer, term: str, answer: str) -> tuple[list[int], list[int]]:
    """Returns the tokens of a question with its answer, and the labels, which ignore the question."""
    question = tokenizer.encode(f"<user>{term}<assistant>").ids
    tokens = [*tokenizer.encode(answer).ids, 1]
    return question + tokens, [IGNORED] * len(question) + tokens


def learn(model: torch.nn.Module, pairs: Sequence[tuple[list[int], list[int]]]) -> None:
    """Trains in place on all pairs of tokens and labels at once."""
    length = max(len(tokens) for tokens, _ in pairs)
    inputs = torch.tensor([tokens + [0] * (length - len(tokens)) for tokens, _ in pairs])
    labels = torch.tensor([them + [IGNORED] * (length - len(them)) for _, them in pairs])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        logits = model(inputs).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"loss of the glossary: {loss.item():.4f}")
    model.eval()


# ---- the terminal ----


def recorded(folder: Path, command: Sequence[str], typed: Sequence[str], second: float) -> list[list[Piece]]:
    """Runs a command in a terminal, types each line at the prompt "> ", and returns the lines on the screen."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "dumb", "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    lines = [[Piece("$ ", "quiet", second), Piece(" ".join(command), "", second)]]
    second += SECONDS_TO_TYPE
    waiting, screen = list(typed), b""
    while True:
        if not select.select([ours], [], [], PATIENCE)[0]:
            process.kill()
            raise TimeoutError(f"{' '.join(command)} printed nothing for {PATIENCE} s: {screen!r}")
        try:
            read = os.read(ours, 4096)
        except OSError:  # the command has ended
            break
        if not read:
            break
        screen += read
        if screen.endswith(b"> "):
            os.write(ours, f"{waiting.pop(0)}\n".encode() if waiting else b"\x04")
    os.close(ours)
    assert process.wait() == 0, screen.decode()
    for line in shown(screen.decode()):
        question = line.startswith("> ")
        if question:
            lines.append([Piece("> ", "quiet", second)])
            second += SECONDS_TO_TYPE
        pieces = [line[2:]] if question else re.findall(r"\s*\S+", line)
        for words in pieces:
            if not question:
                second += SECONDS_OF_A_PIECE
            if question:
                lines[-1].append(Piece(words, "typed", second))
            elif words is pieces[0]:
                lines.append([Piece(words, "", second)])
            else:
                lines[-1].append(Piece(words, "", second))
    return lines


def shown(screen: str) -> list[str]:
    """Returns the lines that a terminal shows: without escape sequences and lines that were overwritten."""
    plain = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen).replace("\r\n", "\n").replace("\x04", "")
    lines = [line.rpartition("\r")[2] for line in plain.split("\n")]
    return [line for line in lines if line.strip() and line.strip() != ">"]


def film(lines: Sequence[Sequence[Piece]], theme: str) -> str:
    """Draws the lines. Each piece appears at its second; a reader that does not animate shows all of them."""
    elements, row = [], 0
    for line in lines:
        column, spans = 0, []
        for piece in line:
            for words in re.findall(r"\s*\S+\s*|\s+", piece.words):
                if column + len(words.rstrip()) > COLUMNS and spans:
                    elements.append(placed(row, spans))
                    row, column, spans = row + 1, 0, []
                    words = words.lstrip()
                spans.append(span(piece._replace(words=words)))
                column += len(words)
        elements.append(placed(row, spans))
        row += 1
    width, height = 32 + COLUMNS * CHARACTER, row * LINE + 28
    frame = drawing.rectangle(0.5, 0.5, width - 1, height - 1, radius=8)
    style = """
  .screen { white-space: pre } .typed { font-weight: 600 } tspan { animation: appear .01s backwards }
  @keyframes appear { from { fill-opacity: 0 } }
  @media (prefers-reduced-motion: reduce) { tspan { animation: none } }
"""
    title = "A conversation with torchette chat in a terminal"
    return drawing.document(title, round(width), height, [frame, *elements], theme=theme, style=style)


def placed(row: int, spans: Sequence[str]) -> str:
    """Returns a line of the screen."""
    return f'<text class="mono screen" x="16" y="{30 + row * LINE}">{"".join(spans)}</text>'


def span(piece: Piece) -> str:
    """Returns a piece of a line."""
    kind = f' class="{piece.kind}"' if piece.kind else ""
    return f'<tspan{kind} style="animation-delay:{piece.second:.2f}s">{drawing.escape(piece.words)}</tspan>'
