# SPDX-License-Identifier: BSD-3-Clause
# In: xnnpack.def, which C++ includes. Out: its rows.
"""The kinds of nodes in an XNNPACK payload."""

from __future__ import annotations

import re
from typing import NamedTuple

from torchette.schema import rows

__all__ = ["BINARY", "INTEGER_KERNELS", "KERNELS", "UNARY", "Elementwise"]


class Elementwise(NamedTuple):
    """A node that is an elementwise operator of aten."""

    kind: str
    """In the payload."""
    name: str
    """Of aten's operator."""
    overload: str
    """Of aten's operator."""
    config: str
    """ExecuTorch's class for partitioners."""

    @property
    def target(self) -> str:
        """The operator with its overload, such as ``add.Tensor``."""
        return f"{self.name}.{self.overload}"


UNARY = tuple(
    Elementwise(kind, name, "default", config)
    for kind, name, config in rows("xnnpack.def", r"^TORCHETTE_XNNPACK_UNARY\((\w+), (\w+), (\w+Config), ")
)
"""Those of one operand."""
BINARY = tuple(
    Elementwise(*row)
    for row in rows("xnnpack.def", r"^TORCHETTE_XNNPACK_BINARY\((\w+), (\w+), (\w+), (\w+Config), ")
)
"""Those of two operands."""


def _kernels(pattern: str) -> dict[str, tuple[str, ...]]:
    return {kind: tuple(re.findall(r'"([^"]+)"', names)) for kind, names in rows("xnnpack.def", pattern)}


KERNELS: dict[str, tuple[str, ...]] = {
    **{row.kind: (f"aten::{row.name}.out",) for row in (*UNARY, *BINARY)},
    **_kernels(r"^TORCHETTE_XNNPACK_NODE\((\w+), \w+, \w+, \w+, (.*)\)$"),
}
"""Kind of node -> the full names of the kernels that it calls."""
INTEGER_KERNELS = _kernels(r"^TORCHETTE_XNNPACK_INTEGERS\((\w+), (.*)\)$")
"""Kind of node -> the kernels that it calls instead if all that it reads and writes are integers."""
