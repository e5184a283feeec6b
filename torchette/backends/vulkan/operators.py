# SPDX-License-Identifier: BSD-3-Clause
# In: a node. Out: the reason why the device cannot run it, or None. The C++ files in this folder implement the
# operators.
"""The nodes that the Vulkan runtime supports."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from torchette.backends.vulkan.payload import DTYPES
from torchette.exir.arguments import list_arg, overload
from torchette.exir.graph import is_dense, same_shape, size_key
from torchette.exir.tensor import upper_bound
from torchette.schema import LIMITS

MAX_DIMS = LIMITS["kMaxVulkanDims"]
_FLOATS = (torch.float32, torch.float16)
_MAX_ELEMENTS = 2**31 - 2

# The index arguments, by their place in the schema.
_INDICES = {
    "aten.index.Tensor": 1, "aten.index_put.default": 1, "aten.embedding.default": 1, "aten.gather.default": 2,
    "aten.index_select.default": 2, "aten.index_copy.default": 2, "aten.scatter.src": 2, "aten.scatter.value": 2,
}  # fmt: skip

Check = Callable[[Node], "str | None"]


def name_of(target: object) -> str:
    """Returns an operator's name in a payload, such as ``aten.add.Tensor``, or "" if `target` is not an operator."""
    if target is operator.getitem:
        return ""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).replace(
            "torchette_dim_order.", "dim_order_ops.", 1
        )  # ExecuTorch's name of the operator
    return getattr(target, "__name__", "")


def _rows() -> dict[str, list[list[str]]]:
    text = (Path(__file__).parent / "pointwise.def").read_text()
    rows: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, arguments, computes, _ = line.split(" | ", 3)
            rows.setdefault(name.strip(), []).append([computes.strip(), *arguments.split()])
    return rows


_POINTWISE = _rows()


def _value(node: Node, place: int, default: object = None) -> Any:
    """Returns an argument by its index in the schema."""
    if place < len(node.args):
        return node.args[place]
    arguments = overload(node)._schema.arguments
    return node.kwargs.get(arguments[place].name, default) if place < len(arguments) else default


def _tensor(node: object) -> torch.Tensor | None:
    val = node.meta.get("val") if isinstance(node, Node) else None
    return val if isinstance(val, torch.Tensor) else None


def _pointwise(node: Node) -> str | None:
    result, reasons = _tensor(node), []
    is_half = result is not None and result.dtype is torch.float16
    if is_half and name_of(node.target) == "aten.pow.Tensor_Scalar" and _value(node, 1) in (0.5, -0.5):
        return "a power of float16 that torch does not compute as a root"
    for _, *letters in _POINTWISE[name_of(node.target)]:
        reason = None
        for place, letter in enumerate(letters):
            operand = _value(node, place, overload(node)._schema.arguments[place].default_value)
            if letter[0] == "'" and operand != letter.strip("'"):
                reason = f"no mode {operand!r}"
            elif letter[0] in "cxyz" and _tensor(operand) is None:
                reason = "an operand is a scalar"
            elif letter[0] in "pq" and not (
                isinstance(operand, (int, float)) or (operand is None and "=" in letter)
            ):
                reason = "a scalar is known only at run time"
        if reason is None:
            return None
        reasons.append(reason)
    return reasons[0]


def _floats(node: Node) -> str | None:
    """Requires all tensors to have the same floating-point dtype."""
    dtypes = {value.dtype for value in map(_tensor, node.all_input_nodes) if value is not None}
    return (
        None
        if len(dtypes) == 1 and dtypes <= set(_FLOATS)
        else "it requires tensors with the same floating-point dtype"
    )


def _variance(node: Node) -> str | None:
    value = _tensor(node.args[0])
    assert value is not None
    return "it reduces an empty tensor" if 0 in map(upper_bound, value.shape) else _floats(node)


def _convolution(node: Node) -> str | None:
    weight = _tensor(node.args[1])
    if weight is None or weight.dim() > 5:
        return "a convolution with more than three spatial dimensions"
    return _floats(node)


def _attention(node: Node) -> str | None:
    query, *keys_and_values = (_tensor(value) for value in node.args[:3])
    if query is None or not 3 <= query.dim() <= 6 or query.dtype not in _FLOATS:
        return "queries do not have 3 to 6 dimensions and a floating-point dtype"
    batch, heads = query.shape[:-3], upper_bound(query.shape[-3]) or 0
    for tensor in keys_and_values:
        if (
            tensor is None
            or not same_shape(tensor.shape[:-3], batch)
            or heads % max(upper_bound(tensor.shape[-3]) or 1, 1)
        ):
            return "keys or values have other batch sizes than queries"
    if _value(node, 4, 0.0):
        return "dropout"
    if _value(node, 3) is not None and _value(node, 5, False):
        return "a mask together with is_causal"
    return None


def _softmax(node: Node) -> str | None:
    return "half_to_float" if node.args[2] else _floats(node)


def _index(node: Node) -> str | None:
    indices = [index for index in list_arg(node, 1) if index is not None]
    if len(indices) > 4:
        return "more than four indices"
    if _value(node, 3):
        return "it accumulates"
    dtypes = {index.dtype for index in map(_tensor, indices) if index is not None}
    return None if dtypes <= {torch.int32, torch.int64} else "a boolean mask as index"


def _index_put(node: Node) -> str | None:
    """Requires as many values as indices, because the payload is planned for the maximum number of indices."""
    indices = [index for index in map(_tensor, list_arg(node, 1)) if index is not None]
    symbolic = {size_key(size) for index in indices for size in index.shape if isinstance(size, torch.SymInt)}
    values = _tensor(node.args[2])
    sizes = {1} if values is None else {1, *map(size_key, values.shape)}
    if len(sizes) > 1 and not symbolic <= sizes:
        return "the number of values is not that of the indices"
    return _index(node)


def _gather(node: Node) -> str | None:
    """Requires a table with dimensions, and an index of int32 or int64."""
    table, index = _tensor(node.args[0]), _tensor(node.args[_INDICES[name_of(node.target)]])
    if table is None or not table.dim():
        return "a table without dimensions"
    return None if index is None or index.dtype in (torch.int32, torch.int64) else "an 8-bit index"


def _is_image(node: Node) -> str | None:
    value = _tensor(node.args[0])
    return (
        None
        if value is not None and value.dim() in (3, 4) and value.dtype in _FLOATS
        else "it requires floating-point images"
    )


def _copy(node: Node) -> str | None:
    source, result = _tensor(node.args[0]), _tensor(node)
    assert source is not None and result is not None
    # The shader converts floats through 32-bit integers, which saturate instead of wrapping around.
    limits = torch.iinfo(result.dtype) if result.dtype in (torch.int8, torch.uint8) else None
    operand = node.args[0]
    if (
        limits
        and isinstance(operand, Node)
        and operand.target is torch.ops.aten.clamp.default
        and len(operand.args) == 3
    ):
        low, high = operand.args[1:]
        if (
            isinstance(low, (int, float))
            and isinstance(high, (int, float))
            and limits.min <= low
            and high <= limits.max
        ):
            return None
    cut = source.dtype in _FLOATS and result.dtype in (torch.int64, torch.uint8, torch.int8)
    return "a conversion to int64, int8 or uint8" if cut else None


def _instance(node: Node) -> str | None:
    value = _tensor(node.args[0])
    return (
        _floats(node)
        if value is not None and value.dim() > 2 and value.shape[0] == 1
        else "statistics of a batch of several images"
    )


def _rms(node: Node) -> str | None:
    return "over several dimensions" if len(list_arg(node, 1)) != 1 else _floats(node)


def _blocks(node: Node) -> str | None:
    """For torchao's operators: supports one scale for all, one for each index of a dimension, or one for each group
    along the last dimension."""
    value, sizes = _tensor(node.args[0]), list_arg(node, 2 if "choose" in name_of(node.target) else 1)
    assert value is not None
    parts = [a for a, b in zip(value.shape, sizes, strict=True) if a != b and b != -1]
    rows = all(b == 1 for b in sizes[:-1])
    if not rows and len(parts) > 1:
        return "blocks of several dimensions"
    if not rows and parts and not any(b == 1 and a != 1 for a, b in zip(value.shape, sizes)):
        return "blocks that divide a dimension other than the last"
    if "choose" in name_of(node.target) and node.args[1] not in ("SYMMETRIC", "ASYMMETRIC"):
        return f"unsupported mapping {node.args[1]}"
    return None


def _none(node: Node) -> str | None:
    return None


# Results that may share the memory of their operand.
_VIEWS = (
    "view view_copy _unsafe_view reshape permute permute_copy t t_copy unsqueeze unsqueeze_copy squeeze_copy expand expand_copy "
    "split_with_sizes split_with_sizes_copy flip unfold unfold_copy clone alias_copy detach detach_copy"
)
_SHAPES = "cat stack repeat constant_pad_nd pixel_shuffle full full_like scalar_tensor zeros ones zeros_like ones_like"
MOVES = frozenset(
    [f"aten.{name}.default" for name in _VIEWS.split()]
    + [
        "aten.transpose.int",
        "aten.transpose_copy.int",
        "aten.squeeze.dims",
        "aten.squeeze_copy.dim",
        "aten.squeeze_copy.dims",
        "aten.select.int",
        "aten.select_copy.int",
        "aten.slice.Tensor",
        "aten.slice_copy.Tensor",
        "aten.split.Tensor",
        "aten.split_copy.Tensor",
        "aten.unbind.int",
        "aten.unbind_copy.int",
        "aten._to_copy.default",
        "dim_order_ops._clone_dim_order.default",
        "dim_order_ops._to_dim_order_copy.default",
    ]
)
EMPTY = "aten.empty.memory_format"  # becomes zeros, because arbitrary integers may not fit into 32 bits
# Operators that modify a part of their first operand; in place if it is a state.
CHANGES = frozenset(
    [
        "aten.index_put.default",
        "aten.index_copy.default",
        "aten.slice_scatter.default",
        "aten.select_scatter.default",
        "aten.scatter.src",
        "aten.scatter.value",
    ]
)
OPERATORS: dict[str, Check] = {
    **dict.fromkeys(_POINTWISE, _pointwise),
    **{f"aten.{name}.default": _none for name in _SHAPES.split()},
    EMPTY: _none,
    **dict.fromkeys(
        (
            *MOVES, *CHANGES, "aten.copy.default", "aten.bitwise_not.default", "aten.arange.start_step",
            "aten.sum.dim_IntList", "aten.sum.default", "aten.mean.dim", "aten.mean.default", "aten.amax.default",
            "aten.amin.default", "aten.max.default", "aten.min.default", "aten.max.dim", "aten.min.dim", "aten.prod.default",
            "aten.prod.dim_int", "aten.any.default", "aten.any.dim", "aten.any.dims", "aten.all.default", "aten.all.dim",
            "aten.argmax.default", "aten.argmin.default", "aten.cumsum.default",
        ),
        _none,
    ),
    **dict.fromkeys(
        (
            "aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default", "aten.linear.default",
            "aten.native_layer_norm.default", "aten.native_group_norm.default", "aten._native_batch_norm_legit_no_training.default",
        ),
        _floats,
    ),
    **dict.fromkeys(
        (
            "aten.max_pool2d_with_indices.default", "aten.avg_pool2d.default", "aten._adaptive_avg_pool2d.default",
            "aten.adaptive_avg_pool2d.default", "aten.upsample_nearest2d.vec", "aten.upsample_bilinear2d.vec",
            "aten.upsample_bicubic2d.vec",
        ),
        _is_image,
    ),
    "aten.var.correction": _variance,
    "aten.var.dim": _variance,
    "aten.convolution.default": _convolution,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten._softmax.default": _softmax,
    "aten._log_softmax.default": _softmax,
    "aten.rms_norm.default": _rms,
    "aten._native_batch_norm_legit.no_stats": _instance,
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index_put,
    **dict.fromkeys(
        (
            "aten.gather.default", "aten.embedding.default", "aten.index_select.default", "aten.index_copy.default",
            "aten.scatter.src", "aten.scatter.value",
        ),
        _gather,
    ),
    **dict.fromkeys(
        (
            "quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.quantize_per_tensor.tensor",
            "quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor",
            "quantized_decomposed.quantize_per_channel.default", "quantized_decomposed.dequantize_per_channel.default",
        ),
        _none,
    ),
    **dict.fromkeys(
        (
            "torchao.quantize_affine.default", "torchao.dequantize_affine.default", "torchao.choose_qparams_affine.default",
        ),
        _blocks,
    ),
    "aten._to_copy.default": _copy,
    "dim_order_ops._to_dim_order_copy.default": _copy,
}  # fmt: skip

# Operators with results that may exceed 32 bits if computed in int64, or wrap around in int8 and uint8.
_GROWS = ("add", "sub", "rsub", "mul", "neg", "pow", "sum", "prod", "cumsum", "div", "abs", "full")


def _max_abs(value: object, stored: Mapping[Node, torch.Tensor]) -> float:
    """Returns a bound of the absolute value of integers. Program inputs are checked to fit into 32 bits."""
    if not isinstance(value, Node):
        return abs(value) if isinstance(value, (int, float)) else math.inf
    tensor, name = _tensor(value), name_of(value.target) if value.op == "call_function" else ""
    if tensor is None or tensor.is_floating_point() or name.split(".")[1:2] == ["full"]:
        return _max_abs(value.args[1], stored) if name == "aten.full.default" else math.inf
    args, kind = value.args, name.split(".")[1] if name else ""
    if tensor.dtype is torch.bool:
        return 1
    if value in stored and stored[value].numel() == 1:
        return abs(int(stored[value]))
    if name in MOVES or kind in ("neg", "abs"):
        return _max_abs(args[0], stored)
    if kind in ("add", "sub", "rsub") and _value(value, 2, 1) == 1:
        return _max_abs(args[0], stored) + _max_abs(args[1], stored)
    if kind == "mul":
        return _max_abs(args[0], stored) * _max_abs(args[1], stored)
    if kind in ("cumsum", "sum"):
        source = _tensor(args[0])
        assert source is not None
        sizes = [upper_bound(size) or math.inf for size in source.shape]
        return _max_abs(args[0], stored) * math.prod(sizes)
    if kind == "clamp" and None not in (low := _value(value, 1), high := _value(value, 2)):
        return max(_max_abs(low, stored), _max_abs(high, stored))
    return 2**31


def why_not(
    node: Node, downcast: bool = False, stored: Mapping[Node, torch.Tensor] | None = None
) -> str | None:
    """Returns the reason why the runtime cannot run a node, or None.

    Args:
        node: the node.
        downcast: whether int64 arithmetic may be computed in int32. It always is if its values are known to be small.
        stored: constants, which bound the values.
    """
    name = name_of(node.target)
    check = OPERATORS.get(name)
    if check is None:
        return "the Vulkan backend does not have this operator"
    for value in (node, *node.all_input_nodes):
        reason = _why_not_value(value.meta.get("val"))
        if reason is not None:
            return reason
    result = _tensor(node)
    if result is not None and not is_dense(result):
        return "a result in channels-last order"
    if result is not None and name.split(".")[1] in _GROWS:
        if result.dtype is torch.int64 and not downcast and _max_abs(node, stored or {}) >= 2**31:
            return "int64 arithmetic; the option downcast_64_bit computes it in int32"
        if result.dtype in (torch.int8, torch.uint8):
            return "8-bit arithmetic, which would not wrap around"
    return check(node)


def reads_wide_integers(node: Node, wide: set[Node]) -> bool:
    """Returns whether an operand is in `wide`: int64 converted from floats, which may exceed 32 bits, as log(0) does.

    Adds the node to `wide` if its result is such a value, so the nodes must come in the order of the program. An index
    does not count, because one that exceeds 32 bits is out of range without delegation too.
    """
    name = name_of(node.target)
    indices = node.args[_INDICES[name]] if name in _INDICES else ()
    indices = indices if isinstance(indices, (list, tuple)) else [indices]
    reads = any(value in wide and value not in indices for value in node.all_input_nodes)
    val = node.meta.get("val")
    results = val if isinstance(val, (list, tuple)) else [val]
    if not any(isinstance(one, torch.Tensor) and one.dtype is torch.int64 for one in results):
        return reads
    source = _tensor(node.args[0]) if name in MOVES else None
    bounded = name.split(".")[1:2] == ["clamp"] and _max_abs(node, {}) < 2**31
    if not bounded and (reads or (source is not None and source.is_floating_point())):
        wide.add(node)
    return reads


def _why_not_value(val: object) -> str | None:
    for one in val if isinstance(val, (list, tuple)) else [val]:
        if isinstance(one, (int, torch.SymInt)):
            continue
        if not isinstance(one, torch.Tensor):
            return "an operand is not a tensor"
        if one.dtype not in DTYPES:
            return f"dtype {str(one.dtype).removeprefix('torch.')}"
        bounds = [upper_bound(size) for size in one.shape]
        known = [bound for bound in bounds if bound is not None]
        if len(known) < len(bounds):
            return "a dimension has no upper bound"
        if one.dim() > MAX_DIMS or math.prod(known) > _MAX_ELEMENTS:
            return "more than eight dimensions, or 2^31 elements"
    return None
