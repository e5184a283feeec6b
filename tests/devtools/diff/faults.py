# SPDX-License-Identifier: BSD-3-Clause
# In: small networks. Faults of six classes are injected into their files. Out: how many of them `compare` finds and
# names. `python -m tests.devtools.diff.faults` injects all faults and writes the table of benchmarks/diff.md.
"""Injected faults that `torchette diff` must find, and correct programs in which it must find none."""

from __future__ import annotations

import argparse
import dataclasses
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import torchette
from torchette.devtools.diff import compare
from torchette.devtools.diff.result import DiffResult
from torchette.devtools.diff.walk import arguments_of
from torchette.devtools.inspect import MethodInfo, describe
from torchette.errors import TorchetteError
from torchette.exir import ExecutorchBackendConfig
from torchette.format import pte
from torchette.runtime import Runtime

PAGE = Path(__file__).resolve().parents[3] / "benchmarks" / "diff.md"
CLASSES = ("kernel", "pass", "weight", "layout", "plan", "quantization")

# Minimum change of an output, relative to its largest element; smaller changes are not counted as faults.
VISIBLE = 1e-4


# ---- networks ----


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Token ids [1, 8] to logits [1, 8, 50]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Residual(nn.Module):
    """Images [1, 3, 12, 12] to 5 classes, with residual additions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.down = nn.Conv2d(8, 16, 3, stride=2)
        self.head = nn.Linear(16, 5)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + nn.functional.silu(self.inner(x))
        x = nn.functional.max_pool2d(self.down(x), 2)
        return torch.softmax(self.head(x.mean((2, 3))), -1)


class Gated(nn.Module):
    """Elementwise operators of many kinds on [4, 12]."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)
        self.scale = nn.Parameter(torch.rand(12) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = torch.tanh(self.a(x)), torch.sigmoid(self.b(x))
        y = a * b + x * self.scale
        y = y - y.mean(-1, keepdim=True)
        z = torch.cat([y, torch.exp(-y.abs()), torch.sqrt(y * y + 0.1)], 1)
        return (z.sum(1, keepdim=True) / 7 + torch.clamp(z, -0.5, 0.5)) @ z.t()


class Perceptron(nn.Sequential):
    """[3, 10] to [3, 4]."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 16), nn.Hardswish(), nn.Linear(16, 4))


class Recurrent(nn.Module):
    """A GRU over [5, 1, 6]: a loop in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x)[0]


class Subject(NamedTuple):
    """A network, compiled once."""

    name: str
    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    compiled: Any
    data: bytes
    info: MethodInfo


def networks() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """Returns each network with its inputs, seeded."""
    torch.manual_seed(0)
    return {
        "transformer": (Transformer(), (torch.randint(0, 50, (1, 8)),)),
        "residual": (Residual(), (torch.randn(1, 3, 12, 12),)),
        "gated": (Gated(), (torch.randn(4, 12),)),
        "perceptron": (Perceptron(), (torch.randn(3, 10),)),
        "recurrent": (Recurrent(), (torch.randn(5, 1, 6),)),
    }


def make(name: str, quantized: bool = False) -> Subject:
    """Compiles one of the networks, or its int8 form."""
    module, inputs = networks()[name]
    module = module.eval().requires_grad_(False)
    quantizer = None
    if quantized:
        from torchette.backends.xnnpack import pt2e_quantizer

        config = pt2e_quantizer.get_symmetric_quantization_config(is_per_channel=False)
        quantizer = pt2e_quantizer.XNNPACKQuantizer().set_global(config)
    compiled = torchette.compile(module, inputs, quantizer=quantizer)
    data = bytes(compiled)
    return Subject(
        name + (" int8" if quantized else ""), module, inputs, compiled, data, describe(data).methods[0]
    )


# ---- faults ----


class Injected(NamedTuple):
    """A fault: the file to judge, the program that the device runs if it differs, and the location of the fault.

    Attributes:
        instructions: a report of any of these is correct, such as all readers of a wrong constant.
        node: name of the node, for an operator that the file lacks.
    """

    description: str
    file: bytes
    executed: bytes | None
    instructions: frozenset[int]
    node: str = ""


class Rewriter:
    """A file with records that can be changed."""

    def __init__(self, data: bytes) -> None:
        self.file = pte.read(data)
        self.program = self.file.program
        self.plan = self.program.execution_plan[0]
        count = len(self.program.constant_segment.offsets)
        self.constants = [
            bytearray(self.file.constant(index)) if index else bytearray() for index in range(count)
        ]
        segments = self.program.mutable_data_segments
        self.state = [
            bytes(self.file.mutable(i)) if i else b""
            for i in range(len(segments[0].offsets) if segments else 0)
        ]
        self.calls = [each.instr_args for chain in self.plan.chains for each in chain.instructions]

    def value(self, index: int) -> Any:
        return self.plan.values[index].val

    def copy_value(self, index: int, **changes: Any) -> int:
        """Adds a copy of a value."""
        self.plan.values.append(pte.EValue(dataclasses.replace(self.value(index), **changes)))
        return len(self.plan.values) - 1

    def replace_value(self, index: int, **changes: Any) -> None:
        """Returns a separate copy of a value's record, because equal records are shared."""
        self.plan.values[index] = pte.EValue(dataclasses.replace(self.value(index), **changes))

    def add_constant(self, data: bytes) -> int:
        self.constants.append(bytearray(data))
        return len(self.constants) - 1

    def data(self, index: int) -> torch.Tensor:
        """Returns the writable float elements of a constant."""
        record = self.value(index)
        size = pte.tensor_nbytes(record)
        return torch.frombuffer(self.constants[record.data_buffer_idx], dtype=torch.float32, count=size // 4)

    def written(self) -> bytes:
        return bytes(pte.write(self.program, [bytes(item) for item in self.constants], self.state))


def is_constant(record: Any) -> bool:
    return isinstance(record, pte.Tensor) and bool(record.data_buffer_idx) and record.allocation_info is None


def _float_constants(work: Rewriter) -> list[tuple[int, int, int]]:
    """Yields (instruction, position, value) for each read of a float32 constant."""
    return [
        (number, at, index)
        for number, call in enumerate(work.calls)
        if isinstance(call, pte.KernelCall)
        for at, index in enumerate(call.args)
        if index >= 0 and is_constant(work.value(index)) and work.value(index).scalar_type.name == "FLOAT"
    ]


def _readers(work: Rewriter, buffer: int) -> frozenset[int]:
    return frozenset(
        number for number, _, index in _float_constants(work) if work.value(index).data_buffer_idx == buffer
    )


_UNARY = [
    "relu",
    "abs",
    "neg",
    "sigmoid",
    "tanh",
    "exp",
    "sin",
    "cos",
    "sqrt",
    "floor",
    "round",
    "hardswish",
    "square",
]
_BINARY = ["add", "sub"], ["mul", "div", "maximum", "minimum", "atan2"]


def kernel_fault(subject: Subject, rng: random.Random) -> Injected | None:
    """The device executes another operator, uses another scalar, or reads a weight with one wrong element."""
    work = Rewriter(subject.data)
    number = rng.randrange(len(work.calls))
    call = work.calls[number]
    if not isinstance(call, pte.KernelCall):
        return None
    operator = work.plan.operators[call.op_index]
    plain, known = operator.name.partition("::")[2], Runtime.get().operator_registry.operator_names
    way = rng.choice(["operator", "number", "element"])
    if way == "operator":
        family = next((names for names in (_UNARY, *_BINARY) if plain in names), None)
        candidates = [n for n in family or () if n != plain and f"aten::{n}.{operator.overload}" in known]
        if not candidates:
            return None
        replacement = rng.choice(candidates)
        work.plan.operators.append(pte.Operator(f"aten::{replacement}", operator.overload))
        call.op_index = len(work.plan.operators) - 1
        description = f"{plain} computes {replacement}"
    elif way == "number":
        doubles = [
            at
            for at, index in enumerate(call.args)
            if index >= 0 and isinstance(work.value(index), (pte.Double, pte.Int))
        ]
        if not doubles:
            return None
        at = rng.choice(doubles)
        record = work.value(call.args[at])
        if isinstance(record, pte.Int):
            change = {"int_val": record.int_val + rng.choice([-1, 1])}
        else:
            change = {"double_val": record.double_val * rng.choice([0.5, 2.0, 100.0]) + rng.choice([0, 0.01])}
        call.args[at] = work.copy_value(call.args[at], **change)
        description = f"{plain} takes argument {at} for {next(iter(change.values()))}"
    else:
        stored = [(at, index) for n, at, index in _float_constants(work) if n == number]
        if not stored:
            return None
        at, index = rng.choice(stored)
        copied = work.add_constant(bytes(work.constants[work.value(index).data_buffer_idx]))
        call.args[at] = work.copy_value(index, data_buffer_idx=copied)
        values = work.data(call.args[at])
        element = rng.randrange(len(values))
        values[element] += float(values.abs().max()) * rng.choice([0.02, -0.1, 1.0])
        description = f"{plain} misreads element {element} of argument {at}"
    return Injected(description, subject.data, work.written(), frozenset({number}))


def weight_fault(subject: Subject, rng: random.Random) -> Injected | None:
    """Flips a bit, zeroes a row, exchanges two rows, or scales all rows."""
    work = Rewriter(subject.data)
    number, _, index = rng.choice(_float_constants(work))
    buffer = work.value(index).data_buffer_idx
    values = work.data(index)
    way = rng.choice(["bit", "bit", "zero", "swap", "scale"])
    element = rng.randrange(len(values))
    if way == "bit":
        bit = rng.randrange(32)
        data = work.constants[buffer]
        (word,) = struct.unpack_from("<I", data, 4 * element)
        struct.pack_into("<I", data, 4 * element, word ^ (1 << bit))
        description = f"bit {bit} of element {element} flipped"
    elif way == "zero":
        values[element] = 0
        description = f"element {element} is zero"
    elif way == "swap":
        second = rng.randrange(len(values))
        if values[element] == values[second]:
            return None
        values[[element, second]] = values[[second, element]]
        description = f"elements {element} and {second} exchanged"
    else:
        values *= 1.01
        description = "1 % too large"
    data = work.written()
    if data == subject.data:
        return None
    return Injected(f"weight of instruction {number}: {description}", data, None, _readers(work, buffer))


def layout_fault(subject: Subject, rng: random.Random) -> Injected | None:
    """The bytes of a constant or a view are read with another dim order."""
    work = Rewriter(subject.data)
    reads = [
        (number, index)
        for number, call in enumerate(work.calls)
        if isinstance(call, pte.KernelCall)
        for index in call.args
        if index >= 0
        and isinstance(work.value(index), pte.Tensor)
        and sum(size > 1 for size in work.value(index).sizes) > 1
        and (is_constant(work.value(index)) or not _is_written(work, index))
    ]
    if not reads:
        return None
    _, index = rng.choice(reads)
    record = work.value(index)
    order = list(record.dim_order)
    shuffled = order[:]
    rng.shuffle(shuffled)
    square = [(a, b) for a in range(len(order)) for b in range(a) if record.sizes[a] == record.sizes[b] > 1]
    if shuffled == order:
        return None
    readers = frozenset(n for n, call in enumerate(work.calls) if index in _all(work, arguments_of(call)))
    if is_constant(record) and square and rng.random() < 0.3:
        a, b = rng.choice(square)  # stored transposed, without a record of it
        shape = [record.sizes[d] for d in order]
        values = work.data(index)
        values[:] = values.clone().reshape(shape).transpose(order.index(a), order.index(b)).reshape(-1)
        description = f"dimensions {a} and {b} are exchanged"
    else:
        work.replace_value(index, dim_order=bytes(shuffled))
        description = f"dim order {shuffled} for {order}"
    return Injected(f"value {index}: {description}", work.written(), None, readers)


def _is_written(work: Rewriter, index: int) -> bool:
    info = describe(work.file).methods[0]
    return index in work.plan.inputs or any(index in instruction.outputs for instruction in info.instructions)


def _all(work: Rewriter, args: list[int]) -> set[int]:
    indices = set(args)
    for index in args:
        if index >= 0 and isinstance(work.value(index), (pte.TensorList, pte.OptionalTensorList)):
            indices.update(work.value(index).items)
    return indices


def plan_fault(subject: Subject, rng: random.Random) -> Injected | None:
    """A result overlaps a value that is still live."""
    work = Rewriter(subject.data)
    info = subject.info
    if any(instruction.destination is not None for instruction in info.instructions):
        return None
    planned = {
        index: instruction.index
        for instruction in info.instructions
        for index in instruction.outputs
        if info.values[index].tensor and info.values[index].tensor.storage == "planned"
    }
    last: dict[int, int] = {}
    for number, call in enumerate(work.calls):
        for index in _all(work, arguments_of(call)):
            last[index] = number
    pairs = [
        (victim, new)
        for victim, writer in planned.items()
        for new, at in planned.items()
        if writer < at < last[victim]
        and _place(work, victim) != _place(work, new)
        and not _has_views(work, planned, new)
    ]
    if not pairs:
        return None
    victim, new = rng.choice(pairs)
    place = work.value(new).allocation_info
    to = work.value(victim).allocation_info.memory_offset_low
    work.replace_value(new, allocation_info=dataclasses.replace(place, memory_offset_low=to))
    work.plan.non_const_buffer_sizes[place.memory_id] = max(
        each.val.allocation_info.memory_offset_low + pte.tensor_nbytes(each.val)
        for each in work.plan.values
        if isinstance(each.val, pte.Tensor) and each.val.allocation_info is not None
        and each.val.allocation_info.memory_id == place.memory_id
    )  # fmt: skip
    return Injected(f"value {new} lies on value {victim}", work.written(), None, frozenset({planned[new]}))


def _has_views(work: Rewriter, planned: dict[int, int], index: int) -> bool:
    """Whether views, which no instruction writes, share its bytes: they would not move with it."""
    return any(
        isinstance(each.val, pte.Tensor)
        and each.val.allocation_info is not None
        and number not in planned
        and _place(work, number) == _place(work, index)
        for number, each in enumerate(work.plan.values)
    )


def _place(work: Rewriter, index: int) -> tuple[int, int]:
    info = work.value(index).allocation_info
    return info.memory_id, info.memory_offset_low


def quantization_fault(subject: Subject, rng: random.Random) -> Injected | None:
    """A scale is 2% or 100% too large, or a zero point is off by one."""
    work = Rewriter(subject.data)
    numbers = [
        (number, at, index)
        for number, at, index in _float_constants(work)
        if len(work.data(index)) == 1 and not work.value(index).sizes
    ]
    if not numbers:
        return None
    number, at, index = rng.choice(numbers)
    plain = work.plan.operators[work.calls[number].op_index].name.partition("::")[2]
    copied = work.add_constant(bytes(work.constants[work.value(index).data_buffer_idx]))
    work.calls[number].args[at] = work.copy_value(index, data_buffer_idx=copied)
    values = work.data(work.calls[number].args[at])
    if plain in ("mul", "div"):
        factor = rng.choice([1.02, 0.98, 2.0, 0.5])
        values *= factor
        description = f"scale times {factor}"
    else:
        values += rng.choice([-1.0, 1.0])
        description = "zero point off by one"
    return Injected(
        f"{plain}, instruction {number}: {description}", work.written(), None, frozenset({number})
    )


def pass_fault(subject: Subject, rng: random.Random) -> Injected | None:
    """The compiler replaces, removes or adds an operator, or changes a scalar."""
    aten = torch.ops.aten
    unary = [aten.relu, aten.tanh, aten.sigmoid, aten.abs, aten.neg, aten.gelu, aten.exp]
    binary = [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor]
    done: list[tuple[str, str, str]] = []  # operator, name of the node, kind of change
    pick, way = rng.random(), rng.choice(["other", "without", "more", "number", "swapped"])

    def wrong(graph_module: torch.fx.GraphModule) -> None:
        graph = graph_module.graph
        nodes = [
            node for node in graph.nodes
            if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor) and node.meta["val"].is_floating_point()
        ]  # fmt: skip
        node = nodes[int(pick * len(nodes))]
        first = node.args[0] if node.args else None
        same = (
            isinstance(first, torch.fx.Node)
            and getattr(first.meta.get("val"), "shape", None) == node.meta["val"].shape
        )
        name = str(node.target)
        if way == "other":
            if node.target in binary:
                node.target = rng.choice([op for op in binary if op is not node.target])
            elif any(node.target is op.default for op in unary):
                node.kwargs = {}
                node.target = rng.choice([op.default for op in unary if op.default is not node.target])
            else:
                return
            done.append((f"{name} becomes {node.target}", node.name, way))
        elif way == "without" and same:
            done.append((f"{name} is left out", node.name, way))
            node.replace_all_uses_with(first)
            graph.erase_node(node)
        elif way == "more":
            with graph.inserting_after(node):
                added = graph.call_function(aten.mul.Scalar, (node, 1.01))
            added.meta = dict(node.meta)
            node.replace_all_uses_with(added, lambda user: user is not added)
            done.append((f"mul after {name}", added.name, way))
        elif way == "number":
            args = list(node.args)
            for at, value in enumerate(args):
                if isinstance(value, float):
                    args[at] = value * 1.5 + 0.01
                elif (
                    isinstance(value, list)
                    and len(value) == 1
                    and node.meta["val"].dim() > 1
                    and "mean" in name
                ):
                    continue
            if tuple(args) == node.args:
                return
            node.args = tuple(args)
            done.append((f"a number of {name} is changed", node.name, way))
        elif way == "swapped" and node.target in (aten.sub.Tensor, aten.div.Tensor, aten.bmm.default):
            a, b = node.args[:2]
            if getattr(a, "meta", {}).get("val") is None or getattr(b, "meta", {}).get("val") is None:
                return
            if a.meta["val"].shape != b.meta["val"].shape:
                return
            node.args = (b, a)
            done.append((f"operands of {name} exchanged", node.name, way))

    try:
        faulty = torchette.compile(
            subject.module, subject.inputs, config=ExecutorchBackendConfig(passes=[wrong])
        )
    except TorchetteError:
        return None
    if not done:
        return None
    description, name, kind = done[0]
    nodes = faulty.program.nodes()
    mine = frozenset(index for index, node in enumerate(nodes) if node.name.startswith(name))
    return Injected(description, bytes(faulty), None, mine, name if kind == "without" else "")


INJECT: dict[str, Callable[[Subject, random.Random], Injected | None]] = {
    "kernel": kernel_fault, "pass": pass_fault, "weight": weight_fault, "layout": layout_fault, "plan": plan_fault,
    "quantization": quantization_fault,
}  # fmt: skip


# ---- proof ----


class Tried(NamedTuple):
    """A fault, and the result of `compare`."""

    kind: str
    network: str
    injected: Injected
    is_found: bool
    named: bool
    summary: str


def visible(subject: Subject, injected: Injected) -> bool:
    """Whether the fault changes an output by more than rounding, or the method fails."""

    def outputs(data: bytes) -> list[torch.Tensor] | None:
        try:
            results = Runtime.get().load_program(data).load_method("forward").execute(subject.inputs)
        except TorchetteError:
            return None
        return [torch.as_tensor(item).double() for item in results]

    expected, actual = outputs(subject.data), outputs(injected.executed or injected.file)
    if actual is None or expected is None:
        return True
    return any(
        a.shape != b.shape
        or not bool(torch.isfinite(a).all())
        or bool(((a - b).abs().max() > VISIBLE * b.abs().max()).item())
        for a, b in zip(actual, expected, strict=True)
    )


def judge(subject: Subject, kind: str, injected: Injected) -> Tried:
    """Runs `compare` on a fault."""
    device = None
    try:
        if injected.executed is not None:
            device = Runtime.get().load_program(injected.executed).load_method("forward", tracing=True)
            result = compare(None, injected.file, subject.inputs, device=device, search=False)
        else:
            result = compare(subject.compiled, injected.file, subject.inputs, search=False, stages=False)
    except TorchetteError as error:
        # loading fails: the error also names the instruction
        where = " ".join((str(error.message), *error.where))
        named = any(f"instruction {index}" in where for index in injected.instructions)
        return Tried(kind, subject.name, injected, True, named, where)
    return Tried(kind, subject.name, injected, not result.equal, is_named(result, injected), result.summary())


def is_named(result: DiffResult, injected: Injected) -> bool:
    """Whether the first reported fault is the injected one."""
    first = result.first
    if first is None:
        return False
    if injected.node and first.node == injected.node:
        return True
    return first.instruction in injected.instructions


def trials(kind: str, count: int, seed: int = 0, names: tuple[str, ...] | None = None) -> Iterator[Tried]:
    """Injects a number of faults of a class, over all networks."""
    rng = random.Random(f"{kind} {seed}")
    quantized = kind == "quantization"
    chosen = names or (("perceptron", "gated") if quantized else tuple(networks()))
    subjects = [make(name, quantized) for name in chosen]
    done = 0
    attempts = 0
    while done < count:
        attempts += 1
        if attempts > 100 * count:
            raise AssertionError(f"no more faults of class {kind}")
        one = subjects[done % len(subjects)] if attempts < 20 * count else rng.choice(subjects)
        injected = INJECT[kind](one, rng)
        if injected is None:
            if rng.random() < 0.05:
                subjects.append(subjects.pop(0))
            continue
        # weights are compared bitwise, so that the change of an output does not matter
        if kind != "weight" and not visible(one, injected):
            continue
        done += 1
        yield judge(one, kind, injected)


def layers(limit: int | None = None) -> tuple[int, list[str]]:
    """Compares each layer of torch.nn, without faults, on two of torch's samples; returns (count, reported faults)."""
    from torch.testing._internal.common_modules import module_db

    from tests.models.test_modules import DRAWN, samples

    compared, differences = 0, []
    for info in module_db:
        if issubclass(info.module_cls, DRAWN):
            continue
        for description, module, args, kwargs in list(samples(info))[:2]:
            try:
                compiled = torchette.compile(module, args, kwargs)
            except TorchetteError:
                continue  # the compiler does not support this layer
            result = compare(compiled, None, args, kwargs=kwargs)
            compared += 1
            if not result.equal:
                differences.append(f"{info.module_cls.__name__} {description}: {result.summary()}")
            if compared == limit:
                return compared, differences
    return compared, differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=100, help="faults of each class")
    parser.add_argument("--classes", nargs="*", default=list(CLASSES))
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    rows = []
    for kind in options.classes:
        start = time.perf_counter()
        num_found = num_named = 0
        for tried in trials(kind, options.n):
            num_found, num_named = num_found + tried.is_found, num_named + tried.named
            if options.verbose or not (tried.is_found and tried.named):
                state = "named" if tried.named else "found, not named" if tried.is_found else "NOT FOUND"
                print(f"{kind} {tried.network}: {state}: {tried.injected.description}", file=sys.stderr)
                print(
                    f"   wanted {sorted(tried.injected.instructions)} {tried.injected.node}: {tried.summary}",
                    file=sys.stderr,
                )
        rows.append((kind, options.n, num_found, num_named))
        print(
            f"{kind}: {num_found} found, {num_named} named of {options.n} ({time.perf_counter() - start:.0f} s)",
            flush=True,
        )
    return 0 if all(f >= 0.95 * n and m >= 0.9 * n for _, n, f, m in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
