# SPDX-License-Identifier: BSD-3-Clause
"""Conversion between bytes and records of the file formats in `torchette/schema`. Does not need torch or numpy."""
