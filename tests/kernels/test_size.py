# SPDX-License-Identifier: BSD-3-Clause
# The code size of all kernels against its budget. `./dev size --kernels` prints the table.
from __future__ import annotations

import pytest

from benchmarks import core_size

pytestmark = pytest.mark.slow  # compiles every kernel


def test_all_kernels_fit_their_budget() -> None:
    for group, sizes in core_size.measure_kernels().items():
        text = sum(size.text for size in sizes)
        assert text > 100_000, "the kernels are compiled"
        assert text <= core_size.KERNEL_BUDGETS[group], sorted(sizes, key=lambda size: -size.text)[:5]
