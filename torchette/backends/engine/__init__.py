# SPDX-License-Identifier: BSD-3-Clause
"""The CPU engine: fused operators on packed weights, in the namespace `cpu`."""

from torchette.backends.engine.partitioner import CpuPartitioner
from torchette.backends.engine.recipe_provider import CpuRecipeProvider, CpuRecipeType

PARTITIONER = CpuPartitioner

__all__ = ["PARTITIONER", "CpuPartitioner", "CpuRecipeProvider", "CpuRecipeType"]
