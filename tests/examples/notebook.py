# SPDX-License-Identifier: BSD-3-Clause
# In: the notebook of examples/. Out: the outputs of its cells; `python -m tests.examples.notebook` stores them in the file.
"""Runs the notebook like IPython, without IPython: output of the cell, and the value of its last line."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from tests.building import ROOT

NOTEBOOK = ROOT / "examples/torchette.ipynb"


def read() -> dict[str, Any]:
    """Returns the stored notebook."""
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return notebook


def execute(notebook: dict[str, Any], namespace: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Runs the code cells in order, in the current folder, and yields the outputs of each in the form of a notebook.

    Commands of IPython (`%pip`) are left out.
    """
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        text = re.sub(r"^(\s*)[%!].*$", r"\1pass", "".join(cell["source"]), flags=re.M)
        tree = ast.parse(text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        outputs: list[dict[str, Any]] = []
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(tree, f"cell {number}", "exec"), namespace)
            value = last and eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
        if printed.getvalue():
            outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
        if value is not None:
            data = {"text/plain": _lines(repr(value))}
            if hasattr(value, "_repr_html_"):
                data = {"text/html": _lines(value._repr_html_()), **data}
            outputs.append(
                {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
            )
        yield outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def store() -> None:
    """Writes the outputs of an execution into the file."""
    notebook = read()
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, outputs in enumerate(execute(notebook, {"__name__": "__main__"})):
            cells[number] |= {"execution_count": number + 1, "outputs": outputs}
        os.chdir(ROOT)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    store()
