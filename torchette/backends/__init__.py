# SPDX-License-Identifier: BSD-3-Clause
"""Backends, one self-contained folder each. The compiler finds them by name and imports none of them."""
