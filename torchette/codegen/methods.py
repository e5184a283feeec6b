# SPDX-License-Identifier: BSD-3-Clause
# In: the plan of one method. Out: its C++: tensors as static data, instructions as calls, jumps as branches and loops.
# The decisions that the interpreter makes at load time are made here.
"""Converts one method to C++: `Method`."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchette import schema
from torchette.build import kernels
from torchette.codegen import flow
from torchette.codegen.flow import Branch, Jump, Leave, Node, Step, structured
from torchette.codegen.loops import Loop, loop_of
from torchette.errors import UnsupportedError
from torchette.format import pte
from torchette.format.schema import Record

# C types of elements, by the names in the file's schema. 16-bit floats are only copied.
C_TYPES = {
    dtype.schema_name: {"Half": "uint16_t", "BFloat16": "uint16_t"}.get(dtype.cpp_type, dtype.cpp_type)
    for dtype in schema.DTYPES
    if dtype.is_computed
}
_C_SCALARS = {"Int": "int64_t", "Bool": "bool", "Double": "double"}

# Parameter types of the functions that call kernels, by code of the kernel signature. They copy the handle of an
# output.
_PARAMETERS = {code.letter: code.cpp_type for code in schema.CODES} | {"t": "const Tensor&"}
_UNBOUND = pte.TensorShapeDynamism.DYNAMIC_UNBOUND
_STATIC = pte.TensorShapeDynamism.STATIC

VIEW = "executorch_prim::et_view.default"


def codes_of(signature: str) -> list[str]:
    """Returns the codes of a signature, one per parameter. Codes of optional parameters have two letters."""
    return re.findall(r"\??.", signature)


def parameter(code: str) -> str:
    """Returns the C++ type of a parameter."""
    if code == "?T":
        return "const Tensor*"
    plain = _PARAMETERS[code[-1]].removeprefix("const ").rstrip("&")
    return f"const Optional<{plain}>&" if code[0] == "?" else _PARAMETERS[code]


@dataclass
class Pool:
    """The named constants that all methods of a unit share. Equal constants are stored once."""

    weights: dict[tuple[int, ...], tuple[int, int]] = field(default_factory=dict)  # key -> (offset, bytes)
    weights_size: int = 0
    operators: set[str] = field(default_factory=set)  # operators with called kernels
    loops: set[Loop] = field(default_factory=set)  # loops of element-wise operators
    declarations: dict[str, str] = field(default_factory=dict)  # declaration -> name

    def constant(self, text: str, stem: str) -> str:
        """Returns the name of a constant with the declaration `text`, in which @ represents the name."""
        return self.declarations.setdefault(text, f"{stem}{len(self.declarations)}")

    def array(self, kind: str, items: Iterable[str], stem: str) -> str:
        """Returns the name of a constant array, or nullptr if it has no items."""
        text = ", ".join(items)
        return self.constant(f"const {kind} @[] = {{{text}}};", stem) if text else "nullptr"

    def weight(self, key: tuple[int, ...], nbytes: int) -> int:
        """Returns the offset of a constant with key (0, index), or of an initial value with key (1, index, segment)."""
        if key not in self.weights:
            self.weights[key] = (self.weights_size, nbytes)
            self.weights_size += -(-nbytes // 16) * 16
        return self.weights[key][0]


class Parameter(NamedTuple):
    """A parameter of the generated function."""

    declaration: str  # such as const float* in0
    name: str


@dataclass
class Port:
    """An input or output of the generated function: a tensor record or a scalar."""

    name: str  # in0, out1
    value: int
    record: Any
    varying: list[int] = field(default_factory=list)  # dimensions whose sizes are parameters
    min_sizes: list[int] = field(default_factory=list)
    max_sizes: list[int] = field(default_factory=list)


class Method:
    """Converts a method to C++.

    Args:
        plan: a verified ExecutionPlan record.
        name: part of the generated symbols.
        signatures: the signatures of the kernels.
        pool: receives the constants.
        arenas: the name of each planned memory, by its id.

    Raises:
        UnsupportedError: the method cannot be converted. The error contains the reason.
    """

    def __init__(
        self, plan: Record, name: str, signatures: dict[str, str], pool: Pool, arenas: Sequence[str]
    ) -> None:
        self.plan, self.name = plan, name
        self._signatures, self._pool, self._arenas = signatures, pool, arenas
        self._values = [value.val for value in plan.values]
        self._code = [item.instr_args for chain in plan.chains for item in chain.instructions]
        self._starts = [0]
        for chain in plan.chains:
            self._starts.append(self._starts[-1] + len(chain.instructions))
        self._operators = [f"{op.name}.{op.overload}" if op.overload else op.name for op in plan.operators]
        self._tensors: set[int] = set()  # tensors that the code uses
        self._refuse()
        self._read, self._written = self._uses()
        self.inputs = self._ports(plan.inputs, "in")
        self.outputs = self._ports(plan.outputs, "out")

    # ---- properties of the plan ----

    def _refuse(self) -> None:
        where = [f"method {self.plan.name}"]
        if self.plan.delegates:
            backends = ", ".join(sorted({delegate.id for delegate in self.plan.delegates}))
            raise UnsupportedError(
                f"method {self.plan.name!r} has parts for the backend {backends}, which has no C++ sources",
                where=where,
                hints=["compile without the backend, or with portable_fallback=True"],
            )
        for name in self._operators:
            if name not in kernels.library():
                raise UnsupportedError(
                    f"{name} is a custom kernel, which codegen does not support", where=where
                )
        for index, record in enumerate(self._values):
            if self._kind(index) != "Tensor":
                continue
            extra = record.extra_tensor_info
            if extra is not None and extra.location == pte.TensorDataLocation.EXTERNAL:
                raise UnsupportedError(
                    f"the data of {extra.fully_qualified_name} is in another file",
                    where=where,
                    hints=["compile the model with its weights in the .pte file"],
                )
            if record.scalar_type.name not in C_TYPES:
                raise UnsupportedError(f"there is no C type for {record.scalar_type.name}", where=where)
            if record.shape_dynamism == _UNBOUND and record.sizes and index not in self.plan.inputs:
                raise UnsupportedError(
                    f"tensor {index} of method {self.plan.name!r} has a size that is known only at run time, and "
                    "cannot be in static memory",
                    where=where,
                    hints=[
                        "if its dimensions have bounds: compile with "
                        "dynamic_memory_planning_mode=DynamicMemoryPlanningMode.UPPER_BOUND",
                        "if it depends on data, as for nonzero: remove this part from the model",
                    ],
                )

    def _uses(self) -> tuple[set[int], set[int]]:
        """Returns the values that instructions read and write."""
        read: set[int] = set()
        written: set[int] = set()
        for call in self._code:
            kind = type(call).__name__
            if kind == "KernelCall":
                for code, index in zip(codes_of(self._signatures[self._operators[call.op_index]]), call.args):
                    if code in ("t", "v") or (code == "m" and self._is_scalar(index)):
                        written.add(index)
                    members = getattr(self._values[index], "items", None) if index >= 0 else None
                    read |= {index, *(members if self._kind(index) in _LISTS_OF_VALUES and members else ())}
            elif kind == "MoveCall":
                read.add(call.move_from)
                written.add(call.move_to)
            elif kind == "JumpFalseCall":
                read.add(call.cond_value_index)
        return read, written

    def _kind(self, index: int) -> str:
        return type(self._values[index]).__name__

    def _is_scalar(self, index: int) -> bool:
        return self._kind(index) in (*_C_SCALARS, "Null", "NONE")

    def _is_variable(self, index: int) -> bool:
        """Returns whether a scalar changes at run time."""
        return self._is_scalar(index) and (index in self._written or index in self.plan.inputs)

    def _is_placed(self, index: int) -> bool:
        record = self._values[index]
        return bool(record.allocation_info or record.data_buffer_idx)

    def _is_caller_memory(self, index: int) -> bool:
        """Returns whether the caller provides the storage of a tensor."""
        return not self._is_placed(index) and index in (*self.plan.inputs, *self.plan.outputs)

    def _is_unbacked(self, index: int) -> bool:
        """Returns whether a tensor becomes a view of another one."""
        return (
            self._kind(index) == "Tensor" and not self._is_placed(index) and not self._is_caller_memory(index)
        )

    def _ports(self, indices: Sequence[int], stem: str) -> list[Port]:
        ports = []
        for number, index in enumerate(indices):
            record, port = self._values[index], Port(f"{stem}{number}", index, self._values[index])
            if self._kind(index) == "Tensor":
                port.min_sizes, port.max_sizes = list(record.sizes), list(record.sizes)
                ranges = list(getattr(record.extra_tensor_info, "ranges", None) or ())
                if len(ranges) == 2 * len(record.sizes):
                    port.min_sizes, port.max_sizes = ranges[::2], ranges[1::2]
                elif record.shape_dynamism != _STATIC:
                    port.min_sizes = [0] * len(record.sizes)
                port.varying = [
                    d for d, (low, high) in enumerate(zip(port.min_sizes, port.max_sizes)) if low != high
                ]
            elif self._kind(index) not in _C_SCALARS:
                continue  # constant None or string
            elif stem == "in" and index not in self._read:
                continue  # constant scalar
            ports.append(port)
        return ports

    # ---- the signature of the function ----

    def parameters(self) -> list[str]:
        """Returns the declarations of the parameters, in C."""
        found = []
        for port in self.inputs:
            if self._kind(port.value) != "Tensor":
                found.append(f"{_C_SCALARS[self._kind(port.value)]} {port.name}")
                continue
            const = "" if self._is_caller_memory(port.value) and port.value in self._written else "const "
            found.append(f"{const}{C_TYPES[port.record.scalar_type.name]}* {port.name}")
            found += [f"int32_t {port.name}_size{d}" for d in port.varying]
        for port in self.outputs:
            if self._kind(port.value) != "Tensor":
                found.append(f"{_C_SCALARS[self._kind(port.value)]}* {port.name}")
                continue
            found.append(f"{C_TYPES[port.record.scalar_type.name]}* {port.name}")
            if port.record.shape_dynamism != _STATIC:
                found.append(f"int32_t* {port.name}_sizes")
        return found

    # ---- values as C++ ----

    def _tensor(self, index: int) -> str:
        self._tensors.add(index)
        return f"t{index}"

    def _number(self, index: int, code: str) -> str:
        """Returns a scalar as an int64_t, a double, a bool, a Scalar or a Value."""
        if self._is_variable(index):
            read = {"i": ".to_int()", "d": ".to_double()", "b": ".to_bool()", "s": ".to_scalar()", "v": ""}
            return f"v{index}{read[code]}"
        if self._is_scalar(index) and self._kind(index) not in _C_SCALARS:
            return "Value()"
        number = _stored(self._values[index])
        if code == "i":
            return _integer_literal(math.trunc(number))
        if code == "d":
            return _double_literal(float(number))
        if code == "b":
            return str(bool(number)).lower()
        literal = _typed_literal(number)
        if code == "s":
            return self._pool.constant(f"constexpr Scalar @({literal});", "s")
        return f"Value({literal})"

    def _span(self, index: int, code: str, before: list[str]) -> str:
        record = self._values[index]
        if code == "S":
            text = record.string_val or ""
            return f"Span<const char>({json.dumps(text)}, {len(text.encode())})"
        if code == "D":
            kind, items = "double", [_double_literal(item) for item in record.items]
        elif code == "B":
            kind, items = "bool", [str(bool(item)).lower() for item in record.items]
        elif code == "I":
            kind, items = "int64_t", [self._number(item, "i") for item in record.items]
            if any(self._is_variable(item) for item in record.items):
                before.append(f"const int64_t l{index}[] = {{{', '.join(items)}}};")
                return f"Span<const int64_t>(l{index})"
        else:
            kind = "Tensor" if code == "L" else "Optional<Tensor>"
            items = [
                "Optional<Tensor>()" if item < 0 or self._kind(item) != "Tensor" else self._tensor(item)
                for item in record.items
            ]
            if items:
                before.append(f"static const {kind} l{index}[] = {{{', '.join(items)}}};")
                return f"Span<const {kind}>(l{index})"
        name = self._pool.array(kind, items, "n")
        return f"Span<const {kind}>({name}, {len(items)})"

    def _argument(self, index: int, code: str, before: list[str]) -> str:
        letter = code[-1]
        if code[0] == "?":
            absent = index < 0 or self._kind(index) in ("Null", "NONE")
            if letter == "T":
                return "nullptr" if absent else f"&{self._tensor(index)}"
            kind = f"Optional<{_PARAMETERS[letter].removeprefix('const ').rstrip('&')}>"
            if absent and not self._is_variable(index):
                return f"{kind}()"
            value = self._argument(index, letter, before)
            return f"v{index}.is_none() ? {kind}() : {kind}({value})" if absent else f"{kind}({value})"
        if letter in "Tt":
            return self._tensor(index)
        if letter == "v":
            return f"v{index}"
        if letter == "m":
            return (
                f"ConditionResult{{&v{index}, {{}}}}"
                if self._is_scalar(index)
                else f"ConditionResult{{nullptr, {self._span(index, 'S', before)}}}"
            )
        return self._span(index, letter, before) if letter in "SIDBLO" else self._number(index, letter)

    # ---- instructions as C++ ----

    def _step(self, at: int) -> list[str]:
        call = self._code[at]
        kind = type(call).__name__
        if kind == "FreeCall":
            return []
        if kind == "MoveCall":
            if self._is_scalar(call.move_to):
                return [f"v{call.move_to} = {self._number(call.move_from, 'v')};"]
            return [f"TORCHETTE_TRY(move({self._tensor(call.move_from)}, {self._tensor(call.move_to)}));"]
        operator = self._operators[call.op_index]
        codes = codes_of(self._signatures[operator])
        if line := self._loop(operator, codes, call.args):
            return [line]
        self._pool.operators.add(operator)
        before: list[str] = []
        arguments = [self._argument(index, code, before) for code, index in zip(codes, call.args)]
        named = [index for index in call.args[: len(codes)] if index >= 0]
        members = [item for i in named if self._kind(i) in _TENSOR_LISTS for item in self._values[i].items]
        defines = operator == VIEW and self._is_unbacked(call.args[len(codes) - 1])
        checked = dict.fromkeys([*(named[:-1] if defines else named), *members])
        views = [index for index in checked if index >= 0 and self._is_unbacked(index)]
        before += [f"TORCHETTE_TRY(backed({self._tensor(index)}));" for index in views]
        if defines:
            before.append(f"i{call.args[len(codes) - 1]}.data = nullptr;")
        line = f"TORCHETTE_TRY({symbol(operator)}({', '.join(['context', *arguments])}));"
        return ["{", *(f"  {text}" for text in (*before, line)), "}"] if before else [line]

    def _loop(self, operator: str, codes: list[str], args: Sequence[int]) -> str:
        """Returns the call as an element-wise loop, or an empty string if it is not one."""
        operands = []
        for code, index in zip(codes[:-1], args):
            if code not in "Ts" or self._is_variable(index):
                return ""
            record = self._values[index]
            operands.append(record if code == "T" else _stored(record))
        if codes[-1] != "t" or any(self._is_unbacked(index) for index in args[: len(codes)]):
            return ""
        out = self._values[args[len(codes) - 1]]
        loop = loop_of(operator, operands, out)
        if loop is None:
            return ""
        self._pool.loops.add(loop)
        words = [f"{self._tensor(args[len(codes) - 1])}.mutable_data_ptr<{loop.result}>()"]
        words.append(str(math.prod(out.sizes)))
        for varies, index, operand in zip(loop.varying, args, operands):
            if not hasattr(operand, "scalar_type"):
                words.append(f"static_cast<{loop.type}>({_typed_literal(operand)})")
            else:
                data = f"{self._tensor(index)}.const_data_ptr<{loop.type}>()"
                words.append(data if varies else f"*{data}")
        return f"{loop.symbol}({', '.join(words)});"

    def _condition(self, index: int) -> str:
        return f"holds({self._tensor(index)})" if self._kind(index) == "Tensor" else self._number(index, "b")

    def _flow(self) -> list[str]:
        jumps: list[Jump | None] = []
        for start, end in zip(self._starts, self._starts[1:]):
            for call in self._code[start:end]:
                if type(call).__name__ != "JumpFalseCall":
                    jumps.append(None)
                    continue
                index = call.cond_value_index
                fixed = self._kind(index) in _C_SCALARS and not self._is_variable(index)
                target = start + call.destination_instruction
                if fixed and self._number(index, "b") == "true":
                    target = len(jumps) + 1  # never taken
                jumps.append(Jump(None if fixed else index, target))
        tree = structured(jumps)
        if tree is not None:
            return self._nodes(tree)
        targets = {jump.target for jump in jumps if jump is not None}
        lines: list[str] = []
        for at, jump in enumerate(jumps):
            if at in targets:
                lines.append(f"at{at}:;")
            if jump is None:
                lines += self._step(at)
            elif jump.condition is None:
                lines.append(f"goto at{jump.target};")
            else:
                lines.append(f"if (!{self._condition(jump.condition)}) goto at{jump.target};")
        return [*lines, f"at{len(jumps)}:;"] if len(jumps) in targets else lines

    def _nodes(self, nodes: Iterable[Node]) -> list[str]:
        lines: list[str] = []
        for node in nodes:
            if isinstance(node, Step):
                lines += self._step(node.index)
            elif isinstance(node, flow.Loop):
                lines += ["for (;;) {", *_indented(self._nodes(node.body)), "}"]
            elif isinstance(node, Leave):
                word = "continue;" if node.again else "break;"
                lines.append(
                    word if node.condition is None else f"if (!{self._condition(node.condition)}) {word}"
                )
            elif isinstance(node, Branch):
                lines += [f"if ({self._condition(node.condition)}) {{", *_indented(self._nodes(node.then))]
                if node.other:
                    lines += ["} else {", *_indented(self._nodes(node.other))]
                lines.append("}")
        return lines

    # ---- inputs and outputs as C++ ----

    def _set_inputs(self) -> list[str]:
        lines: list[str] = []
        for port in self.inputs:
            if self._kind(port.value) != "Tensor":
                continue
            tensor, caller_memory = self._tensor(port.value), self._is_caller_memory(port.value)
            size = str(pte.tensor_nbytes(port.record))
            if port.record.shape_dynamism != _STATIC:
                sizes = [str(low) for low in port.min_sizes]
                for d in port.varying:
                    name = sizes[d] = f"{port.name}_size{d}"
                    upper_check = (
                        "" if port.max_sizes[d] == schema.NO_BOUND else f" || {name} > {port.max_sizes[d]}"
                    )
                    lines.append(
                        f"if ({name} < {port.min_sizes[d]}{upper_check}) return Error::InvalidArgument;"
                    )
                if sizes:
                    lines += ["{", f"  const SizesType sizes[] = {{{', '.join(sizes)}}};"]
                    lines += [
                        f"  TORCHETTE_TRY(set_sizes({tensor}, sizes, {str(caller_memory).lower()}));",
                        "}",
                    ]
                size = f"{tensor}.nbytes()"
            if caller_memory:
                kind = C_TYPES[port.record.scalar_type.name]
                lines.append(f"i{port.value}.data = const_cast<{kind}*>({port.name});")
            else:
                lines.append(f"memcpy({tensor}.mutable_data_ptr(), {port.name}, {size});")
        return lines

    def _bind_outputs(self) -> tuple[list[str], list[str]]:
        """Returns the code for outputs that precedes the instructions, and the code that follows them."""
        before: list[str] = []
        after: list[str] = []
        bound: set[int] = set(self.plan.inputs)
        for port in self.outputs:
            if self._kind(port.value) != "Tensor":
                after.append(f"*{port.name} = {self._number(port.value, _CODES[self._kind(port.value)])};")
                continue
            tensor, static = self._tensor(port.value), port.record.shape_dynamism == _STATIC
            if self._is_caller_memory(port.value) and port.value not in bound:
                before.append(f"i{port.value}.data = {port.name};")
                bound.add(port.value)
            else:
                size = str(pte.tensor_nbytes(port.record)) if static else f"{tensor}.nbytes()"
                after.append(f"memcpy({port.name}, {tensor}.const_data_ptr(), {size});")
            if not static:
                rank = len(port.record.sizes)
                after += [f"{port.name}_sizes[{d}] = {tensor}.sizes()[{d}];" for d in range(rank)]
        return before, after

    # ---- the generated text ----

    def initial(self) -> list[tuple[str, int, int]]:
        """Returns (location, size, offset in the weights) of the tensors with stored initial bytes."""
        found = []
        for record in self._values:
            if type(record).__name__ == "Tensor" and record.allocation_info and record.data_buffer_idx:
                extra = record.extra_tensor_info
                segment = extra.mutable_data_segments_idx if extra else 0
                size = pte.tensor_nbytes(record)
                found.append(
                    (
                        self._location(record),
                        size,
                        self._pool.weight((1, record.data_buffer_idx, segment), size),
                    )
                )
        return found

    def _location(self, record: Record) -> str:
        place = record.allocation_info
        return (
            f"{self._arenas[place.memory_id]} + {place.memory_offset_low + (place.memory_offset_high << 32)}"
        )

    def text(self) -> list[str]:
        """Returns the data of the method and its function `run`."""
        steps = self._flow()
        inputs, (bound, results) = self._set_inputs(), self._bind_outputs()
        body = [*inputs, *bound]
        views = sorted(index for index in self._tensors if self._is_unbacked(index))
        body += [f"i{index}.data = nullptr;" for index in views]
        ports = {port.value: port.name for port in self.inputs}
        for index in range(len(self._values)):
            if self._is_variable(index) and index in self._written | self._read:
                start = f"({ports[index]})" if index in ports else ""
                if not start and self._kind(index) in _C_SCALARS:
                    start = f"({_typed_literal(_stored(self._values[index]))})"
                body.append(f"Value v{index}{start};")
        data = [line for index in sorted(self._tensors) for line in self._declaration(index)]
        parameters = ", ".join(self.parameters())
        return [
            *data,
            "",
            f"Error run(Context& context{', ' if parameters else ''}{parameters}) {{",
            "  (void)context;",
            *_indented([*body, *steps, *results]),
            "  return Error::Ok;",
            "}",
        ]

    def _declaration(self, index: int) -> list[str]:
        """Returns the tensor of value `index` as static data, in constant memory if no part of it changes."""
        record, pool = self._values[index], self._pool
        static = record.shape_dynamism == _STATIC
        numel, data = str(math.prod(record.sizes)), "nullptr"
        capacity = numel
        if record.allocation_info:
            data = self._location(record)
        elif record.data_buffer_idx:
            offset = pool.weight((0, record.data_buffer_idx), pte.tensor_nbytes(record))
            data = f"const_cast<uint64_t*>(weights) + {offset // 8}"
        elif not self._is_caller_memory(index):
            capacity = "SIZE_MAX"
        strides = _strides(record.sizes, record.dim_order)
        order = pool.array("DimOrderType", map(str, record.dim_order), "n")
        lines = []
        if static:
            sizes, steps = (
                name if name == "nullptr" else f"const_cast<int32_t*>({name})"
                for name in (pool.array("int32_t", map(str, items), "n") for items in (record.sizes, strides))
            )
        else:
            for stem, items in (("sizes", record.sizes), ("strides", strides)):
                text = ", ".join(map(str, items)) or "0"
                lines.append(f"int32_t {stem}{index}[] = {{{text}}};")
            sizes, steps = f"sizes{index}", f"strides{index}"
        const = static and self._is_placed(index)
        dtype = f"static_cast<ScalarType>({int(record.scalar_type)})"
        dynamism = f"static_cast<TensorShapeDynamism>({int(record.shape_dynamism)})"
        fields = [data, sizes, steps, order, capacity, numel, str(len(record.sizes)), dtype, dynamism]
        lines.append(f"{'const ' if const else ''}TensorImpl i{index} = {{{', '.join(fields)}}};")
        handle = f"const_cast<TensorImpl*>(&i{index})" if const else f"&i{index}"
        lines.append(f"constexpr Tensor t{index}({handle});")
        return lines


_TENSOR_LISTS = ("TensorList", "OptionalTensorList")
_LISTS_OF_VALUES = ("IntList", *_TENSOR_LISTS)
_CODES = {"Int": "i", "Double": "d", "Bool": "b"}


def symbol(operator: str) -> str:
    """Returns the name of the function that calls an operator's kernel."""
    return re.sub(r"\W+", "_", operator)


def _stored(record: Record) -> Any:
    """Returns the value of an Int, Bool or Double record."""
    return getattr(record, dataclasses.fields(record)[0].name)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _integer_literal(number: int) -> str:
    return "INT64_MIN" if number == -(2**63) else str(number) if abs(number) < 2**31 else f"{number}ll"


def _double_literal(number: float) -> str:
    if math.isnan(number):
        return '__builtin_nan("")'
    return repr(number) if math.isfinite(number) else f"{'-' if number < 0 else ''}__builtin_inf()"


def _typed_literal(number: bool | int | float) -> str:
    if isinstance(number, bool):
        return str(number).lower()
    return _double_literal(number) if isinstance(number, float) else f"int64_t{{{_integer_literal(number)}}}"


def _strides(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Returns the strides of a dense tensor with dimensions in `order`."""
    strides, step = [0] * len(sizes), 1
    for d in reversed(list(order)):
        strides[d] = step
        step *= max(1, sizes[d])
    return strides
