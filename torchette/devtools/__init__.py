# SPDX-License-Identifier: BSD-3-Clause
"""Tools for the development machine: they read files, never call the compiler, and import neither torch nor rich."""
