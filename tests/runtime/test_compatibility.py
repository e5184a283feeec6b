# SPDX-License-Identifier: BSD-3-Clause
# Stored files of earlier Torchette releases and of ExecuTorch 1.0 to 1.5 load and compute the results of eager mode. They are
# never written again: docs/compatibility.md.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchette
from tests.building import built, run
from tests.runtime.fields import FieldEditor
from torchette.errors import FormatError
from torchette.extension.training import _load_for_executorch_for_training
from torchette.format import pte
from torchette.runtime import Runtime, Verification

FOLDER = Path(__file__).parent / "executorch_files"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
TORCHETTE_FILES = Path(__file__).parent / "torchette_files"
TORCHETTE_EXPECTED = json.loads((TORCHETTE_FILES / "expected.json").read_text())


def arrays(records: list[dict[str, Any]]) -> list[np.ndarray]:
    return [np.array(record["value"], record["dtype"]) for record in records]


def test_executorch_files_are_complete() -> None:
    assert {path.name.partition("-")[0] for path in FOLDER.glob("*.pte")} == {*EXPECTED, "layers_external"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.pte")), ids=lambda path: path.stem)
def test_executorch_file_runs(path: Path) -> None:
    runs(path, EXPECTED[path.stem.partition("-")[0].partition("_")[0]])


def test_torchette_files_are_complete() -> None:
    stems = {path.stem for path in TORCHETTE_FILES.glob("*.pte")}
    assert stems == set(TORCHETTE_EXPECTED)
    versions = {stem.rpartition("-")[2] for stem in stems}
    assert torchette.__version__ in versions, (
        "python -m tests.runtime.write_torchette_files, before a release"
    )


@pytest.mark.parametrize("path", sorted(TORCHETTE_FILES.glob("*.pte")), ids=lambda path: path.stem)
def test_torchette_file_runs(path: Path) -> None:
    runs(path, TORCHETTE_EXPECTED[path.stem])


def test_torchette_checkpoint_loads() -> None:
    for path in TORCHETTE_FILES.glob("training-*.pte"):
        module = _load_for_executorch_for_training(path, path.with_suffix(".ptd"))
        before = module.named_parameters()["net.weight"].copy_(torch.ones(3, 2)).clone()
        module.load(path.with_suffix(".ptd"))
        assert not torch.equal(module.named_parameters()["net.weight"], before)


def runs(path: Path, expected: dict[str, Any]) -> None:
    data = [file for file in [path.with_suffix(".ptd")] if file.exists()]
    level = Verification.InternalConsistency
    program = Runtime.get().load_program(path, verification=level, data_files=data)
    method = program.load_method("forward")
    for outputs in expected["outputs"]:  # one of the models counts its calls
        results = method.execute(arrays(expected["inputs"]))
        # ExecuTorch's files with state return the state first
        results = [
            np.asarray(result)
            for result in (
                results[: len(outputs)] if path.parent == TORCHETTE_FILES else results[-len(outputs) :]
            )
        ]
        for result, reference in zip(results, arrays(outputs), strict=True):
            assert result.dtype == reference.dtype and result.shape == reference.shape
            np.testing.assert_allclose(result, reference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "path", sorted([*FOLDER.glob("*.bpte"), *TORCHETTE_FILES.glob("*.bpte")]), ids=lambda path: path.stem
)
def test_stored_case_passes(path: Path) -> None:
    assert run(built("executor_runner"), "--model_path", path).stdout.splitlines()[1].endswith("matches")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.pte")), ids=lambda path: path.stem)
def test_oversized_planned_buffer_is_refused(path: Path) -> None:
    """The size of a planned buffer is compared with those of its tensors. No memory is allocated before that."""
    file = path.read_bytes()
    sizes = pte.read(file).program.execution_plan[0].non_const_buffer_sizes
    assert sum(sizes) > 0
    for index in range(1, len(sizes)):
        for size in (1 << 30, 1 << 40, sizes[index] + (1 << 14)):
            broken = FieldEditor(file).set(size, "execution_plan", 0, "non_const_buffer_sizes", index)
            with pytest.raises(
                FormatError, match=f"planned buffer {index - 1} has {size} bytes, its tensors occupy"
            ):
                Runtime.get().load_program(broken).metadata("forward")
