# SPDX-License-Identifier: BSD-3-Clause
# The memory bill: lifetimes and diagrams of a small memory plan.
# tests/models/test_heapless.py checks that the runtime allocates exactly the billed bytes.

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest
import torch

import torchette
from torchette import runtime
from torchette.devtools import arena_picture
from torchette.devtools.device_memory import Tenant, bills, tenants
from torchette.devtools.inspect import describe
from torchette.errors import InputError
from torchette.exir import ExecutorchBackendConfig
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.targets import PROCESSORS, processor

pytestmark = pytest.mark.usefixtures("portable_plan")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 16)
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return torch.softmax(self.linear(x), -1) * self.count.sum()


@pytest.fixture(scope="module")
def file() -> bytes:
    torch.manual_seed(0)
    return bytes(torchette.compile(Net().eval(), (torch.ones(2, 8),)).program.buffer)


def test_bill_lists_every_memory(file: bytes) -> None:
    (bill,) = bills(file, "cortex-m4")
    (wide,) = bills(file, "riscv64", temp=False)
    assert bill.method_name == "forward" and bill.target == "cortex-m4"
    assert (bill.lent_inputs, bill.lent_outputs) == (2 * 8 * 4, 2 * 16 * 4)
    assert bill.constants >= (8 * 16 + 16) * 4
    assert bill.method < wide.method and wide.temp is None
    assert bill.temp is None or bill.ram == sum(bill.planned) + bill.method + bill.temp.most
    assert [name for name, *_ in bill.rows()][:2] == ["planned 1", "method"]


def test_unknown_target_raises_with_known_targets() -> None:
    with pytest.raises(InputError, match="no target 'z80'") as caught:
        processor("z80")
    assert all(name in str(caught.value) for name in PROCESSORS)


def test_lifetime_is_first_to_last_use(file: bytes) -> None:
    (method,) = describe(file).methods
    end = len(method.instructions) - 1
    living = tenants(method)
    state = [t for t in living if t.maker == "state"]
    assert [(t.first, t.last) for t in state] == [(0, end)] and state[0].nbytes == 16
    linear = next(t for t in living if t.maker == "aten::linear.out")
    users = [i.index for i in method.instructions if linear.value in i.inputs]
    assert (linear.first, linear.last) == (
        next(i.index for i in method.instructions if linear.value in i.outputs),
        max(users),
    )


def test_tensors_across_loop_boundary_live_throughout_loop() -> None:
    class Steps(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((x + 1) * x).sin().cos() @ x

    planned = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass())
    (method,) = describe(
        torchette.compile(Steps(), (torch.ones(4, 4),), config=planned).program.buffer
    ).methods
    before = {t.value: (t.first, t.last) for t in tenants(method)}
    end = len(method.instructions)
    assert end == 5
    # a jump from after the sine back to the multiplication: tensors that cross the loop boundary live throughout the
    # loop
    jump = dataclasses.replace(method.instructions[0], index=end, kind="jump_false", inputs=[], outputs=[])
    jump.destination = 1
    method.instructions.append(jump)
    after = {t.value: (t.first, t.last) for t in tenants(method)}
    for value, (first, last) in before.items():
        if last == 0:
            assert after[value] == (first, last)
        elif first < 1:
            assert after[value] == (first, end)
    assert any(first < 1 <= last for first, last in before.values())


def test_diagram_shows_offsets_and_lifetimes() -> None:
    living = [
        Tenant(0, "x", 1, 0, 32, 0, 1, "input"),
        Tenant(1, "y", 1, 32, 32, 1, 3, "aten::neg.out"),
    ]
    assert arena_picture.text(living, 64, 4, height=2).splitlines() == [
        "32 ·bbb",
        " 0 aa··",
        "   0  3 instruction",
    ]
    drawn = arena_picture.svg("a < b", [("planned 1", living, 64)], 4)
    root = ElementTree.fromstring(drawn)
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "a < b" and len(titles) == 3 and "32 bytes at 32" in str(titles[2])
    assert "prefers-color-scheme: dark" in drawn
    light, dark = (
        arena_picture.svg("a", [("planned 1", living, 64)], 4, theme=name) for name in ("light", "dark")
    )
    assert light != dark and "prefers-color-scheme" not in light + dark


# ---- scratch memory ----


LEVEL = runtime.kernel_levels()[-1]
FLOAT, LONG, BOOL = 6, 4, 11


def tensor(*sizes: int, dtype: int = FLOAT) -> tuple:
    return (dtype, sizes, tuple(range(len(sizes))))


def test_scratch_memory_is_kernel_request() -> None:
    # a sort stores a row of (key, index) pairs of 16 bytes
    outputs = [tensor(3, 100), tensor(3, 100, dtype=LONG)]
    assert runtime.scratch_bytes("aten::sort.values", [tensor(3, 100), 1, False, *outputs], LEVEL) == (
        1600,
        1600,
    )
    assert runtime.scratch_bytes("aten::relu.out", [tensor(3), tensor(3)], LEVEL) == (0, 0)


def test_scratch_memory_of_matmul_is_bounded() -> None:
    lanes = 4  # of the lowest level, which microcontrollers also use
    most = 384 * (3 * lanes + 1) * 4  # a panel of maximum depth, and the next column
    num_bytes = {}
    for rows, inner, columns in ((1, 64, 64), (2, 0, 8), (2, 16, 8), (8, 16, 8), (8, 2000, 500)):
        arguments = [tensor(rows, inner), tensor(columns, inner), tensor(columns), tensor(rows, columns)]
        need = runtime.scratch_bytes("aten::linear.out", arguments, LEVEL)
        assert need is not None and need[0] == need[1] <= most
        num_bytes[rows, inner, columns] = need[0]
    assert num_bytes[1, 64, 64] == 0  # matrix-vector multiplication reads both in place
    assert num_bytes[2, 16, 8] == num_bytes[8, 16, 8] <= 16 * (8 + 1) * 4
    image, point = tensor(1, 8, 16, 16), tensor(8, 8, 1, 1)
    arguments = [image, point, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, image]
    convolution = runtime.scratch_bytes("aten::convolution.out", arguments, LEVEL)
    assert convolution is not None and convolution[0] <= 4096


def test_mask_is_billed_as_all_true() -> None:
    arguments = [tensor(5, 4), [tensor(5, 4, dtype=BOOL)], tensor(20)]
    assert runtime.scratch_bytes("aten::index.Tensor_out", arguments, LEVEL) == (2 * 20 * 8, 2 * 20 * 8)


@pytest.mark.parametrize(
    "arguments",
    [[], [None, None], [tensor(2, 3), tensor(5, 7), tensor(2, 7)], ["text", 1, 2], [tensor(-1, 2)] * 3],
)
def test_failing_call_has_no_figure(arguments: list) -> None:
    assert runtime.scratch_bytes("aten::mm.out", arguments, LEVEL) is None
    assert runtime.scratch_bytes("aten::no_such.out", arguments, LEVEL) is None


def test_dynamic_sizes_are_marked() -> None:
    shapes = ({0: torch.export.Dim("n", min=2, max=64)},)
    model = torchette.compile(torch.nn.Linear(32, 32).eval(), (torch.ones(4, 32),), dynamic_shapes=shapes)
    (bill,) = bills(bytes(model.program.buffer))
    assert bill.temp is not None and bill.temp.varies and bill.temp.most > 0
    assert any("maximum sizes" in remark for *_, remark in bill.rows())


def test_kernels_are_not_called_with_non_strings() -> None:
    """A file can refer to any value as an argument; here, a tensor replaces the string argument of gelu."""
    tensor = (6, (2,), (0,))
    assert (
        runtime.scratch_bytes("aten::gelu.out", [tensor, tensor, tensor], runtime.kernel_levels()[0]) is None
    )
