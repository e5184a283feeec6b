# SPDX-License-Identifier: BSD-3-Clause
# Several memories of a device: automatic placement, placement by the user, and the error if tensors do not fit.
# tests/cli/test_embed.py checks that the runtime keeps the memories separate.

from __future__ import annotations

import pytest
import torch

import torchette
from torchette.devtools.device_memory import tenants
from torchette.devtools.inspect import describe
from torchette.errors import InputError, PlanError
from torchette.exir import ExecutorchBackendConfig, to_edge
from torchette.exir.memory.plan_memory import MemoryPlanningPass

pytestmark = pytest.mark.usefixtures("portable_plan")


class Wide(torch.nn.Module):
    """A wide tensor with one use, and narrow tensors with many uses."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 1024)
        self.down = torch.nn.Linear(1024, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(self.up(x))
        for _ in range(3):
            y = torch.softmax(y, -1) * y
        return y


WIDE, NARROW = 4 * 1024 * 4, 4 * 16 * 4
ARGS = (torch.randn(4, 16),)


def test_hot_small_tensors_are_in_the_fast_memory() -> None:
    model = torchette.compile(
        Wide().eval(), ARGS, device=torchette.Device(arenas={"SRAM": "1K", "DRAM": None})
    )
    assert list(model.arenas()) == ["SRAM", "DRAM"]
    assert 0 < model.arenas()["SRAM"] <= 1024 and model.arenas()["DRAM"] == WIDE
    (method,) = describe(bytes(model.program.buffer)).methods
    assert {t.nbytes for t in tenants(method) if t.memory_id == 2} == {WIDE}
    assert {t.nbytes for t in tenants(method) if t.memory_id == 1} == {NARROW}
    assert [buffer.nbytes for buffer in method.planned_buffers] == list(model.arenas().values())
    torch.testing.assert_close(torch.as_tensor(model(*ARGS)), Wide.forward(model_of(model), *ARGS))


def model_of(model: torchette.Model) -> torch.nn.Module:
    """Returns the module with the weights of the compiled model."""
    module = Wide().eval()
    state = model.program.exported_program().state_dict
    module.load_state_dict({name: state[name] for name in module.state_dict()})
    return module


def test_all_tensors_are_in_the_fast_memory_if_they_fit() -> None:
    model = torchette.compile(
        Wide().eval(), ARGS, device=torchette.Device(arenas={"SRAM": 1 << 20, "DRAM": None})
    )
    assert model.arenas()["DRAM"] == 0 and model.arenas()["SRAM"] == model.planned_bytes


def test_the_user_may_choose_for_single_tensors() -> None:
    class Choosing(MemoryPlanningPass):
        """Places the results of softmax in the second memory."""

        def run(self, graph_module, graph_signature=None):
            for node in graph_module.graph.nodes:
                if node.target is torch.ops.aten._softmax.out:
                    node.meta["spec"].mem_id = 2
            return super().run(graph_module, graph_signature)

    chosen = Choosing(arenas={"SRAM": "64K", "DRAM": None})
    config = ExecutorchBackendConfig(memory_planning_pass=chosen)
    program = to_edge(torch.export.export(Wide().eval(), ARGS)).to_executorch(config)
    living = tenants(describe(program.buffer).methods[0])
    assert {t.maker for t in living if t.memory_id == 2} == {"aten::_softmax.out"}


def test_error_contains_the_missing_bytes() -> None:
    with pytest.raises(PlanError) as caught:
        torchette.compile(Wide().eval(), ARGS, device=torchette.Device(arenas={"SRAM": 256, "DRAM": "8K"}))
    error = caught.value
    assert error.code == "does-not-fit"
    assert "DRAM has 8,192 bytes, 16,384 are needed, 8,192 more" in error.message
    assert "16,384 bytes" in error.where[0] and "self.up(x)" in error.where[0]
    assert error.hints[0] == "increase DRAM to 16,384 bytes"
    # The suggested size is sufficient.
    torchette.compile(Wide().eval(), ARGS, device=torchette.Device(arenas={"SRAM": 256, "DRAM": 16384}))
    with pytest.raises(PlanError, match="1 more"):
        torchette.compile(Wide().eval(), ARGS, device=torchette.Device(arenas={"SRAM": 256, "DRAM": 16383}))


def test_error_suggests_memory_of_the_caller_for_inputs_and_outputs() -> None:
    planned = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(arenas={"A": "1K"}))
    with pytest.raises(PlanError) as caught:
        torchette.compile(torch.nn.Linear(256, 4).eval(), (torch.ones(64, 256),), config=planned)
    assert any("the caller provide" in hint and "0 bytes" in hint for hint in caught.value.hints)


def test_invalid_size_is_rejected() -> None:
    with pytest.raises(InputError, match="arena SRAM: 'much' is not a number of bytes"):
        torchette.compile(Wide().eval(), ARGS, device=torchette.Device(arenas={"SRAM": "much"}))
