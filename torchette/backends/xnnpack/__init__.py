# SPDX-License-Identifier: BSD-3-Clause
"""Delegation to Google's XNNPACK library; see README.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchette.backends.xnnpack.configs import (
    ConfigPrecisionType,
    get_xnnpack_edge_compile_config,
    get_xnnpack_executorch_backend_config,
)
from torchette.backends.xnnpack.partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackFloatingPointPartitioner,
    XnnpackPartitioner,
    XnnpackQuantizedPartitioner,
)
from torchette.backends.xnnpack.preprocess import XnnpackBackend

if TYPE_CHECKING:
    from torchette.backends.xnnpack.pt2e_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

__all__ = [
    "ConfigPrecisionType",
    "XNNPACKQuantizer",
    "XnnpackBackend",
    "XnnpackDynamicallyQuantizedPartitioner",
    "XnnpackFloatingPointPartitioner",
    "XnnpackPartitioner",
    "XnnpackQuantizedPartitioner",
    "get_symmetric_quantization_config",
    "get_xnnpack_edge_compile_config",
    "get_xnnpack_executorch_backend_config",
]


def __getattr__(name: str) -> Any:
    """The quantizer stands on torchao, which nothing else here needs."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("torchette.backends.xnnpack.pt2e_quantizer"), name)
