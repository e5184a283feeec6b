# SPDX-License-Identifier: BSD-3-Clause
# Calls of kernels that torch's samples do not reach: overloads that the compiler replaces but that ExecuTorch files
# use, backward operators, scalar operators, and operators that torch does not have.
"""`CALLS`, `SCALARS` and `OTHERS`: kernel name -> calls and their expected results."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from torchette.exir import ops
from torchette.exir.emit.calls import signature
from torchette.exir.emit.records import plain

F = torch.nn.functional


def _like(*size: int, start: float = -3.0, step: float = 0.7) -> torch.Tensor:
    """Distinct values, some of them negative."""
    return (torch.arange(float(math.prod(size))) * step % 7 + start).reshape(size)


X, Y = _like(3, 4), _like(3, 4, start=-1.5, step=0.9)
INTEGERS = torch.tensor([[-7, -1, 0, 1], [2, 5, 8, 100]])
CUBE, IMAGE, VOLUME = _like(2, 3, 8), _like(2, 3, 6, 8), _like(1, 2, 4, 6, 4)
COMPLEX = torch.complex(X, Y)
MASK = X > 0
SQUARES = _like(2, 3, 3) @ _like(2, 3, 3).mT + torch.eye(3)  # symmetric and positive-definite
RIGHT = _like(2, 3, 2)
ORDERED = torch.tensor([-1.0, 0.5, 2.0, 3.0])
MEAN, SPREAD = torch.tensor([0.1, -0.2, 0.3]), torch.tensor([1.0, 2.0, 0.5])

# Arguments of the eager operator, positional and keyword.
Call = tuple[tuple, dict[str, Any]]


def overload(name: str) -> Any:
    """Returns the torch operator that a kernel is named after."""
    namespace, _, qualified = name.partition("::")
    packet, _, qualified = qualified.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), qualified or "default")


def arguments(name: str, call: Call) -> list[Any]:
    """Returns the arguments that a program passes to the kernel, without the results."""
    args, kwargs = call
    values = []
    for position, argument in enumerate(a for a in signature(overload(name)) if not a.is_out):
        value = argument.default
        if argument.name in kwargs:
            value = kwargs[argument.name]
        elif position < len(args):
            value = args[position]
        as_it_is = isinstance(value, (list, tuple, torch.Tensor))
        values.append(value if as_it_is else plain(value, argument.kind))
    return values


def results(name: str, call: Call) -> Any:
    """Returns the results of eager: a tensor, a tuple or a list of tensors."""
    variant = overload(name)
    packet = variant.overloadpacket
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    twin = next((op for op in overloads if not ops.is_mutating(op) and ops.out_variant(op) == variant), None)
    args, kwargs = copy.deepcopy(call)
    if twin is not None:
        return twin(*args, **kwargs)
    outs = [argument.name for argument in variant._schema.arguments if argument.is_out]
    return variant(*args, **kwargs, **{out: torch.empty(0) for out in outs})


def _calls(*args: Any, **named: Any) -> list[Call]:
    return [(args, named)]


def _with_scalars(with_integers: bool = True, **named: Any) -> list[Call]:
    calls: list[Call] = [((X, 2), named), ((X, 0.75), named), ((X.half(), -1.5), named)]
    return calls + ([((INTEGERS, 3), named), ((INTEGERS, 2.5), named)] if with_integers else [])


def _layer_norm() -> list[Call]:
    x, weight, bias = CUBE, _like(8), _like(8, step=0.3)
    _, mean, rstd = torch.native_layer_norm(x, [8], weight, bias, 1e-5)
    grad = torch.sin(x)
    return _calls(grad, x, [8], mean, rstd, weight, bias, [True, True, True])


def _group_norm() -> list[Call]:
    x, weight = _like(2, 4, 6), _like(4)
    _, mean, rstd = torch.native_group_norm(x, weight, None, 2, 4, 6, 2, 1e-5)
    return _calls(torch.sin(x), x, mean, rstd, weight, 2, 4, 6, 2, [True, True, True])


def _max_pool2d() -> list[Call]:
    _, indices = F.max_pool2d(IMAGE, 2, return_indices=True)
    return _calls(_like(2, 3, 3, 4), IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)


def _max_pool3d() -> list[Call]:
    _, indices = F.max_pool3d(VOLUME, 2, return_indices=True)
    grad = _like(1, 2, 2, 3, 2)
    return _calls(grad, VOLUME, [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False, indices)


def _factors(hermitian: bool) -> tuple[torch.Tensor, torch.Tensor]:
    factor = torch.linalg.ldl_factor if hermitian else torch.linalg.lu_factor
    factors, pivots = factor(SQUARES)
    return factors, pivots


CALLS: dict[str, list[Call]] = {
    "aten::_linalg_eigh.eigenvalues": _calls(SQUARES, "L", False),
    "aten::_linalg_svd.U": _calls(SQUARES, False, False),
    "aten::geqrf.a": _calls(_like(2, 3, 2)) + _calls(X.double()),
    "aten::linalg_cholesky_ex.L": _calls(SQUARES) + _calls(SQUARES.double(), upper=True),
    "aten::linalg_ldl_factor_ex.out": _calls(SQUARES),
    "aten::linalg_ldl_solve.out": _calls(*_factors(True), RIGHT),
    "aten::linalg_lu_factor_ex.out": _calls(SQUARES) + _calls(X),
    "aten::linalg_lu_solve.out": _calls(*_factors(False), RIGHT) + _calls(*_factors(False), RIGHT.mT, left=False),
    "aten::linalg_matrix_exp.out": _calls(SQUARES / 8),
    "aten::linalg_solve_triangular.out": _calls(SQUARES, RIGHT, upper=True),
    "aten::lu_unpack.out": _calls(*_factors(False)),
    "aten::ormqr.out": _calls(*torch.geqrf(_like(3, 2)), _like(3, 4)),
    "aten::_adaptive_avg_pool2d_backward.out": _calls(_like(2, 3, 2, 3), IMAGE),
    "aten::_adaptive_avg_pool3d_backward.out": _calls(_like(1, 2, 2, 3, 1), VOLUME),
    "aten::_conj_physical.out": _calls(COMPLEX),
    "aten::_embedding_bag.out": [
        ((X, torch.tensor([0, 2, 1, 1]), torch.tensor([0, 1]), False, mode), {}) for mode in (0, 1, 2)
    ],
    "aten::_fft_c2c.out": [((COMPLEX, [1], 0, forward), {}) for forward in (True, False)],
    "aten::_fft_c2r.out": _calls(COMPLEX, [1], 2, 6),
    "aten::_fft_r2c.out": [((X, [1], 0, onesided), {}) for onesided in (True, False)],
    "aten::_native_batch_norm_legit_no_training.out": _calls(IMAGE, SPREAD, MEAN, MEAN, SPREAD, 0.1, 1e-5),
    "aten::_embedding_bag_forward_only.out": _calls(X, torch.tensor([0, 2, 1, 1]), torch.tensor([0, 1]), False, 1),
    "aten::_native_batch_norm_legit.out": _calls(IMAGE, SPREAD, MEAN, MEAN, SPREAD, True, 0.1, 1e-5),
    "aten::_native_batch_norm_legit.no_stats_out": _calls(IMAGE, SPREAD, MEAN, True, 0.1, 1e-5),
    "aten::_unique2.out": _calls(torch.tensor([3, 1, 3, 2]), True, True, True),
    "aten::_upsample_bicubic2d_aa.out": _calls(IMAGE, [4, 5], False),
    "aten::_upsample_nearest_exact2d.out": _calls(IMAGE, [4, 12]),
    "aten::adaptive_max_pool3d.out": _calls(VOLUME, [2, 3, 1]),
    "aten::adaptive_avg_pool1d.out": _calls(CUBE, [3]),
    "aten::add.Scalar_out": [*_with_scalars(), ((X, 2, 3), {})],
    "aten::all.all_out": [((MASK,), {}), ((INTEGERS,), {})],
    "aten::all.dims_out": [((MASK, [0, 1]), {}), ((MASK, [1], True), {})],
    "aten::all.out": [((MASK, 1), {}), ((INTEGERS, 0, True), {})],
    "aten::arange.out": [((5,), {}), ((4.5,), {})],
    "aten::avg_pool1d.out": _calls(CUBE, [3], [2], [1], True, False),
    "aten::avg_pool2d_backward.grad_input": _calls(
        _like(2, 3, 3, 4), IMAGE, [2, 2], [2, 2], [0, 0], False, True, None
    ),
    "aten::avg_pool3d_backward.grad_input": _calls(
        _like(1, 2, 2, 3, 2), VOLUME, [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, 3
    ),
    "aten::avg_pool3d.out": _calls(VOLUME, [2, 2, 2], [2, 1, 2]),
    "aten::baddbmm.out": _calls(_like(2, 3, 5), CUBE, _like(2, 8, 5), beta=0.5, alpha=2),
    "aten::bincount.out": [((torch.tensor([1, 3, 1]),), {}), ((torch.tensor([1, 3]), torch.ones(2), 6), {})],
    "aten::bitwise_and.Scalar_out": _calls(INTEGERS, 6),
    "aten::bitwise_left_shift.Tensor_Scalar_out": _calls(INTEGERS, 2),
    "aten::bitwise_or.Scalar_out": _calls(INTEGERS, 6),
    "aten::bitwise_right_shift.Tensor_Scalar_out": _calls(INTEGERS, 1),
    "aten::bitwise_xor.Scalar_out": _calls(INTEGERS, 6),
    "aten::bucketize.Scalar_out": [((0.5, ORDERED), {"right": right}) for right in (False, True)],
    "aten::clamp_max.out": _with_scalars(),
    "aten::clamp_min.out": _with_scalars(),
    "aten::clone.out": [((X,), {}), ((IMAGE,), {"memory_format": torch.channels_last})],
    "aten::col2im.out": _calls(_like(2, 12, 6), [4, 3], [2, 2], [1, 1], [0, 0], [1, 1]),
    "aten::convolution.out": [
        ((IMAGE, _like(4, 3, 3, 3), _like(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {}),
        ((CUBE, _like(3, 1, 3), None, [2], [0], [1], False, [0], 3), {}),
        ((IMAGE, _like(3, 2, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [1, 0], 1), {}),
    ],
    "aten::convolution_backward.out": [
        ((_like(1, 4, 6, 6), _like(1, 2, 6, 6), _like(4, 2, 3, 3), [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
          [True, True, True]), {}),
        ((_like(1, 4, 4), _like(1, 2, 6), _like(4, 1, 3), [4], [1], [0], [1], False, [0], 2,
          [True, True, True]), {}),
    ],
    "aten::copysign.Scalar_out": _with_scalars(False),
    "aten::detach_copy.out": _calls(X),
    "aten::div.Scalar_mode_out": [
        call for mode in (None, "floor", "trunc") for call in _with_scalars(rounding_mode=mode)
    ],
    "aten::div.Scalar_out": _with_scalars(),
    "aten::embedding_dense_backward.out": _calls(_like(4, 3), torch.tensor([0, 2, 1, 2]), 5, -1, False),
    "aten::eq.Scalar_out": _with_scalars(),
    "aten::fill.Scalar_out": _with_scalars(),
    "aten::fill.Tensor_out": _calls(X, torch.tensor(2.5)),
    "aten::floor_divide.out": [((X, Y + 3), {}), ((INTEGERS, torch.tensor(3)), {})],
    "aten::fmod.Scalar_out": _with_scalars(),
    "aten::full.out": _calls([2, 3], 2.5),
    "aten::ge.Scalar_out": _with_scalars(),
    "aten::glu.out": [((CUBE,), {}), ((X.t().contiguous(), 0), {})],
    "aten::grid_sampler_2d.out": _calls(IMAGE, torch.tanh(_like(2, 3, 4, 2)), 0, 0, False),
    "aten::grid_sampler_3d.out": _calls(VOLUME, torch.tanh(_like(1, 3, 2, 2, 3)), 0, 1, True),
    "aten::gt.Scalar_out": _with_scalars(),
    "aten::hardsigmoid.out": _calls(2 * X),
    "aten::hardswish.out": _calls(2 * X),
    "aten::hash_tensor.out": [((X, [1]), {"keepdim": True}), ((INTEGERS, []), {})],
    "aten::index_reduce.out": _calls(X, 0, torch.tensor([2, 0]), Y[:2], "amax"),
    "aten::index_select.out": _calls(X, 1, torch.tensor([3, 0, 3])),
    "aten::le.Scalar_out": _with_scalars(),
    "aten::lift_fresh_copy.out": _calls(X),
    "aten::logit.out": [((torch.sigmoid(X),), {}), ((torch.sigmoid(4 * X), 0.1), {})],
    "aten::lt.Scalar_out": _with_scalars(),
    "aten::masked_fill.Scalar_out": [((X, MASK, 2.5), {}), ((INTEGERS, INTEGERS > 1, 7), {})],
    "aten::masked_fill.Tensor_out": _calls(X, MASK, torch.tensor(2.5)),
    "aten::max.unary_out": [((X,), {}), ((INTEGERS,), {})],
    "aten::max_pool2d_with_indices.out": _calls(IMAGE, [2, 3], [2, 2], [0, 1]),
    "aten::max_pool3d_with_indices.out": _calls(VOLUME, [2, 2, 2], [2, 2, 2]),
    "aten::max_pool2d_with_indices_backward.grad_input": _max_pool2d(),
    "aten::max_pool3d_with_indices_backward.grad_input": _max_pool3d(),
    "aten::min.unary_out": [((X,), {}), ((INTEGERS,), {})],
    "aten::mul.Scalar_out": _with_scalars(),
    "aten::native_group_norm.out": _calls(_like(2, 4, 6), _like(4), None, 2, 4, 6, 2, 1e-5),
    "aten::native_group_norm_backward.out": _group_norm(),
    "aten::native_layer_norm.out": _calls(CUBE, [8], _like(8), _like(8, step=0.3), 1e-5),
    "aten::native_layer_norm_backward.out": _layer_norm(),
    "aten::ne.Scalar_out": _with_scalars(),
    "aten::ones.out": _calls([2, 3]),
    "aten::ones_like.out": [((X,), {}), ((INTEGERS,), {})],
    "aten::pixel_shuffle.out": _calls(_like(2, 8, 3, 2), 2),
    "aten::pixel_unshuffle.out": _calls(IMAGE, 2),
    "aten::reflection_pad1d.out": _calls(CUBE, [2, 3]),
    "aten::reflection_pad2d.out": _calls(IMAGE, [2, 3, 1, 4]),
    "aten::reflection_pad3d.out": _calls(VOLUME, [1, 2, 3, 1, 2, 1]),
    "aten::remainder.Scalar_out": _with_scalars(),
    "aten::repeat_interleave.Tensor_out": _calls(torch.tensor([2, 0, 3]), output_size=5),
    "aten::replication_pad1d.out": [((CUBE, [2, 3]), {}), ((CUBE, [-2, 3]), {})],
    "aten::replication_pad2d.out": [((IMAGE, [2, 3, 1, 4]), {}), ((IMAGE, [-1, 2, 1, -2]), {})],
    "aten::replication_pad3d.out": [((VOLUME, [1, 2, 3, 1, 2, 1]), {}), ((VOLUME, [1, -1, 0, 2, -1, 0]), {})],
    "aten::roll.out": [((X, [1, -1], [0, 1]), {}), ((X, [5]), {})],
    "aten::rsub.Scalar_out": [*_with_scalars(), ((X, 2, 3), {})],
    "aten::scalar_tensor.out": _calls(2.5),
    "aten::scatter.src_out": _calls(X, 0, torch.tensor([[0, 2, 1]]), Y),
    "aten::scatter_add.out": _calls(X, 0, torch.tensor([[0, 2, 1]]), Y),
    "aten::scatter_reduce.two_out": _calls(X, 0, torch.tensor([[0, 2, 1]]), Y, "amax"),
    "aten::scatter.reduce_out": [
        ((X, 0, torch.tensor([[0, 2, 1]]), Y), {"reduce": reduce}) for reduce in ("add", "multiply")
    ],
    "aten::scatter.value_out": _calls(X, 0, torch.tensor([[0, 2, 1]]), 2.5),
    "aten::searchsorted.Scalar_out": [
        ((ORDERED, 0.5), {}), ((ORDERED, 0.5), {"side": "right"}),
        ((ORDERED, 0.5), {"sorter": torch.arange(4)}),
    ],
    "aten::select_scatter.out": _calls(X, Y[0], 0, 2),
    "aten::silu.out": _calls(X),
    "aten::sort.values_stable": [((X,), {"stable": True, "dim": 0}), ((INTEGERS,), {"stable": True, "descending": True})],
    "aten::split_with_sizes_copy.out": _calls(X, [1, 3], 1),
    "aten::split_copy.Tensor_out": _calls(X, 3, 1),
    "aten::squeeze_copy.dim_out": _calls(X[:1], 0),
    "aten::squeeze_copy.out": _calls(X[:1]),
    "aten::stack.out": [(([X, Y], dim), {}) for dim in (0, 1, -1)],
    "aten::std.correction_out": [((X, [1]), {"correction": 2}), ((X, None), {"keepdim": True})],
    "aten::sub.Scalar_out": [*_with_scalars(), ((X, 2, 3), {})],
    "aten::t_copy.out": _calls(X),
    "aten::transpose_copy.int_out": _calls(CUBE, 0, -1),
    "aten::tril.out": [((X, diagonal), {}) for diagonal in (-1, 0, 2)],
    "aten::triu.out": [((X, diagonal), {}) for diagonal in (-1, 0, 2)],
    "aten::unbind_copy.int_out": _calls(X, 1),
    "aten::unfold_copy.out": _calls(X, 1, 2, 1),
    "aten::unique_consecutive.out": _calls(torch.tensor([1, 1, 2]), True, True),
    "aten::unique_dim.out": _calls(INTEGERS, 0, True, True, True),
    "aten::upsample_bilinear2d.out": _calls(IMAGE, [9, 5], True),
    "aten::upsample_nearest2d.out": _calls(IMAGE, [9, 5]),
    "aten::upsample_nearest2d.vec_out": [((IMAGE, [9, 5], None), {}), ((IMAGE, None, [2.0, 0.5]), {})],
    "aten::var.out": [((X, [1]), {}), ((X, [0, 1], False, True), {})],
    "aten::view_as_complex_copy.out": _calls(_like(3, 2)),
    "aten::view_as_real_copy.out": _calls(COMPLEX),
    "aten::zeros.out": _calls([2, 3]),
    "aten::zeros_like.out": [((X,), {}), ((INTEGERS,), {})],
    "torchette::grouped_mm.out": _calls(_like(5, 3), _like(3, 3, 4), torch.tensor([2, 2, 4], dtype=torch.int32)),
}  # fmt: skip

# Singular vectors and eigenvectors are unique up to their signs. test_parity.py compares their products; these calls
# only check that they are computed.
VECTORS: dict[str, list[Call]] = {
    "aten::_linalg_eigh.eigenvalues": _calls(SQUARES, "U", True),
    "aten::_linalg_svd.U": _calls(_like(2, 3, 2), True, True),
    "torchette::eig.out": _calls(SQUARES[:1]),
}

# Operators on scalars: (equivalent Python function, arguments).
_TWO = [(7, 3), (-7, 3), (2.5, -2.0), (-3, 2)]
_BITS = [(12, 10), (-1, 6)]
SCALARS: dict[str, tuple[Callable, list[tuple]]] = {
    **{
        f"executorch_prim::{name}.Scalar": (function, _TWO)
        for name, function in {
            "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
            "floordiv": operator.floordiv, "mod": operator.mod, "eq": operator.eq, "ne": operator.ne,
            "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "sym_max": max,
            "sym_min": min,
        }.items()
    },
    **{
        f"executorch_prim::{name}.int": (function, [(7, 3), (-7, 3), (7, -3)])
        for name, function in {"floordiv": operator.floordiv, "mod": operator.mod}.items()
    },
    **{
        f"executorch_prim::{name}.Scalar": (function, _BITS)
        for name, function in {"and": operator.and_, "or": operator.or_, "xor": operator.xor}.items()
    },
    "executorch_prim::lshift.Scalar": (operator.lshift, [(3, 4)]),
    "executorch_prim::rshift.Scalar": (operator.rshift, [(-9, 1), (9, 2)]),
    "executorch_prim::pow.Scalar": (operator.pow, [(2, 10), (-3, 3), (2.0, 0.5)]),
    **{
        f"executorch_prim::{name}.Scalar": (function, [(2.5,), (-2.5,), (3,)])
        for name, function in {
            "abs": abs, "ceil": math.ceil, "floor": math.floor, "neg": operator.neg, "round": round,
            "sym_float": float, "sym_int": int, "trunc": math.trunc,
        }.items()
    },
    "executorch_prim::sym_sqrt.Scalar": (math.sqrt, [(2,), (6.25,)]),
    "executorch_prim::sym_not.Scalar": (operator.not_, [(True,), (False,)]),
    "executorch_prim::sym_ite.Scalar": (lambda c, a, b: a if c else b, [(True, 1, 2), (False, 1, 2)]),
    "aten::_local_scalar_dense": (lambda x: x.item(), [(torch.tensor(2.5),), (torch.tensor([[7]]),)]),
    "aten::sym_is_contiguous": (lambda x, memory_format: x.is_contiguous(), [(X, 0), (IMAGE.to(memory_format=torch.channels_last), 0)]),
    "aten::sym_numel": (lambda x: x.numel(), [(X,)]),
    "aten::sym_size.int": (lambda x, dim: x.shape[dim], [(CUBE, 1), (CUBE, -1)]),
    "aten::sym_storage_offset": (lambda x: 0, [(X,)]),
    "aten::sym_stride.int": (lambda x, dim: x.stride(dim), [(CUBE, 0), (CUBE, -2)]),
}  # fmt: skip


# Operators that write to an argument, or that torch does not have: (arguments, index of the written argument, its
# expected content).
LAST_ROW = X.new_full((4,), 5.0)
# One head: [batch, tokens or positions, heads, depth].
TOKENS, CACHE, LEFT = X[:2].reshape(1, 2, 1, 4), torch.zeros(1, 5, 1, 4), (0.0, False, None)
WRITTEN, SPREAD_OUT = CACHE.clone(), CACHE.clone()
WRITTEN[:, 2:4], SPREAD_OUT[:, [4, 1]] = TOKENS, TOKENS
OTHERS: dict[str, list[tuple[tuple, int, torch.Tensor]]] = {
    "aten::copy_": [((torch.zeros(3, 4), X, False), 0, X), ((torch.zeros(3, 4), LAST_ROW, False), 0, LAST_ROW.expand(3, 4))],
    "aten::index_put_": [
        ((X.clone(), [torch.tensor([0, 2])], LAST_ROW, accumulate), 0,
         X.index_put([torch.tensor([0, 2])], LAST_ROW, accumulate))
        for accumulate in (False, True)
    ],
    "dim_order_ops::_empty_dim_order.out": [(([3, 4], None, torch.zeros(3, 4)), 2, torch.zeros(3, 4))],
    "dim_order_ops::_to_dim_order_copy.out": [((INTEGERS, False, [0, 1], torch.zeros(2, 4)), 3, INTEGERS.float())],
    "et_copy::_d2h_copy.out": [((X, torch.zeros(3, 4)), 1, X)],
    "et_copy::_h2d_copy.out": [((X, torch.zeros(3, 4)), 1, X)],
    "llama::update_cache.out": [((TOKENS, CACHE.clone(), 2, torch.ones(1)), 1, WRITTEN)],
    "llama::update_cache_with_indices.out": [((TOKENS, CACHE.clone(), 0, torch.tensor([[4, 1]]), torch.ones(1)), 1, SPREAD_OUT)],
    # A query with equal keys yields the mean of the values.
    "llama::custom_sdpa.out": [((TOKENS, CACHE, WRITTEN, 2, None, *LEFT, TOKENS.clone()), 8, WRITTEN[:, :4].mean(1, keepdim=True).expand(1, 2, 1, 4))],
    "llama::sdpa_with_kv_cache.out": [((TOKENS, TOKENS, TOKENS, CACHE.clone(), CACHE.clone(), 2, 2, None, *LEFT, TOKENS.clone()), 4, WRITTEN)],
    "executorch_prim::et_copy_index.tensor": [((X.clone(), LAST_ROW, 2), 0, torch.cat([X[:2], LAST_ROW[None]]))],
    "executorch_prim::et_view.default": [((X, [2, -1], torch.zeros(2, 6)), 2, X.view(2, 6))],
}  # fmt: skip

# Random operators. test_random.py checks their distributions.
RANDOM = {
    "aten::native_dropout.out", "aten::rand.out", "aten::rand_like.out", "aten::randint.low_out",
    "aten::randint.out", "aten::randn.out", "aten::randn_like.out", "aten::randperm.out",
}  # fmt: skip

# Valid calls, including outputs. test_quantized.py compares the results with torch's reference.
BYTES, ONE, EACH = (X * 9).to(torch.int8), torch.tensor([0.25]).double(), torch.tensor([0.1, 0.2, 0.3])
ZEROS, ROWS, RANGE = torch.tensor([1, 0, -1]), torch.tensor([[0, 2], [1, 1]]), (-128, 127)
_CHAR, _FLOAT = 1, 6  # type codes of the file format
_SCALAR, _LINES = (0.25, 3), (EACH, ZEROS)
QUANTIZED: dict[str, list[tuple]] = {
    f"quantized_decomposed::{name}": calls
    for name, calls in {
        "add.out": [(BYTES, *_SCALAR, *RANGE, BYTES, *_SCALAR, *RANGE, *_SCALAR, *RANGE, BYTES)],
        "mixed_mm.out": [(X.T.contiguous(), BYTES, EACH, None, torch.zeros(4, 4))],
        "mixed_linear.out": [(X, BYTES, EACH, None, None, torch.zeros(3, 3)), (X, BYTES, X[:, :2].contiguous(), None, _FLOAT, torch.zeros(3, 3))],
        "quantize_per_tensor.out": [(X, *_SCALAR, *RANGE, _CHAR, BYTES)],
        "quantize_per_tensor.Tensor_out": [(X, ONE, torch.tensor([3]), *RANGE, _CHAR, BYTES)],
        "dequantize_per_tensor.out": [(BYTES, *_SCALAR, *RANGE, _CHAR, None, X)],
        "dequantize_per_tensor.Tensor_out": [(BYTES, ONE, torch.tensor([3]), *RANGE, _CHAR, None, X)],
        "quantize_per_channel.out": [(X, *_LINES, 0, *RANGE, _CHAR, BYTES)],
        "dequantize_per_channel.out": [(BYTES, EACH, z, 0, *RANGE, _CHAR, None, X) for z in (None, ZEROS)],
        "quantize_per_token.out": [(X, *_LINES, *RANGE, _CHAR, BYTES)],
        "dequantize_per_token.out": [(BYTES, *_LINES, *RANGE, _CHAR, _FLOAT, X)],
        "choose_qparams.Tensor_out": [(X, *RANGE, 1e-7, _CHAR, ONE, torch.tensor([0]))],
        "choose_qparams_per_token_asymmetric.out": [(X, _CHAR, EACH.double()[:, None], ZEROS[:, None])],
        **{
            f"embedding_{width}.{kind}": [
                (table, scales, zeros, -128, 127, ROWS, *dtype, torch.zeros(2, 2, 4 * per_byte))
                for scales, zeros in ((EACH, None), (torch.ones(3, 2), torch.ones(3, 2)))
            ]
            for width, per_byte, table in (("byte", 1, BYTES), ("4bit", 2, BYTES.to(torch.uint8)), ("2bit", 4, BYTES.to(torch.uint8)))
            for kind, dtype in (("out", ()), ("dtype_out", (_FLOAT,)))
        },
    }.items()
}  # fmt: skip
