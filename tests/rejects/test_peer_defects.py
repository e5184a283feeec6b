# SPDX-License-Identifier: BSD-3-Clause
# Measured defects of ExecuTorch 1.5.1 that Torchette must not have. Those of layouts, bounds, mutated files and messages are tested in
# test_inputs.py and test_files.py.

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchette

ROOT = Path(__file__).parents[2]


class Structured(torch.nn.Module):
    """Accepts a keyword argument, returns nested containers."""

    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> dict[str, object]:
        return {"sum": x + y, "diff": (x - y, [y - x])}


def test_method_keeps_everything_alive() -> None:
    """Program and bytes are temporaries. ExecuTorch crashes in three of four runs."""
    from torchette.runtime import Runtime

    contents = bytes(torchette.compile(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),)))
    x, expected = torch.ones(1, 3), None
    for _ in range(1000):
        outputs = Runtime.get().load_program(bytes(bytearray(contents))).load_method("forward").execute((x,))
        assert expected is None or torch.equal(torch.as_tensor(outputs[0]), expected)
        expected = torch.as_tensor(outputs[0]).clone()


def test_outputs_outlive_the_method() -> None:
    model = torchette.compile(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),))
    first = model(torch.ones(1, 3))
    copy = first.clone()
    model(torch.zeros(1, 3))
    assert torch.equal(first, copy), "an earlier call's output was overwritten by a later call"
    del model
    gc.collect()
    [torch.ones(1000) for _ in range(100)]
    assert torch.equal(first, copy)


def test_output_structure_is_kept(tmp_path: Path) -> None:
    x, y = torch.arange(3.0), torch.ones(3)
    model = torchette.compile(Structured().eval(), (x,), {"y": y})
    model.save(tmp_path / "nest.pte")
    for reloaded in (model, torchette.load(tmp_path / "nest.pte")):
        actual = reloaded(x, y=y)
        assert list(actual) == ["sum", "diff"]
        assert isinstance(actual["diff"], tuple) and isinstance(actual["diff"][1], list)
        assert torch.equal(actual["sum"], x + y)
        assert torch.equal(actual["diff"][0], x - y)
        assert torch.equal(actual["diff"][1][0], y - x)


def test_representation_and_version() -> None:
    from torchette.exir import to_edge

    assert torchette.__version__.count(".") == 2
    module, x = torch.nn.Linear(3, 2).eval(), torch.ones(1, 3)
    model = torchette.compile(module, (x,))
    for text in (repr(model), repr(to_edge(torch.export.export(module, (x,))).to_executorch())):
        assert "0x" not in text, text
        assert "forward" in text


def test_nothing_is_printed_on_first_use() -> None:
    program = (
        "import torch, torchette\n"
        "model = torchette.compile(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),))\n"
        "model(torch.ones(1, 3))\n"
        "try: model(torch.ones(1, 4))\n"
        "except torchette.TorchetteError: pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("statement", "modules"), [("import torchette", 100), ("import torchette.runtime", 500)]
)
def test_import_is_light(statement: str, modules: int) -> None:
    """ExecuTorch's import loads 2,917 modules. The test counts modules, since times vary."""
    program = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    imported = done.stdout.split()
    assert "torch" not in imported
    assert len(imported) < modules, sorted(imported)
