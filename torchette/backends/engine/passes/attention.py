# SPDX-License-Identifier: BSD-3-Clause
# In: two batched matrix multiplications with a softmax between them, in the forms of torch, timm and transformers. Out:
# `cpu::attention`, tokens before heads. `layouts.py` removes the permutations around it.
"""Replaces attention by one operator."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.passes.constants import Weights
from torchette.backends.engine.passes.layouts import permute, permuted
from torchette.backends.engine.passes.quantize_points import lift_dequantize, lower_quantize
from torchette.exir.arguments import checked, function, ints_arg, node_arg
from torchette.exir.delegation.delegate import reject
from torchette.exir.graph import call, calls, note, replace, same_shape, same_size

aten = torch.ops.aten

# Maximum number of calls that compute a constant mask.
_MASK_CALLS = 200


class _Scores(NamedTuple):
    """The operand of a softmax, taken apart."""

    product: Node  # of the queries and the transposed keys
    scale: float
    factor: Node | None  # of each head or query: its last dimension is 1
    mask: Node | torch.Tensor | None  # float: added to the scores; bool: True for visible keys
    masked_rows_are_nan: bool  # a row without visible keys yields NaN


def place_attention(program: ExportedProgram) -> ExportedProgram:
    """Replaces a softmax between two batched matrix multiplications by cpu::attention."""
    finder = _Finder(program)
    count = sum(finder.place(node) for node in calls(program, aten._softmax.default))
    if count:
        note(program, f"{count} attention patterns became cpu::attention")
    return program


def _reject(softmax: Node, reason: str) -> bool:
    reject(softmax, f"not fused into cpu::attention: {reason}")
    return False


class _Finder:
    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._weights = Weights(program)

    def place(self, softmax: Node) -> bool:
        """Replaces the pattern around a softmax by the operator. Returns whether the pattern matched."""
        value = softmax.meta["val"]
        if (
            softmax.args[1] not in (-1, value.dim() - 1)
            or value.dtype != torch.float32
            or value.dim() not in (3, 4)
        ):
            return _reject(
                softmax, "it is not over the last dimension of a float32 tensor with 3 or 4 dimensions"
            )
        product, safe = self._product_behind(softmax)
        scores = self._scores(softmax.args[0])
        if product is None or scores is None:
            return _reject(
                softmax,
                "it is not between two matrix multiplications with only a scale and a mask",
            )
        for operand in (*scores.product.args[:2], product.args[1]):
            lift_dequantize(self._program, operand)
        lower_quantize(self._program, product)
        if isinstance(scores.mask, torch.Tensor) and softmax.graph is not self._program.graph:
            return _reject(softmax, "its mask is a computed constant, which a branch cannot store")
        if scores.mask is not None and not _broadcasts(scores.mask, value):
            return _reject(softmax, "its mask does not broadcast to [batch, heads, queries, keys]")
        if value.dim() == 3 and self._as_4d(product.args[1], value) is None:
            if scores.factor is not None:
                return _reject(softmax, "a tensor scales the scores")
            return self._place_flat(softmax, product, scores, safe)
        query, transposed = scores.product.args[:2]
        query, scale = self._scaled(self._as_4d(query, value), scores.scale)
        key, scale = self._scaled(self._keys_before_transpose(transposed, value), scale)
        values = self._as_4d(product.args[1], value)
        end, guard = self._end(product, softmax, scores)
        if query is None or key is None or values is None or end is None or end.meta["val"].dim() != 4:
            return _reject(
                softmax, "queries, keys and values do not have the shape [batch, heads, tokens, depth]"
            )
        if scores.masked_rows_are_nan and not safe and guard is None and not self._some_key_seen(scores.mask):
            return _reject(
                softmax, "a row without visible keys yields NaN in the model and zeros in cpu::attention"
            )
        if not _shapes_fit(query, key, values):
            return _reject(softmax, "the shapes of queries, keys and values do not match")
        mask, causal = self._mask(scores.mask, value, softmax)
        if scores.factor is not None:
            factors = (query, scores.factor)
            query = call(end, aten.mul.Tensor, factors, val=query.meta["val"], like=softmax)
        order = [0, 2, 1, 3]
        operands = [
            permute(one, order, end) for one in (query, self._ungrouped(key), self._ungrouped(values))
        ]
        attention = call(
            end,
            torch.ops.cpu.attention.default,
            (*operands, mask, scale, causal, False),
            val=permuted(end.meta["val"], order),
            like=softmax,
        )
        replace(self._program, end, permute(attention, order, end))
        return True

    def _place_flat(self, softmax: Node, product: Node, scores: _Scores, safe: bool) -> bool:
        """Replaces attention of rank 3, with the heads merged into the batch, by attention with one head."""
        query, scale = self._scaled(node_arg(scores.product, 0), scores.scale)
        transposed, scale = self._scaled(node_arg(scores.product, 1), scale)
        if query is None or transposed is None or transposed.target is not aten.permute_copy.default:
            return False
        if [dim % 3 for dim in ints_arg(transposed, 1)] != [0, 2, 1]:
            return False
        key, scale = self._scaled(node_arg(transposed), scale)
        if key is None:
            return False
        if scores.masked_rows_are_nan and not safe and not self._some_key_seen(scores.mask):
            return False
        mask, causal = self._mask(scores.mask, softmax.meta["val"], softmax)

        def with_head(node: Node, dim: int) -> Node:
            val = node.meta["val"].unsqueeze(dim)
            return call(product, aten.unsqueeze_copy.default, (node, dim), val=val, like=node)

        if mask is not None and mask.meta["val"].dim() == 3:
            mask = with_head(mask, 1)
        operands = [with_head(node, 2) for node in (query, key, node_arg(product, 1))]
        val = product.meta["val"]
        attention = call(
            product,
            torch.ops.cpu.attention.default,
            (*operands, mask, scale, causal, False),
            val=val.new_empty([val.shape[0], val.shape[1], 1, val.shape[2]]),
            like=softmax,
        )
        result = call(product, aten.squeeze_copy.dims, (attention, [2]), val=val, like=product)
        replace(self._program, product, result)
        return True

    # ---- after the softmax ----

    def _product_behind(self, softmax: Node) -> tuple[Node | None, bool]:
        """Returns the multiplication with the values, and whether rows without visible keys are set to zero before
        it.
        """
        node, safe = softmax, False
        for _ in range(8):
            users = [user for user in node.users if user.target is not aten.full_like.default]
            if len(users) != 1:
                break
            (user,) = users
            if user.target is aten.bmm.default:
                return (user, safe) if user.args[0] is node else (None, False)
            if user.target is aten.where.self and user.args[2] is node and self._is_zero(user.args[1]):
                if not self._is_unseen(user.args[0], softmax.args[0], None):
                    break
                safe = True
            elif user.target not in _RESHAPES:
                break
            node = user
        return None, False

    def _is_zero(self, node: object) -> bool:
        if isinstance(node, Node) and node.target is aten.full_like.default:
            node = node.args[1]
        return self._weights.number(node) == 0

    def _end(self, product: Node, softmax: Node, scores: _Scores) -> tuple[Node | None, Node | None]:
        """Returns the four-dimensional result, after the guard for rows without visible keys if there is one, and that
        guard.
        """
        node = product
        if softmax.meta["val"].dim() == 4:
            if len(node.users) != 1 or next(iter(node.users)).target is not aten.view_copy.default:
                return None, None
            node = next(iter(node.users))
        if node.meta["val"].dim() != 4:
            return None, None
        users = list(node.users)
        if len(users) == 1 and users[0].target is aten.where.self:
            unseen, zero, result = users[0].args
            if (
                result is node
                and self._is_zero(zero)
                and self._is_unseen(unseen, softmax.args[0], scores.mask)
            ):
                return users[0], users[0]
        return node, None

    def _is_unseen(self, node: object, scores: object, mask: object) -> bool:
        """Whether a condition marks rows without visible keys: not any(mask), or all scores are -inf."""
        constant = self._weights.any(node)
        if constant is not None:
            return not bool(constant.any())
        if not isinstance(node, Node) or node.target is not aten.logical_not.default:
            return False
        some = node.args[0]
        if not isinstance(some, Node) or some.target is not aten.any.dim or some.args[1] not in (-1, 3):
            return False
        visible = some.args[0]
        if visible is mask:
            return True
        if not isinstance(visible, Node):
            return False
        if visible.target is aten.logical_not.default:
            nothing, target = visible.args[0], aten.eq.Tensor
        else:
            nothing, target = visible, aten.ne.Tensor
        return (
            isinstance(nothing, Node)
            and nothing.target is target
            and nothing.args[0] in (scores, mask)
            and self._weights.number(nothing.args[1]) == -math.inf
        )

    # ---- before the softmax ----

    def _scores(self, node: object) -> _Scores | None:
        """Matches a matrix multiplication that is scaled and masked."""
        scale, factor, mask, masked_rows_are_nan = 1.0, None, None, False
        for _ in range(8):
            if not isinstance(node, Node):
                return None
            if node.target is aten.bmm.default:
                return _Scores(node, scale, factor, mask, masked_rows_are_nan)
            if node.target in _RESHAPES:
                node = node.args[0]
            elif (
                node.target in (aten.mul.Tensor, aten.div.Tensor)
                and (product := self._constant_factor(node)) is not None
            ):
                node, number = product
                scale *= number
            elif node.target is aten.mul.Tensor and factor is None:
                node, factor = self._factor(node)
            elif node.target is aten.where.self and mask is None and scale == 1.0 and factor is None:
                scores = self._filled(node)
                if scores is None:
                    return None
                node, mask, masked_rows_are_nan = scores
            elif (
                node.target is aten.add.Tensor
                and scale == 1.0
                and factor is None
                and not node.kwargs
                and not masked_rows_are_nan
            ):
                node, added = self._summands(node)
                mask = added if mask is None else self._sum(mask, added)
                if mask is None:
                    return None
            else:
                return None
        return None

    def _filled(self, node: Node) -> tuple[Any, Node | torch.Tensor, bool] | None:
        """Matches scores that a condition keeps or fills.

        Returns the scores, the mask, and whether a fully filled row is NaN.
        """
        condition, score, filled = node.args
        inverse = self._weights.number(score) is not None
        if inverse:
            score, filled = filled, score
        fill = self._weights.number(filled)
        if fill is None or fill > -1e9 or not isinstance(condition, Node):
            return None
        constant = self._constant(condition)
        if constant is not None:
            constant = ~constant if inverse else constant
            if math.isinf(fill) or bool(constant.any(-1).all()):
                return score, constant if inverse else condition, math.isinf(fill)
            return score, torch.zeros(constant.shape).masked_fill(~constant, fill), False
        if math.isinf(fill):
            return score, self._inverted(condition, node) if inverse else condition, True
        # The fill value is finite: a row of filled scores yields the mean of the values. The float mask keeps this
        # result.
        val = condition.meta["val"].new_empty(condition.meta["val"].shape, dtype=torch.float32)
        zero = call(
            node, aten.full_like.default, (condition, 0.0), {"dtype": torch.float32}, val=val, like=node
        )
        args = (condition, filled, zero) if inverse else (condition, zero, filled)
        return score, call(node, aten.where.self, args, val=val, like=node), False

    def _inverted(self, condition: Node, before: Node) -> Node:
        if condition.target in (aten.logical_not.default, aten.bitwise_not.default):
            return node_arg(condition)
        val = condition.meta["val"]
        return call(before, aten.logical_not.default, (condition,), val=val, like=before)

    def _sum(self, outer: Node | torch.Tensor, inner: Node | None) -> Node | None:
        """Returns the sum of two masks, or None if they cannot be added."""
        if not isinstance(outer, Node) or inner is None:
            return None
        one, second = outer.meta["val"], inner.meta["val"]
        if one.dtype != torch.float32 or second.dtype != torch.float32 or max(one.dim(), second.dim()) > 4:
            return None
        if one.dim() == 4 and second.dim() == 3 and not same_size(second.shape[0], 1):
            return None  # the first dimension merges batch and heads
        later = max(outer, inner).next
        val = one.new_empty(torch.broadcast_shapes(one.shape, second.shape))
        return call(later, aten.add.Tensor, (inner, outer), val=val, like=inner)

    def _summands(self, node: Node) -> tuple[Any, Node | None]:
        """Splits an addition into the scores and a broadcast mask."""
        scores, mask = _split(node)
        if mask is None or node.meta["val"].dim() != 5:
            return scores, mask
        # The scores of windows: [batch, windows, heads, queries, keys]. The softmax reads them as a batch of windows.
        shape, sizes = [*node.meta["val"].shape], [*mask.meta["val"].shape]
        sizes = [1] * (5 - len(sizes)) + sizes
        batch = sizes[0] * sizes[1]
        if not all(isinstance(size, int) for size in (*shape, *sizes)) or batch not in (
            1,
            shape[0] * shape[1],
        ):
            return None, None
        val = mask.meta["val"].new_empty([batch, *sizes[2:]])
        return scores, call(node, aten.view_copy.default, (mask, [*val.shape]), val=val, like=mask)

    def _factor(self, node: Node) -> tuple[Any, Node | None]:
        """Splits a multiplication into the scores and a factor of each head or query."""
        scores, factor = _split(node)
        if factor is None or node.meta["val"].dim() != 4 or not same_size(factor.meta["val"].shape[-1], 1):
            return None, None
        return scores, factor

    def _constant_factor(self, node: Node) -> tuple[Any, float] | None:
        """Returns (value, factor) of a multiplication or a division by a constant, or None."""
        left, right = node.args[:2]
        number = self._weights.number(right)
        if number is not None:
            if node.target is aten.div.Tensor:
                return (left, 1 / number) if number else None
            return left, number
        number = self._weights.number(left) if node.target is aten.mul.Tensor else None
        return (right, number) if number is not None else None

    def _scaled(self, node: Node | None, scale: float) -> tuple[Node | None, float]:
        """Removes constant factors from a value and multiplies them into `scale`."""
        while node is not None and node.target in (aten.mul.Tensor, aten.div.Tensor):
            scalar = self._constant_factor(node)
            if scalar is None:
                break
            node, factor = scalar
            scale *= factor
        return node, scale

    def _as_4d(self, node: object, probabilities: torch.Tensor) -> Node | None:
        """Returns the operand of a batched multiplication as [batch, heads, rows, columns], or None."""
        if not isinstance(node, Node):
            return None
        if (
            node.target in _RESHAPES
            and isinstance(node.args[0], Node)
            and node.args[0].meta["val"].dim() == 4
        ):
            source = node.args[0]
            shape, merged = source.meta["val"].shape, node.meta["val"].shape
            if (
                len(merged) == 3
                and same_shape(shape[-2:], merged[-2:])
                and (node.target is aten.view_copy.default or same_shape(shape[:2], probabilities.shape[:2]))
            ):
                return source
        return None

    def _keys_before_transpose(self, node: object, probabilities: torch.Tensor) -> Node | None:
        """Returns the keys before their transposition, [batch, heads, keys, columns], or None."""
        source = self._as_4d(node, probabilities)
        if source is None:
            return None
        source, factor = self._scaled(source, 1.0)
        if source is None or source.target is not aten.permute_copy.default or factor != 1.0:
            return None
        order = [dim % 4 for dim in ints_arg(source, 1)]
        if order != [0, 1, 3, 2]:
            # The same permutation also exchanges heads and tokens.
            return permute(node_arg(source), [order[0], order[1], order[3], order[2]], checked(node, Node))
        return node_arg(source)

    def _ungrouped(self, node: Node) -> Node:
        """Returns keys or values before they are repeated for the query heads of a group."""
        if node.target is not aten.view_copy.default or not isinstance(node.args[0], Node):
            return node
        expanded = node.args[0]
        if expanded.target is not aten.expand_copy.default or expanded.meta["val"].dim() != 5:
            return node
        grouped = expanded.args[0]
        if not isinstance(grouped, Node) or not same_size(grouped.meta["val"].shape[2], 1):
            return node
        if grouped.target is aten.unsqueeze_copy.default and grouped.args[1] in (2, -3):
            return node_arg(grouped)
        return node

    # ---- masks ----

    def _mask(
        self, mask: Node | torch.Tensor | None, scores: torch.Tensor, like: Node
    ) -> tuple[Node | None, bool]:
        """Returns the mask argument in the graph of `like`, and whether the mask is causal and needs no argument."""
        if mask is None:
            return None, False
        constant = self._constant(mask)
        if constant is not None and constant.dtype == torch.bool:
            if bool(constant.all()):
                return None, False
            rows, keys = constant.shape[-2:]
            causal = rows > 1 and bool((constant == torch.ones(rows, keys, dtype=torch.bool).tril()).all())
            if causal and same_shape(scores.shape[-2:], (rows, keys)):
                return None, True
        if isinstance(mask, torch.Tensor):
            return self._weights.add("attention_mask", mask, like), False
        return mask, False

    def _some_key_seen(self, mask: Node | torch.Tensor | None) -> bool:
        constant = self._constant(mask) if mask is not None else None
        return constant is not None and constant.dtype == torch.bool and bool(constant.any(-1).all())

    def _constant(self, value: Node | torch.Tensor) -> torch.Tensor | None:
        """Returns the value of a node that depends only on stored tensors, or None."""
        if isinstance(value, torch.Tensor):
            return value
        needed: list[Node] = []
        waiting = [value]
        while waiting:
            node = waiting.pop()
            if node in needed:
                continue
            needed.append(node)
            if len(needed) > _MASK_CALLS:
                return None
            if node.op == "call_function":
                waiting += node.all_input_nodes
            elif self._weights.any(node) is None:
                return None
        values: dict[Node, Any] = {}
        for node in sorted(needed):
            if node.op == "call_function":
                args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
                values[node] = function(node)(*args, **kwargs)
            else:
                values[node] = self._weights.any(node)
        return values[value] if isinstance(values[value], torch.Tensor) else None


_RESHAPES = frozenset({aten.view_copy.default, aten.expand_copy.default, aten.clone.default})


def _split(node: Node) -> tuple[Node, Node] | tuple[None, None]:
    """Returns the scores and the other operand of an addition or a multiplication."""
    left, right = node.args[:2]
    for scores, other in ((left, right), (right, left)):
        if (
            isinstance(scores, Node)
            and isinstance(other, Node)
            and _leads_to_product(scores)
            and same_shape(scores.meta["val"].shape, node.meta["val"].shape)
        ):
            return scores, other
    return None, None


def _leads_to_product(node: Node) -> bool:
    for _ in range(6):
        if node.target is aten.bmm.default:
            return True
        if not node.args or not isinstance(node.args[0], Node):
            return False
        if node.target in (aten.add.Tensor, aten.mul.Tensor):
            return any(isinstance(one, Node) and _leads_to_product(one) for one in node.args[:2])
        if node.target not in (*_RESHAPES, aten.div.Tensor):
            return False
        node = node.args[0]
    return False


def _broadcasts(mask: Node | torch.Tensor, scores: torch.Tensor) -> bool:
    shape = (mask if isinstance(mask, torch.Tensor) else mask.meta["val"]).shape
    last = scores.shape[max(len(scores.shape) - len(shape), 0) :]
    return len(last) == len(shape) and all(
        same_size(size, 1) or same_size(size, expected) for size, expected in zip(shape, last, strict=True)
    )


def _shapes_fit(query: Node, key: Node, values: Node) -> bool:
    q, k, v = (node.meta["val"].shape for node in (query, key, values))
    return (
        len(q) == len(k) == len(v) == 4
        and same_shape(q[:2], k[:2])
        and same_shape(k[:3], v[:3])
        and same_size(q[3], k[3])
    )
