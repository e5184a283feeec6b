# SPDX-License-Identifier: BSD-3-Clause
# In: the records of a program, or a graph. Out: text, with ExecuTorch's function names (executorch.exir.print_program).
"""`print_program`: prints the instructions of a program, one per line."""

from __future__ import annotations

import pprint
import sys
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING

from torchette.devtools.inspect import DTYPES
from torchette.format.schema import Record

if TYPE_CHECKING:
    from torch.fx import Graph, Node


def print_program(
    program: Record,
    show_meminfo: bool = True,
    mark_dynamic_shape_tensor: bool = False,
    out: IO[str] | None = None,
) -> None:
    """Prints the instructions of all methods of a program.

    Args:
        program: the program's record, such as ``ExecutorchProgramManager.executorch_program``.
        show_meminfo: print the memory id and offset of each tensor.
        mark_dynamic_shape_tensor: print "at most" or "unbounded" for dynamic shapes.
        out: stream to write to; standard output by default.
    """
    out = out or sys.stdout
    for plan in program.execution_plan:
        print(f"{plan.name}:", file=out)
        texts = [_value(value.val, show_meminfo, mark_dynamic_shape_tensor) for value in plan.values]

        def listed(indices: Iterable[int], texts: list[str] = texts) -> str:
            return ", ".join(f"%{index}: {texts[index]}" for index in indices)

        for number, chain in enumerate(plan.chains):
            for at, instruction in enumerate(chain.instructions):
                where = f"{number}.{at}" if len(plan.chains) > 1 else f"{at}"
                print(f"  {where:>4}: {_instruction(plan, instruction.instr_args, listed)}", file=out)


def _instruction(plan: Record, call: Record, listed: Callable[[Iterable[int]], str]) -> str:
    kind = type(call).__name__
    if kind == "KernelCall":
        operator = plan.operators[call.op_index]
        return (
            f"{operator.name}{'.' if operator.overload else ''}{operator.overload or ''}({listed(call.args)})"
        )
    if kind == "DelegateCall":
        return f"{plan.delegates[call.delegate_index].id} {call.delegate_index}({listed(call.args)})"
    if kind == "MoveCall":
        return f"move {listed([call.move_from])} to {listed([call.move_to])}"
    if kind == "JumpFalseCall":
        return f"to {call.destination_instruction} if not {listed([call.cond_value_index])}"
    return f"free {listed([call.value_index])}"


def _value(value: Record, place: bool, dynamism: bool) -> str:
    kind = type(value).__name__
    if kind != "Tensor":
        fields = [getattr(value, name) for name in getattr(value, "__dataclass_fields__", ())]
        return repr(fields[0]) if fields else "None"
    dtype = DTYPES.get(value.scalar_type.name, value.scalar_type.name.lower())
    bound = {0: "", 1: " at most", 2: " unbounded"}[int(value.shape_dynamism)] if dynamism else ""
    text = f"{dtype}{bound}{list(value.sizes)}"
    if value.data_buffer_idx and not value.allocation_info:
        return f"{text} constant"
    if place and value.allocation_info:
        text += f" in {value.allocation_info.memory_id} at {value.allocation_info.memory_offset}"
    return text


def pretty_print(obj: object, indent: int = 0, out: IO[str] | None = None) -> None:
    """Prints a record with all of its fields."""
    pprint.pprint(obj, stream=out, indent=max(1, indent))


def add_cursor_to_graph(graph: Graph, finding_node: Node) -> str:
    """Returns a graph as text, with an arrow at a node."""
    lines = []
    for node in graph.nodes:
        text = node.format_node() or f"return {node.args[0]}"
        lines.append(f"{'-->' if node is finding_node else '   '} {text}")
    return "\n".join(lines)


def inspect_node(graph: Graph, node: Node) -> str:
    """Returns the text of `add_cursor_to_graph`, and the stack trace of the model code that created the node."""
    trace = node.meta.get("stack_trace")
    return add_cursor_to_graph(graph, node) + (
        f"\nTraceback (most recent call last):\n{trace}" if trace else ""
    )
