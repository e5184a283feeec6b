# SPDX-License-Identifier: BSD-3-Clause
"""The operators that XNNPACK runs, and how.

Each family of operators registers, for every operator, why the library cannot run a node of it, and the library's nodes
for it. Quantized graphs keep their operators in floating point, between nodes that dequantize and quantize. Where the
library has an operator on integers, those nodes and the operator become one of its nodes (`integers.py`); elsewhere they
become conversions.
"""

from torchette.backends.xnnpack.operators import (  # noqa: F401  # each registers its own
    activations,
    arithmetic,
    convolutions,
    elementwise,
    joins,
    norms,
    pools,
    products,
    reductions,
    resizing,
    shapes,
    slices,
)
from torchette.backends.xnnpack.operators.checks import why_not
from torchette.backends.xnnpack.operators.lowering import Lowering
from torchette.backends.xnnpack.operators.table import OPERATORS

__all__ = ["OPERATORS", "Lowering", "why_not"]
