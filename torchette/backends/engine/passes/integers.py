# SPDX-License-Identifier: BSD-3-Clause
# In: a graph with quantize and dequantize nodes from PT2E. Out: the layers between them as operators of the engine on
# 8-bit integers, and the remaining quantize and dequantize nodes as operators of the engine.
"""Replaces quantized layers by `cpu::quantized_linear` and similar operators."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import Target

from torchette.backends.engine.pack import pack_linear, pack_quads, requantization_terms
from torchette.backends.engine.passes.constants import Weights
from torchette.backends.engine.passes.convolutions import only_result, per_dimension
from torchette.backends.engine.passes.layouts import channels_first, channels_last, permuted
from torchette.backends.engine.passes.linears import operands
from torchette.backends.engine.passes.quantize_points import is_move
from torchette.exir import ops
from torchette.exir.arguments import int_arg, ints_arg, node_arg, nodes_arg, number_arg
from torchette.exir.delegation.delegate import reject
from torchette.exir.graph import call, calls, constants, note, replace, same_shape, same_size
from torchette.exir.passes.fold_constants import evaluate
from torchette.exir.passes.remove_dead_code import remove_dead_code
from torchette.schema.engine import CONSTANTS

aten = torch.ops.aten
cpu = torch.ops.cpu

# Compared by name, because torch declares these operators only after its quantization module is imported.
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
_DEQUANTIZE_CHANNELS = "quantized_decomposed.dequantize_per_channel.default"

MAX_DEPTH = CONSTANTS["kMaxIntegerDepth"]
"""Maximum number of 8-bit multiplications that a 32-bit accumulator can sum without overflow."""
_MAX_DEPTHWISE_TAPS = CONSTANTS["kMaxDepthwiseTaps"]
_MAX_POOL_ELEMENTS = CONSTANTS["kMaxPoolElements"]


class Scheme(NamedTuple):
    """Affine quantization: real = (q - zero) * scale, low <= q <= high."""

    scale: float
    zero: int
    low: int
    high: int
    dtype: torch.dtype


class Quantized(NamedTuple):
    """A value that is stored as integers."""

    node: Node
    scheme: Scheme


def place_integers(program: ExportedProgram) -> ExportedProgram:
    """Replaces layers between dequantize and quantize by the engine's integer operators."""
    if not any(str(node.target) in (_QUANTIZE, _DEQUANTIZE) for node in calls(program)):
        return program
    placer = _Placer(program)
    for node in list(calls(program)):
        placer.move_dequantize_down(node)
    for node in reversed(list(calls(program))):
        if not node._erased:
            placer.move_quantize_up(node)
    count = sum(placer.index(node) for node in list(calls(program)) if str(node.target) == _QUANTIZE)
    remove_dead_code(program)
    remaining = sum(placer.place_remaining(node) for node in list(calls(program)))
    if count or remaining:
        note(
            program,
            f"{count} quantized layers run on integers; {remaining} values are quantized or dequantized",
        )
    return program


class _Placer:
    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._weights = Weights(program)

    # ---- move quantize and dequantize next to the arithmetic ----

    def scheme(self, node: object) -> Scheme | None:
        """Returns the scheme of a call that quantizes or dequantizes a tensor with one scale to or from 8-bit integers, or
        None.
        """
        if not isinstance(node, Node) or str(node.target) not in (_QUANTIZE, _DEQUANTIZE):
            return None
        dtype = node.args[5]
        if not isinstance(dtype, torch.dtype) or dtype not in (torch.int8, torch.uint8):
            return None
        if not all(isinstance(n, (int, float)) for n in node.args[1:3]):
            return None
        floats = node_arg(node) if str(node.target) == _QUANTIZE else node
        if floats.meta["val"].dtype != torch.float32:
            return None
        scale, zero, low, high = (number_arg(node, index) for index in (1, 2, 3, 4))
        return Scheme(float(scale), int(zero), int(low), int(high), dtype)

    def source(self, node: object) -> Quantized | None:
        """Returns the integers that a value is dequantized from, or None. Stored weights are excluded."""
        scheme = self.scheme(node)
        if (
            not isinstance(node, Node)
            or scheme is None
            or str(node.target) != _DEQUANTIZE
            or self._weights.any(node.args[0]) is not None
        ):
            return None
        return Quantized(node_arg(node), scheme)

    def quantize(self, x: Node, like: Node, before: Node) -> Node:
        """Quantizes `x` like `like`. Returns the integers of `x` if it is dequantized with the same scheme."""
        source = self.source(x)
        if source is not None and source.scheme == self.scheme(like):
            return source.node
        val = x.meta["val"].to(like.args[5])
        return call(before, like.target, (x, *like.args[1:]), dict(like.kwargs), val=val, like=like)

    def move_dequantize_down(self, node: Node) -> None:
        """Moves a dequantize behind a call that moves elements, so that the call moves integers."""
        integers = [self.source(x) for x in _moved(node)]
        sources = [source for source in integers if source is not None]
        if not integers or len(sources) < len(integers) or len({source.scheme for source in sources}) > 1:
            return
        first: Node = _moved(node)[0]
        moved = self.move(node, [source.node for source in sources])
        args = (moved, *first.args[1:])
        replace(
            self._program,
            node,
            call(node, first.target, args, dict(first.kwargs), val=node.meta["val"], like=node),
        )

    def move_quantize_up(self, node: Node) -> None:
        """Moves a quantize before a call that moves elements."""
        if str(node.target) != _QUANTIZE or self.scheme(node) is None:
            return
        mover = node_arg(node)
        if not _moved(mover) or len(mover.users) > 1:
            return
        parts = [self.quantize(x, node, mover) for x in _moved(mover)]
        replace(self._program, node, self.move(mover, parts, before=node))
        mover.graph.erase_node(mover)
        for part in parts:
            if not part._erased:
                self.move_quantize_up(part)

    def move(self, node: Node, parts: list[Node], before: Node | None = None) -> Node:
        """Repeats a call that moves elements with other operands."""
        args = (parts, *node.args[1:]) if node.target is aten.cat.default else (parts[0], *node.args[1:])
        val = node.meta["val"].to(parts[0].meta["val"].dtype)
        return call(before or node, node.target, args, dict(node.kwargs), val=val, like=node)

    # ---- operators that end in a quantize ----

    def index(self, node: Node) -> bool:
        """Replaces a quantize and the operator that computes its operand by one integer operator.

        Returns whether it did.
        """
        scheme, source = self.scheme(node), node.args[0]
        if scheme is None or not isinstance(source, Node):
            return False
        quantized = self.source(source)
        if quantized is not None and quantized.scheme == scheme:
            replace(self._program, node, quantized.node)
            return True
        producer, inside = _before_clamps(source, scheme)
        rule = _RULES.get(producer.target)
        placed = rule(self, producer, inside) if rule is not None and inside is not None else None
        placed = placed or self._pooled(source, scheme, node) or self._looked_up(node, scheme)
        if placed is None:
            return False
        replace(self._program, node, placed)
        return True

    def place_remaining(self, node: Node) -> bool:
        """Replaces a quantize or dequantize that is not part of an integer operator by the engine's operator."""
        scheme = self.scheme(node)
        if scheme is None:
            return False
        if str(node.target) == _QUANTIZE:
            args, kwargs = (node.args[0], *scheme[:4]), {"dtype": scheme.dtype}
            placed = call(node, cpu.quantize.default, args, kwargs, val=node.meta["val"], like=node)
        elif self.source(node) is not None:
            operands = (node.args[0], scheme.scale, scheme.zero)
            placed = call(node, cpu.dequantize.default, operands, val=node.meta["val"], like=node)
        else:
            return False
        replace(self._program, node, placed)
        return True

    def _pooled(self, source: Node, scheme: Scheme, node: Node) -> Node | None:
        """Quantizes before a max pool instead of after it: quantization is monotonic and preserves the maximum."""
        pool = source.args[0] if source.target is operator.getitem else None
        if not isinstance(pool, Node) or pool.target is not aten.max_pool2d_with_indices.default:
            return None
        if only_result(pool) is not source or len(node_arg(node).users) != 1:
            return None
        integers = self.quantize(node_arg(pool), node, before=pool)
        names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
        kernel, stride, padding, dilation, ceil = (ops.argument(pool, name) for name in names)
        windows = [per_dimension(values or kernel, 2) for values in (kernel, stride, padding, dilation)]
        image = channels_last(integers, before=node)
        if str(integers.target) == _QUANTIZE and integers.args[0] is pool.args[0]:
            self.index(integers)
        val = permuted(node.meta["val"], [0, 2, 3, 1])
        placed = call(node, cpu.max_pool.default, (image, *windows, bool(ceil)), val=val, like=source)
        return channels_first(placed, before=node)

    def _looked_up(self, node: Node, scheme: Scheme) -> Node | None:
        """Replaces an elementwise function of one 8-bit tensor by a lookup table."""
        leaves: set[Node] = set()
        if not self._function(node_arg(node), leaves, set()):
            return None
        sources = {self.source(leaf) for leaf in leaves}
        if len(sources) != 1:
            return None
        (found,) = sources
        if found is None or not same_shape(found.node.meta["val"].shape, node.meta["val"].shape):
            return None
        codes = torch.arange(256, dtype=torch.uint8).view(found.scheme.dtype)
        exact = (codes.to(torch.float32) - found.scheme.zero) * torch.tensor(found.scheme.scale)
        result = evaluate(node_arg(node), {**constants(self._program), **dict.fromkeys(leaves, exact)})
        codes_of_results = torch.round(result * (1.0 / scheme.scale)) + scheme.zero
        table = codes_of_results.clamp(scheme.low, scheme.high).nan_to_num(scheme.low).to(scheme.dtype)
        stored = self._weights.add(f"{node.name}_table", table, node)
        return call(node, cpu.lookup.default, (found.node, stored), val=node.meta["val"], like=node)

    def _function(self, node: Node, leaves: set[Node], seen: set[Node]) -> bool:
        """Collects the dequantized tensors that a value depends on.

        Returns False if the computation is not elementwise.
        """
        if node in seen:
            return True
        seen.add(node)
        if self.source(node) is not None:
            leaves.add(node)
            return True
        stored = self._weights.any(node)
        if stored is not None:
            return stored.numel() == 1 and stored.dim() == 0
        if (
            node.op != "call_function"
            or not ops.is_pointwise(node.target)
            or node.meta["val"].dtype != torch.float32
        ):
            return False
        return all(self._function(source, leaves, seen) for source in node.all_input_nodes)

    # ---- layers ----

    def weight(self, value: object) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns int8 values [N, ...] with zero point 0 and float64 scales [N] of a dequantized weight, or None."""
        if not isinstance(value, Node):
            return None
        stored = self._weights.any(value.args[0]) if value.op == "call_function" and value.args else None
        if stored is None or stored.dtype not in (torch.int8, torch.uint8) or stored.dim() < 2:
            return None
        outputs = stored.shape[0]
        scales: torch.Tensor | None
        if str(value.target) == _DEQUANTIZE:
            scale, zero = value.args[1:3]
            if not isinstance(scale, (int, float)) or not isinstance(zero, int):
                return None
            scales, zeros = torch.full([outputs], float(scale)).double(), torch.full([outputs], zero)
        elif str(value.target) == _DEQUANTIZE_CHANNELS:
            scale, offsets, axis = value.args[1:4]
            scales = self._weights.any(scale)
            zero_points = self._weights.any(offsets) if offsets is not None else torch.zeros(outputs)
            if scales is None or zero_points is None or axis != 0 or scales.shape != (outputs,):
                return None
            scales, zeros = scales.detach().double(), zero_points.detach()
        else:
            return None
        integers = stored.detach().to(torch.int32) - zeros.to(torch.int32).view(-1, *[1] * (stored.dim() - 1))
        if integers.numel() == 0 or integers.min() < -128 or integers.max() > 127:
            return None
        return integers.to(torch.int8), scales

    def bias(self, value: object, outputs: int) -> torch.Tensor | None:
        stored = self._weights.get(value)
        return stored.detach() if stored is not None and stored.shape == (outputs,) else None

    def linear(self, node: Node, scheme: Scheme) -> Node | None:
        """A matrix multiplication with a dequantized weight."""
        x, weight, bias = operands(node)
        if node.target is not aten.linear.default:
            turned = isinstance(weight, Node) and weight.target is aten.permute_copy.default
            if not turned or list(weight.args[1]) != [1, 0]:
                return None
            weight = weight.args[0]
        quantized, matrix = self.source(x), self.weight(weight)
        if node.kwargs or quantized is None or matrix is None or quantized.scheme.dtype != scheme.dtype:
            reject(
                node,
                "its input and its weight are not both dequantized from 8-bit integers of the same dtype",
            )
            return None
        integers, scales = matrix
        outputs, inputs = integers.shape
        values = self.bias(bias, outputs)
        if (bias is not None and values is None) or integers.dim() != 2 or inputs > MAX_DEPTH:
            reject(
                node,
                "its bias is not a stored vector"
                if inputs <= MAX_DEPTH
                else "its accumulators need more than 32 bits",
            )
            return None
        terms = requantization_terms(integers, values, scales * quantized.scheme.scale, scheme.scale, 1)
        packed, stored = self._stored(node, pack_quads(integers), terms)
        args = (
            quantized.node,
            packed,
            stored,
            quantized.scheme.zero,
            outputs,
            scheme.zero,
            scheme.low,
            scheme.high,
        )
        val = node.meta["val"].to(scheme.dtype)
        return call(node, cpu.quantized_linear.default, args, val=val, like=node)

    def convolution(self, node: Node, scheme: Scheme) -> Node | None:
        """A convolution with a dequantized filter."""
        x, filters, bias, _, _, _, transposed, *_ = node.args
        groups = int_arg(node, 8)
        quantized, matrix = self.source(x), self.weight(filters)
        if quantized is None or matrix is None or transposed or quantized.scheme.dtype != scheme.dtype:
            reject(
                node,
                "it is transposed, or its image and its filter are not both dequantized from 8-bit integers",
            )
            return None
        integers, scales = matrix
        outputs, channels, *kernel = integers.shape
        values, depth = self.bias(bias, outputs), channels * math.prod(kernel)
        image_val = quantized.node.meta["val"]
        if (bias is not None and values is None) or depth > MAX_DEPTH or image_val.dim() != integers.dim():
            reject(
                node,
                "its bias is not a stored vector, its image has no batch dimension, or its accumulators need more than 32 bits",
            )
            return None
        spatial = len(kernel)
        where = [per_dimension(ints_arg(node, index), spatial) for index in (3, 4, 5)]
        image = channels_last(quantized.node, before=node)
        last = integers.movedim(1, -1).reshape(outputs, depth)
        scales = scales * quantized.scheme.scale
        numbers = scheme.zero, scheme.low, scheme.high
        val = permuted(node.meta["val"].to(scheme.dtype), [0, *range(2, spatial + 2), 1])
        if groups == outputs == image_val.shape[1] > 1 and depth <= _MAX_DEPTHWISE_TAPS:
            terms = requantization_terms(last, values, scales, scheme.scale, 1)
            packed, stored = self._stored(node, pack_linear(last), terms)
            args: tuple[Any, ...] = (image, packed, stored, quantized.scheme.zero, kernel, *where, *numbers)
            placed = call(node, cpu.quantized_depthwise.default, args, val=val, like=node)
        else:
            terms = requantization_terms(last, values, scales, scheme.scale, groups)
            panels = torch.stack([pack_quads(group) for group in last.view(groups, -1, depth)])
            packed, stored = self._stored(node, panels, terms)
            args = (image, packed, stored, quantized.scheme.zero, kernel, *where, outputs, *numbers)
            placed = call(node, cpu.quantized_convolution.default, args, val=val, like=node)
        return channels_first(placed, before=node)

    def _stored(self, node: Node, packed: torch.Tensor, terms: torch.Tensor) -> tuple[Node, Node]:
        return (
            self._weights.add(f"{node.name}_weight", packed, node),
            self._weights.add(f"{node.name}_terms", terms, node),
        )

    def mean(self, node: Node, scheme: Scheme) -> Node | None:
        """The mean over all dimensions except the first two, or except the first and the last."""
        x, dims, keeps = node_arg(node), ops.argument(node, "dim"), ops.argument(node, "keepdim", False)
        rank = x.meta["val"].dim()
        dims = sorted(d % rank for d in dims or ())
        quantized, last = self.source(x), dims == list(range(1, rank - 1))
        if quantized is None or not 3 <= rank <= 5 or not (last or dims == list(range(2, rank))):
            reject(node, "it is not a mean over an image that is dequantized from 8-bit integers")
            return None
        kernel = [quantized.node.meta["val"].shape[d] for d in dims]
        image = quantized.node if last else channels_last(quantized.node, before=node)
        val = image.meta["val"].float().mean(list(range(1, rank - 1)), keepdim=True)
        where = kernel, kernel, [0] * len(kernel)
        placed = self._averaged(node, image, where, math.prod(kernel), quantized, scheme, val)
        if placed is None or (keeps and last):
            return placed
        if keeps:
            return channels_first(placed, before=node)
        val = node.meta["val"].to(scheme.dtype)
        flat = list(range(1, rank - 1))
        return call(node, aten.squeeze_copy.dims, (placed, flat), val=val, like=node)

    def avg_pool(self, node: Node, scheme: Scheme) -> Node | None:
        """The means under windows that all have the same number of elements."""
        kernel, stride, padding, ceil, padded, divisor = (
            ops.argument(node, name, default)
            for name, default in (("kernel_size", None), ("stride", ()), ("padding", 0), ("ceil_mode", False), ("count_include_pad", True), ("divisor_override", None))
        )  # fmt: skip
        size = node_arg(node).meta["val"].shape[2:]
        kernel, stride, padding = (
            per_dimension(values, len(size)) for values in (kernel, stride or kernel, padding)
        )
        ragged = ceil and any(
            (n + 2 * p - k) % s for n, k, s, p in zip(size, kernel, stride, padding, strict=True)
        )
        if ragged or (any(padding) and not padded and divisor is None):
            reject(node, "its windows at the border have fewer elements")
            return None
        return self._pooled_mean(node, kernel, stride, padding, divisor or math.prod(kernel), scheme)

    def adaptive_avg_pool(self, node: Node, scheme: Scheme) -> Node | None:
        """Average pooling with windows of equal sizes that divide the image."""
        size, output_size = node_arg(node).meta["val"].shape[2:], ints_arg(node, 1)
        if any(not isinstance(n, int) or n % m for n, m in zip(size, output_size, strict=True)):
            reject(node, "its windows have different sizes")
            return None
        kernel = [n // m for n, m in zip(size, output_size, strict=True)]
        return self._pooled_mean(node, kernel, kernel, [0] * len(kernel), math.prod(kernel), scheme)

    def _pooled_mean(
        self, node: Node, kernel: list[int], stride: list[int], padding: list[int], count: int, scheme: Scheme
    ) -> Node | None:
        quantized = self.source(node.args[0])
        if quantized is None or quantized.node.meta["val"].dim() != len(kernel) + 2:
            reject(node, "its image is not dequantized from 8-bit integers, or has no batch dimension")
            return None
        image = channels_last(quantized.node, before=node)
        val = permuted(node.meta["val"], [0, *range(2, len(kernel) + 2), 1])
        placed = self._averaged(node, image, (kernel, stride, padding), count, quantized, scheme, val)
        return None if placed is None else channels_first(placed, before=node)

    def _averaged(
        self,
        node: Node,
        image: Node,
        where: tuple[list[int], list[int], list[int]],
        count: int,
        found: Quantized,
        scheme: Scheme,
        val: torch.Tensor,
    ) -> Node | None:
        """Sums under windows of an image, channels last, divided by `count`. `where` is (kernel, stride, padding)."""
        fits = all(isinstance(n, int) for n in where[0]) and 0 < math.prod(where[0]) <= _MAX_POOL_ELEMENTS
        if found.scheme.dtype != scheme.dtype or not fits:
            reject(node, f"its windows are of varying size, or larger than {_MAX_POOL_ELEMENTS:,} elements")
            return None
        multiplier = found.scheme.scale / (count * scheme.scale)
        args = (image, *where, multiplier, found.scheme.zero, scheme.zero, scheme.low, scheme.high)
        target = cpu.quantized_avg_pool.default
        return call(node, target, args, val=val.to(scheme.dtype), like=node)

    def add(self, node: Node, scheme: Scheme) -> Node | None:
        """The sum of two dequantized tensors."""
        a, b = (self.source(x) for x in node.args[:2])
        if a is None or b is None or ops.argument(node, "alpha", 1) != 1:
            return None
        if not same_shape(a.node.meta["val"].shape, b.node.meta["val"].shape):
            return None
        return self._binary(node, cpu.quantized_add.default, a, b, scheme)

    def multiply(self, node: Node, scheme: Scheme) -> Node | None:
        """The elementwise product of two dequantized tensors; one of them may broadcast."""
        sources = [self.source(x) for x in node.args[:2]]
        shape = node.meta["val"].shape
        for a, b in (sources, sources[::-1]):
            if a is None or b is None or not same_shape(a.node.meta["val"].shape, shape):
                continue
            sizes = b.node.meta["val"].shape
            if len(sizes) == len(shape) > 0 and all(same_size(size, 1) or same_size(size, full) for size, full in zip(sizes, shape, strict=True)):  # fmt: skip
                return self._binary(node, cpu.quantized_mul.default, a, b, scheme)
        return None

    def _binary(self, node: Node, target: Target, a: Quantized, b: Quantized, scheme: Scheme) -> Node | None:
        if not a.scheme.dtype == b.scheme.dtype == scheme.dtype:
            return None
        args = (a.node, b.node, *a.scheme[:2], *b.scheme[:2], *scheme[:4])
        return call(node, target, args, val=node.meta["val"].to(scheme.dtype), like=node)


_RULES: dict[Any, Callable[[_Placer, Node, Scheme], Node | None]] = {
    aten.linear.default: _Placer.linear,
    aten.mm.default: _Placer.linear,
    aten.addmm.default: _Placer.linear,
    aten.convolution.default: _Placer.convolution,
    aten.mean.dim: _Placer.mean,
    aten.avg_pool2d.default: _Placer.avg_pool,
    aten.avg_pool3d.default: _Placer.avg_pool,
    aten._adaptive_avg_pool2d.default: _Placer.adaptive_avg_pool,
    aten._adaptive_avg_pool3d.default: _Placer.adaptive_avg_pool,
    aten.add.Tensor: _Placer.add,
    aten.mul.Tensor: _Placer.multiply,
}


def _moved(node: Node) -> list[Node]:
    """Returns the tensor operands of a call that only moves elements, or an empty list for other calls."""
    if node.op != "call_function":
        return []
    if node.target is aten.cat.default:
        return nodes_arg(node)
    return [node_arg(node)] if is_move(node) else []


def _before_clamps(node: Node, scheme: Scheme) -> tuple[Node, Scheme | None]:
    """Skips ReLUs and other clamps before a quantize. Returns the node before them and the scheme with their bounds.

    The scheme is None if the clamped value has other users or if a bound is not supported.
    """
    inverse = torch.tensor(1.0 / scheme.scale)
    while len(node.users) == 1:
        if node.target is aten.relu.default:
            lower, upper = 0.0, math.inf
        elif node.target in (aten.hardtanh.default, aten.clamp.default):
            lower, upper = (ops.argument(node, name) for name in ("min_val", "max_val")) if node.target is aten.hardtanh.default else (ops.argument(node, name) for name in ("min", "max"))  # fmt: skip
            lower, upper = -math.inf if lower is None else lower, math.inf if upper is None else upper
        else:
            return node, scheme
        if not all(isinstance(bound, (int, float)) for bound in (lower, upper)):
            return node, None
        low, high = (
            int(torch.round(torch.tensor(float(bound)) * inverse).clamp(-1e6, 1e6) + scheme.zero)
            for bound in (lower, upper)
        )
        low, high = max(scheme.low, low), min(scheme.high, high)
        if low > high:
            return node, None
        scheme = scheme._replace(low=low, high=high)
        node = node_arg(node)
    return node, None
