# SPDX-License-Identifier: BSD-3-Clause
# In: a node. Out: a message about its violation of a rule, or None. The table of rules, with codes, sentences and
# remedies, follows the functions.
"""Checks of nodes. `torchette.exir.dialects` assigns them to dialects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from torchette.exir import ops
from torchette.exir.arguments import overload
from torchette.exir.dialects import accepted
from torchette.exir.dialects.backend._ops import BackendOpOverload, dialect_operator
from torchette.exir.dialects.edge import dtypes
from torchette.exir.dialects.rules import EXPORT_AGAIN, PASS_FAULT, Check
from torchette.exir.graph import is_dense, same_shape, shape_text
from torchette.schema import LIMITS

aten = torch.ops.aten

# The dtypes that the file format and the runtime support.
DTYPES = frozenset(
    {
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
        torch.bool, torch.bfloat16, torch.uint16, torch.uint64,
    }
)  # fmt: skip
MAX_RANK = LIMITS["kMaxDim"]


def _is_graph_node(node: Node) -> str | None:
    if node.op in ("call_module", "call_method"):
        return f"{node.op} of {node.target}: a graph may call only operators"
    return None


def _get_attr(node: Node) -> str | None:
    if node.op != "get_attr":
        return None
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    if value is None:
        return f"attribute {node.target} does not exist"
    # A module that is not a graph belongs to a delegate. A graph cannot call any other module.
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return None
    if node.users and all(ops.is_flat_apply(user.target) for user in node.users):
        return None
    return f"attribute {node.target} is a {type(value).__name__}, not a tensor or a subgraph"


def _argument_types(node: Node) -> str | None:
    if node.op != "call_function" or ops.is_flat_apply(node.target):
        return None
    for value in (*node.args, *node.kwargs.values()):
        bad = _bad_argument(value)
        if bad is not None:
            name = type(bad).__name__
            return (
                f"{accepted.target_text(node)} has an argument of type {name}, which a program cannot contain"
            )
    return None


_PLAIN = (
    Node, bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.SymInt, torch.SymFloat, torch.SymBool, torch.ScriptObject, torch._ops.OpOverload,
)  # fmt: skip


def _bad_argument(value: object) -> Any:
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
    declared = overload(node)._schema.arguments
    positional = [a for a in declared if not a.kwarg_only]
    if len(node.args) > len(positional):
        return f"{accepted.target_text(node)} accepts {len(positional)} positional arguments, got {len(node.args)}"
    unknown = set(node.kwargs) - {a.name for a in declared}
    if unknown:
        return f"{accepted.target_text(node)} has no argument {', '.join(sorted(unknown))}"
    provided = {a.name for a in positional[: len(node.args)]} | set(node.kwargs)
    missing = [
        a.name for a in declared if a.name not in provided and not a.has_default_value() and not ops.writes(a)
    ]
    return f"{accepted.target_text(node)} lacks its argument {', '.join(missing)}" if missing else None


def _has_val(node: Node) -> str | None:
    if node.op != "call_function" or "val" in node.meta:
        return None
    if ops.is_operator(node.target) and not node.target._schema.returns:
        return None
    return (
        None if node.target in accepted.EXPORT_CALLS or not node.users else f"{node.name} has no meta['val']"
    )


def _yields_what_schema_says(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target) or "val" not in node.meta:
        return None
    returns, val = overload(node)._schema.returns, node.meta["val"]
    if len(returns) > 1 and (not isinstance(val, (list, tuple)) or len(val) != len(returns)):
        return f"{node.name} yields {shape_text(val)}, but its schema has {len(returns)} results"
    if len(returns) == 1 and str(returns[0].type) == "Tensor" and not isinstance(val, torch.Tensor):
        return f"{node.name} yields {shape_text(val)}, but its schema returns a tensor"
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
            return f"{node.name} is {tensor.dtype}, which no runtime kernel supports"
    return None


def _small_float(node: Node) -> str | None:
    """Applies `_dtype` to the captured program, because constants of this dtype may be folded later."""
    small = any(tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1 for tensor in _tensors(node))
    return _dtype(node) if small else None


def _complex(node: Node) -> str | None:
    for tensor in _tensors(node):
        if tensor.dtype.is_complex:
            return f"{node.name} is {tensor.dtype}, but the file format has no complex tensors"
    return None


def _reshaped_in_place(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target) or not node.args:
        return None
    operand = node.args[0]
    if torch.Tag.inplace_view not in overload(node).tags or not isinstance(operand, Node):
        return None
    if node.target == aten.set_.source_Tensor:
        return None  # "other-memory" reports it with a better message
    return (
        f"{accepted.target_text(node)} changes the shape of {operand.name}"
        if operand.op == "placeholder"
        else None
    )


def _resized_out(node: Node) -> str | None:
    """In eager mode, `out=` resizes the given tensor to the shape of the result. In a program, only a new tensor can be
    resized."""
    if node.op != "call_function" or not ops.is_out_variant(node.target):
        return None
    for written, result in zip(ops.written_arguments(node), _tensors(node), strict=False):
        shape = written.meta["val"].shape
        if same_shape(shape, result.shape):
            continue
        base = base_of(written)
        if base.op == "placeholder" or base is not _before_updates(written):
            return (
                f"{accepted.target_text(node)} resizes {base.name} from shape {tuple(shape)} to the shape "
                f"{tuple(result.shape)} of its result"
            )
    return None


def base_of(node: Node) -> Node:
    """Returns the tensor that owns the memory of a value, through views and operators that return a written
    argument."""
    while ops.is_operator(node.target) and (ops.is_view(node.target) or ops.is_mutating(node.target)):
        written = ops.written_arguments(node) or node.all_input_nodes
        if not written:
            break
        node = written[0]
    return node


def _before_updates(node: Node) -> Node:
    """Returns the tensor before updates, through the same operators as `base_of` except views and changes of the
    shape."""
    while ops.is_operator(node.target) and ops.is_mutating(node.target):
        if torch.Tag.inplace_view in overload(node).tags and node.target != aten.detach_.default:
            break
        node = ops.written_arguments(node)[0]
    return node


# `x.data = y`, as captured by non-strict or strict export (torch 2.14 or later).
_DATA_ASSIGNED = ("aten._has_compatible_shallow_copy_type.default", "aten.shallow_copy_data_.default")


def _other_memory(node: Node) -> str | None:
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    # torch.export may record only a compatibility query for `x.data = y`. The program would then compute with the old
    # x.
    assigned = str(node.target) in _DATA_ASSIGNED
    replaces_input = node.target == aten.set_.source_Tensor and node.args[0].op == "placeholder"
    return f"{node.args[0].name} is assigned other memory" if assigned or replaces_input else None


def _rank(node: Node) -> str | None:
    for tensor in _tensors(node):
        if tensor.dim() > MAX_RANK:
            return f"{node.name} has {tensor.dim()} dimensions; the runtime supports at most {MAX_RANK}"
    return None


def _natural_order(node: Node) -> str | None:
    if node.op != "call_function":
        return None
    for tensor in _tensors(node):
        if not is_dense(tensor) and node.target not in (ops.to_dim_order_copy, ops.clone_dim_order):
            return f"{node.name} has strides {tuple(tensor.stride())}, expected the strides of a contiguous tensor"
    return None


def _no_memory_format(node: Node) -> str | None:
    format_ = node.kwargs.get("memory_format")
    if node.op == "call_function" and format_ not in (None, torch.contiguous_format, torch.preserve_format):
        return f"{accepted.target_text(node)} requests the memory format {format_}"
    return None


def _no_scalars_for_tensors(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target):
        return None
    for where, value in ops.tensor_arguments(overload(node), node.args, node.kwargs):
        if isinstance(value, (bool, int, float)):
            declared = overload(node)._schema.arguments[where].name if isinstance(where, int) else where
            called = accepted.target_text(node)
            return f"argument {declared} of {called} is the scalar {value}, but its schema requires a tensor"
    return None


def _no_scalar_overload(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target):
        return None
    twin = ops.tensor_overload(node.target)
    if twin is not None and len(node.args) > 1 and isinstance(node.args[1], (bool, int, float)):
        return (
            f"{accepted.target_text(node)} has the scalar operand {node.args[1]}; {twin} has a tensor operand"
        )
    return None


def _one_dtype(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target):
        return None
    for together in _combined(node):
        dtypes = [tensor.dtype for tensor in together]
        if len(set(dtypes)) > 1:
            text = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            return f"{accepted.target_text(node)} combines {text}"
    return None


def _combined(node: Node) -> Iterator[list[torch.Tensor]]:
    """Yields the tensors of a call that must have one dtype: operands of a pointwise operator, members of a list."""
    target: Any = node.target
    groups: list[Any] = []
    if ops.is_pointwise(target) and target not in MIXED:
        values = [value for _, value in ops.tensor_arguments(target, node.args, dict(node.kwargs))]
        groups.append(values[1:] if target == aten.where.self else values)
    for argument, value in zip(target._schema.arguments, node.args, strict=False):
        if str(argument.type) == "List[Tensor]" and isinstance(value, (list, tuple)):
            groups.append(value)
    for group in groups:
        vals = [value.meta.get("val") for value in group if isinstance(value, Node)]
        yield [val for val in vals if isinstance(val, torch.Tensor)]


MIXED = frozenset(
    {aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default, aten.copy.default}
)


def _edge_dtypes(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target) or "val" not in node.meta:
        return None
    allowed = dtypes.constraint(overload(node)._schema)
    if allowed is None or _one_dtype(node) is not None:
        return None
    row = dtypes.row_of(node, node.target)
    if dtypes.FOREIGN in row:
        return None  # "unsupported-dtype" reports the tensor with this dtype
    return None if allowed.takes(row) else f"{accepted.target_text(node)}: {allowed.fault(row)}"


def _kernel_dtypes(node: Node) -> str | None:
    functional = node.meta.get("functional")
    if functional is None or "alias" in node.meta or node.op != "call_function":
        return None
    allowed = dtypes.constraint(functional._schema)
    # If the operator has no kernel at all, another check reports it.
    if allowed is None or not allowed.kernel_rows:
        return None
    row = dtypes.row_of(node, functional)
    return (
        None
        if allowed.runs(row)
        else f"no kernel of {accepted.target_text(node)} supports these dtypes: {allowed.fault(row, kernels=True)}"
    )


def _matches_pattern(node: Node) -> str | None:
    if node.op != "call_function" or not ops.is_operator(node.target):
        return None
    op = dialect_operator(overload(node))
    mode = next((t.fake_mode for t in _tensors(node) if isinstance(t, torch._subclasses.FakeTensor)), None)
    if not isinstance(op, BackendOpOverload) or mode is None:
        return None
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
    try:
        with mode:
            expected = shape_text(op.pattern(*args, **kwargs))
    except Exception as error:
        return f"the pattern of {accepted.target_text(node)} does not accept these arguments: {error}"
    actual = shape_text(node.meta["val"])
    return (
        None
        if expected == actual
        else f"{node.name} yields {actual}, but the pattern of {accepted.target_text(node)} yields {expected}"
    )


def _inference(node: Node) -> str | None:
    if node.op != "call_function" or node.target not in accepted.TRAINING:
        return None
    if ops.argument(node, "training", True) is False:
        return None
    return f"{accepted.target_text(node)} is the training behaviour of a layer"


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
                f"{node.name} is an alias of bytes {offset}..{end} of {source.name}, which exceed its storage"
            )
    elif offset:
        return f"{node.name} is an alias at byte {offset} of {source.name}, which has a dynamic shape"
    return None


def _in_place(node: Node) -> str | None:
    buffer, _ = node.meta.get("in_place", (None, 0))
    if buffer is None:
        return None
    # The first slice of a result that grows slice by slice may be written before the loop begins.
    grows = isinstance(buffer, Node) and buffer.meta.get("grows") and node.target == ops.copy_index
    if not isinstance(buffer, Node) or (buffer.op != "placeholder" and not grows):
        return f"{node.name} is written in place of {buffer}, which is not an input of the graph"
    if tuple(map(str, buffer.meta["val"].shape)) != tuple(map(str, node.meta["val"].shape)):
        return f"{node.name} is written in place of {buffer.name}, which has another shape"
    return None


def _view_has_alias(node: Node) -> str | None:
    if node.op == "call_function" and node.target in accepted.ALIASES and "alias" not in node.meta:
        return f"{node.name} is neither an alias nor an out variant"
    return None


# ---- the rules ----

# Rules of every dialect.
COMMON = (
    Check("not-a-graph-call", "Graphs call functions, not modules or methods.", EXPORT_AGAIN, _is_graph_node),
    Check("bad-attribute", "Attributes are tensors or subgraphs.", EXPORT_AGAIN, _get_attr),
    Check("bad-argument-type", "Arguments are nodes, scalars, strings, dtypes, or lists of them.", PASS_FAULT, _argument_types),
    Check("bad-arguments", "Arguments fit the operator's schema.", PASS_FAULT, _fits_schema),
    Check("no-value", "Each call has its result in meta['val'].", PASS_FAULT, _has_val),
    Check("wrong-value", "The meta['val'] of a call matches its schema.", PASS_FAULT, _yields_what_schema_says),
    Check("not-on-cpu", "Tensors are on the CPU.", "move the model and its inputs to the CPU before export", _device),
    Check("not-dense", "Tensors are dense.", "convert with .to_dense() or .dequantize() before export", _dense),
)  # fmt: skip
RESHAPED_IN_PLACE = Check(
    "reshaped-in-place",
    "Inputs, parameters and buffers keep their shapes.",
    "create a new tensor: x.t() instead of x.t_(), x.reshape(...) instead of x.resize_(...)",
    _reshaped_in_place,
)
RESIZED_OUT = Check(
    "resized-out",
    "A call with out= keeps the shapes of inputs, parameters, buffers and views.",
    "pass out= a tensor with the shape of the result, or a new one: out=torch.empty(shape)",
    _resized_out,
)
OTHER_MEMORY = Check(
    "other-memory",
    "Tensors keep their memory: x.data = y is not an operator.",
    "write to the tensor: x.copy_(y) instead of x.data = y",
    _other_memory,
)
SMALL_FLOATS = Check(
    "unsupported-dtype",
    "No tensor has an 8-bit or 4-bit floating-point dtype.",
    "cast to a supported dtype before that line; to quantize, choose integers: quantize_(model, Int8WeightOnlyConfig()), or "
    "torchette.compile(model, args, quantizer=XNNPACKQuantizer()...)",
    _small_float,
)
TRAIN_MODE = Check(
    "train-mode",
    "Layers have their inference behaviour.",
    "call model.eval() before export, or allow training behaviour: EdgeCompileConfig(train_mode=True)",
    _inference,
)
NOT_ITS_PATTERN = Check(
    "not-its-pattern",
    "An operator of a target yields the same shapes and dtypes as its pattern.",
    "correct meta['val'] of the node, or the pattern that was bound to the operator",
    _matches_pattern,
)
# Additional rules of edge.
EDGE = (
    Check("number-for-tensor", "Tensor arguments are tensors.", "run scalars_to_tensors after the pass that added the scalar", _no_scalars_for_tensors),
    Check("scalar-overload", "Tensor overloads are used if they exist.", "call the .Tensor overload with a 0-d tensor", _no_scalar_overload),
    Check("mixed-dtypes", "Pointwise operators and lists combine tensors of one dtype.", "cast explicitly with .to(dtype)", _one_dtype),
    Check("dtype-not-allowed", "Tensors have dtypes that the operator supports.", "cast before that line to one of the listed dtypes", _edge_dtypes),
    Check("memory-format", "No operator requests a memory format.", "run normalize_memory_formats after the pass that added it", _no_memory_format),
    Check("not-natural-order", "Values are contiguous.", "run normalize_memory_formats after the pass that created it", _natural_order),
    Check("unsupported-dtype", "The runtime supports the dtypes.", "cast to a supported dtype before that line", _dtype),
    Check("complex-tensor", "No tensor is complex; pairs of real tensors represent complex tensors.", "pass a real input x with pairs, and call torch.view_as_complex(x) at the beginning of forward; pass torch.view_as_real(y) to and from branches and loops", _complex),
    Check("rank-limit", f"Tensors have at most {MAX_RANK} dimensions.", "flatten some dimensions", _rank),
)  # fmt: skip
# Additional rules of exec.
EXEC = (
    Check("no-kernel-for-dtype", "A kernel of the runtime supports the dtypes.", "cast before that line to one of the listed dtypes, or add these dtypes to the kernel", _kernel_dtypes),
    Check("bad-alias", "An alias lies within the storage of its source.", PASS_FAULT, _alias),
    Check("bad-in-place", "A value written in place of a buffer has the shape of the buffer.", PASS_FAULT, _in_place),
    Check("view-without-alias", "A view is an alias.", PASS_FAULT, _view_has_alias),
)  # fmt: skip
