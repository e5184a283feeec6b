# SPDX-License-Identifier: BSD-3-Clause
"""Every backend of this build passes the conformance suite."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

from torchette.backends import conformance
from torchette.backends.null import NullPartitioner
from torchette.backends.vulkan import VulkanPartitioner
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.errors import DelegationError
from torchette.exir import to_edge, to_edge_transform_and_lower
from torchette.exir.delegation.delegate import to_backend
from torchette.format import pte
from torchette.runtime import Runtime, native

PARTITIONERS = {
    "NullBackend": NullPartitioner,
    "VulkanBackend": VulkanPartitioner,
    "XnnpackBackend": XnnpackPartitioner,
}


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_conformance(name: str, check) -> None:
    if not Runtime.get().backend_registry.is_available(name):
        pytest.skip(f"{name} is not in this build")
    try:
        check(PARTITIONERS[name])
    except conformance.Unclaimed as unclaimed:
        pytest.skip(f"{name} does not support {unclaimed}")


def test_registry_contains_the_null_backend() -> None:
    assert "NullBackend" in Runtime.get().backend_registry.registered_backend_names


class _Branches(torch.nn.Module):
    def forward(self, x, y):
        chosen = torch.cond(x.sum() > 0, lambda x, y: (x + y) * y, lambda x, y: x * y - y, (x, y))
        return chosen + x


def test_branches_contain_delegates() -> None:
    x, y = torch.randn(3), torch.randn(3)
    edge = to_edge_transform_and_lower(export(_Branches(), (x, y)), partitioner=NullPartitioner())
    assert sum(item.backend is not None for item in edge.delegation().placements) == 4
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(torch.as_tensor(method.execute([x, y])[0]), _Branches()(x, y))


@pytest.mark.parametrize("name", sorted(PARTITIONERS.keys() - {"VulkanBackend"}))  # which keeps states
def test_mutated_buffer_is_refused_by_name(name: str) -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            return self.count.add_(x) * x

    program = to_edge(export(Counts(), (torch.ones(3),))).exported_program()
    with pytest.raises(DelegationError, match="changes the buffer count"):
        to_backend(name, program, [])


def test_runtime_and_compiler_name_the_portable_plan_equally() -> None:
    assert native.portable("") == pte.PORTABLE
