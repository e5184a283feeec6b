# SPDX-License-Identifier: BSD-3-Clause
"""Delegation to Google's XNNPACK library; see README.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchette.backends.xnnpack.configs import (
    ALL_PARTITIONER_CONFIGS,
    ConfigPrecisionType,
    GEMMConfig,
    GenericNodePartitionerConfig,
    QDQAffineConfigs,
    XNNPartitionerConfig,
    get_transform_passes,
    get_xnnpack_edge_compile_config,
    get_xnnpack_executorch_backend_config,
)
from torchette.backends.xnnpack.partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackFloatingPointPartitioner,
    XnnpackPartitioner,
    XnnpackQuantizedPartitioner,
)
from torchette.backends.xnnpack.preprocess import (
    ExternalMeta,
    XnnpackBackend,
    assert_default_dim_order,
    generate_node_to_external_map,
)
from torchette.backends.xnnpack.recipe_provider import XNNPACKRecipeProvider, XNNPackRecipeType

if TYPE_CHECKING:
    from torchette.backends.xnnpack.pt2e_quantizer import (
        OP_TO_ANNOTATOR,
        QuantPattern,
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
        propagate_annotation,
    )

_QUANTIZER_NAMES = [
    "OP_TO_ANNOTATOR",
    "QuantPattern",
    "XNNPACKQuantizer",
    "get_symmetric_quantization_config",
    "propagate_annotation",
]
_OPERATOR_CONFIGS = {config.__name__: config for config in ALL_PARTITIONER_CONFIGS}

# `torchette.compile(..., backend="xnnpack")` uses this class.
PARTITIONER = XnnpackPartitioner

__all__ = [
    "ALL_PARTITIONER_CONFIGS",
    "OP_TO_ANNOTATOR",
    "PARTITIONER",
    "ConfigPrecisionType",
    "ExternalMeta",
    "GEMMConfig",
    "GenericNodePartitionerConfig",
    "QDQAffineConfigs",
    "QuantPattern",
    "XNNPACKQuantizer",
    "XNNPACKRecipeProvider",
    "XNNPackRecipeType",
    "XNNPartitionerConfig",
    "XnnpackBackend",
    "XnnpackDynamicallyQuantizedPartitioner",
    "XnnpackFloatingPointPartitioner",
    "XnnpackPartitioner",
    "XnnpackQuantizedPartitioner",
    "assert_default_dim_order",
    "generate_node_to_external_map",
    "get_symmetric_quantization_config",
    "get_transform_passes",
    "get_xnnpack_edge_compile_config",
    "get_xnnpack_executorch_backend_config",
    "propagate_annotation",
]


def __getattr__(name: str) -> Any:
    """Returns an operator's configuration, or a name of the quantizer, which is imported on demand because it requires torchao."""
    if name in _OPERATOR_CONFIGS:
        return _OPERATOR_CONFIGS[name]
    if name not in _QUANTIZER_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("torchette.backends.xnnpack.pt2e_quantizer"), name)
