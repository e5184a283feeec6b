# SPDX-License-Identifier: BSD-3-Clause
# In: .pte files, or names of operators and dtypes. Out: their requirements, as a C++ header that limits the kernel
# library (torchette/runtime/selected.h).
"""Requirements of models for a build: operators, dtypes and backends."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchette import schema
from torchette.build import delegates, kernels
from torchette.errors import TargetError, unknown_name
from torchette.format import pte

# torch's names -> names in the file's schema
DTYPES = {dtype.torch_name: dtype.schema_name for dtype in schema.DTYPES if dtype.is_computed}


@dataclass(frozen=True)
class Selection:
    """The parts that a build keeps.

    Attributes:
        operators: full names, such as ``aten::add.out``; None for all kernels.
        dtypes: torch's names; None for all.
        backends: registered names of the backends of the models' delegates.
    """

    operators: frozenset[str] | None
    dtypes: frozenset[str] | None
    backends: frozenset[str] = frozenset()

    def __or__(self, other: Selection) -> Selection:
        """Returns the union of both selections."""
        return Selection(
            None if self.operators is None or other.operators is None else self.operators | other.operators,
            None if self.dtypes is None or other.dtypes is None else self.dtypes | other.dtypes,
            self.backends | other.backends,
        )

    def header(self, source: Path | None = None) -> str:
        """Returns the C++ header that limits a build to this selection; it must be included before all other headers.

        Args:
            source: limit the header to this source of a kernel family, so that its object can be reused for other
                models.
        """
        lines = []
        if self.dtypes is not None:
            bits = sum(1 << int(pte.SCHEMA.types["ScalarType"][DTYPES[name]]) for name in sorted(self.dtypes))
            lines.append(f"#define TORCHETTE_SELECTED_DTYPES {bits:#x}u  // {', '.join(sorted(self.dtypes))}")
        if self.operators is not None:
            family = kernels.family_of(source) if source is not None else None
            family_operators = family.operators if family is not None else ()
            selected = self.operators if source is None else self.operators.intersection(family_operators)
            names = "".join(f'"{name}", ' for name in sorted(selected))
            lines.append(f"#define TORCHETTE_SELECTED_OPERATORS {names}")
        if source is None or source.name == "table.cpp":
            used = [
                family
                for family in kernels.families().values()
                if self.operators is None or self.operators.intersection(family.operators)
            ]
            narrow = [f"X({family.name})" for family in used if family.levels == 2]
            family_names = [
                f"{'ONCE' if family.levels else 'X'}({family.name})" for family in used if family.levels != 2
            ]
            lines.append("#define TORCHETTE_FAMILIES(X, ONCE) " + " ".join(family_names))
            lines.append("#define TORCHETTE_NARROW_FAMILIES(X) " + " ".join(narrow))
        return "\n".join(["// Selection of a selective build; written by torchette build.", *lines, ""])


EVERYTHING = Selection(None, None)


def of_file(path: str | Path) -> Selection:
    """Returns the requirements of a .pte file.

    These are its operators, the dtypes of its tensors, the backends of its delegates, and the operators of these
    backends.

    Raises:
        FormatError: the file is not a .pte file.
    """
    file = pte.load_file(path)
    program = file.program
    operators: set[str] = set()
    dtypes: set[str] = set()
    backends: set[str] = set()
    names = {int(pte.SCHEMA.types["ScalarType"][name]): torch_name for torch_name, name in DTYPES.items()}
    for plan in program.execution_plan:
        operators |= {f"{op.name}.{op.overload}" if op.overload else op.name for op in plan.operators}
        for delegate in plan.delegates:
            backends.add(delegate.id)
            operators |= delegates.operators(delegate.id, file.delegate(delegate))
            dtypes |= delegates.DTYPES.get(delegate.id, frozenset())
        for value in plan.values:
            kind = type(value.val).__name__
            if kind == "Tensor":
                dtypes.add(names.get(int(value.val.scalar_type), ""))
            elif kind == "Double":
                dtypes.add("float32")  # operations on integers and a float scalar compute in float32
    return Selection(frozenset(operators), frozenset(dtypes - {""}), frozenset(backends))


def of_files(paths: Sequence[str | Path]) -> Selection:
    """Returns the union of the requirements of all files; everything if there are no files."""
    if not paths:
        return EVERYTHING
    return functools.reduce(Selection.__or__, map(of_file, paths))


def checked_operators(names: Iterable[str]) -> frozenset[str]:
    """Returns the names if the kernel library has all of them.

    Raises:
        TargetError: an operator does not exist; the message contains the nearest name.
    """
    return _checked("operator", names, kernels.library())


def checked_dtypes(names: Iterable[str]) -> frozenset[str]:
    """Returns the names if all of them are dtypes.

    Raises:
        TargetError: a dtype does not exist; the message contains the nearest name.
    """
    return _checked("dtype", names, DTYPES)


def _checked(kind: str, names: Iterable[str], known: Iterable[str]) -> frozenset[str]:
    chosen = frozenset(names)
    for name in sorted(chosen.difference(known)):
        raise TargetError(unknown_name(kind, name, known), code="no-such-choice")
    return chosen
