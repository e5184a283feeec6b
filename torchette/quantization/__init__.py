# SPDX-License-Identifier: BSD-3-Clause
"""Floats to integers, on torchao's PT2E: `pt2e.quantize`."""
