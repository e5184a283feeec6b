# SPDX-License-Identifier: BSD-3-Clause
"""The passes that choose the engine's operators, a file for each."""

from torchette.backends.engine import operators

__all__ = ["operators"]  # torch knows them from now on
