# SPDX-License-Identifier: BSD-3-Clause
# Files that releases 1.0 to 1.5 of ExecuTorch have written keep loading and computing what eager does.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.building import built, run
from torchette.runtime import Runtime, Verification

FOLDER = Path(__file__).parent / "executorch_files"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def arrays(records: list[dict[str, Any]]) -> list[np.ndarray]:
    return [np.array(record["value"], record["dtype"]) for record in records]


def test_every_model_is_there() -> None:
    assert {path.name.partition("-")[0] for path in FOLDER.glob("*.pte")} == {*EXPECTED, "layers_external"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.pte")), ids=lambda path: path.stem)
def test_a_stored_file_runs(path: Path) -> None:
    expected = EXPECTED[path.stem.partition("-")[0].partition("_")[0]]
    data = [file for file in [path.with_suffix(".ptd")] if file.exists()]
    level = Verification.InternalConsistency
    program = Runtime.get().load_program(path, verification=level, data_files=data)
    method = program.load_method("forward")
    for outputs in expected["outputs"]:  # one of the models counts its calls
        results = method.execute(arrays(expected["inputs"]))
        results = [np.asarray(result) for result in results[-len(outputs) :]]
        for result, wanted in zip(results, arrays(outputs), strict=True):
            assert result.dtype == wanted.dtype and result.shape == wanted.shape
            np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.bpte")), ids=lambda path: path.stem)
def test_a_stored_case_fits(path: Path) -> None:
    assert run(built("executor_runner"), "--model_path", path).stdout.splitlines()[1].endswith("fits")
