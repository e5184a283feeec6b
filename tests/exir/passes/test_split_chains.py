# SPDX-License-Identifier: BSD-3-Clause
# Independent branches become chains. Their results are unchanged, and chains do not share memory.

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchette
from torchette.devtools.inspect import MethodInfo, describe
from torchette.exir import ExecutorchBackendConfig
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.format import pte

pytestmark = pytest.mark.usefixtures("portable_plan")


class Branches(nn.Module):
    def __init__(self, function: Callable[[Branches, Tensor], Tensor | tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.function = function
        self.a, self.b, self.c, self.d = (nn.Linear(64, 64) for _ in range(4))
        self.register_buffer("state", torch.zeros(64, 64))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.function(self, x)


def _stateful(m: Branches, x: Tensor) -> Tensor:
    left = m.a(x)
    m.state.add_(left)
    return torch.relu(m.b(x)) + m.state


CASES: dict[str, tuple[Callable, int]] = {
    "two_and_a_sum": (lambda m, x: m.a(torch.relu(m.a(x))) + m.b(torch.tanh(m.b(x))), 2),
    "three_and_a_cat": (lambda m, x: torch.cat([m.a(x), m.b(x).relu(), m.c(x).sin()], 1), 3),
    "behind_a_stem": (lambda m, x: m.d(m.a(y).sigmoid() * m.b(y).cos()) if (y := m.c(x)) is not None else x, 2),
    "two_results": (lambda m, x: (m.a(m.a(x)), m.b(m.b(x))), 2),
    "views": (lambda m, x: m.a(x.t()).t() + m.b(x).view(64, 64).flatten().view(64, 64), 2),
    "a_state": (_stateful, 2),
}  # fmt: skip


def _chains(model: torchette.CompiledModel) -> list[int]:
    (plan,) = pte.read(model.program.buffer).program.execution_plan
    return [len(chain.instructions) for chain in plan.chains]


@pytest.mark.parametrize("name", CASES)
def test_branches_become_chains_with_equal_results(name: str) -> None:
    torch.manual_seed(0)
    function, most = CASES[name]
    module, x = Branches(function).eval(), torch.randn(64, 64)
    plain = torchette.compile(module, (x,))
    split = torchette.compile(module, (x,), config=ExecutorchBackendConfig(parallel=4))
    assert len(_chains(plain)) == 1 and sum(_chains(split)) == sum(_chains(plain))
    notes = split.report().notes("split_chains")
    assert any(f"{most} chains" in note for note in notes), notes
    for _ in range(2):
        for one, result in zip(
            torch.utils._pytree.tree_leaves(plain(x)), torch.utils._pytree.tree_leaves(split(x)), strict=True
        ):
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(result))


@pytest.mark.parametrize("name", ["two_and_a_sum", "three_and_a_cat", "behind_a_stem"])
def test_chains_share_no_memory(name: str) -> None:
    module, x = Branches(CASES[name][0]).eval(), torch.randn(64, 64)
    model = torchette.compile(
        module, (x,), config=ExecutorchBackendConfig(parallel=4, memory_planning_pass=MemoryPlanningPass())
    )
    (method,) = describe(model.program.buffer).methods
    (plan,) = pte.read(model.program.buffer).program.execution_plan
    start, touched = 0, []
    for chain in plan.chains:
        steps = method.instructions[start : start + len(chain.instructions)]
        start += len(chain.instructions)
        touched.append(({i for s in steps for i in s.inputs}, {i for s in steps for i in s.outputs}))
    first = 1 if name == "behind_a_stem" else 0
    (_, writes), (read_by_second, written) = touched[first : first + 2]
    assert writes and written
    for value in writes:
        for accessed in read_by_second | written:
            assert not _overlap(method, value, accessed), f"%{value} of one chain and %{accessed} of another"


def _overlap(method: MethodInfo, one: int, other: int) -> bool:
    a, b = method.values[one].tensor, method.values[other].tensor
    if a is None or b is None or a.memory_offset is None or b.memory_offset is None:
        return False
    return (
        a.memory_id == b.memory_id
        and a.memory_offset < b.memory_offset + b.nbytes
        and b.memory_offset < a.memory_offset + a.nbytes
    )


def test_light_or_sequential_graph_stays_one_chain() -> None:
    x = torch.randn(4, 4)
    light = torchette.compile(nn.Identity().eval(), (x,), config=ExecutorchBackendConfig(parallel=2))
    assert len(_chains(light)) == 1

    class Light(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin() + x.cos()

    assert len(_chains(torchette.compile(Light(), (x,), config=ExecutorchBackendConfig(parallel=2)))) == 1
    path = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    assert (
        len(
            _chains(
                torchette.compile(path, (torch.randn(64, 64),), config=ExecutorchBackendConfig(parallel=2))
            )
        )
        == 1
    )
