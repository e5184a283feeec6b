# SPDX-License-Identifier: BSD-3-Clause
# The dtype table contains the measured dtypes of this build's kernels.

import subprocess
import sys

import probe_dtypes
import pytest
from probe_dtypes import COMMAND

from torchette.exir.dialects.edge import dtypes

STALE = f"kernels and torchette/exir/dialects/edge/dtypes.txt disagree, so run: {COMMAND}"


@pytest.fixture(scope="module")
def measured():
    return {probe_dtypes.name_of(op): op for op in probe_dtypes.edge_operators()}


def test_every_kernel_has_been_measured(measured):
    with_kernel = {name for name, op in measured.items() if probe_dtypes.kernel_of(op)}
    table = dtypes.operators()
    assert len(with_kernel) > 150
    assert with_kernel <= set(table), f"{sorted(with_kernel - set(table))}: {STALE}"
    assert set(table) <= set(measured), f"{sorted(set(table) - set(measured))}: {STALE}"
    for name, op in measured.items():
        known = dtypes.constraint(op._schema)
        assert known is None or bool(known.kernel_rows) == (name in with_kernel), f"{name}: {STALE}"
    unmeasured = [name for name, known in table.items() if not known]
    assert len(unmeasured) < 10, f"add calls of {unmeasured} to samples() of probe_dtypes.py; {STALE}"


def test_elementwise_operators_match_the_table(measured):
    tried = 0
    for name, op in measured.items():
        known = dtypes.constraint(op._schema)
        if known is None or not probe_dtypes.ops.is_pointwise(op):
            continue
        runs, legal = probe_dtypes.probe(op, probe_dtypes.generic(op))
        tried += bool(legal)
        changed = (runs - known.kernel_rows) | ((legal - runs) & known.kernel_rows)
        assert not changed, f"{name} {sorted(changed)}: {STALE}"
    assert tried > 60


@pytest.mark.slow
def test_table_matches_the_measurement():
    # In a separate process, because pytest's capture of logs slows down each of many thousand failing calls.
    done = subprocess.run([sys.executable, probe_dtypes.__file__, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: {STALE}"
