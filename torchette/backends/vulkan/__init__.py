# SPDX-License-Identifier: BSD-3-Clause
"""Delegation to GPUs through Vulkan; see docs/vulkan.md."""

from torchette.backends.vulkan.partitioner import VulkanPartitioner
from torchette.backends.vulkan.payload import VkMemoryLayout, VkStorageType
from torchette.backends.vulkan.preprocess import VulkanBackend

# The default partitioner of `torchette.compile(..., backend="vulkan")`.
PARTITIONER = VulkanPartitioner

__all__ = ["PARTITIONER", "VkMemoryLayout", "VkStorageType", "VulkanBackend", "VulkanPartitioner"]
