# SPDX-License-Identifier: BSD-3-Clause
# Dim orders and bounds of sizes, under ExecuTorch's names, and records of a program.

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torchette.exir.dim_order_utils import (
    get_dim_order,
    get_memory_format,
    is_channel_last_dim_order,
    is_contiguous_dim_order,
)
from torchette.exir.sym_util import eval_expr, eval_shape, eval_shape_upper_bound, eval_upper_bound

from torchette.exir import schema, to_edge
from torchette.exir.graph import lift_constant_tensor_pass
from torchette.exir.tensor import (
    TensorShapeDynamism,
    contiguous_stride_from_shape,
    determine_tensor_dynanism,
    dim_order_from_stride,
)


@pytest.mark.parametrize(
    ("memory_format", "shape"),
    [
        (torch.contiguous_format, (2, 3)),
        (torch.contiguous_format, ()),
        (torch.channels_last, (1, 2, 3, 4)),
        (torch.channels_last_3d, (1, 2, 3, 4, 5)),
    ],
)
def test_formats_are_orders_of_dimensions(memory_format: torch.memory_format, shape: tuple[int, ...]) -> None:
    order = get_dim_order(memory_format, len(shape))
    assert order is not None and get_memory_format(order) is memory_format
    tensor = torch.empty(shape).to(memory_format=memory_format)
    assert tuple(order) == tensor.dim_order() == dim_order_from_stride(tensor.stride())
    assert is_contiguous_dim_order(tensor) == (memory_format is torch.contiguous_format)
    assert is_channel_last_dim_order(tensor) == (memory_format is torch.channels_last)


def test_other_orders() -> None:
    assert get_dim_order(None, 3) is get_dim_order(torch.preserve_format, 3) is None
    assert get_memory_format(None) is torch.preserve_format
    with pytest.raises(ValueError, match="rank 4, not 3"):
        get_dim_order(torch.channels_last, 3)
    with pytest.raises(ValueError, match=r"\[1, 0\] is not a memory format"):
        get_memory_format([1, 0])
    assert dim_order_from_stride((1, 4)) == (1, 0)
    with pytest.raises(ValueError, match="a stride of 0 has no dim order"):
        dim_order_from_stride((0, 1))
    assert contiguous_stride_from_shape((2, 3, 4)) == (12, 4, 1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + torch.tensor([1.0, 2.0])


def exported(most: int | None) -> torch.export.ExportedProgram:
    shapes = {"x": {0: torch.export.Dim("n", max=most) if most else torch.export.Dim("n")}}
    return torch.export.export(Net(), (torch.ones(3, 4),), dynamic_shapes=shapes)


def test_ratio_of_a_size_and_its_count_of_groups_has_a_tight_bound() -> None:
    shapes = ({0: torch.export.Dim("n", min=8, max=1024)},)
    program = torch.export.export(nn.ReLU(), (torch.ones(12),), dynamic_shapes=shapes)
    n = next(node for node in program.graph.nodes if node.op == "placeholder").meta["val"].shape[0]
    assert eval_upper_bound(n // (n // 4)) == 7 and eval_upper_bound(n // (n // 4) * (n // 8)) == 7 * 128
    assert max(size // (size // 4) for size in range(8, 1025)) == 5


def test_bounds_follow_a_new_range() -> None:
    program = exported(1024)
    n = next(node for node in program.graph.nodes if node.name == "x").meta["val"].shape[0]
    assert eval_upper_bound(2 * n) == 2048
    torch._check(n <= 40)
    assert eval_upper_bound(2 * n) == 80


def test_sizes_have_bounds_and_examples() -> None:
    for most, bound in ((9, 9), (None, sys.maxsize)):
        (value,) = (node.meta["val"] for node in exported(most).graph.nodes if node.name == "x")
        size = value.shape[0]
        assert (eval_expr(size), eval_upper_bound(size)) == (3, bound)
        assert (eval_shape(value.shape), eval_shape_upper_bound(value.shape)) == ([3, 4], [bound, 4])
        expected = TensorShapeDynamism.DYNAMIC_BOUND if most else TensorShapeDynamism.DYNAMIC_UNBOUND
        assert determine_tensor_dynanism(value.shape) is expected
    assert (
        determine_tensor_dynanism((1, 2)) is TensorShapeDynamism.STATIC
        and eval_expr(7) == eval_upper_bound(7) == 7
    )


def test_records_of_a_program() -> None:
    program = to_edge(exported(9)).to_executorch().executorch_program
    assert isinstance(program, schema.Program)
    (plan,) = program.execution_plan
    calls = [instruction.instr_args for instruction in plan.chains[0].instructions]
    assert all(isinstance(call, schema.KernelCall) for call in calls)
    tensors = [value.val for value in plan.values if isinstance(value.val, schema.Tensor)]
    places = [tensor.allocation_info for tensor in tensors if tensor.allocation_info]
    assert {tensor.scalar_type for tensor in tensors} == {schema.ScalarType.FLOAT} and places
    assert all(0 <= place.memory_offset < plan.non_const_buffer_sizes[place.memory_id] for place in places)
    assert schema.AllocationDetails(1, 5, 2).memory_offset == 5 + (2 << 32)


def test_tensors_of_attributes_become_constants() -> None:
    program = exported(9)
    graph = program.graph
    program.graph_module.register_buffer("two", torch.full((2,), 2.0))
    output = graph.output_node()
    (result,) = output.args[0]
    with graph.inserting_before(output):
        two = graph.get_attr("two")
        total = graph.call_function(torch.ops.aten.add.Tensor, (result, two))
    total.meta["val"], two.meta["val"] = result.meta["val"], torch.full((2,), 2.0)
    output.args = ((total,),)
    program.graph_signature.output_specs[0].arg.name = total.name  # type: ignore[union-attr]
    lift_constant_tensor_pass(program)
    assert not [node for node in graph.nodes if node.op == "get_attr"]
    x = torch.ones(3, 4)
    expected = torch.relu(nn.functional.linear(x, *program.state_dict.values())) + torch.tensor([3.0, 4.0])
    torch.testing.assert_close(program.module()(x), expected)
