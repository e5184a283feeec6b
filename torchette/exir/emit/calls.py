# SPDX-License-Identifier: BSD-3-Clause
# In: a call of an operator, or of a function on scalars. Out: its instruction, and its results in the table of values.
"""The instructions of calls: kernels, arithmetic on sizes, assertions, and views without copies."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from torchette.exir import ops
from torchette.exir.arguments import list_arg
from torchette.exir.emit.constants import DataFiles
from torchette.exir.emit.records import Unsupported, scalar_record
from torchette.exir.emit.tables import Tables
from torchette.exir.interface import specs_of, view_sizes
from torchette.exir.tensor import TensorSpec
from torchette.format import pte

if TYPE_CHECKING:
    import sympy


class Argument(NamedTuple):
    """An argument of an operator's schema, with its type as in the file format."""

    name: str
    kind: str
    length: int | None  # length of a list that accepts a single scalar
    default: Any
    by_name_only: bool
    is_out: bool


@functools.cache
def signature(op: torch._ops.OpOverload) -> tuple[Argument, ...]:
    """Returns the arguments of an operator, including those that it writes its results to."""
    return tuple(
        Argument(
            argument.name,
            _kind(argument.type),
            argument.N,  # type: ignore[attr-defined]  # missing in torch's type annotations
            argument.default_value,
            argument.kwarg_only,
            argument.is_out,
        )
        for argument in op._schema.arguments
    )


def _kind(kind: object) -> str:
    """Returns a schema type as in the file format; "?" within a list marks optional elements."""
    if isinstance(kind, torch.OptionalType):
        return _kind(kind.getElementType())
    if isinstance(kind, torch.ListType):
        element = kind.getElementType()
        return f"[{'?' if isinstance(element, torch.OptionalType) else ''}{_kind(element)}]"
    return str(kind)


# Python function on symbolic scalars -> its name in the runtime.
PRIMITIVES: dict[Any, str] = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.floordiv: "floordiv",
    operator.truediv: "truediv", operator.mod: "mod", operator.neg: "neg", operator.eq: "eq", operator.gt: "gt",
    operator.lt: "lt", operator.ge: "ge", operator.le: "le", round: "round", torch.sym_float: "sym_float",
    torch.sym_int: "sym_int", torch.sym_max: "sym_max", torch.sym_min: "sym_min", torch.sym_not: "sym_not",
    torch.sym_ite: "sym_ite", operator.not_: "sym_not", torch.sym_sum: "add", math.ceil: "ceil", math.trunc: "trunc",
    math.floor: "floor", operator.ne: "ne", operator.pow: "pow", operator.and_: "and", operator.or_: "or",
    operator.xor: "xor", operator.lshift: "lshift", operator.rshift: "rshift", operator.abs: "abs", abs: "abs",
    torch.sym_sqrt: "sym_sqrt",
}  # fmt: skip


def kernel(tables: Tables, node: Node, op: torch._ops.OpOverload) -> None:
    """Appends the instruction of an operator."""
    if "alias" in node.meta and not ops.is_out_variant(op):
        raise Unsupported(f"{op} is an alias according to its metadata, but its plan assigns separate memory")
    value = node.meta.get("val")
    if isinstance(value, (bool, int, float)) and op in ops.SYMBOLIC_OPERATORS:
        tables.values.of_node[node] = tables.values.scalar(value)
        return
    schema = signature(op)
    written = [argument for argument in schema if argument.is_out]
    specs = specs_of(node)
    if len(written) == 1 and written[0].kind == "[Tensor]" and None not in specs:
        tensors = tuple(tables.values.tensor(spec) for spec in specs if spec is not None)
        results: tuple[int, ...] = (tables.values.add(pte.TensorList(list(tensors))),)
    elif written:
        if len(specs) != len(written) or all(spec is None for spec in specs):
            raise Unsupported(f"{op} writes {len(written)} tensors, but the graph has {len(specs)}")
        # A result that a mask omits, as in convolution_backward, is an empty tensor.
        results = tensors = tuple(
            tables.values.tensor(spec or TensorSpec(torch.uint8, [0])) for spec in specs
        )
    elif specs:
        results = tensors = tuple(tables.values.tensor(spec) for spec in specs if spec is not None)
    elif value is None:
        raise Unsupported(f"{op} yields no value that the file format can represent")
    else:
        results, tensors = (tables.values.add(scalar_record(value)),), ()
    arguments, following = [], iter(results)
    for position, argument in enumerate(schema):
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
            arguments.append(tables.values.argument(given, argument.kind, argument.length))
        except Unsupported as problem:
            raise Unsupported(f"argument {argument.name!r} of {op}: {problem}") from None
    if node.meta.get("no_instruction"):
        tables.values.of_node[node] = results[0]
        return
    # The arguments of the schema are followed by the results; several results form one list.
    if op is not ops.copy_index:
        arguments.append(
            results[0] if len(results) == 1 else tables.values.add(pte.TensorList(list(results)))
        )
    tables.values.of_node[node] = tensors if isinstance(node.meta.get("spec"), tuple) else results[0]
    tables.code.kernel(ops.kernel_name(op), arguments, node, len(tensors))


def primitive(tables: Tables, node: Node) -> None:
    """Appends the instruction of a Python function on scalars, or no instruction if the result is constant."""
    value = node.meta.get("val")
    if isinstance(value, (bool, int, float)):
        tables.values.of_node[node] = tables.values.scalar(value)
        return
    if node.kwargs:
        raise Unsupported("keyword arguments of a function on scalars")
    if node.target is operator.pos:
        tables.values.of_node[node] = tables.values.argument(node.args[0], "")
        return
    if node.target is round and len(node.args) > 1:
        raise Unsupported("rounding to a number of digits")
    name = (f"executorch_prim::{PRIMITIVES[node.target]}", "Scalar")
    if node.target is torch.sym_sum:
        total, *terms = (tables.values.argument(term, "") for term in list_arg(node))
        for term in terms:
            result = tables.values.add(scalar_record(value))
            tables.code.kernel(name, [total, term, result], node, 0)
            total = result
        tables.values.of_node[node] = total
        return
    arguments = [tables.values.argument(argument, "") for argument in node.args]
    result = tables.values.add(scalar_record(value))
    tables.values.of_node[node] = result
    tables.code.kernel(name, [*arguments, result], node, 0)


def assertion(tables: Tables, node: Node) -> None:
    """Appends the comparison of an assertion, with the message of the error if it is false."""
    condition, text = node.args
    if isinstance(condition, Node) and condition.meta.get("no_instruction"):
        function, operands = condition.target, condition.args
    else:
        function, operands = operator.ne, (condition, False)
    _compare(
        tables, PRIMITIVES[function], [tables.values.argument(each, "") for each in operands], str(text), node
    )


def alias(tables: Tables, outside: DataFiles, node: Node) -> None:
    """Adds a tensor that shares storage with another one: a value, and an instruction if the location is known only at
    run time."""
    spec = node.meta["spec"]
    root = spec.root
    if root in outside.location_of:
        name = outside.add(*outside.location_of[root], spec)
        tables.values.of_node[node] = tables.values.tensor(spec, 0, name, outside=True)
        return
    if root.const:
        tables.values.of_node[node] = tables.values.tensor(
            spec, tables.values.records[tables.values.of_spec[root]].val.data_buffer_idx
        )
        return
    result = tables.values.tensor(spec)
    tables.values.of_node[node] = result
    if spec.mem_offset is not None and spec.is_static_shape_tensor:
        return
    # The location or size of the storage is known only at run time: the runtime creates a view.
    sizes = view_sizes(node)
    source = node.meta["alias"][0]
    arguments = [tables.values.argument(source, "Tensor"), tables.values.argument(sizes, "[int]"), result]
    tables.code.kernel(("executorch_prim::et_view", "default"), arguments, node, 1)


def relate_sizes(tables: Tables, module: GraphModule, inputs: Sequence[Node]) -> None:
    """Appends comparisons of related input sizes, with the message of the error if they differ."""
    found, sizes_by_symbol = module.meta.get("size_relations", ([], {}))
    if not found:
        return
    from torch.utils._sympy.functions import FloorDiv  # loads sympy

    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    tables.code.chain = first.meta.get("chain")
    values: dict[sympy.Expr, int] = {}

    def number(expression: sympy.Expr) -> int:
        if expression.is_Integer:
            return tables.values.scalar(int(expression))
        if expression in values:
            return values[expression]
        if expression.is_Symbol:
            index, dim = sizes_by_symbol[expression]
            value = tables.values.argument(inputs[index], "")
            if dim is None:
                return value
            name, operands = ("aten::sym_size", "int"), [value, tables.values.scalar(dim)]
        else:
            is_quotient = isinstance(expression, FloorDiv)
            left, right = expression.args if is_quotient else expression.as_two_terms()
            function = "floordiv" if is_quotient else "add" if expression.is_Add else "mul"
            name, operands = (f"executorch_prim::{function}", "Scalar"), [number(left), number(right)]
        result = values[expression] = tables.values.add(pte.Int(0))
        tables.code.kernel(name, [*operands, result], inputs[0], 0)
        return result

    for size, wanted, text in found:
        _compare(tables, "eq", [number(size), number(wanted)], text, inputs[0])


def _compare(tables: Tables, function: str, operands: list[int], text: str, node: Node) -> None:
    """Appends a comparison that fails with a message if it is false. The message replaces the result operand."""
    arguments = [*operands, tables.values.add(pte.String(text))]
    tables.code.kernel((f"executorch_prim::{function}", "Scalar"), arguments, node, 0)
