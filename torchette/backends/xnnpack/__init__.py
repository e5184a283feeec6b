# SPDX-License-Identifier: BSD-3-Clause
"""Delegation to Google's XNNPACK library; see README.md."""

from torchette.backends.xnnpack.partitioner import XnnpackPartitioner
from torchette.backends.xnnpack.preprocess import XnnpackBackend

__all__ = ["XnnpackBackend", "XnnpackPartitioner"]
