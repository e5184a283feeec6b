# SPDX-License-Identifier: BSD-3-Clause
# The dialects of the compiler as data: which call targets each accepts, and which named checks its nodes must pass.
# An ExportedProgram comes in; every violation goes out at once, with its place in the user's code and a remedy.
"""AUTOGRAD_SAFE, ATEN, CORE_ATEN, EDGE, BACKEND and EXEC, and `verify`."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch import predispatch
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from torchette.errors import DialectError
from torchette.exir import control_flow, ops
from torchette.exir.dialects._refused import REFUSED
from torchette.exir.dialects.backend._ops import BackendOpOverload, dialect_operator
from torchette.exir.dialects.edge import dtypes
from torchette.exir.graph import graph_modules, is_dense, node_text, outputs, place, placeholders, shape_text

aten = torch.ops.aten

# Dtypes that the file format and the runtime's tensors have.
DTYPES = frozenset(
    {
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
        torch.bool, torch.bfloat16, torch.uint16, torch.uint64,
    }
)  # fmt: skip
MAX_RANK = 16


@dataclass(frozen=True)
class Check:
    """One rule. `run` is given a node and returns what is wrong with it, or None."""

    code: str
    sentence: str
    remedy: str
    run: Callable[[Node], str | None]


@dataclass(frozen=True)
class ProgramCheck:
    """One rule about the program as a whole; `run` yields (node or None, what is wrong)."""

    code: str
    sentence: str
    remedy: str
    run: Callable[[ExportedProgram], Iterable[tuple[Node | None, str]]]


@dataclass(frozen=True)
class Dialect:
    """A set of rules with a name.

    Attributes:
        accepts: whether a call may have this target.
        refusal: (code, sentence, remedy) for a target that is not accepted.
        checks: rules about single nodes; all of them run on all nodes.
        program_checks: rules about the whole.
    """

    name: str
    sentence: str
    accepts: Callable[[Any], bool]
    refusal: tuple[str, str, str]
    checks: tuple[Check, ...]
    program_checks: tuple[ProgramCheck, ...] = ()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Violation:
    """A node that breaks a rule."""

    code: str
    message: str
    remedy: str
    node: Node | None = field(compare=False)

    @property
    def place(self) -> str:
        """The line of the user's model, as far as it is known."""
        return place(self.node) if self.node is not None else "the program"

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.message}", f"  at {self.place}"]
        if self.node is not None:
            lines += [f"  {mark} {node_text(node)}" for mark, node in _around(self.node)]
        return "\n".join([*lines, f"  try: {self.remedy}"])


def violations(
    program: ExportedProgram, dialect: Dialect | str, allow: Sequence[Any] = ()
) -> list[Violation]:
    """All that a program breaks of a dialect's rules, in the order of the graph. `allow`: targets accepted besides."""
    dialect = get(dialect)
    found: list[Violation] = []
    refused = dialect.refusal
    for module in graph_modules(program):
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target not in allow and not dialect.accepts(node.target):
                reason = f": {_reason(node)}" if _reason(node) else ""
                found.append(Violation(refused[0], f"{_target(node)} {refused[1]}{reason}", refused[2], node))
            for check in dialect.checks:
                message = check.run(node)
                if message is not None:
                    found.append(Violation(check.code, message, check.remedy, node))
    for whole in dialect.program_checks:
        found += [Violation(whole.code, message, whole.remedy, node) for node, message in whole.run(program)]
    return found


def verify(program: ExportedProgram, dialect: Dialect | str, allow: Sequence[Any] = ()) -> None:
    """Check a program against a dialect.

    Args:
        program: what to check.
        dialect: one of `DIALECTS`, or its name in any case.
        allow: call targets to accept besides the dialect's own.

    Raises:
        DialectError: with every violation in its text and in `.violations`.
    """
    dialect = get(dialect)
    found = violations(program, dialect, allow)
    if not found:
        return
    codes = list(dict.fromkeys(v.code for v in found))
    count = f"{len(found)} violations" if len(found) > 1 else "1 violation"
    error = DialectError(
        f"{count} of the {dialect.name} dialect ({', '.join(codes)}):\n\n" + "\n\n".join(map(str, found)),
        where=list(dict.fromkeys(v.place for v in found)),
        hints=list(dict.fromkeys(v.remedy for v in found)),
        code=codes[0] if len(codes) == 1 else None,
    )
    error.violations = tuple(found)
    raise error


def get(dialect: Dialect | str) -> Dialect:
    """A dialect by its name, `core_aten` or `CORE_ATEN`."""
    if isinstance(dialect, Dialect):
        return dialect
    try:
        return DIALECTS[dialect.lower()]
    except KeyError:
        raise DialectError(
            f"there is no dialect {dialect!r}",
            hints=[f"one of {', '.join(DIALECTS)}"],
            code="no-such-dialect",
        ) from None


def core_operators() -> list[str]:
    """The names of torch's core ATen operators, as `aten::add.Tensor`."""
    return [_name(op) for op in ops.all_aten() if ops.is_core(op) and not ops.is_mutating(op)]


def edge_extras() -> list[str]:
    """The names of the operators that edge accepts besides the core ones."""
    return [_name(op) for op in ops.all_aten() if _is_extra(op) and not ops.is_core(op)]


def _reason(node: Node) -> str:
    """Why an operator is refused, where that is known."""
    return REFUSED.get(_name(node.target), "") if ops.is_operator(node.target) else ""  # type: ignore[arg-type]


def _name(op: torch._ops.OpOverload) -> str:
    return ".".join(part for part in (op._schema.name, op._schema.overload_name) if part)


def _around(node: Node) -> list[tuple[str, Node]]:
    nodes = list(node.graph.nodes)
    index = nodes.index(node)
    first = max(0, min(index - 2, len(nodes) - 5))
    return [(">" if other is node else " ", other) for other in nodes[first : first + 5]]


def _target(node: Node) -> str:
    target = node.target
    return str(target) if ops.is_operator(target) else getattr(target, "__name__", str(target))


# ---- what is accepted ----


def _functional(target: Any) -> bool:
    return (
        target is operator.getitem
        or target in _EXPORT_CALLS
        or ops.is_symbolic(target)
        or ops.is_higher_order(target)
        or (ops.is_operator(target) and not ops.is_mutating(target))
    )


# What torch.export itself puts between the operators: modes, tokens and the like.
_EXPORT_CALLS = frozenset(
    {
        torch._C._set_grad_enabled,
        torch.autocast,
        torch.amp.autocast_mode._enter_autocast,
        torch.amp.autocast_mode._exit_autocast,
        *(function for function in vars(predispatch).values() if inspect.isfunction(function)),  # of vmap
    }
)


def _captured(target: Any) -> bool:
    return _functional(target) or (ops.is_operator(target) and not ops.is_out_variant(target))


def _core(target: Any) -> bool:
    if target is operator.getitem or ops.is_symbolic(target) or control_flow.name(target):
        return True
    if ops.is_delegate(target):
        return True
    if target in _TRAINING:
        # The check "train-mode" says better what is wrong with it.
        return True
    if not ops.is_operator(target) or ops.is_mutating(target):
        return False
    return ops.is_core(target) or target.namespace not in ("aten", "prims", "prim")


# What layers become whose behaviour in training differs from that in use.
_TRAINING = frozenset(
    {
        aten.native_dropout.default, aten.rrelu_with_noise_functional.default, aten.bernoulli.p,
    }
)  # fmt: skip


def _edge(target: Any) -> bool:
    if ops.is_symbolic(target):
        return target not in ops.ASSERTIONS or target == ops.assert_scalar
    if ops.is_operator(target) and not ops.is_mutating(target) and target.namespace == "aten":
        return not ops.is_view(target) and (ops.is_core(target) or _is_extra(target))
    return _core(target)


def _is_extra(op: torch._ops.OpOverload) -> bool:
    # Copies stand for views, which edge does not have.
    return op in ops.EXTRAS or ops.is_copying(op)


def _exec(target: Any) -> bool:
    return (
        target is operator.getitem
        or (ops.is_symbolic(target) and _edge(target))
        or control_flow.name(target) in ("cond", "while_loop")
        or ops.is_delegate(target)
        or ops.is_out_variant(target)
        or target in ALIASES
        or target == ops.copy_index
    )


# What an alias may be spelled as; no instruction is made for it.
ALIASES = frozenset({aten.view_copy.default, aten.select_copy.int, aten.slice_copy.Tensor})


# ---- rules about nodes ----


def _is_graph_node(node: Node) -> str | None:
    if node.op in ("call_module", "call_method"):
        return f"{node.op} of {node.target}: a graph calls operators only"
    return None


def _get_attr(node: Node) -> str | None:
    if node.op != "get_attr":
        return None
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    if value is None:
        return f"attribute {node.target} is not there"
    # A module that is not a graph is a delegate's; a graph cannot call any other.
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return None
    return f"attribute {node.target} is a {type(value).__name__}, not a tensor or a subgraph"


def _argument_types(node: Node) -> str | None:
    if node.op != "call_function":
        return None
    for value in (*node.args, *node.kwargs.values()):
        bad = _bad_argument(value)
        if bad is not None:
            return (
                f"{_target(node)} has an argument of type {type(bad).__name__}, which a program cannot hold"
            )
    return None


_PLAIN = (
    Node, bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.SymInt, torch.SymFloat, torch.SymBool, torch.ScriptObject, torch._ops.OpOverload,
)  # fmt: skip


def _bad_argument(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return next((bad for bad in map(_bad_argument, value) if bad is not None), None)
    if isinstance(value, dict):
        return _bad_argument(list(value.values()))
    return (
        None if isinstance(value, (*_PLAIN, torch.Tensor)) and not isinstance(value, torch.Tensor) else value
    )


def _fits_schema(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target):
        return None
    declared = node.target._schema.arguments  # type: ignore[union-attr]
    positional = [a for a in declared if not a.kwarg_only]
    if len(node.args) > len(positional):
        return f"{_target(node)} takes {len(positional)} positional arguments and has {len(node.args)}"
    unknown = set(node.kwargs) - {a.name for a in declared}
    if unknown:
        return f"{_target(node)} has no argument {', '.join(sorted(unknown))}"
    given = {a.name for a in positional[: len(node.args)]} | set(node.kwargs)
    missing = [
        a.name for a in declared if a.name not in given and not a.has_default_value() and not ops.writes(a)
    ]
    return f"{_target(node)} lacks its argument {', '.join(missing)}" if missing else None


def _has_val(node: Node) -> str | None:
    if node.op != "call_function" or "val" in node.meta:
        return None
    if ops.is_operator(node.target) and not node.target._schema.returns:  # type: ignore[union-attr]
        return None
    return (
        None if node.target in _EXPORT_CALLS or not node.users else f"{node.name} does not say what it yields"
    )


def _yields_what_schema_says(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target) or "val" not in node.meta:
        return None
    returns, val = node.target._schema.returns, node.meta["val"]  # type: ignore[union-attr]
    if len(returns) > 1 and (not isinstance(val, (list, tuple)) or len(val) != len(returns)):
        return f"{node.name} yields {shape_text(val)}, its schema {len(returns)} results"
    if len(returns) == 1 and str(returns[0].type) == "Tensor" and not isinstance(val, torch.Tensor):
        return f"{node.name} yields {shape_text(val)}, its schema a tensor"
    return None


def _tensors(node: Node) -> list[torch.Tensor]:
    val = node.meta.get("val")
    return [v for v in (val if isinstance(val, (list, tuple)) else [val]) if isinstance(v, torch.Tensor)]


def _device(node: Node) -> str | None:
    for tensor in _tensors(node):
        if tensor.device.type not in ("cpu", "meta"):
            return f"{node.name} is on {tensor.device}"
    return None


def _dense(node: Node) -> str | None:
    for tensor in _tensors(node):
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return f"{node.name} is {'quantized' if tensor.is_quantized else tensor.layout}, not a plain dense tensor"
    return None


def _dtype(node: Node) -> str | None:
    for tensor in _tensors(node):
        if tensor.dtype not in DTYPES and not tensor.dtype.is_complex:
            return f"{node.name} is {tensor.dtype}, which no runtime kernel takes"
    return None


def _complex(node: Node) -> str | None:
    for tensor in _tensors(node):
        if tensor.dtype.is_complex:
            return f"{node.name} is {tensor.dtype}, and no file holds complex tensors"
    return None


def _reshaped_in_place(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target) or not node.args:
        return None
    given = node.args[0]
    if torch.Tag.inplace_view not in node.target.tags or not isinstance(given, Node):  # type: ignore[union-attr]
        return None
    if node.target == aten.set_.source_Tensor:
        return None  # "other-memory" says it better
    return f"{_target(node)} changes the shape of {given.name}" if given.op == "placeholder" else None


def _other_memory(node: Node) -> str | None:
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    # All that torch.export leaves of `x.data = y` is a question that it asked; the program computes with the old x.
    assigned = node.target == aten._has_compatible_shallow_copy_type.default
    kept = node.target == aten.set_.source_Tensor and node.args[0].op == "placeholder"
    return f"{node.args[0].name} is given other memory than it had" if assigned or kept else None


def _rank(node: Node) -> str | None:
    for tensor in _tensors(node):
        if tensor.dim() > MAX_RANK:
            return f"{node.name} has {tensor.dim()} dimensions, the runtime's limit is {MAX_RANK}"
    return None


def _natural_order(node: Node) -> str | None:
    if node.op != "call_function":
        return None
    for tensor in _tensors(node):
        if not is_dense(tensor) and node.target != ops.to_dim_order_copy:
            return f"{node.name} has strides {tuple(tensor.stride())}, not those of a dense tensor in natural order"
    return None


def _no_memory_format(node: Node) -> str | None:
    format_ = node.kwargs.get("memory_format")
    if node.op == "call_function" and format_ not in (None, torch.contiguous_format, torch.preserve_format):
        return f"{_target(node)} asks for {format_}"
    return None


def _no_numbers_for_tensors(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target):
        return None
    for where, value in ops.tensor_arguments(node.target, node.args, node.kwargs):  # type: ignore[arg-type]
        if isinstance(value, (bool, int, float)):
            declared = node.target._schema.arguments[where].name if isinstance(where, int) else where  # type: ignore[union-attr]
            return f"argument {declared} of {_target(node)} is the number {value}, its schema says a tensor"
    return None


def _no_scalar_overload(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target):
        return None
    twin = ops.tensor_overload(node.target)  # type: ignore[arg-type]
    if twin is not None and len(node.args) > 1 and isinstance(node.args[1], (bool, int, float)):
        return f"{_target(node)} takes the number {node.args[1]} where {twin} takes a tensor"
    return None


def _one_dtype(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target):
        return None
    found = [tensor.dtype for tensor in _combined(node)]
    if len(set(found)) > 1:
        return f"{_target(node)} combines {', '.join(str(d).removeprefix('torch.') for d in found)}"
    return None


def _combined(node: Node) -> list[torch.Tensor]:
    """The tensors of a call that must be of one dtype: operands of a pointwise operator, members of a list."""
    target: Any = node.target
    values: list[Any] = []
    if ops.is_pointwise(target) and target not in MIXED:
        values = [value for _, value in ops.tensor_arguments(target, node.args, dict(node.kwargs))]
        values = values[1:] if target == aten.where.self else values
    for argument, value in zip(target._schema.arguments, node.args, strict=False):
        if str(argument.type) == "List[Tensor]" and isinstance(value, (list, tuple)):
            values += value
    vals = [value.meta.get("val") for value in values if isinstance(value, Node)]
    return [val for val in vals if isinstance(val, torch.Tensor)]


MIXED = frozenset(
    {aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default, aten.copy.default}
)


def _edge_dtypes(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target) or "val" not in node.meta:
        return None
    allowed = dtypes.constraint(node.target._schema)  # type: ignore[union-attr]
    if allowed is None or _one_dtype(node) is not None:
        return None
    row = dtypes.row_of(node, node.target)
    if dtypes.FOREIGN in row:
        return None  # "unsupported-dtype" says so of the tensor that has it
    return None if allowed.takes(row) else f"{_target(node)}: {allowed.fault(row)}"


def _kernel_dtypes(node: Node) -> str | None:
    functional = node.meta.get("functional")
    if functional is None or "alias" in node.meta or node.op != "call_function":
        return None
    allowed = dtypes.constraint(functional._schema)
    # Without any kernel it is the operator that is missing, which is said elsewhere.
    if allowed is None or not allowed.kernel_rows:
        return None
    row = dtypes.row_of(node, functional)
    return None if allowed.runs(row) else f"no kernel of {_target(node)}: {allowed.fault(row, kernels=True)}"


def _like_its_pattern(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target):
        return None
    op = dialect_operator(node.target)  # type: ignore[arg-type]
    mode = next((t.fake_mode for t in _tensors(node) if isinstance(t, torch._subclasses.FakeTensor)), None)
    if not isinstance(op, BackendOpOverload) or mode is None:
        return None
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
    try:
        with mode:
            meant = shape_text(op.pattern(*args, **kwargs))
    except Exception as error:
        return f"the pattern of {_target(node)} does not take these arguments: {error}"
    given = shape_text(node.meta["val"])
    return None if meant == given else f"{node.name} yields {given}, the pattern of {_target(node)} {meant}"


def _inference(node: Node) -> str | None:
    if node.op != "call_function" or node.target not in _TRAINING:
        return None
    if ops.argument(node, "training", True) is False:
        return None
    return f"{_target(node)} is what a layer in training mode does"


def _alias(node: Node) -> str | None:
    alias = node.meta.get("alias")
    if alias is None:
        return None
    source, offset = alias
    if not isinstance(source, Node) or source.graph is not node.graph or source not in node.all_input_nodes:
        return f"{node.name} is an alias of {source}, which it does not read"
    mine, theirs = node.meta["val"], source.meta["val"]
    if all(isinstance(s, int) for s in (*mine.shape, *theirs.shape)):
        end = offset + mine.numel() * mine.dtype.itemsize
        if offset < 0 or end > theirs.numel() * theirs.dtype.itemsize:
            return (
                f"{node.name} is an alias of bytes {offset}..{end} of {source.name}, which are not all there"
            )
    elif offset:
        return f"{node.name} is an alias at byte {offset} of {source.name}, whose shape is not fixed"
    return None


def _in_place(node: Node) -> str | None:
    buffer, _ = node.meta.get("in_place", (None, 0))
    if buffer is None:
        return None
    if not isinstance(buffer, Node) or buffer.op != "placeholder":
        return f"{node.name} is written in place of {buffer}, which is not an input of the graph"
    if tuple(map(str, buffer.meta["val"].shape)) != tuple(map(str, node.meta["val"].shape)):
        return f"{node.name} is written in place of {buffer.name}, which has another shape"
    return None


def _view_has_alias(node: Node) -> str | None:
    if node.op == "call_function" and node.target in ALIASES and "alias" not in node.meta:
        return f"{node.name} is neither an alias nor an out variant"
    return None


# ---- rules about programs ----


def _lint(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    for module in graph_modules(program):
        fault = _lint_fault(module)
        if fault is not None:
            yield None, fault


def _lint_fault(module: GraphModule) -> str | None:
    try:
        module.graph.lint()
    except RuntimeError as error:
        return str(error)
    return None


def _signature(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    specs = program.graph_signature.input_specs
    inputs = placeholders(program)
    if len(inputs) != len(specs):
        yield None, f"the graph has {len(inputs)} inputs, the signature {len(specs)}"
        return
    for node, spec in zip(inputs, specs, strict=True):
        if getattr(spec.arg, "name", node.name) != node.name:
            yield node, f"input {node.name} is called {spec.arg.name} in the signature"


def _stored(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    for node, spec in zip(placeholders(program), program.graph_signature.input_specs, strict=False):
        if (
            spec.kind in kinds
            and spec.target not in program.state_dict
            and spec.target not in program.constants
        ):
            yield node, f"{spec.target} is an input of the graph, but no tensor of that name is stored"


def _without_values(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    """What torch.export makes of `x.data` is a stored tensor without memory."""
    for node, spec in zip(placeholders(program), program.graph_signature.input_specs, strict=False):
        stored = program.state_dict.get(spec.target, program.constants.get(spec.target))
        if isinstance(stored, torch.Tensor) and (isinstance(stored, FakeTensor) or stored.is_meta):
            for reader in list(node.users)[:1]:
                yield reader, f"{spec.target} has a shape, but no values"


def _updated_constants(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    constants = {
        node
        for node, spec in zip(placeholders(program), program.graph_signature.input_specs, strict=False)
        if spec.kind is InputKind.CONSTANT_TENSOR
    }
    for node in program.graph.nodes:
        if node.op != "call_function" or not ops.is_operator(node.target) or not node.args:
            continue
        written = node.args[0]
        while isinstance(written, Node) and ops.is_operator(written.target) and ops.is_view(written.target):
            written = written.args[0]
        if written in constants and ops.is_mutating(node.target):
            yield node, f"{_target(node)} changes {written.name}, which is a constant of the program"


def _returned(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    values, specs = outputs(program), program.graph_signature.output_specs
    if len(values) != len(specs):
        yield program.graph.output_node(), f"the graph has {len(values)} outputs, the signature {len(specs)}"
        return
    for value, spec in zip(values, specs, strict=True):
        if isinstance(value, Node) and getattr(spec.arg, "name", value.name) != value.name:
            yield value, f"output {value.name} is called {spec.arg.name} in the signature"


def _mutations(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    known = set(program.graph_signature.buffers)
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION and spec.target not in known:
            yield None, f"{spec.target} is updated, but is no buffer of the program"


def _written_back(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    for value, spec in zip(outputs(program), program.graph_signature.output_specs, strict=False):
        mutation = spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
        if (
            mutation
            and isinstance(value, Node)
            and value.op != "placeholder"
            and "in_place" not in value.meta
        ):
            yield value, f"the new value of {spec.target} is not written back"


def _given_twice(program: ExportedProgram) -> Iterable[tuple[Node | None, str]]:
    given = pytree.tree_leaves(program.example_inputs)
    users = set(program.graph_signature.user_inputs)
    inputs = [node for node in placeholders(program) if node.name in users]
    if len(given) != len(inputs):
        return
    same: dict[int, list[Node]] = {}
    for value, node in zip(given, inputs, strict=True):
        if isinstance(value, torch.Tensor):
            same.setdefault(id(value), []).append(node)
    for nodes in same.values():
        read = [node for node in nodes if node.users]
        for node in nodes if read else ():
            if node not in read:
                yield (
                    node,
                    f"{node.name} and {read[0].name} were one tensor at export, which reads {read[0].name} for both",
                )


# ---- the dialects ----

EXPORT_AGAIN = "export the model again with torch.export.export; a pass left the graph in this state"
PASS_FAULT = "a pass left the graph so: compile with check_passes=True to learn which"

COMMON = (
    Check("not-a-graph-call", "Graphs call functions, not modules or methods.", EXPORT_AGAIN, _is_graph_node),
    Check("bad-attribute", "Attributes are tensors or subgraphs.", EXPORT_AGAIN, _get_attr),
    Check("bad-argument-type", "Arguments are nodes, numbers, strings, dtypes, lists of them.", PASS_FAULT, _argument_types),
    Check("bad-arguments", "Arguments fit the operator's schema.", PASS_FAULT, _fits_schema),
    Check("no-value", "Each call says in meta['val'] what it yields.", PASS_FAULT, _has_val),
    Check("wrong-value", "What a call says to yield fits its schema.", PASS_FAULT, _yields_what_schema_says),
    Check("not-on-cpu", "Tensors are on the CPU.", "move the model and its inputs to the CPU before export", _device),
    Check("not-dense", "Tensors are dense.", "convert with .to_dense() or .dequantize() before export", _dense),
)  # fmt: skip
WHOLE = (
    ProgramCheck("broken-graph", "The graph lints: every value is defined once, before it is used.", PASS_FAULT, _lint),
    ProgramCheck("broken-inputs", "Graph and signature agree on the inputs.", PASS_FAULT, _signature),
    ProgramCheck("missing-tensor", "Every parameter, buffer and constant is stored.", PASS_FAULT, _stored),
    ProgramCheck("broken-outputs", "Graph and signature agree on the outputs.", PASS_FAULT, _returned),
    ProgramCheck("unknown-buffer", "Updated buffers exist.", PASS_FAULT, _mutations),
)  # fmt: skip

AUTOGRAD_SAFE = Dialect(
    "autograd_safe",
    "What torch.export yields: registered operators, before decomposition, differentiable; may update in place.",
    _captured,
    (
        "not-an-operator",
        "is not a registered operator",
        "register it with torch.library.custom_op, or rewrite it",
    ),
    (
        *COMMON,
        Check(
            "reshaped-in-place",
            "Inputs, parameters and buffers keep their shapes.",
            "make a new tensor: x.t() for x.t_(), x.reshape(...) for x.resize_(...)",
            _reshaped_in_place,
        ),
        Check(
            "other-memory",
            "Tensors keep their memory: x.data = y is no operator.",
            "write to the tensor: x.copy_(y) for x.data = y",
            _other_memory,
        ),
    ),
    (
        *WHOLE,
        ProgramCheck(
            "tensor-without-values",
            "Stored tensors have values.",
            "write x.detach() for x.data; give tensors that were made on the device meta, or as fakes, values",
            _without_values,
        ),
        ProgramCheck(
            "updated-constant",
            "Only buffers are updated.",
            "make it a buffer: self.register_buffer('state', tensor) for self.state = tensor",
            _updated_constants,
        ),
        ProgramCheck(
            "one-tensor-twice",
            "Inputs that were one tensor at export are told apart.",
            "export with a copy: (x, x.clone()) for (x, x), or compile the module itself",
            _given_twice,
        ),
    ),
)
ATEN = Dialect(
    "aten",
    "Functional operators only: ATen's, higher-order ones and registered custom ones; views are allowed.",
    _functional,
    (
        "not-functional",
        "is not a functional operator",
        "run exported_program.run_decompositions({}) to make updates functional; register Python functions "
        "with torch.library.custom_op",
    ),
    COMMON,
    WHOLE,
)
CORE_ATEN = Dialect(
    "core_aten",
    "As aten, and of ATen's operators only those of torch's core set.",
    _core,
    (
        "not-core",
        "is not in the core ATen set and has no decomposition",
        "rewrite that line with other operators, or keep the operator with EdgeCompileConfig(preserve_ops=[...]) if "
        "the runtime has a kernel for it",
    ),
    (
        *COMMON,
        Check(
            "train-mode",
            "Layers compute what they do in use, not in training.",
            "call model.eval() before export, or say that it is meant: EdgeCompileConfig(train_mode=True)",
            _inference,
        ),
    ),
    WHOLE,
)
EDGE = Dialect(
    "edge",
    "As core_aten, with copies for views, tensors for numbers, one dtype per operator, dense memory.",
    _edge,
    (
        "not-edge",
        "is not an operator of the Edge dialect",
        "rewrite that line with other operators, or keep the operator with EdgeCompileConfig(preserve_ops=[...])",
    ),
    (
        *COMMON,
        Check("number-for-tensor", "Tensor arguments are tensors.", "run scalars_to_tensors after the pass that put the number there", _no_numbers_for_tensors),
        Check("scalar-overload", "Tensor overloads are used where there is one.", "call the .Tensor overload with a 0-d tensor", _no_scalar_overload),
        Check("mixed-dtypes", "Pointwise operators and lists combine tensors of one dtype.", "cast explicitly with .to(dtype)", _one_dtype),
        Check("dtype-not-allowed", "Tensors have dtypes that the operator takes.", "cast to one of the dtypes that are listed before that line", _edge_dtypes),
        Check("memory-format", "No operator asks for a memory format.", "run normalize_memory_formats after the pass that put it there", _no_memory_format),
        Check("not-natural-order", "Values are dense, dimensions in natural order.", "run normalize_memory_formats after the pass that made it", _natural_order),
        Check("unsupported-dtype", "Dtypes are among those that the runtime has.", "cast to a supported dtype before that line", _dtype),
        Check("complex-tensor", "No tensor is complex: pairs of real ones stand for them.", "let an input x and a result y be pairs: torch.view_as_complex(x) at the beginning of forward, torch.view_as_real(y) at its end", _complex),
        Check("rank-limit", f"Tensors have at most {MAX_RANK} dimensions.", "flatten some dimensions", _rank),
    ),
    WHOLE,
)  # fmt: skip
BACKEND = Dialect(
    "backend",
    "As edge, with operators of a target, each of which stands for a pattern of Edge operators.",
    _edge,
    EDGE.refusal,
    (
        *EDGE.checks,
        Check("not-its-pattern", "An operator of a target yields what its pattern does.", "correct meta['val'] of the node, or the pattern that was bound to the operator", _like_its_pattern),
    ),
    WHOLE,
)  # fmt: skip
EXEC = Dialect(
    "exec",
    "Out variants only, which write where the memory plan says; aliases and buffer updates are marked.",
    _exec,
    ("not-out-variant", "does not write to memory that it is given", "run to_out_variants after the pass that put it there"),
    (
        *COMMON,
        Check("no-kernel-for-dtype", "A kernel of the runtime takes the dtypes.", "cast to one of the dtypes that are listed before that line, or add them to the kernel", _kernel_dtypes),
        Check("bad-alias", "An alias lies within what it is an alias of.", PASS_FAULT, _alias),
        Check("bad-in-place", "What is written in place of a buffer has its shape.", PASS_FAULT, _in_place),
        Check("view-without-alias", "A view is an alias.", PASS_FAULT, _view_has_alias),
    ),
    (
        *WHOLE,
        ProgramCheck("not-written-back", "New values of buffers are written back.", "run update_buffers_in_place", _written_back),
    ),
)  # fmt: skip

DIALECTS: dict[str, Dialect] = {d.name: d for d in (AUTOGRAD_SAFE, ATEN, CORE_ATEN, EDGE, BACKEND, EXEC)}


def page() -> str:
    """docs/dialects.md, from the tables above."""
    lines = [
        "# Dialects",
        "",
        "A dialect is the set of rules that a program keeps after a stage of the compiler. `torchette verify` and",
        "`torchette.exir.verify(program, name)` check them and report every violation at once: its code, the node with",
        "its neighbours, the line of your model, and what to try. The compiler checks after each stage.",
        "",
        "This page is printed from `torchette/exir/dialects/__init__.py`: `python -m torchette.exir.dialects`.",
    ]
    rules: dict[str, tuple[str, str, list[str]]] = {}
    checks: tuple[Check | ProgramCheck, ...]
    for dialect in DIALECTS.values():
        code, _, remedy = dialect.refusal
        lines += ["", f"## {dialect.name}", "", dialect.sentence]
        rules[code] = (f"Calls have the targets that {dialect.name} accepts.", remedy, [dialect.name])
        checks = (*dialect.checks, *dialect.program_checks)
        for check in checks:
            rules.setdefault(check.code, (check.sentence, check.remedy, []))[2].append(dialect.name)
    lines += ["", "## Rules", "", "| code | rule | in | what to try |", "|---|---|---|---|"]
    for code, (sentence, remedy, names) in rules.items():
        where = "all" if len(names) == len(DIALECTS) else ", ".join(names)
        lines.append(f'| <a id="{code}"></a>`{code}` | {sentence} | {where} | {remedy} |')
    names = core_operators()
    lines += ["", f"## The {len(names)} core ATen operators", "", ", ".join(f"`{name}`" for name in names)]
    extras = edge_extras()
    lines += [
        "",
        f"## The {len(extras)} operators that edge accepts besides",
        "",
        ", ".join(f"`{n}`" for n in extras),
    ]
    lines += [
        "",
        f"## The {len(REFUSED)} operators of torch.nn.functional that are refused",
        "",
        "Everything else that `torch.nn.functional` calls becomes operators of the two lists above.",
        "",
        "| operator | why |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in REFUSED.items()),
    ]
    return "\n".join(lines) + "\n"
