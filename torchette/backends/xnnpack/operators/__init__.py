# SPDX-License-Identifier: BSD-3-Clause
"""The table of operators that XNNPACK runs.

Each family registers two functions for each operator: one returns why XNNPACK cannot run a node, one lowers the node.

Operators of a quantized graph compute in floating point, between nodes that dequantize and quantize. If XNNPACK has an integer
version of the operator, these nodes and the operator become one node (`integers.py`). Otherwise the nodes become conversions.
"""

from torchette.backends.xnnpack.operators import (  # noqa: F401  # each module registers its operators
    activations,
    arithmetic,
    convolutions,
    elementwise,
    joins,
    matmuls,
    norms,
    pools,
    reductions,
    resizing,
    shapes,
    slices,
)
from torchette.backends.xnnpack.operators.checks import why_not
from torchette.backends.xnnpack.operators.lowering import Lowering
from torchette.backends.xnnpack.operators.table import OPERATORS

__all__ = ["OPERATORS", "Lowering", "why_not"]
