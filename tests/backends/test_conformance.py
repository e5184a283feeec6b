# SPDX-License-Identifier: BSD-3-Clause
"""Every backend of this build keeps what all backends must keep."""

from __future__ import annotations

import pytest

from torchette import runtime
from torchette.backends import conformance
from torchette.backends.null import NullPartitioner
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.format import pte
from torchette.runtime import Runtime

PARTITIONERS = {"NullBackend": NullPartitioner, "XnnpackBackend": XnnpackPartitioner}


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_conformance(name: str, check) -> None:
    if not Runtime.get().backend_registry.is_available(name):
        pytest.skip(f"{name} is not in this build")
    try:
        check(PARTITIONERS[name])
    except conformance.Unclaimed as unclaimed:
        pytest.skip(f"{name} does not take {unclaimed}")


def test_the_registry_knows_what_was_built() -> None:
    assert "NullBackend" in Runtime.get().backend_registry.registered_backend_names


def test_runtime_and_compiler_mean_the_same_second_plan() -> None:
    assert runtime._PORTABLE == pte.PORTABLE
