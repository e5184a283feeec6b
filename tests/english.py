# SPDX-License-Identifier: BSD-3-Clause
# Counts phrases that plain technical English does not use, for each room, in comments, docstrings, messages and pages.
"""``python -m tests.english [PATH ...]`` prints every hit; without a path, a table by room."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = {".c", ".cmake", ".comp", ".cpp", ".css", ".def", ".glsl", ".h", ".java", ".js", ".kt", ".md", ".py", ".rs", ".swift", ".toml", ".ts"}  # fmt: skip
LISTS = {"english.py", "test_english.py"}  # files that list phrases
LIMIT = 45  # hits in 10,000 words of a room with more than MIN_WORDS words
MIN_WORDS = 500

# A phrase that is not allowed -> what to write instead.
RULES = {
    r"\bwhole numbers?\b": "integer",
    r"\b(?:of|in|with|to|from|has|have|takes?) (?:one |two )?(?:2|4|8|16|32|64) bits\b": "N-bit",
    r"\btruth values?\b": "boolean",
    r"\b(?:is|are) no numbers?\b|\bno number\b": "NaN",
    r"\bnumbers\b": "values, elements, figures",
    r"\bpictures?\b": "image, figure",
    r"\bplaces\b": "indices, positions, locations",
    r"\bproducts\b": "matrix multiplications, matmuls",
    r"\b(?:is|are|was|were|be) no (?!longer|more|such|need|way|reason|problem|guarantee)\w+": "is not a ..., has no ...",
    r"\bno (?:one|body)\b|\b(?:nobody|whoever|whatever|wherever)\b": "the subject's name",
    r"\bgo(?:es)? on\b|\bwent on\b": "continues",
    r"\bstands?\b(?! for| out| by)": "is, is stored",
    r"\bgives?\b(?! up)": "returns, produces",
    r"\btakes?\b(?! place| care| effect| part| over)": "accepts, requires, uses",
    r"\bbrings?\b": "provides, adds",
    r"\bbeside\b": "next to, in addition to",
    r"\b(?:likewise|thus|hence|therein|thereof)\b": "also, so",
    r"\bheld (?:against|by|to)\b|\bholds? (?:it|them|that|one|a file|the page)?\s?(?:against|to)\b": "compared with, checked by",
    r"\bof (?:its|their|his|our|your) own\b": "its own ..., a separate ...",
    r"\b(?:so|as) many\b|\bso much\b": "the count",
    r"'s(?=[.;:,)]|\s*$)": "the noun after the possessive",
    r"(?:^|[.:;(] ?|\b(?:of|to|for|by|in|on|with|from|than|and|is|as|but) )what\b": "the thing's name",
    r"\bwhose\b": "two sentences, or 'with'",
    r"\bwhere (?:it|they|there|one|a|the|no|nothing) \w+": "if, when",
    r"\bone (?:after|by) (?:the other|another)\b|\bby and by\b": "in sequence",
    r"\b(?:that|which) (?:one|it) (?:wants|asks for)\b|\b(?:is|are) wanted\b": "required, requested",
    r"\bas (?:the|an?|our|their|torch|ExecuTorch)\b[^.;]{0,20}'s\b": "like that of ...",
    r"\b(?:has|have) it not\b|\b(?:knows|needs) not\b": "does not have it",
    r"\blies? (?:across|beside)\b": "misaligned, contiguous, adjacent",
}  # fmt: skip
COMPILED = {re.compile(rule, re.IGNORECASE | re.MULTILINE): advice for rule, advice in RULES.items()}
# Comments, and string literals that contain a space.
OTHER = re.compile(r"""//[^\n]*|/\*.*?\*/|^\s*\#(?!\s*(?:include|if|else|elif|endif|define|pragma|undef|error)\b)[^\n]*
    |"(?:[^"\\\n]|\\.)*\ (?:[^"\\\n]|\\.)*\"""", re.S | re.M | re.X)  # fmt: skip


class Hit(NamedTuple):
    """A phrase in a file.

    Attributes:
        line: line number, from 1.
        phrase: the matched text.
        advice: what to write instead.
    """

    line: int
    phrase: str
    advice: str


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) of the prose of a file, without inline code."""
    text = path.read_text(encoding="utf-8", errors="replace")
    pieces: list[tuple[int, str]] = []
    if path.suffix == ".md":
        is_code = False
        for number, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            elif not is_code:
                pieces.append((number, re.sub(r"\]\([^)]*\)", " ", line)))
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_string = tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE")
            if token.type == tokenize.COMMENT or (is_string and " " in token.string.strip()):
                pieces.append((token.start[0], token.string))
    else:
        pieces = [(text.count("\n", 0, match.start()) + 1, match[0]) for match in OTHER.finditer(text)]
    for first, piece in pieces:
        for offset, line in enumerate(piece.splitlines()):
            yield first + offset, re.sub(r"`[^`]*`", " ", line)


def check(path: Path) -> tuple[int, list[Hit]]:
    """Returns the number of words of a file and its hits."""
    words, hits = 0, []
    for number, text in prose(path):
        words += len(re.findall(r"[A-Za-z][A-Za-z'-]*", text))
        hits += [
            Hit(number, match[0].strip(), advice)
            for rule, advice in COMPILED.items()
            for match in rule.finditer(text)
        ]
    return words, hits  # fmt: skip


def files() -> list[Path]:
    """Returns the files of the checkout that contain prose, except this module and its test, which list the phrases."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    paths = (ROOT / name for name in listed if name)
    return [path for path in paths if path.suffix in SUFFIXES and path.is_file() and path.name not in LISTS]


def room(path: Path) -> str:
    """Returns the folder that a file is counted in: at most two levels."""
    return "/".join(path.relative_to(ROOT).parts[:-1][:2]) or "."


def rooms() -> dict[str, tuple[int, int]]:
    """Returns (words, hits) of each room."""
    words: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    for path in files():
        count, hits_of_file = check(path)
        words[room(path)] += count
        hits[room(path)] += len(hits_of_file)
    return {name: (count, hits[name]) for name, count in words.items()}


def rate(words: int, hits: int) -> float:
    """Returns the hits in 10,000 words."""
    return 1e4 * hits / max(words, 1)


def main() -> int:
    """Prints the hits of the given files, or the table; returns 1 if a room exceeds its limit."""
    if paths := sys.argv[1:]:
        for name in paths:
            for hit in check(Path(name).resolve())[1]:
                print(f"{name}:{hit.line}: {hit.phrase!r}: write {hit.advice}")
        return 0
    is_exceeded = False
    by_room = rooms()
    for name, (words, hits) in sorted(by_room.items(), key=lambda item: -rate(*item[1])):
        is_over = words > MIN_WORDS and rate(words, hits) > LIMIT
        is_exceeded |= is_over
        print(f"{name:32} {words:7} {hits:5} {rate(words, hits):7.1f}{'  over' if is_over else ''}")
    words, hits = (sum(column) for column in zip(*by_room.values(), strict=True))
    print(f"{'all':32} {words:7} {hits:5} {rate(words, hits):7.1f}")
    return int(is_exceeded)


if __name__ == "__main__":
    sys.exit(main())
