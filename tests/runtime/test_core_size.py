# SPDX-License-Identifier: BSD-3-Clause
# The core's budget in a firmware image; `./dev size` prints the table.

from __future__ import annotations

from benchmarks import core_size


def test_core_fits_its_budget() -> None:
    objects, linked = core_size.measure()
    assert {"method", "method_load", "program"} <= {size.name for size in objects}
    assert linked.text > 4096, "the smallest program links the core"
    assert core_size.fits(linked), linked
