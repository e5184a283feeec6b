# SPDX-License-Identifier: BSD-3-Clause
# A program of cpu::chain comes from a file, which may be damaged. An error describes each fault.
from __future__ import annotations

from typing import Any

import pytest
import torch

from torchette.runtime import _native

X, CONDITION = torch.ones(3, 5), torch.ones(5, dtype=torch.bool)


def run(
    program: str, *, inputs: Any = (X, X), conditions: Any = (), numbers: Any = (1.0,), fold: str = "none"
) -> None:
    out = torch.zeros(3, 5)
    _native.call_kernel(
        "cpu::chain.out", list(inputs), list(conditions), list(numbers), program, fold, False, out
    )


@pytest.mark.parametrize(
    "program",
    [
        "", " ", "add", "add i0", "add i0 i2", "add i0 v0", "add i0 v1 add v0 i0", "add i0 c0", "add i0 n1", "sin i0", "add i0 i",
        "add i0 i0000", "add i0 i-1", "add i0 x0", "i0", "addi0 i1", "add i0 i1 i0", "add i0 i99", "add\ti0 i1",
        " ".join(["neg i0"] * 49),
    ],
)  # fmt: skip
def test_malformed_program(program: str) -> None:
    with pytest.raises(Exception, match=r"InvalidArgument|chain"):
        run(program)


@pytest.mark.parametrize(
    "operands",
    [
        {"inputs": [X] * 17}, {"numbers": [1.0] * 17}, {"inputs": [X] * 10, "conditions": [CONDITION] * 7},
        {"inputs": (X, X[:, :4].contiguous())}, {"inputs": (X, X.double())}, {"inputs": (X, CONDITION)}, {"conditions": (X,)},
        {"inputs": (X, X.t())}, {"fold": "median"}, {"inputs": (X[:, :0].contiguous(),) * 2, "fold": "sum"},
        {"inputs": (X[0, 0].clone(),) * 2, "fold": "sum"}, {"inputs": (torch.ones(2, 3, 5), X)},
    ],
)  # fmt: skip
def test_mismatched_operands(operands: dict) -> None:
    with pytest.raises(Exception, match=r"Invalid|chain|room"):
        run("add i0 i1", **operands)


def test_well_formed_program() -> None:
    run("add i0 i1 mul v0 n0")
