# SPDX-License-Identifier: BSD-3-Clause
"""Floats to integers: `pt2e.quantize` on torchao's PT2E; `torchette.quantize`, one call for all of it."""

# What `torchette.quantize` and `torchette compile --quantize` take; quantization/recipes.py has the schemes.
RECIPES = ("int8", "int8-dynamic", "8da4w", "int8-weight-only", "int4-weight-only", "bfloat16", "float16")
