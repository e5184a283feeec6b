# SPDX-License-Identifier: BSD-3-Clause
"""Bytes to records and back: the file formats, described once in `torchette/schema`. Needs neither torch nor numpy."""
