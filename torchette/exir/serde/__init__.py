# SPDX-License-Identifier: BSD-3-Clause
"""Programs as bytes, in the format of ExecuTorch."""
