# SPDX-License-Identifier: BSD-3-Clause
"""The CPU engine: fused operators on packed weights, in the namespace `cpu`."""

from torchette.backends.cpu.partitioner import CpuPartitioner
from torchette.backends.cpu.recipe_provider import CpuRecipeProvider, CpuRecipeType

PARTITIONER = CpuPartitioner

__all__ = ["PARTITIONER", "CpuPartitioner", "CpuRecipeProvider", "CpuRecipeType"]
