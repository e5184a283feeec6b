# SPDX-License-Identifier: BSD-3-Clause
# Decompositions into core operators that torch lacks or implements inefficiently. decompose_to_core uses the tables.
"""Decompositions in addition to torch's decompositions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.modules import linear_cross_entropy

from torchette.exir import ops

aten = torch.ops.aten


def attention(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Attention in few operators. torch's decomposition uses six operators per score matrix to find fully masked rows.
    These rows follow from the mask, which all layers share."""

    def decomposed(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if dropout_p or (is_causal and attn_mask is not None) or not query.is_floating_point():
            outcome: torch.Tensor = fallback(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
            return outcome
        if query.dtype in (
            torch.float16,
            torch.bfloat16,
        ):  # eager mode computes these dtypes in float32 and rounds once
            mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.float()
            result = decomposed(
                query.float(), key.float(), value.float(), mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )  # fmt: skip
            return result.to(query.dtype)
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        scores = (query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)) @ key.transpose(
            -2, -1
        )
        if is_causal:
            attn_mask = torch.ones(
                query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device
            ).tril()
        dead = None
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, -math.inf)
            dead = None if is_causal else attn_mask.any(-1, keepdim=True).logical_not()
        elif attn_mask is not None:
            scores = scores + attn_mask
            dead = (attn_mask > -math.inf).any(-1, keepdim=True).logical_not()
        result = torch.softmax(scores, -1) @ value
        return result if dead is None else torch.where(dead, 0.0, result)

    return decomposed


def flash_attention(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Corrects torch's decomposition, which returns the attention weights as the second result. The operator returns
    the logsumexp of the scores, with shape (batch, heads, queries)."""

    def decomposed(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: torch.Tensor | None = None,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, _ = fallback(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        wide = torch.promote_types(query.dtype, torch.float32)
        if key.shape[1] != query.shape[1]:
            key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = (query.to(wide) * factor) @ key.to(wide).transpose(-2, -1)
        if is_causal:
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
            scores = torch.where(visible, scores, -math.inf)
        if attn_mask is not None:
            scores = scores + attn_mask
        return output, scores.logsumexp(-1)

    return decomposed


def _fake_quantize(
    x: torch.Tensor, scale: float | torch.Tensor, zero_point: float | torch.Tensor, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns values rounded to the quantization grid, and a mask of the elements inside the quantized range."""
    steps = torch.round(x * (1 / scale)) + zero_point
    in_range = torch.logical_and(steps >= least, steps <= most)
    return (torch.clamp(steps, least, most) - zero_point) * scale, in_range


def _fake_quantize_by_switch(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    enabled: torch.Tensor,
    least: int,
    most: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    result, in_range = _fake_quantize(x, scale, zero_point, least, most)
    on = enabled != 0
    return torch.where(on, result, x), torch.logical_or(in_range, torch.logical_not(on))


def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    """Dropout without randomness. Random dropout occurs only in training and is not decomposed."""
    if train and 0 < p < 1:
        return NotImplemented
    dropped = train and p == 1
    return x * 0 if dropped else x.clone(), torch.full(x.shape, not dropped, dtype=torch.bool)


def _bernoulli(x: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Any:
    return torch.full_like(x, p) if p in (0, 1) else NotImplemented


def _round(x: torch.Tensor, *, decimals: int) -> torch.Tensor:
    scale = 10.0**decimals
    return torch.round(x * scale) / scale


def _trilinear(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
    expand_a: Sequence[int], expand_b: Sequence[int], expand_c: Sequence[int], sum_dims: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:  # fmt: skip
    def expanded(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        return functools.reduce(torch.unsqueeze, sorted(dims), x)

    product = expanded(a, expand_a) * expanded(b, expand_b) * expanded(c, expand_c)
    return product.sum(list(sum_dims), dtype=product.dtype) if sum_dims else product


def rrelu(x: torch.Tensor, noise: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
           generator: torch.Generator | None = None) -> Any:  # fmt: skip
    """A leaky ReLU in inference mode. Not decomposed if it is random."""
    draws = training and not any(isinstance(n, int) and n == 0 for n in x.shape)
    return NotImplemented if draws else (torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise)


def _upsample(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """Replaces the overload with a list of scales, which has no out variant, by the overload with separate scales."""
    dimensions = sum(argument.name.startswith("scales") for argument in op._schema.arguments)

    def decomposed(input: torch.Tensor, output_size: Sequence[int] | None, *options: Any) -> torch.Tensor:
        *aligned, scales = options
        if output_size is None:
            output_size = [torch.sym_int(n * scale) for n, scale in zip(input.shape[2:], scales, strict=True)]
        result: torch.Tensor = op(input, output_size, *aligned, *(scales or [None] * dimensions))
        return result

    return decomposed


_UPSAMPLE = {
    packet.vec: _upsample(packet.default)
    for packet in (
        aten.upsample_nearest1d, aten.upsample_nearest3d, aten._upsample_nearest_exact1d,
        aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d, aten.upsample_linear1d,
        aten.upsample_trilinear3d, aten.upsample_bicubic2d, aten._upsample_bilinear2d_aa, aten._upsample_bicubic2d_aa,
    )
}  # fmt: skip


def _addmv(
    x: torch.Tensor, matrix: torch.Tensor, vector: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    return torch.addmm(x.unsqueeze(-1), matrix, vector.unsqueeze(-1), beta=beta, alpha=alpha).squeeze(-1)


def _addbmm(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    # The sum of the batched products is one product of the concatenated matrices.
    side_by_side = a.permute(1, 0, 2).reshape(a.shape[1], -1)
    return torch.addmm(x, side_by_side, b.reshape(-1, b.shape[2]), beta=beta, alpha=alpha)


def _put(
    x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    flat = x.reshape(-1).index_put([index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


def _diagonal_scatter(
    x: torch.Tensor, source: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    places = torch.arange(source.shape[-1], device=x.device)
    rows, columns = places + max(-offset, 0), places + max(offset, 0)
    return (
        x.movedim((dim1, dim2), (0, 1))
        .index_put([rows, columns], source.movedim(-1, 0))
        .movedim((0, 1), (dim1, dim2))
    )


def _as_strided_scatter(
    x: torch.Tensor,
    source: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> torch.Tensor:
    places = torch.arange(x.numel(), device=x.device).as_strided(size, stride, offset or 0)
    return x.reshape(-1).index_put([places.reshape(-1)], source.reshape(-1)).reshape(x.shape)


def _empty(
    size: Sequence[int],
    *_: object,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **__: object,
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def _new_empty(
    x: torch.Tensor, size: Sequence[int], *_: object, dtype: torch.dtype | None = None, **__: object
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype or x.dtype, device=x.device)


def _conv_tbc(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, pad: int = 0) -> torch.Tensor:
    # x has shape [time, batch, channels], the weight [width, channels in, channels out].
    rows = aten.convolution(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, [1], [pad], [1], False, [0], 1)
    result: torch.Tensor = rows.permute(2, 0, 1)
    return result


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    if bias is not None:
        return NotImplemented
    if offs is not None and (a.dim(), b.dim()) == (2, 3):
        return ops.grouped_mm(a, b, offs).to(out_dtype or a.dtype)
    return torch.bmm(a, b).to(out_dtype or a.dtype) if offs is None and a.dim() == 3 else NotImplemented


def _linear_cross_entropy(
    x: torch.Tensor, linear_weight: torch.Tensor, target: torch.Tensor, linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None, reduction: str, ignore_index: int, label_smoothing: float, *options: object,
) -> Any:  # fmt: skip
    # Chunks save memory only in training, when gradients are computed at the same time.
    if any(options[-3:]):
        return NotImplemented
    loss = torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(x, linear_weight, linear_bias),
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    return loss, *(x.new_zeros(shape) for shape in ((0, 0), (0, 0), (0,)))


def _linear_cross_entropies(
    x: torch.Tensor, linear_weight: torch.Tensor, target: torch.Tensor, linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None, ignore_index: int, *_: object,
) -> torch.Tensor:  # fmt: skip
    logits = torch.nn.functional.linear(x, linear_weight, linear_bias)
    return torch.nn.functional.cross_entropy(
        logits, target, weight, ignore_index=ignore_index, reduction="none"
    )


def multilabel_margin(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Corrects torch's decomposition, whose loss of a single sample has an extra dimension."""

    def decomposed(x: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[Any, ...]:
        loss, is_target = fallback(x, target, reduction)
        return (loss.reshape(()) if x.dim() < 2 else loss), is_target

    return decomposed


def linspace(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Computes integers between the truncated ends if the dtype is an integer."""

    def decomposed(
        start: float, end: float, steps: int, *, dtype: torch.dtype | None = None, **kwargs: object
    ) -> torch.Tensor:
        if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
            start, end = int(start), int(end)
        result: torch.Tensor = fallback(start, end, steps, dtype=dtype, **kwargs)
        return result

    return decomposed


def roll(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Swaps two slices. torch computes an index for each element instead."""

    def rolled(x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> torch.Tensor:
        sizes = [x.shape[dim] for dim in dims]
        if not dims or len(shifts) != len(dims) or not all(isinstance(n, int) for n in (*sizes, *shifts)):
            outcome: torch.Tensor = fallback(x, shifts, dims)
            return outcome
        result = x
        for shift, dim, size in zip(shifts, dims, sizes, strict=True):
            if size and (first := size - shift % size) != size:
                parts = [result.narrow(dim, first, size - first), result.narrow(dim, 0, first)]
                result = torch.cat(parts, dim)
        return x.clone() if result is x else result

    return rolled


def _sort_stable(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    # The sort of the runtime is stable.
    return aten.sort.default(x, dim, descending)


def _frexp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    plain = (x != 0) & (x - x == 0)
    wide = torch.where(plain, x, 1.0).to(torch.float64)
    exponent = torch.floor(torch.log2(abs(wide))) + 1
    mantissa = wide / torch.pow(2.0, exponent)
    # The logarithm may be rounded up beyond the next integer.
    less, more = abs(mantissa) < 0.5, abs(mantissa) >= 1
    mantissa = torch.where(less, mantissa * 2, torch.where(more, mantissa / 2, mantissa))
    exponent = torch.where(less, exponent - 1, torch.where(more, exponent + 1, exponent))
    zero = torch.zeros_like(exponent)
    return torch.where(plain, mantissa.to(x.dtype), x), torch.where(plain, exponent, zero).to(torch.int32)


def _gather(x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    """Returns zeros if there are no indices: torch accepts any dtype for empty indices."""
    if index.dtype in (torch.int32, torch.int64) or index.numel() != 0:
        return NotImplemented
    return x.new_zeros(index.shape)


def _resize(x: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None) -> Any:
    return x.reshape(size) if math.prod(size) == x.numel() else NotImplemented


def _batch_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor, var: torch.Tensor,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    """In training mode, normalizes with the batch statistics and updates the running statistics."""
    if not training:
        results = aten._native_batch_norm_legit_no_training(x, weight, bias, mean, var, momentum, eps)
        return *results, mean.clone(), var.clone()
    reduced_dims = [0, *range(2, x.dim())]
    count = x.numel() // x.shape[1]
    result, of_batch, inverse = aten._native_batch_norm_legit.no_stats(x, weight, bias, True, momentum, eps)
    spread = torch.var(x, reduced_dims, correction=0).to(var.dtype) * (count / max(count - 1, 1))
    following = [
        (momentum * new.to(old.dtype) + (1 - momentum) * old).to(old.dtype)
        for new, old in ((of_batch, mean), (spread, var))
    ]
    return result, of_batch, inverse, *following


def _batch_norm_with_update(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor, var: torch.Tensor,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    result, of_batch, inverse, *following = _batch_norm(x, weight, bias, mean, var, True, momentum, eps)
    return result, of_batch, inverse, x.new_empty(0, dtype=torch.uint8), *following


def _norm(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """Supports 16-bit values with float32 weights, as under autocast: computes in float32 and rounds once, as eager."""

    def decomposed(x: torch.Tensor, *args: object) -> Any:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if all(tensor.dtype == x.dtype for tensor in tensors) or x.dtype not in (
            torch.float16,
            torch.bfloat16,
        ):
            return NotImplemented
        wide = (value.float() if isinstance(value, torch.Tensor) else value for value in args)
        return tuple(result.to(x.dtype) for result in op(x.float(), *wide))

    return decomposed


def _embedding_renorm(
    weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float
) -> torch.Tensor:
    norms = torch.linalg.vector_norm(weight, norm_type, 1, keepdim=True)
    named = torch.zeros(weight.shape[0], dtype=torch.bool).index_fill(0, indices.reshape(-1), True)
    too_long = named.unsqueeze(1) & (norms > max_norm)
    return torch.where(too_long, weight * (max_norm / (norms + 1e-7)), weight)


def _scalars_as_tensors(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """Supports the overloads with a scalar operand of an operator on two tensors."""

    def decomposed(a: float | torch.Tensor, b: float | torch.Tensor) -> torch.Tensor:
        dtype = torch.result_type(a, b)
        result: torch.Tensor = op(
            *(x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype) for x in (a, b))
        )
        return result

    return decomposed


def _shifted(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """Evaluates a polynomial on [0, 1] with the polynomial on [-1, 1]."""
    return lambda x, n: op(2 * x.to(_floating(x)) - 1, n)


def _unscaled_bessel(op: torch._ops.OpOverload) -> Callable[..., Any]:
    return lambda x: op(x) * torch.exp(-x.to(_floating(x)))


def _floating(x: torch.Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


_CHEBYSHEV = {kind: getattr(aten, f"special_chebyshev_polynomial_{kind}") for kind in "tuvw"}
_POLYNOMIALS = (
    *_CHEBYSHEV.values(), aten.special_hermite_polynomial_h, aten.special_hermite_polynomial_he,
    aten.special_laguerre_polynomial_l, aten.special_legendre_polynomial_p,
)  # fmt: skip
_SHIFTED = {
    getattr(aten, f"special_shifted_chebyshev_polynomial_{kind}"): _CHEBYSHEV[kind] for kind in "tuvw"
}
_BITWISE = (
    aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor, aten.bitwise_left_shift, aten.bitwise_right_shift,
)  # fmt: skip
_SPECIAL: dict[Any, Callable[..., Any]] = {
    **{
        getattr(packet, overload): _scalars_as_tensors(packet.default)
        for packet in (*_POLYNOMIALS, *_SHIFTED)
        for overload in ("x_scalar", "n_scalar")
    },
    **{
        getattr(packet, overload): _scalars_as_tensors(packet.default)
        for packet in (aten.special_zeta, aten.special_xlog1py)
        for overload in ("self_scalar", "other_scalar")
    },
    **{packet.Scalar_Tensor: _scalars_as_tensors(packet.Tensor) for packet in (*_BITWISE, aten.remainder)},
    **{packet.default: _shifted(plain.default) for packet, plain in _SHIFTED.items()},
    aten.special_modified_bessel_i0.default: aten.i0.default,
    aten.special_modified_bessel_i1.default: aten.special_i1.default,
    aten.special_modified_bessel_k0.default: _unscaled_bessel(aten.special_scaled_modified_bessel_k0.default),
    aten.special_modified_bessel_k1.default: _unscaled_bessel(aten.special_scaled_modified_bessel_k1.default),
}


TABLE: dict[Any, Callable[..., Any]] = {
    linear_cross_entropy._linear_cross_entropy_batch_chunked._opoverload: _linear_cross_entropy,
    linear_cross_entropy._linear_cross_entropy_batch_chunked_no_reduction._opoverload: _linear_cross_entropies,
    **_UPSAMPLE,
    **_SPECIAL,
    aten.linalg_vector_norm.default: torch._refs.linalg.vector_norm,
    # torch removes an assertion without a message.
    aten._assert_async.default: lambda x: aten._assert_async.msg(x, "assertion failed"),
    aten._is_all_true.default: torch.all,
    aten._is_any_true.default: torch.any,
    aten.max.default: lambda x: torch.amax(x, list(range(x.dim()))),
    aten.min.default: lambda x: torch.amin(x, list(range(x.dim()))),
    torch.ops.prims.convert_element_type.default: lambda x, dtype: x.to(dtype),
    torch.ops.prims.scalar_tensor.default: lambda x, *, dtype=None, device=None: torch.full(
        (), x, dtype=dtype
    ),
    aten.exp2.default: lambda x: torch.pow(2.0, x),
    aten._int_mm.default: lambda a, b: a.to(torch.int32) @ b.to(torch.int32),
    aten.addmv.default: _addmv,
    aten.addbmm.default: _addbmm,
    aten.put.default: _put,
    aten.take.default: lambda x, index: x.reshape(-1)[index.reshape(-1)].reshape(index.shape),
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.as_strided_scatter.default: _as_strided_scatter,
    aten.empty_permuted.default: _empty,
    aten.new_empty_strided.default: _new_empty,
    aten.copysign.Scalar: lambda a, b: torch.copysign(a, torch.full((), b, dtype=torch.float32)),
    aten.dist.default: lambda a, b, p=2: torch.linalg.vector_norm(a - b, p),
    aten.ldexp.Tensor: lambda a, b: a * torch.pow(2.0, b),
    aten.native_dropout.default: _native_dropout,
    aten.bernoulli.p: _bernoulli,
    aten.round.decimals: _round,
    aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _fake_quantize_by_switch,
    aten._trilinear.default: _trilinear,
    aten.conv_tbc.default: _conv_tbc,
    aten._grouped_mm.default: _grouped_mm,
    aten.rrelu_with_noise_functional.default: rrelu,
    aten.sort.stable: _sort_stable,
    aten.frexp.Tensor: _frexp,
    aten.tril_indices.default: torch._refs.tril_indices,
    aten.triu_indices.default: torch._refs.triu_indices,
    aten.gather.default: _gather,
    aten.resize.default: _resize,
    aten.embedding_renorm.default: _embedding_renorm,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._batch_norm_with_update_functional.default: _batch_norm_with_update,
    **{
        op: _norm(op)
        for op in (
            aten.native_layer_norm.default,
            aten.native_group_norm.default,
            aten._native_batch_norm_legit_no_training.default,
            aten._native_batch_norm_legit.no_stats,
        )
    },
    aten.__lshift__.Scalar: torch.bitwise_left_shift,
    aten.__lshift__.Tensor: torch.bitwise_left_shift,
    aten.__rshift__.Scalar: torch.bitwise_right_shift,
    aten.__rshift__.Tensor: torch.bitwise_right_shift,
}

# Operators of other packages, which exist after the package is imported.
FOREIGN: dict[str, Callable[..., Any]] = {
    # Mixture of experts in transformers, where torch's operator does not support the dtype.
    "transformers::grouped_mm_fallback": ops.grouped_mm,
}

# Wrappers around torch's decompositions. Each receives torch's decomposition as its argument.
WRAPPERS: dict[Any, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    aten.scaled_dot_product_attention.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu.default: flash_attention,
    aten.multilabel_margin_loss_forward.default: multilabel_margin,
    aten.linspace.default: linspace,
    aten.roll.default: roll,
}
