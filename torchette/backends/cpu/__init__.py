# SPDX-License-Identifier: BSD-3-Clause
"""The CPU engine: fused operators on packed weights, in the namespace `cpu`."""
