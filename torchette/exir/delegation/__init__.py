# SPDX-License-Identifier: BSD-3-Clause
# From a partitioner's tags to calls of backends: which nodes can be extracted, the extraction, and its report.
"""Delegation. `delegate.py` contains the interface that backends implement."""
