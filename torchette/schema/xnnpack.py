# SPDX-License-Identifier: BSD-3-Clause
# Reads the rows of xnnpack.def, which C++ includes.
"""The node types of an XNNPACK payload."""

from __future__ import annotations

import re
from typing import NamedTuple

from torchette.schema import rows

__all__ = ["BINARY", "INTEGER_KERNELS", "KERNELS", "UNARY", "Elementwise"]


class Elementwise(NamedTuple):
    """A node type that is an elementwise operator of aten."""

    kind: str
    """The name in the payload."""
    name: str
    """The operator in aten."""
    overload: str
    """The overload in aten."""
    config: str
    """The partitioner class of ExecuTorch."""

    @property
    def target(self) -> str:
        """The operator with its overload, such as ``add.Tensor``."""
        return f"{self.name}.{self.overload}"


UNARY = tuple(
    Elementwise(kind, name, "default", config)
    for kind, name, config in rows("xnnpack.def", r"^TORCHETTE_XNNPACK_UNARY\((\w+), (\w+), (\w+Config), ")
)
"""Node types with one operand."""
BINARY = tuple(
    Elementwise(*row)
    for row in rows("xnnpack.def", r"^TORCHETTE_XNNPACK_BINARY\((\w+), (\w+), (\w+), (\w+Config), ")
)
"""Node types with two operands."""


def _kernels(pattern: str) -> dict[str, tuple[str, ...]]:
    return {kind: tuple(re.findall(r'"([^"]+)"', names)) for kind, names in rows("xnnpack.def", pattern)}


KERNELS: dict[str, tuple[str, ...]] = {
    **{row.kind: (f"aten::{row.name}.out",) for row in (*UNARY, *BINARY)},
    **_kernels(r"^TORCHETTE_XNNPACK_NODE\((\w+), \w+, \w+, \w+, (.*)\)$"),
}
"""The full names of the kernels of each node type."""
INTEGER_KERNELS = _kernels(r"^TORCHETTE_XNNPACK_INTEGERS\((\w+), (.*)\)$")
"""The full names of the kernels of each node type if all its inputs and outputs are integers."""
