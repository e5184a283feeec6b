# SPDX-License-Identifier: BSD-3-Clause
# Writes a .pte file with one value and instruction of each kind, constants, initial data, dynamic sizes, a tensor in the
# caller's memory and a view of it. The C++ tests load, execute and mutate it.
#
# Its method "forward" on x: float32[n <= 4, 3] and flag: bool returns
#   0: x + weight                     planned, weight = [1, 2, 3]
#   1: x * 2 if flag is true, else x * 3; in the caller's memory
#   2: n as an int
#   3: the state, 10 + the number of executions, float32[1]
# Its method "delegated" on x: float32[2] delegates to the backend "test", with a payload and an option, and returns a copy of x.
# Its named data: "first", "second" and "third", of 1, 2 and 3 bytes.
# Its method "loop" on limit: int returns the number of iterations of a loop that ends at the limit.

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

from torchette.format import bundled, ptd, pte

FLOAT, LONG, BOOL = pte.ScalarType.FLOAT, pte.ScalarType.LONG, pte.ScalarType.BOOL
BOUND = pte.TensorShapeDynamism.DYNAMIC_BOUND


class Builder:
    def __init__(self) -> None:
        self.values: list[Any] = []
        self.operators: list[Any] = []
        self.instructions: list[Any] = []
        self.delegates: list[Any] = []

    def value(self, record: Any) -> int:
        self.values.append(pte.EValue(record))
        return len(self.values) - 1

    def tensor(
        self, sizes: list[int], at: int | None = None, data: int = 0, dtype: Any = FLOAT, **more: Any
    ) -> int:
        allocation = None if at is None else pte.AllocationDetails(1, at, 0)
        return self.value(
            pte.Tensor(
                scalar_type=dtype,
                sizes=sizes,
                dim_order=bytes(range(len(sizes))),
                data_buffer_idx=data,
                allocation_info=allocation,
                **more,
            )
        )

    def ints(self, *numbers: int) -> int:
        return self.value(pte.IntList([self.value(pte.Int(n)) for n in numbers]))

    def call(self, name: str, overload: str, *args: int) -> None:
        operator = pte.Operator(name, overload)
        if operator not in self.operators:
            self.operators.append(operator)
        self.do(pte.KernelCall(self.operators.index(operator), list(args)))

    def do(self, record: Any) -> None:
        self.instructions.append(pte.Instruction(record))

    def plan(self, name: str, inputs: list[int], outputs: list[int], planned: int = 0) -> Any:
        return pte.ExecutionPlan(
            name=name,
            container_meta_type=pte.ContainerMetadata("", ""),
            values=self.values,
            inputs=inputs,
            outputs=outputs,
            chains=[pte.Chain(inputs=[], outputs=[], instructions=self.instructions)],
            operators=self.operators,
            delegates=self.delegates,
            non_const_buffer_sizes=[0, planned] if planned else [0],
        )


def forward() -> Any:
    b = Builder()
    x = b.tensor([4, 3], shape_dynamism=BOUND)
    flag = b.value(pte.Bool(True))
    weight = b.tensor([3], data=1)
    total = b.tensor([4, 3], at=0, shape_dynamism=BOUND)
    scaled = b.tensor([4, 3], shape_dynamism=BOUND)
    n = b.value(pte.Int(0))
    state_info = pte.ExtraTensorInfo(mutable_data_segments_idx=0, fully_qualified_name="state")
    state = b.tensor([1], at=64, data=1, extra_tensor_info=state_info)
    one, two, three = (b.value(pte.Double(v)) for v in (1.0, 2.0, 3.0))
    view = b.tensor([12], shape_dynamism=BOUND)
    flat = b.tensor([12], at=128, shape_dynamism=BOUND)
    size = b.value(pte.IntList([b.value(pte.Int(-1))]))
    zero = b.value(pte.Int(0))
    none = b.value(pte.Null())
    factor = b.value(pte.Double(0.0))
    mode = b.value(pte.String("none"))
    doubles, bools = b.value(pte.DoubleList([0.5, 2.0])), b.value(pte.BoolList([True, False]))
    tensors = b.value(pte.TensorList([x, total]))
    optional = b.value(pte.OptionalTensorList([-1, weight]))
    counts = b.tensor([2], at=192, dtype=LONG)
    both = b.tensor([24], at=256, shape_dynamism=BOUND)

    b.call("test::add", "out", x, weight, one, total, total)  # 0
    b.call("test::size", "int", x, zero, n)
    b.call("executorch_prim::et_view", "default", x, size, view)
    b.call("test::copy", "out", view, flat, flat)
    b.do(pte.MoveCall(three, factor))
    b.do(pte.JumpFalseCall(flag, 7))
    b.do(pte.MoveCall(two, factor))
    b.call("test::scale", "out", x, factor, scaled, scaled)  # 7
    b.call("test::add", "out", state, state, none, state, state)  # without alpha: adds 1 to the first element
    b.call("test::lists", "out", size, doubles, bools, tensors, optional, mode, counts, counts)
    b.call("test::cat", "out", tensors, zero, both, both)
    b.do(pte.FreeCall(flat))

    return b.plan("forward", [x, flag], [total, scaled, n, state], planned=512)


def loop() -> Any:
    b = Builder()
    limit, count, zero = (b.value(pte.Int(0)) for _ in range(3))
    done = b.value(pte.Bool(False))
    b.do(pte.MoveCall(zero, count))
    b.call("test::count", "to", limit, count, done)
    b.do(pte.JumpFalseCall(done, 1))
    return b.plan("loop", [limit], [count])


def delegated() -> Any:
    b = Builder()
    x, y = b.tensor([2], at=0), b.tensor([2], at=16)
    blob = pte.BackendDelegateDataReference(index=0)
    option = pte.CompileSpec("level", b"3")
    b.delegates += [pte.BackendDelegate("test", blob, [option]), pte.BackendDelegate("test", blob, [])]
    for index in range(2):
        b.do(pte.DelegateCall(index, [x, y]))
    return b.plan("delegated", [x], [y], planned=32)


def build() -> bytes:
    file = pte.write(
        pte.Program(version=0, execution_plan=[forward(), delegated(), loop()]),
        constants=[b"", struct.pack("<3f", 1, 2, 3)],
        mutable_data=[b"", struct.pack("<f", 10)],
        delegate_data=[b"what the backend compiled"],
        named_data={"first": b"1", "second": b"22", "third": b"333"},
    )
    return bytes(file)


def external() -> tuple[bytes, bytes]:
    """A program with its weight and initial state in a .ptd file, and that file: x + weight, and state += 1."""
    b = Builder()

    def info(name: str) -> Any:
        return pte.ExtraTensorInfo(fully_qualified_name=name, location=pte.TensorDataLocation.EXTERNAL)

    x, total = b.tensor([4, 3], at=0), b.tensor([4, 3], at=64)
    weight = b.tensor([3], extra_tensor_info=info("weight"))
    state = b.tensor([1], at=128, extra_tensor_info=info("state"))
    one, none = b.value(pte.Double(1.0)), b.value(pte.Null())
    b.call("test::add", "out", x, weight, one, total, total)
    b.call("test::add", "out", state, state, none, state, state)
    plan = b.plan("forward", [x], [total, state], planned=192)
    program = pte.write(pte.Program(version=0, execution_plan=[plan]))
    data = ptd.write(
        {
            "state": ptd.NamedBytes(struct.pack("<f", 10), ptd.layout(FLOAT, [1])),
            "blob": ptd.NamedBytes(b"not a tensor"),
            "weight": ptd.NamedBytes(struct.pack("<3f", 1, 2, 3), ptd.layout(FLOAT, [3])),
        }
    )
    return bytes(program), data


def bundle(program: bytes) -> bytes:
    """The program of `build` with a case for `forward` and two for `delegated`."""
    xs = [float(i) for i in range(6)]

    def tensor(sizes: list[int], numbers: list[float]) -> Any:
        data = struct.pack(f"<{len(numbers)}f", *numbers)
        return bundled.Value(bundled.Tensor(bundled.ScalarType.FLOAT, sizes, data, bytes(range(len(sizes)))))

    forward = bundled.BundledMethodTestCase(
        [tensor([2, 3], xs), bundled.Value(bundled.Bool(True))],
        [
            tensor([2, 3], [x + 1 + i % 3 for i, x in enumerate(xs)]),
            tensor([2, 3], [2 * x for x in xs]),
            bundled.Value(bundled.Int(2)),
            tensor([1], [11.0]),
        ],
    )
    delegated = bundled.BundledMethodTestCase([tensor([2], [1.0, 2.0])], [tensor([2], [1.0, 2.0])])
    suites = [
        bundled.BundledMethodTestSuite("forward", [forward]),
        bundled.BundledMethodTestSuite("delegated", [delegated, delegated]),
    ]
    return bundled.write(bundled.BundledProgram(0, suites, program))


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(build())
