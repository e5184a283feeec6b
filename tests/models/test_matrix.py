# SPDX-License-Identifier: BSD-3-Clause
# Tests of `./dev matrix`. The full matrix runs by hand; the others check its cells and its table.

from __future__ import annotations

import copy

import pytest
import torch

from tests.building import built
from tests.models import matrix
from tests.models.matrix import BACKENDS, PRECISIONS, Cell, Row

pytest.importorskip("torchao")


@pytest.fixture(scope="module", autouse=True)
def runner() -> None:
    assert built("executor_runner") == matrix.RUNNER


@pytest.mark.slow
def test_every_file_is_within_bounds() -> None:
    assert matrix.main([]) == 0


def test_row_contains_results_of_the_runner() -> None:
    (row, integer_row), _ = matrix.rows("gru", ["float32", "int8 weights"], ["cpu", "bundled"])
    assert row.cells.keys() == {"cpu", "bundled"} and integer_row.cells.keys() == {"cpu"}
    assert all(cell.good for cell in (row.cells | integer_row.cells).values())
    assert row.cells["bundled"].difference == 0 and 20 < integer_row.decibels < 80


def test_wrong_output_is_detected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both comparisons detect an answer that differs from the network."""
    outputs = matrix._outputs
    monkeypatch.setattr(matrix, "_outputs", lambda module, args: outputs(module, args) + 0.01)
    ((row,), _) = matrix.rows("gru", ["float32"], ["cpu", "bundled"])
    assert not any(cell.good for cell in row.cells.values())
    assert row.cells["cpu"].text.endswith("BAD") and row.cells["bundled"].why.startswith("FAILED")


def test_bytes_of_bfloat16_are_compared() -> None:
    ((row,), _) = matrix.rows("keyword_spotting", ["bfloat16"], ["portable"])
    assert row.cells["portable"].good, row


def test_16_bit_bound_is_based_on_the_error_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "bfloat16 weights"
    ((row,), _) = matrix.rows("keyword_spotting", [name], ["portable"])
    module, args = matrix.zoo.build("keyword_spotting")
    exact = matrix._outputs(copy.deepcopy(module).double(), matrix._as(torch.float64, args))
    error = matrix.distance(matrix._outputs(PRECISIONS[name].apply(module, args), args), exact)
    cell = row.cells["portable"]
    assert cell.good and cell.bound == pytest.approx(matrix.ERRORS_OF_16_BITS * error, rel=1e-2)

    compile_right = matrix.torchette.compile

    def compile_wrong(program: torch.export.ExportedProgram, backend: object) -> object:
        with torch.no_grad():
            list(program.parameters())[-2].mul_(1.5)  # the weights of the classifier
        return compile_right(program, backend=backend)

    monkeypatch.setattr(matrix.torchette, "compile", compile_wrong)
    ((row,), _) = matrix.rows("keyword_spotting", [name], ["portable"])
    assert row.cells["portable"].text.endswith("BAD")


def test_bound_is_wider_where_a_backend_computes_in_float16() -> None:
    bounds = {
        (name, dtype): matrix._bound(BACKENDS[name], PRECISIONS[dtype], 0.01)
        for name in ("cpu", "xnnpack")
        for dtype in ("float16", "float16 weights", "int8 static")
    }
    assert bounds["cpu", "float16"] == bounds["xnnpack", "float16 weights"] == pytest.approx(0.03)
    assert bounds["xnnpack", "float16"] == pytest.approx(0.09)
    assert bounds["xnnpack", "int8 static"] == PRECISIONS["int8 static"].bound


def test_table_contains_reasons() -> None:
    backends = list(BACKENDS)[:3]
    cells = dict(
        zip(backends, (Cell(1e-7, bound=1e-4), Cell(why="no such thing"), Cell(float("nan"), alone=True)))
    )
    printed = matrix.table([Row("net", "8da4w", 26.0, cells)], backends).splitlines()
    assert printed[1].split() == ["net", "8da4w", "26.0", "1.0e-07", "-", "nan*", "BAD"]
    assert printed[3:] == ["no such thing", f"  - net, 8da4w, {backends[1]}"]


def test_invalid_options_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        matrix.main(["resnet1"])
    assert stopped.value.code == 2 and "unknown model resnet1" in capsys.readouterr().err
    assert all(
        isinstance(precision.dtype, torch.dtype) and (precision.bound or 0) <= 0.1
        for precision in PRECISIONS.values()
    )
