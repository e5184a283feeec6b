# SPDX-License-Identifier: BSD-3-Clause
"""The passes that replace edge operators by the engine's operators, one file for each pass."""

from torchette.backends.engine import operators

__all__ = ["operators"]  # the import registers the operators with torch
