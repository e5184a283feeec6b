# SPDX-License-Identifier: BSD-3-Clause
# The notebook of examples/: a file that Colab opens, without outputs, whose cells run in order.

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.building import ROOT

NOTEBOOK = ROOT / "examples/torchette.ipynb"


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def test_it_is_a_notebook_without_outputs(notebook: dict[str, Any]) -> None:
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code") and isinstance(cell["source"], list)
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
        for target in re.findall(r"\]\(([^)#]+)", "".join(cell["source"])):
            assert (NOTEBOOK.parent / target).exists(), target


def test_the_cells_run(notebook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As IPython runs them: commands of its own aside, the value of a cell's last line is shown."""
    monkeypatch.chdir(tmp_path)
    shown, namespace = [], {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        text = re.sub(r"^(\s*)[%!].*$", r"\1pass", "".join(cell["source"]), flags=re.M)
        tree = ast.parse(text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
            shown.append(value._repr_html_() if hasattr(value, "_repr_html_") else str(value))
    two = torch.tensor([[0.5, 0.1], [-0.5, -0.1]])
    assert float(namespace["accuracy"]) > 0.9
    assert str(namespace["model"](two).argmax(1).numpy()) in shown
    assert any("<table" in text for text in shown) and float(shown[-2]) > 0.9
    assert (tmp_path / "spirals-int8.pte").stat().st_size < (tmp_path / "spirals.pte").stat().st_size
