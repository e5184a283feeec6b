# SPDX-License-Identifier: BSD-3-Clause
# The notebook of examples/: Colab can open it, its cells run in order, and its stored outputs are up to date.

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.building import ROOT
from tests.examples.notebook import NOTEBOOK, execute, read

AGAIN = "python -m tests.examples.notebook stores the outputs of an execution"


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    return read()


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_it_is_a_notebook_with_outputs(notebook: dict[str, Any]) -> None:
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code") and isinstance(cell["source"], list)
        for target in re.findall(r"\]\((?!https:)([^)#]+)", "".join(cell["source"])):
            assert (NOTEBOOK.parent / target).exists(), target
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), AGAIN
    assert all(cell["outputs"] for cell in cells), AGAIN


def test_it_names_no_machine(notebook: dict[str, Any]) -> None:
    text = json.dumps(notebook)
    for folder in (ROOT, Path.home(), tempfile.gettempdir(), "/home/", "/usr/", "/root/", "site-packages"):
        assert f"{folder}" not in text


def test_the_badge_opens_the_notebook_of_the_repository(notebook: dict[str, Any]) -> None:
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (repository,) = re.findall(r'^Repository = "https://github.com/(.*)"$', metadata, re.M)
    address = f"https://colab.research.google.com/github/{repository}/blob/main/examples/torchette.ipynb"
    assert f"]({address})" in "".join(notebook["cells"][0]["source"])


def test_the_cells_run_and_yield_the_stored_outputs(
    notebook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell, outputs in zip(code_cells(notebook), execute(notebook, namespace), strict=True):
        if "measured" in cell["metadata"].get("tags", ()):  # figures that depend on the processor
            assert [*map(kinds, cell["outputs"])] == [*map(kinds, outputs)], AGAIN
        else:
            assert cell["outputs"] == outputs, AGAIN
    two = torch.tensor([[0.5, 0.1], [-0.5, -0.1]])
    assert namespace["accuracy"] > 0.9
    assert (
        namespace["model"](two).argmax(1).tolist()
        == namespace["np"].asarray(namespace["scores"]).argmax(1).tolist()
    )
    assert (namespace["small"](namespace["points"]).argmax(1) == namespace["arm"]).float().mean() > 0.9
    assert (tmp_path / "spirals-int8.pte").stat().st_size < (tmp_path / "spirals.pte").stat().st_size


def kinds(output: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the type of an output, and its first line without digits."""
    data = {key: text[0] for key, text in output.get("data", {"text": output.get("text")}).items()}
    return output["output_type"], {key: re.sub(r"[\d.,]+", "0", text) for key, text in data.items()}
