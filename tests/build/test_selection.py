# SPDX-License-Identifier: BSD-3-Clause
# Selections of selective builds: read from models, with the operators of the runtime's kernel table.

from __future__ import annotations

import pytest

from torchette.build import kernels, selection
from torchette.build.selection import Selection
from torchette.errors import TargetError
from torchette.runtime import _native


def test_sources_register_runtime_kernels():
    operators = [name for family in kernels.families().values() for name in family.operators]
    assert sorted(operators) == sorted(name for name, _ in _native.operators())


def test_union_contains_all_requirements():
    first = Selection(frozenset(["aten::mm.out"]), frozenset(["float32"]))
    second = Selection(
        frozenset(["aten::add.out"]), frozenset(["float32", "int64"]), frozenset(["NullBackend"])
    )
    both = first | second
    assert both.operators == {"aten::mm.out", "aten::add.out"}
    assert both.dtypes == {"float32", "int64"}
    assert both.backends == {"NullBackend"}
    assert (both | selection.EVERYTHING).operators is None


def test_a_header_of_a_source_names_its_own_operators_only():
    chosen = Selection(frozenset(["aten::mm.out", "aten::add.out"]), frozenset(["float32", "int64"]))
    text = chosen.header(kernels.KERNELS / "matmul.cpp")
    assert "aten::mm.out" in text and "aten::add.out" not in text
    assert f"{1 << 6 | 1 << 4:#x}u" in text
    assert "X(arithmetic) X(matmul)" in chosen.header(kernels.KERNELS / "table.cpp")


def test_unknown_name_error_suggests_nearest():
    with pytest.raises(TargetError, match=r"did you mean aten::mm\.out"):
        selection.checked_operators(["aten::mm.ou"])
    with pytest.raises(TargetError, match="did you mean float32"):
        selection.checked_dtypes(["float31"])
