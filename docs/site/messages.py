# SPDX-License-Identifier: BSD-3-Clause
# Collects the error messages in the sources of the tree into a page: in Python with `ast`, in C++ from the calls that report errors.
"""python docs/site/messages.py > build/docs/messages.md"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EXCEPTION = re.compile(r"\w*(Error|Refus(ed|al)|Un(supported|claimed)|Violation|Failed|_InvalidEntry)")
CALL = re.compile(
    r"\b(TORCHETTE_CHECK|TORCHETTE_LOG|ET_CHECK\w*|check|\w*([Ee]rror|fail|fault|refuse|unsupported|invalid)\w*)\("
)
# Of C++: a string, raw or with escapes; a character; punctuation that separates arguments.
TOKEN = re.compile(r'R"\((.*?)\)"|"((?:[^"\\]|\\.)*)"|\'(?:[^\'\\]|\\.)+\'|[(){}\[\],]', re.DOTALL)
INTRODUCTION = """# Messages

Every error message in the sources of Torchette, by file. `{…}` is an expression; `%s`, `%zu` and so on are arguments of printf.
[Errors](../../docs/errors.md) describes the codes.
"""


class Message(NamedTuple):
    """A message: file, line, class or code of the error, text with placeholders, remedies."""

    path: str
    line: int
    kind: str
    text: str
    hints: str = ""


def _name(node: ast.expr) -> str:
    """Returns the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr) -> str:
    """Returns a string expression as text, with its parts that are not literals in braces."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    value = node.value if isinstance(node, ast.FormattedValue) else node
    return str(value.value) if isinstance(value, ast.Constant) else f"{{{ast.unparse(value)}}}"


def _has_literal(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(node))


def python_messages(path: str, source: str) -> Iterator[Message]:
    """Yields the messages of a Python source: the text of each call that creates or raises an exception."""
    nodes = list(ast.walk(ast.parse(source)))
    raised = {node.exc for node in nodes if isinstance(node, ast.Raise)}
    for node in nodes:
        if isinstance(node, ast.Call) and (EXCEPTION.fullmatch(_name(node.func)) or node in raised):
            text = "; ".join(_text(one) for one in node.args if _has_literal(one))
            keys = {one.arg: one.value for one in node.keywords}
            hints = keys.get("hints")
            remedies = hints.elts if isinstance(hints, (ast.List, ast.Tuple)) else [hints] if hints else []
            kind = f"`{_name(node.func)}`" + (f" `{_text(keys['code'])}`" if "code" in keys else "")
            if text:
                yield Message(path, node.lineno, kind, text, "; ".join(map(_text, remedies)))


def cpp_messages(path: str, source: str) -> Iterator[Message]:
    """Yields the messages of a C++ source: the first argument with text of each call that reports an error."""
    for call in CALL.finditer(source):
        arguments = list(_arguments(source, call.end()))
        text = next((_cpp_text(one) for one in arguments if _has_words(one)), "")
        if text and arguments[0] not in ("Info", "Debug"):
            code = next(
                (one for one in arguments if re.fullmatch(r"(Error::)?[A-Z]\w*[a-z]\w*", one)), call[1]
            )
            line = source.count("\n", 0, call.start()) + 1
            yield Message(path, line, f"`{code.removeprefix('Error::')}`", text)


def _arguments(source: str, at: int) -> Iterator[str]:
    """Yields the arguments of a call; the first one begins at `at`."""
    depth, begin = 0, at
    for token in TOKEN.finditer(source, at):
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth < 0 or (depth == 0 and token[0] == ","):
            yield source[begin : token.start()].strip(" \\\n")
            begin = token.end()
        if depth < 0:
            return


def _has_words(argument: str) -> bool:
    return any(" " in (token[1] or token[2] or "") for token in TOKEN.finditer(argument))


def _cpp_text(argument: str) -> str:
    """Returns an argument as text, with its parts that are not literals in braces."""
    argument = re.sub(r'std::(?:to_)?string\(("[^"]*"|[\w.>-]+)\)', r"\1", argument)
    parts = re.split(r'(R"\(.*?\)"|"(?:[^"\\]|\\.)*")', argument, flags=re.DOTALL)
    expressions = [part.strip(" +\\\n") for part in parts[::2]]
    literals = [part[3:-2] if part.startswith("R") else part[1:-1] for part in parts[1::2]] + [""]
    return "".join(
        (f"{{{expression}}}" if expression else "") + literal
        for expression, literal in zip(expressions, literals, strict=True)
    )


def messages(folder: Path = ROOT / "torchette") -> list[Message]:
    """Returns the messages of a folder by file and line."""
    readers = {".py": python_messages, ".cpp": cpp_messages, ".h": cpp_messages}
    result: list[Message] = []
    for path in folder.rglob("*"):
        if path.suffix in readers:
            result += readers[path.suffix](
                path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            )
    return sorted(result)


def page(messages: list[Message]) -> str:
    """Returns the page: a table for each file."""
    lines, path = [INTRODUCTION], ""
    for one in messages:
        if one.path != path:
            path = one.path
            lines += [f"\n## {path}\n", "| line | error | message | remedy |", "|---|---|---|---|"]
        cells = (
            re.sub(r"([|<*_`\[\]\\])", r"\\\1", " ".join(text.split())) for text in (one.text, one.hints)
        )
        lines.append(f"| {one.line} | {one.kind} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(messages()), end="")
