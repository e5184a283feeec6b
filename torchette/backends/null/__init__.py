# SPDX-License-Identifier: BSD-3-Clause
"""A template for backends: runs additions and multiplications in plain loops."""

from torchette.backends.null.partitioner import NullPartitioner
from torchette.backends.null.preprocess import NullBackend

# `torchette.compile(..., backend="null")` uses this class.
PARTITIONER = NullPartitioner

__all__ = ["PARTITIONER", "NullBackend", "NullPartitioner"]
