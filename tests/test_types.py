# SPDX-License-Identifier: BSD-3-Clause
"""The limits for `Any` as the type of a parameter and for ignored errors; `./dev check` runs mypy itself."""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "torchette"
MAX_ANY, MAX_IGNORES = 80, 50
ANY = {"Any", "typing.Any", "Any | None", "None | Any", "Optional[Any]"}


def aliases_of_any(tree: ast.Module) -> set[str]:
    """Returns the aliases of `Any` in a module."""
    return {
        target.id
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and ast.unparse(node.value) in ANY
    }


def untyped_parameters(source: str) -> Iterator[str]:
    """Yields `line: function(parameter)` for each parameter with the type `Any`, an alias of it, or no type."""
    tree = ast.parse(source)
    names = ANY | aliases_of_any(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parameters = node.args
            named = [
                *parameters.posonlyargs,
                *parameters.args,
                *parameters.kwonlyargs,
                parameters.vararg,
                parameters.kwarg,
            ]
            for argument in named:
                if argument is None or argument.arg in ("self", "cls"):
                    continue
                if argument.annotation is None or ast.unparse(argument.annotation) in names:
                    yield f"{node.lineno}: {node.name}({argument.arg})"


def ignored_errors(source: str) -> Iterator[int]:
    """Returns the lines of comments that hide errors from mypy."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and re.search(r"#\s*(type:\s*ignore|mypy:)", token.string):
            yield token.start[0]


@pytest.mark.parametrize(("find", "limit"), [(untyped_parameters, MAX_ANY), (ignored_errors, MAX_IGNORES)])
def test_few_lines_are_unchecked(find: Callable[[str], Iterator[object]], limit: int) -> None:
    locations = [
        f"{path.relative_to(FOLDER)}:{line}"
        for path in sorted(FOLDER.rglob("*.py"))
        for line in find(path.read_text(encoding="utf-8"))
    ]
    assert len(locations) <= limit, f"{len(locations)} locations:\n" + "\n".join(locations)


def test_the_counts_see_each_form() -> None:
    source = (
        "Json = Any\n"
        "def f(a: Any, b: int, *c: Any, d: Any | None = None, e: Json = 1, g=2, **h: object): ...  # type: ignore[no-any-return]\n"
        "TEXT = '# type: ignore'\n"
    )
    parameters = sorted(text.split("(")[1] for text in untyped_parameters(source))
    assert parameters == ["a)", "c)", "d)", "e)", "g)"]
    assert list(ignored_errors(source)) == [2]


@pytest.mark.parametrize("module", ["", "devtools", "exir", "llm"])
def test_lazy_names_are_imported_for_type_checkers(module: str) -> None:
    """A public name that only `__getattr__` defines would have the type `Any`."""
    tree = ast.parse((FOLDER / module / "__init__.py").read_text(encoding="utf-8"))
    known = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    } | {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    public = importlib.import_module(f"torchette.{module}".rstrip(".")).__all__
    assert set(public) <= known
