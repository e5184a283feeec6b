# SPDX-License-Identifier: BSD-3-Clause
# Control flow in the file, instruction by instruction, and the lifetimes of its tensors.

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.while_loop import while_loop

from tests.exir.graphs import Function, export, lower
from torchette.exir import control_flow, memory, to_edge
from torchette.exir.memory.algorithms import interval
from torchette.exir.memory.plan_memory import MemoryPlanningPass, update_all_tensors_lifetime
from torchette.exir.pass_base import ExportPass

X = torch.randn(4, 3)


def cond(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 2.0, (x,))


def mapped(x):
    return torch_map(lambda row: row.sin(), x)


def loop(x):
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2.0), (torch.tensor(0), x))


LISTINGS = {
    cond: """
        sum.IntList_out
        gt.Tensor_out
        unless 7 goto 5
        sin.out 2 8 8
        unless 5 goto 6
        mul.out 2 1 8 8""",
    mapped: """
        move 6 7
        lt.Scalar 7 2 8
        unless 8 goto 9
        select_copy.int_out 0 6 7 9 9
        sin.out 9 10 10
        et_copy_index.tensor 1 10 7
        add.Scalar 7 11 12
        move 12 7
        unless 13 goto 1""",
    loop: """
        clone.out
        clone.out
        lt.Tensor_out 5 1 8 8
        unless 8 goto 7
        add.out 5 2 9 5 5
        mul.out 7 3 7 7
        unless 10 goto 2""",
}


def listing(function) -> list[str]:
    program = to_edge(export(Function(function), (X,))).to_executorch()
    (plan,) = program.executorch_program.execution_plan
    lines = []
    for instruction in plan.chains[0].instructions:
        call = instruction.instr_args
        kind = type(call).__name__
        if kind == "JumpFalseCall":
            lines.append(f"unless {call.cond_value_index} goto {call.destination_instruction}")
        elif kind == "MoveCall":
            lines.append(f"move {call.move_from} {call.move_to}")
        else:
            op = plan.operators[call.op_index]
            lines.append(f"{op.name.partition('::')[2]}.{op.overload} {' '.join(map(str, call.args))}")
    return lines


@pytest.mark.parametrize("function", LISTINGS, ids=lambda function: function.__name__)
def test_golden_listing(function):
    expected = [line.strip() for line in LISTINGS[function].strip().splitlines()]
    got = listing(function)
    # A line of the listing may omit the last arguments.
    assert [line[: len(right)] for line, right in zip(got, expected, strict=True)] == expected


def test_operands_of_a_loop_live_until_its_last_iteration():
    def function(x):
        y = x.cos()
        z = while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z.sin() + y), (torch.tensor(0), x.exp()))[1]
        return z.tan()

    program, _ = lower(function, (X,))
    MemoryPlanningPass()(program)
    steps, loops = control_flow.timeline(program.graph_module)
    ((start, end),) = loops
    cos = next(node for node in program.graph.nodes if "cos" in str(node.target))
    assert cos.meta["spec"].lifetime[0] < start and cos.meta["spec"].lifetime[1] == end
    body = [step.node for step in steps if step.loops]
    sines = [node for node in body if "sin" in str(node.target)]
    assert sines and all(start < node.meta["spec"].root.lifetime[0] for node in sines)


def test_branches_of_a_cond_share_memory():
    def side(x):
        return (x.repeat(4, 4).sin() @ x.repeat(4, 4).t()).sum(1)[:4]

    program, _ = lower(lambda x: torch.cond(x.sum() > 0, side, lambda x: side(x.neg()), (x,)) + x[:, 0], (X,))
    MemoryPlanningPass()(program)
    call = next(node for node in program.graph.nodes if control_flow.name(node.target) == "cond")
    used = [
        {node.meta["spec"].root.mem_offset for node in branch.graph.nodes if "spec" in node.meta}
        for branch in control_flow.branches(call)
    ]
    assert len(used[0] & used[1]) > 1
    specs = [
        spec
        for spec in update_all_tensors_lifetime(program.graph_module, program.graph_signature)
        if not spec.const
    ]
    memory.check([interval(spec) for spec in specs], [spec.mem_offset for spec in specs], 16)
    # The plan is invalid if both are live at the same time.
    specs[-1].lifetime = [0, len(list(control_flow.timeline(program.graph_module).steps))]
    with pytest.raises(memory.PlanViolation):
        memory.check(
            [interval(spec)._replace(first=0, last=10**6) for spec in specs],
            [spec.mem_offset for spec in specs],
            16,
        )


def test_export_passes_visit_every_branch():
    visited = []

    class Visit(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            visited.append(op)
            if op == torch.ops.aten.sin.default:
                op = torch.ops.aten.cos.default
            return super().call_operator(op, args, kwargs, meta)

        def call_cond(self, pred, true_fn, false_fn, inputs, meta):
            visited.append("cond")
            return super().call_cond(pred, true_fn, false_fn, inputs, meta)

        def call_map(self, f, mapped_args, operands, meta):
            visited.append("map")
            return super().call_map(f, mapped_args, operands, meta)

        def call_while(self, cond_fn, body_fn, carried_inputs, additional_inputs, meta):
            visited.append("while")
            return super().call_while(cond_fn, body_fn, carried_inputs, additional_inputs, meta)

    def function(x):
        y = torch.cond(x.sum() > 0, lambda x: torch_map(lambda row: row.sin(), x), lambda x: x + 1, (x,))
        return while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y.sin()), (torch.tensor(0), y))[1]

    edge = to_edge(export(Function(function), (X,))).transform([Visit()])
    assert {"cond", "map", "while"} <= set(visited)
    calls = {
        node.target
        for module in control_flow.graphs(edge.exported_program().graph_module)
        for node in module.graph.nodes
    }
    assert torch.ops.aten.cos.default in calls and torch.ops.aten.sin.default not in calls
    edge.to_executorch()
