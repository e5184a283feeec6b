# SPDX-License-Identifier: BSD-3-Clause
"""The backend to copy: it takes additions and multiplications and runs them in plain loops."""

from torchette.backends.null.partitioner import NullPartitioner
from torchette.backends.null.preprocess import NullBackend

__all__ = ["NullBackend", "NullPartitioner"]
