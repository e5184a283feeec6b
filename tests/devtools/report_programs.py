# SPDX-License-Identifier: BSD-3-Clause
# Programs for tests of reports: encoders with any number of layers, written as records, without the compiler.

from __future__ import annotations

from typing import Any

from torchette.format import pte

WIDTH = 64
STEPS = (  # module in a layer, its class, operator, whether it has a weight, inputs: names of previous steps
    ("attention.query", "Linear", "aten::mm", True, ("in",)),
    ("attention.key", "Linear", "aten::mm", True, ("in",)),
    ("attention.value", "Linear", "aten::mm", True, ("in",)),
    ("attention", "Attention", "aten::mm", False, ("attention.query", "attention.key")),
    ("attention", "Attention", "aten::tanh", False, (-1,)),
    ("attention", "Attention", "aten::mm", False, (-1, "attention.value")),
    ("norm", "Norm", "aten::mm", True, (-1,)),
    ("mlp.up", "Linear", "aten::mm", True, (-1,)),
    ("mlp.act", "Sigmoid", "aten::sigmoid", False, (-1,)),
    ("mlp.down", "Linear", "aten::mm", True, (-1,)),
)


def encoder(layers: int, *, modules: bool = True, name: str = "forward") -> bytes:
    """A program with 10 instructions per layer, each with module and line, and a residual addition in each layer."""
    values: list[Any] = []
    operators: dict[str, int] = {}
    instructions, lines, weights = [], [], [b""]

    def tensor(**place: Any) -> int:
        record = pte.Tensor(scalar_type=pte.ScalarType.FLOAT, sizes=[WIDTH, WIDTH], dim_order=[0, 1], **place)
        values.append(pte.EValue(record))
        return len(values) - 1

    nbytes = WIDTH * WIDTH * 4
    slots = 4  # of planned memory, used in turn; the last one contains the residual stream

    def planned(slot: int) -> int:
        return tensor(allocation_info=pte.AllocationDetails(1, slot * nbytes, 0))

    def weight() -> int:
        weights.append(bytes([len(weights) % 251]) * nbytes)
        return tensor(data_buffer_idx=len(weights) - 1)

    def call(op: str, inputs: list[int], out: int, module: str, kind: str, line: int) -> None:
        index = operators.setdefault(op, len(operators))
        instructions.append(pte.Instruction(pte.KernelCall(index, [*inputs, out, out])))
        frames = [pte.Frame("", 0, module, kind)] if modules else []
        lines.append(pte.FrameList([*frames, pte.Frame("encoder.py", line, "forward", "")]))

    one = len(values)
    values.append(pte.EValue(pte.Int(1)))
    source = tensor(extra_tensor_info=pte.ExtraTensorInfo(fully_qualified_name="x"))
    stream = source
    for layer in range(layers):
        value_of: dict[Any, int] = {"in": stream}
        for number, (module, kind, op, weighted, operands) in enumerate(STEPS):
            inputs = [value_of[operand] for operand in operands]
            out = planned(number % slots)
            if weighted:
                inputs.append(weight())
            call(op, inputs, out, f"layers.{layer}.{module}", kind, 10 + number)
            value_of[module] = value_of[-1] = out
        out = planned(slots + layer % 2)
        call("aten::add", [stream, value_of[-1], one], out, f"layers.{layer}", "Layer", 30)
        stream = out
    plan = pte.ExecutionPlan(
        name=name,
        values=values,
        inputs=[source],
        outputs=[stream],
        chains=[pte.Chain(instructions=instructions, stacktrace=lines)],
        operators=[pte.Operator(op, "out") for op in operators],
        non_const_buffer_sizes=[0, (slots + min(layers, 2)) * nbytes],
    )
    return bytes(pte.write(pte.Program(execution_plan=[plan]), weights))


SOURCE = "\n".join(
    f"value_{n} = {n}  # line {n}" if n != 12 else "hidden = self.query(x) <b>" for n in range(1, 60)
)
