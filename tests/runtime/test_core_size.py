# SPDX-License-Identifier: BSD-3-Clause
# The budget of the core in a firmware image, and its last sizes. `./dev size` prints the table.

from __future__ import annotations

import re
import subprocess

import pytest

from benchmarks import core_size
from tests.test_docs import table

# Bytes of the core's code in the smallest program, by compiler. A change that needs more raises the value here, so the review
# shows it; a change that needs less lowers it.
STORED = {("x86-64", "12"): 15_679, ("cortex-m4", "12"): 10_224}


@pytest.fixture(scope="module", params=[core_size.HOST, core_size.CORTEX_M4], ids=lambda target: target.name)
def measured(request: pytest.FixtureRequest) -> tuple[core_size.Target, core_size.Measured]:
    target: core_size.Target = request.param
    if target.missing:
        pytest.skip(target.missing)
    return target, core_size.measure(target)


def test_core_fits_its_budget(measured: tuple[core_size.Target, core_size.Measured]) -> None:
    target, (objects, linked, functions, _) = measured
    assert {"method", "method_load", "program"} <= {size.name for size in objects}
    assert linked.text > 4096 and len(functions) > 50, "the smallest program links the core"
    assert core_size.fits(linked, target), linked


def version_of(target: core_size.Target) -> str:
    """The major version of the compiler; empty if its output has none."""
    version_text = subprocess.run([target.compiler, "--version"], capture_output=True, text=True).stdout
    number = re.search(r"\) (\d+)\.", version_text)
    return number[1] if number else ""


def test_core_has_not_grown(measured: tuple[core_size.Target, core_size.Measured]) -> None:
    target, (_, linked, _, _) = measured
    version = version_of(target)
    stored = STORED.get((target.name, version))
    if stored is None:
        pytest.skip(f"no size is stored for version {version} of {target.compiler}")
    assert linked.text <= stored, "the core has grown: see `./dev size --symbols`"


def test_page_has_measured_size(measured: tuple[core_size.Target, core_size.Measured]) -> None:
    """benchmarks/size.md repeats what `./dev size` prints with gcc 12."""
    target, (_, linked, _, _) = measured
    if (version := version_of(target)) != "12":
        pytest.skip(f"the page has the figures of gcc 12, not of version {version} of {target.compiler}")
    row = next(
        row for row in table("../benchmarks/size.md", "| | code |") if row[0].lower().startswith(target.name)
    )
    limits = target.text_budget, target.static_budget
    assert row[1:] == [f"{n:,}" for n in (linked.text, limits[0], linked.data + linked.bss, limits[1])]


def test_no_double_arithmetic_is_linked(measured: tuple[core_size.Target, core_size.Measured]) -> None:
    """A Cortex-M4 has no double-precision unit, so each operation would link a function of the compiler's library."""
    target, result = measured
    if target is not core_size.CORTEX_M4:
        pytest.skip("doubles are free here")
    assert not [name for name in result.foreign if name.startswith("__aeabi_d")]


def test_kernel_registry_has_constant_size(measured: tuple[core_size.Target, core_size.Measured]) -> None:
    """Kernels are stored in a constant table, and run-time registrations have their own nodes."""
    registry = next(size for size in measured[1].objects if size.name == "kernel_registry")
    assert 0 < registry.data + registry.bss <= 512, registry
