# SPDX-License-Identifier: BSD-3-Clause
# Planned programs come in, one per method; the records of a .pte file and the buffers of its weights go out. Nothing
# is decided here: where a value lies says the plan, what is called says the graph. One pass over each graph.
"""Emission: a small visitor from planned ExportedPrograms to the records of `torchette.format.pte`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import operator
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sympy
import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.value_ranges import bound_sympy

from torchette.errors import EmitError
from torchette.exir import control_flow, ops
from torchette.exir.delegation.delegate import LoweredBackendModule, NamedDataStore, is_delegate_call
from torchette.exir.graph import place, placeholders, tensor_of
from torchette.exir.interface import GraphInterface, specs_of, view_sizes
from torchette.exir.size_relations import relations
from torchette.exir.tensor import TensorShapeDynamism, TensorSpec, upper_bound
from torchette.format import ptd, pte

aten = torch.ops.aten

SCHEMA_VERSION = 0
NO_BOUND = 2**31 - 1


@dataclass
class EmitterOutput:
    """A program's records and the bytes beside them.

    Attributes:
        program: a `pte.Program` without its weights.
        constants: one buffer per `Tensor.data_buffer_idx` of constants; [0] is reserved and empty.
        mutable_data: the same for the initial bytes of state; empty if all state starts as zeros.
        delegate_data: blobs of delegates; equal ones stand here once.
        named_data: blobs that delegates find by name.
        named_alignment: the greatest that one of them wants, in bytes.
        data_files: the name of a file, without its suffix -> what it has under each name: constants outside of the program.
        debug_handle_map: method -> instruction -> the `debug_handle` of the node that it came from.
        instruction_id_to_num_outs_map: method -> instruction -> number of tensors that it writes.
        delegate_map: method -> instruction -> {"name": the backend, "delegate_map": its own debug handles}.
    """

    program: Any
    constants: list[Any]
    mutable_data: list[Any]
    delegate_data: list[Any] = field(default_factory=list)
    named_data: dict[str, Any] = field(default_factory=dict)
    named_alignment: int = 1
    data_files: dict[str, dict[str, ptd.NamedBytes]] = field(default_factory=dict)
    debug_handle_map: dict[str, dict[int, Any]] = field(default_factory=dict)
    instruction_id_to_num_outs_map: dict[str, dict[int, int]] = field(default_factory=dict)
    delegate_map: dict[str, dict[int, Any]] = field(default_factory=dict)


def emit_program(
    methods: ExportedProgram | Mapping[str, ExportedProgram],
    *,
    constant_methods: Mapping[str, Any] | None = None,
    emit_stacktrace: bool = False,
    emit_mutable_buffer_names: bool = False,
    data_file_of: Callable[[Node], str | None] | None = None,
) -> EmitterOutput:
    """Turn planned programs in the EXEC dialect into the records of one file.

    Args:
        methods: method name -> program that `MemoryPlanningPass` has seen; a single one is called "forward".
        constant_methods: method name -> number, string, tensor, or a structure of them that the method returns.
        emit_stacktrace: store, for each instruction, the lines of the user's model that it came from.
        emit_mutable_buffer_names: store the fully qualified names of state; state may then be left unplanned.
        data_file_of: for the placeholder of a constant the file that it goes to, or None for the program itself.

    Returns:
        Records and buffers; the buffers are views of the programs' tensors wherever those are dense.

    Raises:
        EmitError: lists every node that the file format has no form for, with the user's line.
    """
    if isinstance(methods, ExportedProgram):
        methods = {"forward": methods}
    constants, mutable_data, delegates = _Store(), _Store(), _Delegates()
    outside = _DataFiles(data_file_of)
    output = EmitterOutput(None, constants.buffers, mutable_data.buffers, delegates.blobs)
    plans, problems = [], []
    for name, program in sorted(methods.items()):
        emitter = _MethodEmitter(
            name,
            program,
            constants,
            outside,
            mutable_data,
            delegates,
            emit_stacktrace,
            emit_mutable_buffer_names,
        )
        plans.append(emitter.emit())
        problems += emitter.problems
        output.debug_handle_map[name] = emitter.debug_handles
        output.instruction_id_to_num_outs_map[name] = emitter.results_written
        output.delegate_map[name] = emitter.delegate_map
    if problems:
        raise _error(problems)
    for name, value in sorted((constant_methods or {}).items()):
        if name in methods:
            raise ValueError(f"{name!r} is both a method and a constant method")
        plans.append(_constant_method(name, value, constants))
    if len(mutable_data.buffers) == 1:
        mutable_data.buffers.clear()
    output.data_files = outside.files
    delegates.named_data(output)
    output.program = pte.Program(version=SCHEMA_VERSION, execution_plan=plans)
    return output


# ---- weights ----


class _Store:
    """Buffers, each stored once: the same memory is known at sight, equal bytes by comparison."""

    def __init__(self) -> None:
        self.buffers: list[Any] = [b""]
        self._by_memory: dict[tuple, int] = {}
        self._by_sample: dict[tuple, list[int]] = {}
        self._kept: list[torch.Tensor] = []  # bytes of buffers[1:]
        self._alive: list[torch.Tensor] = []  # `_by_memory` holds addresses: none may be freed and used again

    def add(self, tensor: torch.Tensor, dim_order: Sequence[int]) -> int:
        """The index of a tensor's bytes in this order of dimensions."""
        memory = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tuple(dim_order))
        known = self._by_memory.get(memory)
        if known is not None:
            return known
        data = tensor.detach().cpu().permute(tuple(dim_order)).contiguous().reshape(-1).view(torch.uint8)
        # Comparing everything with everything would read the weights many times, hashing them once: few have the
        # same length and the same bytes at both ends, and only those are compared.
        array = data.numpy()
        sample = (
            array.nbytes,
            array[:64].tobytes(),
            array[-64:].tobytes(),
            array[:: array.nbytes // 64 + 1].tobytes(),
        )
        alike = self._by_sample.setdefault(sample, [])
        for index in alike:
            if torch.equal(self._kept[index - 1], data):
                break
        else:
            index = len(self.buffers)
            self.buffers.append(array)
            self._kept.append(data)
            alike.append(index)
        self._by_memory[memory] = index
        self._alive.append(tensor)
        return index


class _DataFiles:
    """Constants outside of the program, by file and name. A name means the same bytes in all files, for the runtime asks
    for names only."""

    def __init__(self, file_of: Callable[[Node], str | None] | None) -> None:
        self.files: dict[str, dict[str, ptd.NamedBytes]] = {}
        self.file_of = file_of or (lambda node: None)
        self.store = _Store()
        self._meanings: dict[str, tuple] = {}

    def add(self, file: str, name: str, buffer: int, spec: TensorSpec) -> str:
        """The name under which the runtime finds a tensor: `name`, with a number where other bytes have it already."""
        meaning = (file, buffer, spec.dtype, tuple(spec.shape), tuple(spec.dim_order))
        names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
        found = next(given for given in names if self._meanings.setdefault(given, meaning) == meaning)
        layout = ptd.layout(scalar_type(spec.dtype), list(spec.shape), bytes(spec.dim_order))
        self.files.setdefault(file, {})[found] = ptd.NamedBytes(self.store.buffers[buffer], layout)
        return found


class _Delegates:
    """The blobs of delegates, and what they share by name. Equal blobs are kept once."""

    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self._by_content: dict[bytes, int] = {}
        self._named = NamedDataStore()

    def add(self, module: LoweredBackendModule) -> int:
        """The index of a delegate's blob."""
        if module.named_data_store_output is not None:
            self._named.merge_named_data_store(module.named_data_store_output)
        blob = bytes(module.processed_bytes)
        index = self._by_content.setdefault(blob, len(self.blobs))
        if index == len(self.blobs):
            self.blobs.append(blob)
        return index

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether one of the named blobs is the bytes of a tensor, row-major."""
        return self._named.holds(tensor)

    def named_data(self, output: EmitterOutput) -> None:
        """Fill in what stands under names in the program and in data files; keys of the same bytes have the same object."""
        found = self._named.get_named_data_store_output()
        output.named_data = {key: found.buffers[e.buffer_index] for key, e in found.pte_data.items()}
        output.named_alignment = max((entry.alignment for entry in found.pte_data.values()), default=1)
        for tag, keys in sorted(found.external_data.items()):
            file = output.data_files.setdefault(tag.removesuffix(".ptd"), {})
            file.update(
                (key, ptd.NamedBytes(found.buffers[e.buffer_index])) for key, e in sorted(keys.items())
            )


_SCALAR_TYPES = {
    torch.uint8: "BYTE", torch.int8: "CHAR", torch.int16: "SHORT", torch.int32: "INT", torch.int64: "LONG",
    torch.float16: "HALF", torch.float32: "FLOAT", torch.float64: "DOUBLE", torch.bool: "BOOL",
    torch.bfloat16: "BFLOAT16", torch.uint16: "UINT16", torch.uint32: "UINT32", torch.uint64: "UINT64",
    torch.float8_e5m2: "FLOAT8E5M2", torch.float8_e4m3fn: "FLOAT8E4M3FN", torch.float8_e5m2fnuz: "FLOAT8E5M2FNUZ",
    torch.float8_e4m3fnuz: "FLOAT8E4M3FNUZ",
}  # fmt: skip


def scalar_type(dtype: torch.dtype) -> Any:
    """The file's number for a dtype; ValueError for one that it has none for."""
    try:
        return pte.ScalarType[_SCALAR_TYPES[dtype]]
    except KeyError:
        raise ValueError(f"the file format has no tensors of {dtype}") from None


def _dynamism(spec: TensorSpec) -> TensorShapeDynamism:
    """What says in the file where memory comes from: an unbounded tensor takes its own, an alias of one is a view of it."""
    if spec.owned:
        return TensorShapeDynamism.DYNAMIC_UNBOUND
    if spec.base is not None and spec.is_dynamic_unbound_tensor:
        return TensorShapeDynamism.DYNAMIC_BOUND
    return spec.shape_dynamism


def _ranges(tensor: torch.Tensor, constraints: Mapping[Any, Any]) -> list[int]:
    """The least and the greatest size of each dimension; nothing where all of them are fixed."""
    if all(isinstance(size, int) for size in tensor.shape):
        return []
    ranges = []
    for size in tensor.shape:
        if isinstance(size, int):
            ranges += [size, size]
            continue
        bounds = bound_sympy(size.node.expr, dict(constraints))
        least, most = bounds.lower, upper_bound(size)
        ranges += [max(0, int(least)) if least.is_finite else 0, NO_BOUND if most is None else most]
    return ranges


def _tensor_record(
    spec: TensorSpec, data_buffer_idx: int, name: str | None = None, outside: bool = False
) -> Any:
    allocation = None
    if spec.mem_offset is not None and spec.mem_id is not None:
        allocation = pte.AllocationDetails(spec.mem_id, spec.mem_offset & 0xFFFFFFFF, spec.mem_offset >> 32)
    return pte.Tensor(
        scalar_type=scalar_type(spec.dtype),
        sizes=list(spec.shape),
        dim_order=list(spec.dim_order),
        data_buffer_idx=data_buffer_idx,
        allocation_info=allocation,
        shape_dynamism=pte.TensorShapeDynamism(int(_dynamism(spec))),
        extra_tensor_info=pte.ExtraTensorInfo(
            fully_qualified_name=name, location=pte.TensorDataLocation(int(outside))
        )
        if name
        else None,
    )


# ---- arguments ----


class _Argument(NamedTuple):
    name: str
    kind: str
    length: int | None  # of a list that may be given as one number
    default: Any
    by_name_only: bool
    is_out: bool


@functools.cache
def _signature(op: torch._ops.OpOverload) -> tuple[_Argument, ...]:
    return tuple(
        _Argument(
            argument.name,
            _kind(argument.type),
            argument.N,
            argument.default_value,
            argument.kwarg_only,
            argument.is_out,
        )
        for argument in op._schema.arguments
    )


def _kind(kind: Any) -> str:
    """A schema type in the file's terms; "?" within a list stands for elements that may be absent."""
    if isinstance(kind, torch.OptionalType):
        return _kind(kind.getElementType())
    if isinstance(kind, torch.ListType):
        element = kind.getElementType()
        return f"[{'?' if isinstance(element, torch.OptionalType) else ''}{_kind(element)}]"
    return str(kind)


_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}

# Python's functions on symbolic numbers, by the runtime's names.
_PRIMITIVES: dict[Any, str] = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.floordiv: "floordiv",
    operator.truediv: "truediv", operator.mod: "mod", operator.neg: "neg", operator.eq: "eq", operator.gt: "gt",
    operator.lt: "lt", operator.ge: "ge", operator.le: "le", round: "round", torch.sym_float: "sym_float",
    torch.sym_int: "sym_int", torch.sym_max: "sym_max", torch.sym_min: "sym_min", torch.sym_not: "sym_not",
    torch.sym_ite: "sym_ite", operator.not_: "sym_not", torch.sym_sum: "add", math.ceil: "ceil", math.trunc: "trunc",
    math.floor: "floor", operator.ne: "ne", operator.pow: "pow", operator.and_: "and", operator.or_: "or",
    operator.xor: "xor", operator.lshift: "lshift", operator.rshift: "rshift", operator.abs: "abs", abs: "abs",
    torch.sym_sqrt: "sym_sqrt",
}  # fmt: skip


# Whose argument, at which places, may be a weight in any order of dimensions: a quantized one is converted first.
_READERS_OF_ANY_ORDER = [(torch.ops.aten.convolution.out, [1]), (torch.ops.aten._to_copy.out, [0])]

# What the runtime can compare with a text in the place of the result: an error where the comparison does not hold.
_COMPARISONS = frozenset({operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge})


class _Unsupported(Exception):
    """What the file has no form for; becomes one line of the EmitError."""


# ---- one method ----


class _MethodEmitter:
    """Walks one graph in order and fills the tables of one ExecutionPlan."""

    def __init__(
        self,
        name: str,
        program: ExportedProgram,
        constants: _Store,
        outside: _DataFiles,
        mutable_data: _Store,
        delegate_data: _Delegates,
        emit_stacktrace: bool,
        emit_mutable_buffer_names: bool,
    ) -> None:
        self.name = name
        self.program = program
        self.interface = GraphInterface.of(program.graph_module, program.graph_signature)
        self.constants = constants
        self.outside = outside
        self.mutable_data = mutable_data
        self.delegate_data = delegate_data
        self.emit_mutable_buffer_names = emit_mutable_buffer_names
        self.problems: list[tuple[str, Node, str]] = []
        self.debug_handles: dict[int, Any] = {}
        self.results_written: dict[int, int] = {}
        self.delegate_map: dict[int, Any] = {}
        self.delegates: list[Any] = []
        self.stacktrace: list[Any] | None = [] if emit_stacktrace else None
        self.values: list[Any] = []
        self.inputs: list[int] = []
        self.instructions: list[Any] = []
        self._chain_of: list[Any] = []  # of each instruction
        self._chain: Any = None  # of the node that is emitted
        self._operators: dict[tuple[str, str], int] = {}
        self._of_node: dict[Node, int | tuple[int, ...]] = {}
        self._of_spec: dict[TensorSpec, int] = {}
        self._of_scalar: dict[tuple, int] = {}
        self._outside: dict[TensorSpec, tuple[str, str, int]] = {}  # file, name and buffer

    def emit(self) -> Any:
        """The method's ExecutionPlan; what cannot be expressed is in `problems` afterwards."""
        signature = self.program.graph_signature
        for node, stored in zip(placeholders(self.program), signature.input_specs, strict=True):
            self._attempt(self._placeholder, node, stored)
        self._relate_sizes()
        self._graph(self.program.graph_module)
        outputs = self._attempt(self._output, self.program.graph.output_node()) or []
        if self.program.graph_module.meta.get("non_const_buffer_sizes") is None:
            raise EmitError(
                f"method {self.name!r} has no memory plan",
                hints=["run MemoryPlanningPass on the program first"],
            )
        return pte.ExecutionPlan(
            name=self.name,
            container_meta_type=pte.ContainerMetadata(
                _structure(self.program.call_spec.in_spec), _structure(self.program.call_spec.out_spec)
            ),
            values=self.values,
            inputs=self.inputs,
            outputs=outputs,
            chains=self._chains(outputs),
            operators=[pte.Operator(name, overload) for name, overload in self._operators],
            delegates=self.delegates,
            non_const_buffer_sizes=list(self.program.graph_module.meta["non_const_buffer_sizes"]),
        )

    def _chains(self, outputs: Sequence[int]) -> list[Any]:
        """The instructions, cut where the graph says; the inputs and outputs of one chain are what it shares with others."""
        starts = [at for at, chain in enumerate(self._chain_of) if at == 0 or chain != self._chain_of[at - 1]]
        cuts = [*starts, len(self.instructions)] if starts else [0, 0]
        touched = [self._touched(self.instructions[start:end]) for start, end in itertools.pairwise(cuts)]
        chains = []
        for number, (start, end) in enumerate(itertools.pairwise(cuts)):
            before = set(self.inputs).union(*touched[:number])
            after = set(outputs).union(*touched[number + 1 :])
            chains.append(
                pte.Chain(
                    inputs=sorted(touched[number] & before) if len(touched) > 1 else [],
                    outputs=sorted((touched[number] - before) & after) if len(touched) > 1 else [],
                    instructions=self.instructions[start:end],
                    stacktrace=self.stacktrace[start:end] if self.stacktrace else [],
                )
            )
        return chains

    def _touched(self, instructions: Sequence[Any]) -> set[int]:
        """The values that some calls read or write, but for constants."""
        found: set[int] = set()
        stack = [index for each in instructions for index in getattr(each.instr_args, "args", ())]
        while stack:
            index = stack.pop()
            record = self.values[index].val if index >= 0 else None
            if isinstance(record, (pte.TensorList, pte.OptionalTensorList)):
                stack += record.items
            elif isinstance(record, pte.Tensor) and (record.allocation_info or not record.data_buffer_idx):
                found.add(index)
        return found

    def _attempt(self, visit: Callable[..., Any], node: Node, *arguments: Any) -> Any:
        try:
            return visit(node, *arguments)
        except (_Unsupported, ValueError) as problem:
            self.problems.append((self.name, node, str(problem)))
            # Its readers need some value to go on with, so that all problems are found at once.
            self._of_node[node] = self._scalar(0)

    def _relate_sizes(self) -> None:
        """Compare sizes of inputs that depend on each other, each with a text that is the error where they differ."""
        inputs = list(self.interface.inputs)
        found, places = relations([(str(node.target), node.meta.get("val")) for node in inputs])
        if not found:
            return
        first = next(node for node in self.program.graph.nodes if node.op != "placeholder")
        self._chain = first.meta.get("chain")
        values: dict[sympy.Expr, int] = {}

        def number(expression: sympy.Expr) -> int:
            if expression.is_Integer:
                return self._scalar(int(expression))
            if expression in values:
                return values[expression]
            if expression.is_Symbol:
                index, dim = places[expression]
                value = self._argument(inputs[index], "")
                if dim is None:
                    return value
                name, operands = ("aten::sym_size", "int"), [value, self._scalar(dim)]
            else:
                is_quotient = isinstance(expression, FloorDiv)
                left, right = expression.args if is_quotient else expression.as_two_terms()
                function = "floordiv" if is_quotient else "add" if expression.is_Add else "mul"
                name, operands = (f"executorch_prim::{function}", "Scalar"), [number(left), number(right)]
            result = values[expression] = self._value(pte.Int(0))
            self._instruction(name, [*operands, result], inputs[0], 0)
            return result

        for size, wanted, text in found:
            self._compare("eq", [number(size), number(wanted)], text, inputs[0])

    # -- nodes --

    def _graph(self, module: GraphModule) -> None:
        for node in module.graph.nodes:
            is_branch = node.op == "get_attr" and isinstance(
                getattr(module, str(node.target), None), GraphModule
            )
            if node.op not in ("placeholder", "output") and not is_branch:
                self._chain = node.meta.get("chain")
                self._attempt(self._call, node)
                for spec in node.meta.get("frees", ()):
                    if spec in self._of_spec:
                        self._append(pte.FreeCall(self._of_spec[spec]), node)

    def _placeholder(self, node: Node, stored: Any) -> None:
        if node in self.interface.inputs:
            spec = node.meta.get("spec")
            if isinstance(spec, TensorSpec):
                index = self._tensor(spec, 0, str(node.target))
                ranges = _ranges(node.meta["val"], self.program.range_constraints)
                if ranges:
                    self.values[index].val.extra_tensor_info.ranges = ranges
            else:
                # A number that export has fixed, or a symbolic one: the value says which and of what type.
                index = self._value(_scalar_record(node.meta.get("val", getattr(stored.arg, "value", None))))
            self._of_node[node] = index
            self.inputs.append(index)
            return
        tensor = tensor_of(self.program, stored)
        spec = node.meta.get("spec")
        if tensor is None or not isinstance(spec, TensorSpec):
            if node.users:
                raise _Unsupported(f"{stored.kind.name.lower()} {stored.target!r} is no tensor")
            return
        name = None
        if node in self.interface.mutable_buffers or not spec.const:
            if self.emit_mutable_buffer_names:
                name = stored.target
            elif spec.mem_offset is None:
                raise _Unsupported(
                    f"state {stored.target!r} has no memory: plan it, or emit it by name (emit_mutable_buffer_names)"
                )
            planned = spec.mem_offset is not None
            # The runtime fills planned memory with zeros: state that starts so needs no bytes in the file.
            data = self.mutable_data.add(tensor, spec.dim_order) if planned and bool(tensor.any()) else 0
        elif not node.users:
            return
        elif file := self.outside.file_of(node):
            place = (file, stored.target, self.outside.store.add(tensor, spec.dim_order))
            self._of_node[node] = self._tensor(spec, 0, self.outside.add(*place, spec), outside=True)
            self._outside[spec] = place
            return
        else:
            order = self._order_of_delegates(node, tensor) or spec.dim_order
            self._of_node[node] = index = self._tensor(spec, self.constants.add(tensor, order))
            self.values[index].val.dim_order = list(order)
            return
        self._of_node[node] = self._tensor(spec, data, name)

    def _order_of_delegates(self, node: Node, tensor: torch.Tensor) -> tuple[int, ...] | None:
        """For a weight of convolutions in a portable plan: the order of dimensions in which a delegate has its bytes (channels
        innermost, for example), if one does. Its readers take any order, and the file then holds them once."""
        if not self.name.endswith(pte.PORTABLE) or tensor.dim() < 3:
            return None
        for user in node.users:
            places = [i for i, argument in enumerate(user.args) if argument is node]
            if (user.target, places) not in _READERS_OF_ANY_ORDER:
                return None
        taps = range(2, tensor.dim())
        orders = [(0, 1, *taps), (0, *taps, 1), (1, *taps, 0)]
        return next((order for order in orders if self.delegate_data.holds(tensor.permute(order))), None)

    def _call(self, node: Node) -> None:
        target = node.target
        if node.op == "get_attr" and all(is_delegate_call(user) for user in node.users):
            return  # named by the call
        if node.op != "call_function":
            raise _Unsupported(f"{node.op} of {target}")
        if control_flow.name(target) == "cond":
            self._cond(node)
        elif control_flow.name(target) == "while_loop":
            self._while(node)
        elif target is operator.getitem:
            parts = self._of_node[node.args[0]]
            self._of_node[node] = parts[node.args[1]] if isinstance(parts, tuple) else parts
        elif "alias" in node.meta and self._is_alias(node):
            self._alias(node)
        elif target is ops.assert_scalar:
            self._assertion(node)
        elif target in _PRIMITIVES or target is operator.pos:
            if not _is_asserted(node):
                self._primitive(node)
        elif isinstance(target, torch._ops.OpOverload):
            self._kernel(node, target)
        elif is_delegate_call(node):
            self._delegate(node)
        else:
            raise _Unsupported(f"no form in the file for a call of {getattr(target, '__name__', target)}")

    def _output(self, node: Node) -> list[int]:
        for value, buffer in self.interface.updates:
            mine, theirs = specs_of(value), specs_of(buffer)
            if not mine or not theirs or mine[0] is None or mine[0].root is not theirs[0]:
                raise _Unsupported(f"the new value of {buffer.name} is never written back to it")
        return [self._argument(value, "") for value in self.interface.outputs]

    # -- control flow --

    def _cond(self, node: Node) -> None:
        """Jump over the side that is not taken. Its tensors are computed where the result lies, its numbers moved there."""
        values = node.meta["val"]
        results = [
            self._value(_scalar_record(value)) if spec is None else self._tensor(spec)
            for value, spec in zip(values, specs_of(node), strict=True)
        ]
        operands = [self._argument(value, "") for value in control_flow.shared(node)]
        if_true, if_false = control_flow.branches(node)
        to_false = self._jump(self._argument(node.args[0], ""), node)
        self._move(node, self._branch(if_true, operands), results)
        to_end = self._jump(self._scalar(False), node)
        to_false.destination_instruction = len(self.instructions)
        self._move(node, self._branch(if_false, operands), results)
        to_end.destination_instruction = len(self.instructions)
        self._of_node[node] = tuple(results)

    def _while(self, node: Node) -> None:
        """Jump out where the condition fails, else back behind the body. What is carried has one place throughout."""
        first = [self._argument(value, "") for value in control_flow.carried(node)]
        results = [
            self._value(_scalar_record(value)) if spec is None else self._tensor(spec)
            for value, spec in zip(node.meta["val"], specs_of(node), strict=True)
        ]
        operands = [*results, *(self._argument(value, "") for value in control_flow.shared(node))]
        condition, body = control_flow.branches(node)
        self._move(node, first, results)
        start = len(self.instructions)
        (goes_on,) = self._branch(condition, operands)
        to_end = self._jump(goes_on, node)
        self._move(node, self._branch(body, operands), results)
        self._jump(self._scalar(False), node).destination_instruction = start
        to_end.destination_instruction = len(self.instructions)
        self._of_node[node] = tuple(results)

    def _branch(self, branch: GraphModule, operands: list[int]) -> list[int]:
        """Emit a branch; the values of its results."""
        self._of_node.update(zip(control_flow.inputs(branch), operands, strict=True))
        self._graph(branch)
        return [self._argument(value, "") for value in control_flow.results(branch)]

    def _jump(self, condition: int, node: Node) -> Any:
        """A jump where the condition does not hold; its destination is to be set."""
        record = pte.JumpFalseCall(condition, 0)
        self._append(record, node)
        return record

    def _move(self, node: Node, sources: list[int], targets: list[int]) -> None:
        """Move all values at once; what is where it should be stays."""
        moves = [
            (source, target) for source, target in zip(sources, targets, strict=True) if source != target
        ]
        overwritten = {target for _, target in moves}
        for index, (source, target) in enumerate(moves):
            if source in overwritten:
                kept = self._value(self.values[source].val)
                self._append(pte.MoveCall(source, kept), node)
                moves[index] = (kept, target)
        for source, target in moves:
            self._append(pte.MoveCall(source, target), node)

    # -- calls --

    def _kernel(self, node: Node, op: torch._ops.OpOverload) -> None:
        if "alias" in node.meta and not ops.is_out_variant(op):
            # The planner took the alias back, so the view is a copy after all.
            twin = ops.out_variant(op)
            if twin is None:
                raise _Unsupported(f"{op} shares memory that cannot be shared here, and has no out variant")
            op = twin
        value = node.meta.get("val")
        if isinstance(value, (bool, int, float)) and op in ops.SYMBOLIC_OPERATORS:
            self._of_node[node] = self._scalar(value)
            return
        signature = _signature(op)
        written = [argument for argument in signature if argument.is_out]
        specs = specs_of(node)
        if len(written) == 1 and written[0].kind == "[Tensor]" and None not in specs:
            parts = [self._tensor(spec) for spec in specs if spec is not None]
            results: tuple[int, ...] = (self._value(pte.TensorList(parts)),)
        elif written:
            if len(specs) != len(written) or any(spec is None for spec in specs):
                raise _Unsupported(f"{op} writes {len(written)} tensors, the graph knows {len(specs)}")
            results = tuple(self._tensor(spec) for spec in specs if spec is not None)
        elif specs:
            results = tuple(self._tensor(spec) for spec in specs if spec is not None)
        elif value is None:
            raise _Unsupported(f"{op} yields nothing that a value can hold")
        else:
            results = (self._value(_scalar_record(value)),)
        arguments, following = [], iter(results)
        for position, argument in enumerate(signature):
            if argument.is_out:
                arguments.append(next(following))
                continue
            if argument.name in node.kwargs:
                given = node.kwargs[argument.name]
            elif not argument.by_name_only and position < len(node.args):
                given = node.args[position]
            else:
                given = argument.default
            try:
                arguments.append(self._argument(given, argument.kind, argument.length))
            except _Unsupported as problem:
                raise _Unsupported(f"argument {argument.name!r} of {op}: {problem}") from None
        if op is aten.empty.out and isinstance(value, torch.Tensor) and _is_static(value):
            self._of_node[node] = results[0]  # memory is planned, and nothing has to be written there
            return
        # After the schema's own arguments come the results, several of them as one list.
        if op is not ops.copy_index:
            arguments.append(results[0] if len(results) == 1 else self._value(pte.TensorList(list(results))))
        tensors = tuple(self._of_spec[spec] for spec in specs if spec is not None)
        self._of_node[node] = tensors if isinstance(node.meta.get("spec"), tuple) else results[0]
        self._instruction(ops.kernel_name(op), arguments, node, len(tensors))

    def _primitive(self, node: Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, (bool, int, float)):
            self._of_node[node] = self._scalar(value)
            return
        if node.kwargs:
            raise _Unsupported("arguments by name of a function on numbers")
        if node.target is operator.pos:
            self._of_node[node] = self._argument(node.args[0], "")
            return
        if node.target is round and len(node.args) > 1:
            raise _Unsupported("rounding to a number of digits")
        name = (f"executorch_prim::{_PRIMITIVES[node.target]}", "Scalar")
        if node.target is torch.sym_sum:
            total, *terms = (self._argument(term, "") for term in node.args[0])
            for term in terms:
                result = self._value(_scalar_record(value))
                self._instruction(name, [total, term, result], node, 0)
                total = result
            self._of_node[node] = total
            return
        arguments = [self._argument(argument, "") for argument in node.args]
        result = self._value(_scalar_record(value))
        self._of_node[node] = result
        self._instruction(name, [*arguments, result], node, 0)

    def _assertion(self, node: Node) -> None:
        condition, text = node.args
        if isinstance(condition, Node) and _is_asserted(condition):
            function, operands = condition.target, condition.args
        else:
            function, operands = operator.ne, (condition, False)
        self._compare(_PRIMITIVES[function], [self._argument(each, "") for each in operands], str(text), node)

    def _compare(self, function: str, operands: list[int], text: str, node: Node) -> None:
        """Let the device fail with a text where a comparison does not hold: the text stands where the result would."""
        arguments = [*operands, self._value(pte.String(text))]
        self._instruction((f"executorch_prim::{function}", "Scalar"), arguments, node, 0)

    def _delegate(self, node: Node) -> None:
        callee = node.args[0]
        module = getattr(node.graph.owning_module, str(getattr(callee, "target", "")), None)
        if not isinstance(module, LoweredBackendModule):
            raise _Unsupported(f"the delegate {callee} is no LoweredBackendModule")
        specs = specs_of(node)
        if None in specs:
            raise _Unsupported("a delegate's result is no tensor")
        results = tuple(self._tensor(spec) for spec in specs if spec is not None)
        self._of_node[node] = results
        arguments = [self._argument(argument, "") for argument in node.args[1:]]
        at = len(self.instructions)
        self.delegate_map[at] = {"name": module.backend_id, "delegate_map": module.meta["debug_handle_map"]}
        self._append(pte.DelegateCall(len(self.delegates), [*arguments, *results]), node, len(results))
        # Where the blob lies is filled in when the file is written; the index is that into delegate_data.
        processed = pte.BackendDelegateDataReference(index=self.delegate_data.add(module))
        specs_given = [pte.CompileSpec(spec.key, bytes(spec.value)) for spec in module.compile_specs]
        self.delegates.append(pte.BackendDelegate(module.backend_id, processed, specs_given))

    def _is_alias(self, node: Node) -> bool:
        """Whether the plan lets this node share its source's bytes."""
        return any(spec is not None and spec.base is not None for spec in specs_of(node))

    def _alias(self, node: Node) -> None:
        spec = node.meta["spec"]
        root = spec.root
        if root in self._outside:
            name = self.outside.add(*self._outside[root], spec)
            self._of_node[node] = self._tensor(spec, 0, name, outside=True)
            return
        if root.const:
            self._of_node[node] = self._tensor(spec, self.values[self._of_spec[root]].val.data_buffer_idx)
            return
        result = self._tensor(spec)
        self._of_node[node] = result
        if spec.mem_offset is not None and spec.is_static_shape_tensor:
            return
        # Where the bytes lie, or how many they are, is known at run time only: a view is made there.
        sizes = view_sizes(node)
        source = node.meta["alias"][0]
        arguments = [self._argument(source, "Tensor"), self._argument(sizes, "[int]"), result]
        self._instruction(("executorch_prim::et_view", "default"), arguments, node, 1)

    def _instruction(self, name: tuple[str, str], arguments: list[int], node: Node, results: int) -> None:
        index = self._operators.setdefault(name, len(self._operators))
        self._append(pte.KernelCall(index, arguments), node, results)

    def _append(self, call: Any, node: Node, results: int = 0) -> None:
        at = len(self.instructions)
        self.instructions.append(pte.Instruction(call))
        self._chain_of.append(self._chain)
        handle = node.meta.get("debug_handle")
        if handle is not None:
            self.debug_handles[at] = handle
        self.results_written[at] = results
        if self.stacktrace is not None:
            self.stacktrace.append(_frames(node))

    # -- values --

    def _value(self, record: Any) -> int:
        self.values.append(pte.EValue(record))
        return len(self.values) - 1

    def _tensor(
        self, spec: TensorSpec, data_buffer_idx: int = 0, name: str | None = None, outside: bool = False
    ) -> int:
        index = self._of_spec.get(spec)
        if index is None:
            index = self._of_spec[spec] = self._value(_tensor_record(spec, data_buffer_idx, name, outside))
        return index

    def _scalar(self, value: Any) -> int:
        """The value of a plain number, string or None; equal ones are stored once."""
        key = (type(value), struct.pack("<d", value) if isinstance(value, float) else value)
        index = self._of_scalar.get(key)
        if index is None:
            index = self._of_scalar[key] = self._value(_scalar_record(value))
        return index

    def _list(self, kind: str, items: list, make: Any) -> int:
        # The runtime gathers a list's elements in one place: chains that may run at the same time have their own.
        key = (
            kind,
            self._chain,
            tuple(struct.pack("<d", item) if kind == "DoubleList" else item for item in items),
        )
        index = self._of_scalar.get(key)
        if index is None:
            index = self._of_scalar[key] = self._value(make(items))
        return index

    def _argument(self, given: Any, kind: str, length: int | None = None) -> int:
        """The index of the value that holds an argument; `kind` is its type in the schema, "" where there is none."""
        if isinstance(given, Node):
            index = self._of_node.get(given)
            if not isinstance(index, int):
                raise _Unsupported(f"{given.name} is no single value")
            if kind.startswith("["):
                return self._elements([given], kind)
            return index
        if kind.startswith("[") and given is not None:
            items = list(given) if isinstance(given, (list, tuple)) else [given] * (length or 1)
            return self._elements(items, kind)
        if isinstance(given, (list, tuple)):
            raise _Unsupported(f"a list where {kind or 'a value'} is due")
        return self._scalar(_plain(given, kind))

    def _elements(self, items: list, kind: str) -> int:
        element = kind[1:-1]
        if element == "int":
            return self._list("IntList", [self._argument(item, "int") for item in items], pte.IntList)
        if element == "float":
            return self._list("DoubleList", [_plain(item, "float") for item in items], pte.DoubleList)
        if element == "bool":
            return self._list("BoolList", [bool(item) for item in items], pte.BoolList)
        if element == "Tensor":
            return self._list(
                "TensorList", [self._argument(item, "Tensor") for item in items], pte.TensorList
            )
        if element == "?Tensor":
            places = [-1 if item is None else self._argument(item, "Tensor") for item in items]
            return self._list("OptionalTensorList", places, pte.OptionalTensorList)
        raise _Unsupported(f"a list of {element}")


def _is_asserted(node: Node) -> bool:
    """A comparison that nothing but assertions read."""
    return node.target in _COMPARISONS and all(user.target is ops.assert_scalar for user in node.users)


def _is_static(tensor: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor.shape)


def _plain(given: Any, kind: str) -> bool | int | float | str | None:
    """A constant as the file knows it, in the type that the schema wants."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, torch.dtype):
        return int(scalar_type(given))
    if isinstance(given, torch.memory_format):
        return _MEMORY_FORMATS[given]
    if isinstance(given, torch.layout) and given is torch.strided:
        return 0
    if isinstance(given, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        if not given.node.is_constant():
            raise _Unsupported(f"the symbolic number {given} is not a node of the graph")
        given = given.node.constant_value() if hasattr(given.node, "constant_value") else int(given)
    if isinstance(given, (bool, int, float)):
        if kind == "float":
            return float(given)
        if kind == "int" and isinstance(given, bool):
            return int(given)
        if kind == "bool":
            return bool(given)
        return given
    raise _Unsupported(f"a {type(given).__name__} ({given})")


def _scalar_record(value: Any) -> Any:
    """A number, string or None as a record; a symbolic number as a place for one."""
    if value is None:
        return pte.Null()
    if isinstance(value, bool):
        return pte.Bool(value)
    if isinstance(value, int):
        return pte.Int(value)
    if isinstance(value, float):
        return pte.Double(value)
    if isinstance(value, str):
        return pte.String(value)
    if isinstance(value, torch.SymInt):
        return pte.Int(0)
    if isinstance(value, torch.SymFloat):
        return pte.Double(0.0)
    if isinstance(value, torch.SymBool):
        return pte.Bool(False)
    raise _Unsupported(f"a {type(value).__name__} ({value})")


def _structure(spec: pytree.TreeSpec | None) -> str:
    """How inputs or outputs nest, in torch's own text; empty where that is not known, and values stay a flat list."""
    if spec is None:
        return ""
    try:
        version, record = json.loads(pytree.treespec_dumps(_with_plain_tuples(spec)))
    except NotImplementedError:  # a container registered without a name that a file could hold
        return ""
    _name_tuples(record, spec)
    return json.dumps([version, record])


def _lacks_text(spec: pytree.TreeSpec) -> bool:
    """What torch.topk and its like return, and dataclasses without a name: torch itself has no text for them."""
    if dataclasses.is_dataclass(spec.type):
        text = pytree.SUPPORTED_SERIALIZED_TYPES.get(spec.type)
        return text is None or text.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND
    return spec.type in torch.return_types.all_return_types


def _with_plain_tuples(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    if spec.is_leaf():
        return spec
    kind, context = (tuple, None) if _lacks_text(spec) else (spec.type, spec.context)
    return pytree.TreeSpec(kind, context, [_with_plain_tuples(child) for child in spec.children()])


def _name_tuples(record: dict[str, Any], spec: pytree.TreeSpec) -> None:
    if _lacks_text(spec):
        is_dataclass = dataclasses.is_dataclass(spec.type)
        record["type"] = f"{spec.type.__module__}.{spec.type.__qualname__}"
        record["context"] = json.dumps(spec.context if is_dataclass else spec.type.__match_args__)
    for child, child_spec in zip(record["children_spec"], spec.children(), strict=True):
        _name_tuples(child, child_spec)


def _constant_method(name: str, value: Any, constants: _Store) -> Any:
    """A method without instructions whose outputs are stored values."""
    values = []
    leaves, structure = pytree.tree_flatten(value)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            spec = TensorSpec.from_tensor(leaf, const=True)
            record = _tensor_record(spec, constants.add(leaf, spec.dim_order))
        else:
            try:
                record = _scalar_record(_plain(leaf, ""))
            except _Unsupported as problem:
                raise EmitError(
                    f"constant method {name!r} cannot return {problem}",
                    hints=["return tensors, numbers, strings, None, or tuples, lists and dicts of them"],
                ) from None
        values.append(pte.EValue(record))
    return pte.ExecutionPlan(
        name=name,
        container_meta_type=pte.ContainerMetadata("", _structure(structure)),
        values=values,
        outputs=list(range(len(values))),
        chains=[pte.Chain()],
        non_const_buffer_sizes=[0],
    )


_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n\s*(?P<code>[^\n]*)'
)


def _frames(node: Node) -> Any:
    trace = node.meta.get("stack_trace") or ""
    return pte.FrameList(
        [
            pte.Frame(frame["file"], int(frame["line"]), frame["function"], frame["code"].strip())
            for frame in _FRAME.finditer(trace)
        ]
    )


def _error(problems: list[tuple[str, Node, str]]) -> EmitError:
    many = "s have" if len(problems) > 1 else " has"
    return EmitError(
        f"{len(problems)} node{many} no form in the file",
        where=[f"{method}, {node.name}: {text}\n{place(node)}" for method, node, text in problems],
        hints=[
            "rewrite these lines with other operators or dtypes",
            "compile with check_passes=True: if a pass left the graph so, it is named",
        ],
    )
