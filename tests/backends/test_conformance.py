# SPDX-License-Identifier: BSD-3-Clause
"""Every backend of this build keeps what all backends must keep."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

from torchette import runtime
from torchette.backends import conformance
from torchette.backends.null import NullPartitioner
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.exir import to_edge_transform_and_lower
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


@pytest.mark.parametrize("name", PARTITIONERS)
def test_the_bytes_are_not_needed_after_init(name: str) -> None:
    if not Runtime.get().backend_registry.is_available(name):
        pytest.skip(f"{name} is not in this build")
    args = (torch.randn(2, 3), torch.randn(2, 3))
    model = torch.nn.Module()
    model.register_buffer("weight", torch.randn(2, 3))
    model.forward = lambda x, y: (x + y) * model.weight  # type: ignore[method-assign]
    edge = to_edge_transform_and_lower(export(model, args), partitioner=PARTITIONERS[name]())
    (part,) = [m for m in edge.exported_program().graph_module.children() if hasattr(m, "processed_bytes")]
    data = bytearray(edge.to_executorch().buffer)
    at = data.index(bytes(part.processed_bytes))
    method = Runtime.get().load_program(data).load_method("forward")
    data[at : at + len(part.processed_bytes)] = bytes(len(part.processed_bytes))
    torch.testing.assert_close(torch.as_tensor(method.execute(list(args))[0]), model(*args))


def test_the_registry_knows_what_was_built() -> None:
    assert "NullBackend" in Runtime.get().backend_registry.registered_backend_names


class _Branches(torch.nn.Module):
    def forward(self, x, y):
        chosen = torch.cond(x.sum() > 0, lambda x, y: (x + y) * y, lambda x, y: x * y - y, (x, y))
        return chosen + x


def test_branches_hold_delegates() -> None:
    x, y = torch.randn(3), torch.randn(3)
    edge = to_edge_transform_and_lower(export(_Branches(), (x, y)), partitioner=NullPartitioner())
    assert sum(item.backend is not None for item in edge.delegation().placements) == 4
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(torch.as_tensor(method.execute([x, y])[0]), _Branches()(x, y))


def test_runtime_and_compiler_mean_the_same_second_plan() -> None:
    assert runtime._PORTABLE == pte.PORTABLE
