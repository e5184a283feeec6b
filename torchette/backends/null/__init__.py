# SPDX-License-Identifier: BSD-3-Clause
"""The backend to copy: it takes additions and multiplications and runs them in plain loops."""

from torchette.backends.null.partitioner import NullPartitioner
from torchette.backends.null.preprocess import NullBackend

# What `torchette.compile(..., backend="null")` asks.
PARTITIONER = NullPartitioner

__all__ = ["PARTITIONER", "NullBackend", "NullPartitioner"]
