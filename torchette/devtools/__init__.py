# SPDX-License-Identifier: BSD-3-Clause
"""Tools for the desk: they read files, never the compiler, and import neither torch nor rich."""
