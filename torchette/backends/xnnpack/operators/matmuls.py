# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers and matrix multiplications."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Node

from torchette.backends.xnnpack.operators.lowering import Lowering
from torchette.backends.xnnpack.operators.nodes import (
    TRANSPOSE_B,
    arg,
    arguments,
    dims_of,
    option,
)
from torchette.backends.xnnpack.operators.table import Refused, register
from torchette.backends.xnnpack.payload import NONE

aten = torch.ops.aten


def check_weights_constant(node: Node, is_constant: Callable[[Node], bool]) -> None:
    """Raises `Refused` if weights are computed."""
    for weight in arguments(node)[1:3]:
        if isinstance(weight, Node) and not is_constant(weight):
            raise Refused("the weights are computed, not constants")


def _check_layer_weights(weight: Node, bias: Node | None, is_constant: Callable[[Node], bool]) -> None:
    """Raises `Refused` if XNNPACK cannot run a linear layer with these weights.

    Weights must be constants, or computed in float32 with a static size. The bias may be computed only if the weights are.
    """
    if is_constant(weight):
        if bias is not None and not is_constant(bias):
            raise Refused("the bias is computed, the weights are constants")
        return
    values = [value.meta["val"] for value in (weight, bias) if value is not None]
    if any(value.dtype is not torch.float32 for value in values):
        raise Refused("the weights are computed, but not in float32")
    if any(isinstance(size, torch.SymInt) for value in values for size in value.shape):
        raise Refused("the weights are computed and have a dynamic size")


def _linear_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    _, weight, bias = (*arguments(node), None)[:3]
    _check_layer_weights(weight, bias, is_constant)
    if arg(node, 0).meta["val"].dim() < 1 or arg(node, 1).meta["val"].dim() != 2:
        raise Refused("the weights do not have two dimensions")


@register(aten.linear.default, check=_linear_check)
def _linear(lowering: Lowering, node: Node) -> None:
    source, weight, bias = (*arguments(node), None)[:3]
    value, stored = lowering.plain(source), lowering.weights(weight, source)
    # With a float input and integer weights XNNPACK multiplies the bias by the weights' scales, so a separate node adds it.
    is_bias_separate = bias is not None and lowering.scales_bias(source, weight)
    added = lowering.bias(bias, source, weight)
    product = lowering.scratch(dims_of(node.meta["val"])) if is_bias_separate else lowering.result(node)
    lowering.add(
        "XNNFullyConnected",
        node,
        input1_id=value,
        filter_id=stored,
        bias_id=NONE if is_bias_separate else added,
        output_id=product,
    )
    if is_bias_separate:
        lowering.binary("XNNAdd", node, product, added, lowering.result(node))


def _addmm_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    bias, _, weight = arguments(node)[:3]
    _check_layer_weights(weight, bias, is_constant)
    of_rows = bias.meta["val"].dim() == 2 and bias.meta["val"].shape[0] == 1 and is_constant(bias)
    if (
        (bias.meta["val"].dim() != 1 and not of_rows)
        or node.kwargs.get("beta", 1) != 1
        or node.kwargs.get("alpha", 1) != 1
    ):
        raise Refused(
            "it is not a linear layer: the bias is not a constant vector, or alpha or beta is not 1"
        )


@register(aten.addmm.default, check=_addmm_check)
def _addmm(lowering: Lowering, node: Node) -> None:
    bias, source, weight = arguments(node)[:3]
    stored, added = lowering.constant(weight), lowering.constant(bias)
    if stored is not None:
        lowering.add(
            "XNNFullyConnected",
            node,
            input1_id=lowering.plain(source),
            filter_id=lowering.payload.constant(stored.t()),
            bias_id=lowering.plain(bias) if added is None else lowering.payload.constant(added.flatten()),
            output_id=lowering.result(node),
        )
        return
    # XNNPACK's linear layer with computed, transposed weights returns wrong values if the graph has other layers. Its matrix
    # multiplication does not.
    product = lowering.scratch(dims_of(node.meta["val"]))
    lowering.add(
        "XNNBatchMatrixMultiply",
        node,
        input1_id=lowering.plain(source),
        input2_id=lowering.plain(weight),
        output_id=product,
        flags=0,
    )
    lowering.binary("XNNAdd", node, product, lowering.plain(bias), lowering.result(node))


def _product_check(node: Node, is_constant: Callable[[Node], bool]) -> None:
    left, right = arguments(node)[:2]
    if min(factor.meta["val"].dim() for factor in (left, right)) < 2:
        raise Refused("an operand of the matmul is a vector")
    if all(is_constant(factor) for factor in (left, right)):
        raise Refused("both operands are constants")


def _swaps_last(node: Node) -> bool:
    """Returns whether a node swaps the last two dimensions of its source."""
    if node.target != aten.permute_copy.default:
        return False
    rank = node.meta["val"].dim()
    order = [dim % rank for dim in option(node, 1)]
    return rank > 1 and order == [*range(rank - 2), rank - 1, rank - 2]


def is_folded_transpose(node: Node, lowering: Lowering) -> bool:
    """Returns whether a node only transposes the right operands of matrix multiplications, which transpose them themselves."""
    return (
        _swaps_last(node)
        and not lowering.is_result(node)
        and all(
            user.target in _MATMULS and option(user, 1) is node is not arg(user, 0) for user in node.users
        )
    )


_MATMULS = (aten.bmm.default, aten.mm.default, aten.matmul.default)


@register(*_MATMULS, check=_product_check)
def _product(lowering: Lowering, node: Node) -> None:
    left, right = arguments(node)[:2]
    stored = lowering.constant(right)
    if stored is not None and stored.dim() == 2:
        lowering.add(
            "XNNFullyConnected",
            node,
            input1_id=lowering.plain(left),
            filter_id=lowering.payload.constant(stored.t()),
            bias_id=NONE,
            output_id=lowering.result(node),
        )
        return
    flags = 0
    if lowering.is_transposed(right):
        right, flags = arg(right, 0), TRANSPOSE_B
    lowering.add(
        "XNNBatchMatrixMultiply",
        node,
        input1_id=lowering.plain(left),
        input2_id=lowering.plain(right),
        output_id=lowering.result(node),
        flags=flags,
    )
