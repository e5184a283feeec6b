# SPDX-License-Identifier: BSD-3-Clause
# Operators on complex tensors, implemented with pairs of real tensors. The pass split_complex uses these rules.
"""`Pair`, and `RULES`: the operators on complex tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import torch
from torch.utils import _pytree as pytree

from torchette.exir import ops

aten = torch.ops.aten

REAL = {
    torch.complex128: torch.float64,
    torch.complex64: torch.float32,
    torch.complex32: torch.float16,
}


class Pair(NamedTuple):
    """A complex value: tensors, nodes or scalars with one shape and one real dtype."""

    real: Any
    imag: Any


Value = torch.Tensor | Pair
Operand = torch.Tensor | Pair | complex


def _pair(x: Operand) -> Pair:
    """Converts a real tensor or a scalar to a pair."""
    if isinstance(x, Pair):
        return x
    if isinstance(x, torch.Tensor):
        return Pair(x, torch.zeros_like(x))
    return Pair(x.real, x.imag)


def is_pair(x: object) -> TypeGuard[Pair]:
    """Returns whether this is a complex value."""
    return isinstance(x, Pair)


def _of(part: str, values: object) -> Any:
    """Replaces every pair by its real or imaginary part, and every complex dtype by its real dtype."""
    values = pytree.tree_map(lambda v: getattr(v, part) if is_pair(v) else v, values, is_leaf=is_pair)
    return pytree.tree_map_only(torch.dtype, lambda dtype: REAL.get(dtype, dtype), values)


def _each(op: Callable[..., Any]) -> Callable[..., Any]:
    """Applies an operator to both parts."""

    def rule(*args: object, **kwargs: object) -> Any:
        results = [op(*_of(part, args), **_of(part, kwargs)) for part in Pair._fields]
        if isinstance(results[0], (tuple, list)):
            return [Pair(*parts) for parts in zip(*results, strict=True)]
        return Pair(*results)

    return rule


def _each_of(op: Callable[..., Any], *operands: int) -> Callable[..., Any]:
    """Applies an operator to both parts. The given operands are converted to pairs if they are real."""
    rule = _each(op)

    def all_pairs(*args: Any, **kwargs: object) -> Any:
        converted = [
            ([_pair(x) for x in value] if isinstance(value, list) else _pair(value))
            if i in operands
            else value
            for i, value in enumerate(args)
        ]
        return rule(*converted, **kwargs)

    return all_pairs


def _add(a: Operand, b: Operand, alpha: complex = 1) -> Pair:
    b = b if isinstance(alpha, int) and alpha == 1 else multiply(b, alpha)
    a, b = _pair(a), _pair(b)
    return Pair(a.real + b.real, a.imag + b.imag)


def _subtract(a: Operand, b: Operand, alpha: complex = 1) -> Pair:
    return _add(a, multiply(b, -alpha))


def multiply(a: Operand, b: Operand, op: Callable[..., Any] = operator.mul) -> Any:
    """Returns a b, for an operator that is linear in both operands."""
    if isinstance(a, complex) or isinstance(b, complex):
        a, b = (_pair(x) if isinstance(x, complex) else x for x in (a, b))
    if is_pair(a) and is_pair(b):
        return Pair(op(a.real, b.real) - op(a.imag, b.imag), op(a.real, b.imag) + op(a.imag, b.real))
    if is_pair(a):
        return Pair(op(a.real, b), op(a.imag, b))
    return Pair(op(a, b.real), op(a, b.imag)) if is_pair(b) else op(a, b)


def _bilinear(op: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, *options: NotImplemented if options else multiply(a, b, op)


def _add_product(x: Value, a: Value, b: Value, *, beta: complex = 1, alpha: complex = 1) -> Pair:
    return _add(multiply(x, beta), multiply(multiply(a, b, torch.mm), alpha))


def _linear(x: Value, weight: Value, bias: Value | None = None) -> Pair:
    result = multiply(x, weight, aten.linear.default)
    return result if bias is None else _add(result, bias)


def _convolution(x: Value, weight: Value, bias: Value | None, *options: Any) -> Pair:
    result = multiply(x, weight, lambda a, b: aten.convolution.default(a, b, None, *options))
    if bias is None:
        outcome: Pair = result
        return outcome
    shape = [-1] + [1] * len(options[0])
    return _add(result, Pair(*(part.reshape(shape) for part in _pair(bias))))


def _conjugate(x: Value) -> Any:
    return Pair(x.real, -x.imag) if is_pair(x) else x


def _divide(a: Operand, b: Any) -> Any:
    b = _pair(b) if isinstance(b, complex) else b
    if not is_pair(b):
        return Pair(a.real / b, a.imag / b)
    # Smith's method divides by the larger part first, because squares could overflow if the quotient does not.
    scale = torch.maximum(torch.abs(torch.as_tensor(b.real)), torch.abs(torch.as_tensor(b.imag)))
    unit = Pair(b.real / scale, b.imag / scale)
    length = unit.real * unit.real + unit.imag * unit.imag
    product = _pair(multiply(a, _conjugate(unit)))
    return Pair(product.real / length / scale, product.imag / length / scale)


def _abs(x: Pair) -> torch.Tensor:
    return torch.hypot(x.real, x.imag)


def _angle(x: Pair) -> torch.Tensor:
    return torch.atan2(x.imag, x.real)


def _polar(length: torch.Tensor, angle: torch.Tensor) -> Pair:
    return Pair(length * torch.cos(angle), length * torch.sin(angle))


def _exp(x: Pair) -> Pair:
    return _polar(torch.exp(x.real), x.imag)


def _log(x: Pair) -> Pair:
    return Pair(torch.log(_abs(x)), _angle(x))


def _sqrt(x: Pair) -> Pair:
    # Half the sum of length and real part loses precision if both cancel. The other root is used then.
    root = torch.sqrt((_abs(x) + torch.abs(x.real)) / 2)
    quotient = torch.where(root == 0, torch.zeros_like(root), torch.abs(x.imag) / (2 * root))
    sign = torch.where(torch.signbit(x.imag), -1.0, 1.0).to(root.dtype)
    right = x.real >= 0
    return Pair(torch.where(right, root, quotient), sign * torch.where(right, quotient, root))


def _power(x: Operand, exponent: Operand) -> Any:
    if isinstance(exponent, int) and 0 < exponent <= 8:
        result = x
        for _ in range(exponent - 1):
            result = multiply(result, x)
        return result
    if isinstance(exponent, float) and exponent == 0.5:
        return _sqrt(x)
    if not is_pair(x):
        x = _pair(x)
    if not isinstance(x.real, torch.Tensor):
        number = complex(*x)
        return _exp(multiply(Pair(math.log(abs(number)), math.atan2(number.imag, number.real)), exponent))
    return _exp(multiply(_log(x), exponent))


def _cosh(x: Pair) -> Pair:
    return Pair(torch.cosh(x.real) * torch.cos(x.imag), torch.sinh(x.real) * torch.sin(x.imag))


def _sinh(x: Pair) -> Pair:
    return Pair(torch.sinh(x.real) * torch.cos(x.imag), torch.cosh(x.real) * torch.sin(x.imag))


def _tanh(x: Pair) -> Pair:
    # With t = tanh(real) and u = tan(imag): (t + i u) / (1 + i t u), which does not overflow for large real parts.
    t, u = torch.tanh(x.real), torch.tan(x.imag)
    result: Pair = _divide(Pair(t, u), Pair(torch.ones_like(t), t * u))
    return result


def _rotated(rule: Callable[..., Any], back: bool = True) -> Callable[..., Any]:
    """Returns f(z) for a rule g with f(z) = -i g(iz), or f(z) = g(iz) if `back` is false."""

    def rotated(x: Pair) -> Pair:
        value = rule(Pair(-x.imag, x.real))
        return Pair(value.imag, -value.real) if back else value

    return rotated


def _sign(x: Pair) -> Pair:
    length = _abs(x)
    divisor = torch.where(length == 0, torch.ones_like(length), length)
    return Pair(x.real / divisor, x.imag / divisor)


def _any_part(op: Callable[..., Any]) -> Callable[..., Any]:
    """Returns true for elements with a true part."""
    return lambda x: torch.logical_or(op(x.real), op(x.imag))


def _is_not_zero(x: Value) -> torch.Tensor:
    return torch.logical_or(x.real != 0, x.imag != 0) if isinstance(x, Pair) else x != 0


def _of_nonzero(op: Callable[..., Any]) -> Callable[..., Any]:
    """For operators that only compare elements with zero."""
    return lambda *args, **kwargs: op(
        *(_is_not_zero(x) if isinstance(x, (Pair, torch.Tensor)) else x for x in args), **kwargs
    )


def _log_by(base: float) -> Callable[..., Any]:
    return lambda x: multiply(_log(x), 1 / math.log(base))


def _sigmoid(x: Pair) -> Pair:
    # Computed with tanh, because the exponential could overflow.
    half = _tanh(multiply(x, 0.5))
    return Pair(half.real / 2 + 0.5, half.imag / 2)


def _arcus_sinh(x: Pair) -> Pair:
    # The function is odd. Selecting z or -z avoids a sum that cancels.
    left = torch.where(torch.signbit(x.real), -1.0, 1.0).to(x.real.dtype)
    z = multiply(x, left)
    result: Pair = multiply(_log(_add(z, _sqrt(_add(multiply(z, z), 1.0)))), left)
    return result


def _arcus_tanh(x: Pair) -> Pair:
    # Half of log((1 + z) / (1 - z)). The real part uses log1p, which is accurate for small values.
    squares = (1 - x.real) * (1 - x.real) + x.imag * x.imag
    real = torch.log1p(4 * x.real / squares) / 4
    imag = torch.atan2(2 * x.imag, (1 - x.real) * (1 + x.real) - x.imag * x.imag) / 2
    return Pair(real, imag)


def _product_of(x: Pair, dim: int | None = None, keepdim: bool = False, *, dtype: object = None) -> Any:
    """Reduces a dimension of static length by multiplication, in a number of steps logarithmic in the length."""
    if dim is None:
        x, dim = Pair(*(p.reshape(-1) for p in x)), 0
    length = x.real.shape[dim]
    if dtype is not None or not isinstance(length, int):
        return NotImplemented
    while length > 1:
        even = length // 2
        first, second = (Pair(*(p.narrow(dim, start, even) for p in x)) for start in (0, even))
        product = multiply(first, second)
        tail = [p.narrow(dim, 2 * even, length - 2 * even) for p in x]
        x = Pair(*(torch.cat([p, r], dim) for p, r in zip(product, tail, strict=True)))
        length = length - even
    if length == 0:
        return NotImplemented
    return x if keepdim else Pair(*(p.squeeze(dim) for p in x))


def _compare(op: Callable[..., Any], join: Callable[..., Any]) -> Callable[..., Any]:
    def rule(a: Operand, b: Operand) -> torch.Tensor:
        a, b = _pair(a), _pair(b)
        result: torch.Tensor = join(op(a.real, b.real), op(a.imag, b.imag))
        return result

    return rule


def _norm(x: Pair, *args: object, **kwargs: object) -> torch.Tensor:
    result: torch.Tensor = torch.linalg.vector_norm(_abs(x), *args, **_of("real", kwargs))
    return result


def _variance(x: Pair, *args: object, **kwargs: object) -> torch.Tensor:
    result: torch.Tensor = aten.var.correction(x.real, *args, **kwargs) + aten.var.correction(
        x.imag, *args, **kwargs
    )
    return result


def _cast(x: Value, *, dtype: torch.dtype | None = None, **kwargs: object) -> Any:
    if dtype is None or dtype in REAL:
        real = REAL[dtype] if dtype is not None else None
        return Pair(*(aten._to_copy.default(part, dtype=real) for part in _pair(x)))
    return aten._to_copy.default(x.real, dtype=dtype)


def _eig(x: object) -> Any:
    if is_pair(x):
        return NotImplemented
    return [Pair(part.select(-1, 0), part.select(-1, 1)) for part in ops.eig(x)]


def _filled(op: Callable[..., Any]) -> Callable[..., Any]:
    """Creates a tensor filled with a scalar."""

    def rule(size: object, number: complex, *args: object, **kwargs: object) -> Pair:
        kwargs = {**_of("real", kwargs), "pin_memory": None}
        pair = _pair(number)
        return Pair(*(op(_of(part, size), getattr(pair, part), *args, **kwargs) for part in Pair._fields))

    return rule


def _made(op: Callable[..., Any], number: float) -> Callable[..., Any]:
    """Creates a tensor with one constant value."""

    def rule(like: Value, *args: object, **kwargs: object) -> Any:
        if kwargs.get("dtype") is not None and kwargs["dtype"] not in REAL:
            return op(like.real, *args, **kwargs)
        real = op(_of("real", like), *args, **_of("real", kwargs))
        return Pair(torch.full_like(real, number), torch.zeros_like(real))

    return rule


_PER_PART = (
    aten._unsafe_view.default, aten.alias.default, aten.clone.default,
    aten.cumsum.default, aten.detach.default, aten.diagonal.default, aten.expand.default, aten.flip.default,
    aten.gather.default, aten.index.Tensor, aten.index_select.default, aten.lift_fresh_copy.default,
    aten.mean.default, aten.mean.dim, aten.neg.default, aten.permute.default, aten.repeat.default,
    aten.reshape.default, aten.roll.default, aten.select.int, aten.slice.Tensor, aten.split.Tensor,
    aten.split_with_sizes.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.sum.default,
    aten.sum.dim_IntList, aten.t.default, aten.transpose.int, aten.tril.default, aten.triu.default,
    aten.unbind.int, aten.unfold.default, aten.unsqueeze.default, aten.view.default,
)  # fmt: skip

RULES: dict[Any, Callable[..., Any]] = {
    **{op: _each(op) for op in _PER_PART},
    aten.cat.default: _each_of(aten.cat.default, 0),
    aten.stack.default: _each_of(aten.stack.default, 0),
    aten.where.self: _each_of(aten.where.self, 1, 2),
    aten.masked_fill.Scalar: _each_of(aten.masked_fill.Scalar, 0, 2),
    aten.constant_pad_nd.default: _each_of(aten.constant_pad_nd.default, 0, 2),
    aten.slice_scatter.default: _each_of(aten.slice_scatter.default, 0, 1),
    aten.select_scatter.default: _each_of(aten.select_scatter.default, 0, 1),
    aten.index_put.default: _each_of(aten.index_put.default, 0, 2),
    aten.scatter_add.default: _each_of(aten.scatter_add.default, 0, 3),
    aten.scatter.src: _each_of(aten.scatter.src, 0, 3),
    aten.copy.default: _each_of(aten.copy.default, 0, 1),
    aten.sym_size.int: lambda x, dim: x.real.shape[dim],
    aten.add.Tensor: _add,
    aten.add.Scalar: _add,
    aten.sub.Tensor: _subtract,
    aten.sub.Scalar: _subtract,
    aten.rsub.Scalar: lambda a, b, alpha=1: _subtract(b, a, alpha),
    aten.mul.Tensor: multiply,
    aten.mul.Scalar: multiply,
    aten.div.Tensor: _divide,
    aten.div.Scalar: _divide,
    aten.reciprocal.default: lambda x: _divide(1.0, x),
    aten.mm.default: _bilinear(torch.mm),
    aten.bmm.default: _bilinear(torch.bmm),
    aten.addmm.default: _add_product,
    aten.linear.default: _linear,
    aten.convolution.default: _convolution,
    aten.view_as_real.default: lambda x: torch.stack(list(x), -1),
    aten.view_as_complex.default: lambda x: Pair(x.select(-1, 0), x.select(-1, 1)),
    aten.real.default: lambda x: x.real,
    aten.imag.default: lambda x: x.imag,
    aten.complex.default: lambda real, imag: Pair(*torch.broadcast_tensors(real, imag)),
    aten.polar.default: _polar,
    aten._conj.default: _conjugate,
    aten._conj_physical.default: _conjugate,
    aten.conj_physical.default: _conjugate,
    aten.resolve_conj.default: lambda x: x,
    aten.resolve_neg.default: lambda x: x,
    aten._neg_view.default: lambda x: _each(torch.neg)(x) if is_pair(x) else torch.neg(x),
    aten.abs.default: _abs,
    aten.angle.default: _angle,
    aten.sgn.default: _sign,
    aten.exp.default: _exp,
    aten.log.default: _log,
    aten.sqrt.default: _sqrt,
    aten.rsqrt.default: lambda x: _divide(1.0, _sqrt(x)),
    aten.pow.Tensor_Scalar: _power,
    aten.pow.Tensor_Tensor: _power,
    aten.pow.Scalar: _power,
    aten.cosh.default: _cosh,
    aten.sinh.default: _sinh,
    aten.tanh.default: _tanh,
    aten.cos.default: _rotated(_cosh, back=False),
    aten.sin.default: _rotated(_sinh),
    aten.tan.default: _rotated(_tanh),
    aten.asinh.default: _arcus_sinh,
    aten.asin.default: _rotated(_arcus_sinh),
    aten.atanh.default: _arcus_tanh,
    aten.atan.default: _rotated(_arcus_tanh),
    aten.log2.default: _log_by(2),
    aten.log10.default: _log_by(10),
    aten.sigmoid.default: _sigmoid,
    aten.silu.default: lambda x: multiply(x, _sigmoid(x)),
    aten.prod.default: _product_of,
    aten.prod.dim_int: _product_of,
    aten.any.default: _of_nonzero(torch.any),
    aten.any.dim: _of_nonzero(torch.any),
    aten.any.dims: _of_nonzero(torch.any),
    aten.all.default: _of_nonzero(torch.all),
    aten.all.dim: _of_nonzero(torch.all),
    aten.all.dims: _of_nonzero(torch.all),
    aten.nonzero.default: _of_nonzero(torch.nonzero),
    aten.logical_not.default: _of_nonzero(torch.logical_not),
    aten.logical_and.default: _of_nonzero(torch.logical_and),
    aten.logical_or.default: _of_nonzero(torch.logical_or),
    aten.logical_xor.default: _of_nonzero(torch.logical_xor),
    aten.eq.Tensor: _compare(torch.eq, torch.logical_and),
    aten.eq.Scalar: _compare(torch.eq, torch.logical_and),
    aten.ne.Tensor: _compare(torch.ne, torch.logical_or),
    aten.ne.Scalar: _compare(torch.ne, torch.logical_or),
    aten.isnan.default: _any_part(torch.isnan),
    aten.isinf.default: _any_part(torch.isinf),
    aten.linalg_vector_norm.default: _norm,
    aten.var.correction: _variance,
    aten.linalg_eig.default: _eig,
    aten._to_copy.default: _cast,
    aten.full.default: _filled(aten.full.default),
    aten.full_like.default: _filled(aten.full_like.default),
    aten.scalar_tensor.default: lambda number, **kwargs: Pair(
        *(torch.scalar_tensor(part, dtype=REAL[kwargs["dtype"]]) for part in _pair(number))
    ),
    aten.zeros.default: _made(torch.zeros, 0),
    aten.ones.default: _made(torch.ones, 1),
    aten.empty.memory_format: _made(torch.zeros, 0),
    aten.zeros_like.default: _made(torch.zeros_like, 0),
    aten.ones_like.default: _made(torch.ones_like, 1),
    aten.empty_like.default: _made(torch.zeros_like, 0),
}
