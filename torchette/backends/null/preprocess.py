# SPDX-License-Identifier: BSD-3-Clause
# In: a program of additions and multiplications. Out: the bytes that runtime.cpp reads.
"""Lowers a program to a payload.

The format. Integers are little-endian and 32-bit.

    "NUL1", the counts of values, inputs, constants, instructions and outputs
    for each value: dtype (ScalarType), number of elements at the maximum shape
    for each instruction: operation (0: add, 1: mul), left value, right value; its result is the next value
    for each output: value
    the bytes of the constants, each aligned to 8 bytes

The indices of values: first the inputs, then the constants, then the results in order.
"""

from __future__ import annotations

import math
import struct

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.arguments import node_arg
from torchette.exir.delegation.delegate import BackendDetails, CompileSpec, PreprocessResult
from torchette.exir.graph import calls, constants, outputs, placeholders, written
from torchette.exir.tensor import upper_bound

MAGIC = b"NUL1"
OPERATORS = {"add.Tensor": 0, "mul.Tensor": 1}
DTYPES = {torch.int32: 3, torch.int64: 4, torch.float32: 6}  # to the file format's ScalarType


class NullBackend(BackendDetails):
    """Lowers additions and multiplications of tensors with one shape."""

    option_names = frozenset()

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Returns the payload.

        Raises:
            ValueError: the program has an operator or dtype that this backend does not support, or changes a buffer.
        """
        if changes := written(edge_program):
            raise ValueError(f"the program changes {', '.join(changes)}, but the null backend keeps no state")
        stored = constants(edge_program)
        inputs = [node for node in placeholders(edge_program) if node not in stored]
        values = [*inputs, *stored]
        instructions: list[tuple[int, ...]] = []
        handles: dict[int, tuple[int, ...]] = {}
        for node in calls(edge_program):
            operation = OPERATORS.get(operator_name(node))
            if operation is None:
                raise ValueError(f"{node.target} is not an addition or multiplication")
            left, right = (values.index(node_arg(node, place)) for place in (0, 1))
            handles[len(instructions)] = (node.meta["debug_handle"],)
            instructions.append((operation, left, right))
            values.append(node)
        results = [values.index(node) for node in outputs(edge_program)]
        parts = [
            struct.pack(
                "<4s5I", MAGIC, len(values), len(inputs), len(stored), len(instructions), len(results)
            ),
            *(struct.pack("<2I", *_described(node)) for node in values),
            *(struct.pack("<3I", *instruction) for instruction in instructions),
            struct.pack(f"<{len(results)}I", *results),
        ]
        blob = bytearray(b"".join(parts))
        for tensor in stored.values():
            blob += bytes(-len(blob) % 8)
            blob += tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return PreprocessResult(bytes(blob), debug_handle_map=handles)


def operator_name(node: Node) -> str:
    """Returns the operator without its namespace, for example ``add.Tensor``."""
    return str(node.target).removeprefix("aten.")


def _described(node: Node) -> tuple[int, int]:
    value = node.meta["val"]
    if value.dtype not in DTYPES:
        raise ValueError(
            f"{node.name} has dtype {value.dtype}; the null backend supports {', '.join(map(str, DTYPES))}"
        )
    sizes = [upper_bound(size) for size in value.shape]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        raise ValueError(f"{node.name} has a dimension without an upper bound")
    return DTYPES[value.dtype], math.prod(known)
