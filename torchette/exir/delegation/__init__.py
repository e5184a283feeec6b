# SPDX-License-Identifier: BSD-3-Clause
# From a partitioner's tags to calls of backends: what may be cut out, the cut, the report of it.
"""Delegation: `delegate.py` has the interface that backends implement."""
