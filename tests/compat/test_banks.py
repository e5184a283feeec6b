# SPDX-License-Identifier: BSD-3-Clause
# Memory planning over the banks of a device, with ExecuTorch's names.

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchette.compat.banks import (
    Bank,
    BankedGreedy,
    BankPlacementError,
    TargetMemoryMap,
    banked_memory_planning_pass,
    format_placement_report,
    planned_mem_ids,
)
from torchette.exir import ExecutorchBackendConfig, to_edge
from torchette.exir.tensor import TensorSpec
from torchette.runtime import Runtime


def spec(size: int, first: int = 0, last: int = 9, mem_id: int | None = None) -> TensorSpec:
    tensor_spec = TensorSpec(torch.uint8, [size])
    tensor_spec.lifetime, tensor_spec.mem_id = [first, last], mem_id
    return tensor_spec


def planned(banks: list[Bank], specs: list[TensorSpec], padding: int = 0) -> tuple[list[int], list[int]]:
    module = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    result = BankedGreedy(TargetMemoryMap(banks))(16, specs, module, None, padding)
    return result.bufsizes, [result.spec_dict[one].mem_id for one in specs]


FAST, SLOW = Bank("fast", 256, 1), Bank("slow", 4096, 2)


def test_best_bank_is_filled_first() -> None:
    sizes, ids = planned([FAST, SLOW], [spec(100), spec(100)])
    assert (sizes, ids) == ([0, 224, 0], [1, 1])
    sizes, ids = planned([FAST, SLOW], [spec(100), spec(100), spec(100)])
    assert sorted(ids) == [1, 1, 2] and sizes == [0, 224, 112]
    # Tensors with disjoint lifetimes share the bank.
    assert planned([FAST, SLOW], [spec(200, t, t) for t in range(5)]) == ([0, 208, 0], [1] * 5)
    # The order of the list determines the priority, not the ids.
    assert planned([Bank("b", 256, 7), Bank("a", 4096, 3)], [spec(16)])[1] == [7]


def test_specs_with_memory_id_keep_it() -> None:
    sizes, ids = planned([FAST, SLOW], [spec(200), spec(200, mem_id=1), spec(8, mem_id=5)])
    assert ids == [2, 1, 5] and sizes == [0, 208, 208, 0, 0, 16]


def test_bank_alignment_and_padding() -> None:
    banks = [Bank("fast", 256, 1, alignment=64), SLOW]
    sizes, ids = planned(banks, [spec(10), spec(10)], padding=8)
    assert (sizes, ids) == ([0, 136, 0], [1, 1])
    with pytest.raises(
        BankPlacementError, match="alignment 24, which is not a multiple of the plan's alignment, 16"
    ):
        planned([Bank("odd", 256, 1, alignment=24)], [spec(1)])


def test_oversized_tensors_raise() -> None:
    with pytest.raises(BankPlacementError, match="bank slow has 4,096 bytes, 4,112 are needed"):
        planned([FAST, SLOW], [spec(4100)])
    with pytest.raises(BankPlacementError, match="bank fast has 256 bytes"):
        planned([FAST, SLOW], [spec(300, mem_id=1)])


@pytest.mark.parametrize(
    ("banks", "words"),
    [
        ([], "at least one bank"),
        ([FAST, Bank("fast", 9, 2)], "the same name: fast"),
        ([FAST, Bank("other", 9, 1)], "the same mem_id: 1"),
        ([Bank("x", 0, 1)], "bank x: size 0"),
        ([Bank("x", 9, 0)], "bank x: mem_id 0"),
        ([Bank("x", 9, 1, 0)], "bank x: alignment 0"),
    ],
)
def test_invalid_banks_raise(banks: list[Bank], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TargetMemoryMap(banks)


def test_target_memory_map_lookups() -> None:
    target = TargetMemoryMap([FAST, SLOW])
    assert target.mem_ids() == [1, 2] and target.manages(2) and not target.manages(3)
    assert target.bank(2) is SLOW and target.mem_id("fast") == 1
    with pytest.raises(ValueError, match="no bank has mem_id 4"):
        target.bank(4)
    with pytest.raises(
        ValueError, match=r"no bank has name 'x'; the banks are fast\(mem_id=1, size=256\), slow"
    ):
        target.mem_id("x")


def test_model_runs_from_two_banks() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = torch.sin(x @ y) + x
            return x

    inputs = (torch.rand(16, 16), torch.rand(16, 16))
    target = TargetMemoryMap([Bank("fast", 2048, 1), Bank("slow", 1 << 16, 2)])
    config = ExecutorchBackendConfig(memory_planning_pass=banked_memory_planning_pass(target))
    program = to_edge(torch.export.export(Net(), inputs)).to_executorch(config)
    graph = program.exported_program().graph_module
    sizes, ids = graph.meta["non_const_buffer_sizes"], planned_mem_ids(graph)
    assert {1, 2} == set(ids) and sizes[1] <= 2048 and sizes[2] > 0
    report = format_placement_report(target, sizes, ids)
    assert report.splitlines()[-1] == f"{sizes[1] + sizes[2]:,} bytes in 2 banks"
    (result,) = Runtime.get().load_program(program.buffer).load_method("forward").execute(inputs)
    torch.testing.assert_close(result, Net()(*inputs))
    small = TargetMemoryMap([Bank("fast", 1024, 1)])
    with pytest.raises(BankPlacementError):
        config = ExecutorchBackendConfig(memory_planning_pass=banked_memory_planning_pass(small))
        to_edge(torch.export.export(Net(), inputs)).to_executorch(config)
    with pytest.raises(ValueError, match="memory id 2"):
        banked_memory_planning_pass(target, share_mutable_buffers=True)
