# SPDX-License-Identifier: BSD-3-Clause
"""Export of language models to .pte files."""
