# SPDX-License-Identifier: BSD-3-Clause
# The core's budget in a firmware image; `./dev size` prints the table.

from __future__ import annotations

from benchmarks import core_size


def test_core_fits_its_budget() -> None:
    objects, linked = core_size.measure()
    assert {"method", "method_load", "program"} <= {size.name for size in objects}
    assert linked.text > 4096, "the smallest program links the core"
    assert core_size.fits(linked), linked


def test_the_registry_of_kernels_has_no_slots() -> None:
    """Kernels stand in a constant table, however many; what is registered at run time brings its own node."""
    registry = next(size for size in core_size.measure().objects if size.name == "kernel_registry")
    assert 0 < registry.data + registry.bss <= 512, registry
