# SPDX-License-Identifier: BSD-3-Clause
# Elementwise kernels compared with eager: types, broadcasting, dim orders, in-place calls, special values.
from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from tests.kernels.kernel_call import run
from torchette.runtime import _native

NAMES = {name for name, _ in _native.operators()}
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-30,
    -1e-30,
    0.5,
    -0.5,
    2.5,
    -88.0,
    88.0,
    1e-41,
    30.0,
]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]


def check(name: str, expected: torch.Tensor, *arguments: Any, ulp: float = 1.0) -> None:
    """Compares a kernel with eager, using the default tolerance of assert_close for the type."""
    (output,) = run(name, *arguments, like=[expected])
    tolerance = {}
    if expected.dtype in (torch.float16, torch.bfloat16):
        tolerance = {"rtol": 2 * torch.finfo(expected.dtype).eps, "atol": 1e-5}
    torch.testing.assert_close(output, expected, equal_nan=True, **tolerance)


def random_values(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, low: float = -4, high: float = 4
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        return (torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -20, 20, shape, generator=generator).to(dtype)


FLOAT = [
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1", "log", "log10", "log1p",
    "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip
FLOAT_ONLY = ["silu", "hardsigmoid", "hardswish", "gelu"]
SAME = ["abs", "ceil", "floor", "neg", "relu", "round", "sign", "trunc"]
TEST = ["isinf", "isnan", "logical_not"]


@pytest.mark.parametrize("name", FLOAT + SAME + TEST)
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_unary(name: str, dtype: torch.dtype) -> None:
    if dtype == torch.bool and name in ("neg", "abs", "ceil", "floor", "round", "trunc", "relu"):
        pytest.skip("eager refuses bool")
    x = random_values((5, 67), dtype)
    if name in ("log", "log2", "log10", "sqrt", "rsqrt") and dtype.is_floating_point:
        x = x.abs()
    check(f"aten::{name}.out", getattr(torch.ops.aten, name)(x), x)


# Functions that do not use the C library, and the maximum argument.
FAST = {
    "acos": 1, "asin": 1, "atan": 90, "cos": 1e6, "cosh": 90, "erf": 5, "exp": 104, "expm1": 90, "sin": 1e6, "sinh": 90,
    "tan": 1e6, "tanh": 12,
}  # fmt: skip


@pytest.mark.parametrize("name", FAST)
def test_accuracy_in_ulp(name: str) -> None:
    """At most 4 ulp for values of all magnitudes; the signs of zeros and infinities match eager."""
    generator, most = torch.Generator().manual_seed(0), FAST[name]
    even = (torch.rand(200_000, generator=generator, dtype=torch.float64) * 2 - 1) * most
    small = even.sign() * torch.exp(-torch.rand(200_000, generator=generator, dtype=torch.float64) * 90)
    ends = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-41, -1e-41, most, -most, 89.4, -89.4])
    x = torch.cat([even, small, ends.clamp(-most, most) if name in ("sin", "cos", "tan") else ends]).float()
    (y,) = run(f"aten::{name}.out", x, like=[x])
    right = getattr(torch, name)(x.double())
    nearest = right.float()
    unit = torch.nextafter(nearest.abs(), torch.tensor(math.inf)) - nearest.abs()
    finite = nearest.isfinite() & unit.isfinite()
    assert ((y - right).abs()[finite] <= 4 * unit[finite]).all()
    torch.testing.assert_close(y[~finite], nearest[~finite], rtol=1e-6, atol=0, equal_nan=True)
    zero = y == 0
    assert torch.equal(y[zero].signbit(), nearest[zero].signbit())


@pytest.mark.parametrize("name", FLOAT_ONLY)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_of_networks(name: str, dtype: torch.dtype) -> None:
    x = random_values((300,), dtype, low=-8, high=8)
    if name == "gelu":
        for mode in ("none", "tanh"):
            check("aten::gelu.out", torch.nn.functional.gelu(x, approximate=mode), x, mode)
    else:
        check(f"aten::{name}.out", getattr(torch.nn.functional, name)(x), x)


@pytest.mark.parametrize("name", FLOAT + SAME + TEST + ["silu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_special_values(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL * 3, dtype=dtype)
    if name in ("cosh", "sinh"):
        x = x.clamp(-80, 80)  # overflow has no tolerance
    check(f"aten::{name}.out", getattr(torch.ops.aten, name)(x), x)


@pytest.mark.parametrize("name", ["exp", "log", "log1p", "expm1", "tanh", "erf", "sigmoid", "log2", "log10"])
def test_accuracy_over_the_full_range(name: str) -> None:
    """Within 4 ulp of double precision if the result is a normal float."""
    bits = torch.arange(0, 2**32, 65521, dtype=torch.int64).to(torch.int32)
    x = bits.view(torch.float32)
    x = x[torch.isfinite(x)]
    exact = getattr(torch, name)(x.double())
    keep = (exact.abs() < 3e38) & (exact.abs() > 1.2e-38)
    x, exact = x[keep], exact[keep]
    (output,) = run(f"aten::{name}.out", x, like=[x.clone()])
    error = ((output.double() - exact) / exact).abs().max().item()
    assert error < 4 * 2**-23


def test_large_angles() -> None:
    x = torch.tensor([1e3, -1e5, 9e5, 1.1e6, -3e7, 1e10, 1e20, 3e38], dtype=torch.float32)
    for name in ("sin", "cos"):
        check(f"aten::{name}.out", getattr(torch, name)(x), x)


BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "atan2", "floor_divide"]
COMPARE = ["eq", "ge", "gt", "le", "lt", "ne"]
BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor"]
LOGICAL = ["logical_and", "logical_or", "logical_xor"]
REMAINDER = ["fmod", "remainder"]


def overload(name: str) -> str:
    return f"aten::{name}.Tensor_out" if name in COMPARE + BITWISE + REMAINDER else f"aten::{name}.out"


def extra(name: str) -> list[Any]:
    return [1] if name in ("add", "sub") else []


PAIRS = [
    (torch.float32, torch.float32), (torch.float32, torch.int64), (torch.int32, torch.float16), (torch.int64, torch.int64),
    (torch.int8, torch.uint8), (torch.float64, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.bool, torch.int32),
    (torch.bool, torch.bool), (torch.float16, torch.bfloat16), (torch.int16, torch.uint8),
]  # fmt: skip


@pytest.mark.parametrize("name", BINARY + COMPARE + BITWISE + LOGICAL + REMAINDER)
@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_binary_promotes(name: str, types: tuple[torch.dtype, torch.dtype]) -> None:
    a, b = random_values((3, 50), types[0], 1), random_values((3, 50), types[1], 2)
    if name in ("div", "floor_divide", *REMAINDER):
        b = b + (b == 0) if b.dtype != torch.bool else torch.ones_like(b)
    try:
        expected = getattr(torch, name)(a, b)
    except (RuntimeError, NotImplementedError):
        pytest.skip("eager refuses these types")
    check(overload(name), expected, a, b, *extra(name))


SHAPES = [
    ((4, 5), (4, 5)), ((4, 5), (5,)), ((4, 5), (4, 1)), ((4, 1), (1, 5)), ((2, 3, 7, 7), (3, 1, 1)),
    ((2, 3, 400), (3, 1)), ((2, 3, 400), (400,)), ((600,), ()), ((), ()), ((0, 3), (1, 3)), ((2, 1, 300), (2, 4, 1)),
    ((1, 9), (9, 1)), ((3, 1, 2, 1, 5), (3, 4, 1, 6, 5)), ((1000, 3), (3,)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("types", [(torch.float32, torch.float32), (torch.float16, torch.int64)], ids=str)
def test_broadcasting(shapes: Any, types: Any) -> None:
    a, b = random_values(shapes[0], types[0], 1), random_values(shapes[1], types[1], 2)
    check("aten::sub.out", a - b, a, b, 1)
    check("aten::sub.out", b - a, b, a, 1)
    check("aten::lt.Tensor_out", a < b, a, b)


def test_three_operands_broadcast() -> None:
    c, a, b = (
        random_values((5, 1, 9), torch.bool),
        random_values((4, 9), torch.float32),
        random_values((5, 4, 1), torch.float32, 3),
    )
    check("aten::where.self_out", torch.where(c, a, b), c, a, b)
    check("aten::where.self_out", torch.where(c, a, torch.tensor(1)), c, a, torch.tensor(1))
    integers = random_values((9,), torch.int32)
    check("aten::where.self_out", torch.where(c, integers, integers * 2), c, integers, integers * 2)


@pytest.mark.parametrize("dims", list(itertools.permutations(range(4)))[::5], ids=str)
def test_dim_orders(dims: tuple[int, ...]) -> None:
    """Inputs with another dim order than the output, with the same dim order, and with broadcasting."""
    a = random_values((3, 4, 5, 6), torch.float32)
    b = random_values(tuple((3, 4, 5, 6)[d] for d in dims), torch.float32, 2).permute(
        [dims.index(d) for d in range(4)]
    )
    expected = torch.empty_strided(a.shape, b.stride()).copy_(a * b)
    check("aten::mul.out", expected, a, b)
    check("aten::mul.out", a * b, a, b)
    check("aten::mul.out", torch.empty_like(b).copy_(b * 2), b, torch.tensor(2.0))


def test_single_elements() -> None:
    """Single elements of any rank, strides and types. The output is resized within its capacity."""
    values = [
        torch.tensor(2.5),
        torch.tensor([-1.5]),
        torch.tensor([[4.0]]),
        torch.tensor([[3.0]]).as_strided((1, 1), (5, 7)),
        torch.tensor([3.0, 8.0])[1:].expand(1, 1),
    ]
    for a, b in itertools.product(values, values):
        check("aten::add.out", a + b, a, b, 1)
        check("aten::sub.out", torch.sub(a, b, alpha=2), a, b, 2)
        check("aten::lt.Tensor_out", a < b, a, b)
        check("aten::logical_and.out", (a < b) & (a < 3), a < b, a < 3)
        check("aten::mul.out", a * b.int(), a, b.int())
    check("aten::neg.out", -values[3], values[3])
    output = torch.empty(4)
    assert _native.call_kernel("aten::neg.out", torch.ones(1), output) == [(1,)] and output[0] == -1
    with pytest.raises(RuntimeError, match="memory"):
        _native.call_kernel("aten::add.out", torch.ones(3), torch.ones(1), 1, torch.empty(1))


def test_ranks_of_operands() -> None:
    """0-d tensors and scalars do not promote a tensor of the same category."""
    half = random_values((7,), torch.float16)
    check(
        "aten::mul.out",
        half * torch.tensor(2.0, dtype=torch.float64),
        half,
        torch.tensor(2.0, dtype=torch.float64),
    )
    byte = random_values((7,), torch.uint8)
    check("aten::add.out", byte + torch.tensor(3), byte, torch.tensor(3), 1)
    check("aten::add.Scalar_out", byte + 2.5, byte, 2.5, 1)
    check("aten::mul.Scalar_out", byte * 2, byte, 2)
    check("aten::eq.Scalar_out", byte == 3, byte, 3)


def test_alpha() -> None:
    a, b = random_values((33,), torch.float32), random_values((33,), torch.float32, 1)
    check("aten::add.out", torch.add(a, b, alpha=0.5), a, b, 0.5)
    check("aten::sub.out", torch.sub(a, b, alpha=3), a, b, 3)
    check("aten::sub.Scalar_out", torch.sub(a, 2.0, alpha=3), a, 2.0, 3)
    check("aten::rsub.Scalar_out", torch.rsub(a, 2.0, alpha=3), a, 2.0, 3)
    integers = random_values((33,), torch.int32)
    check("aten::add.out", torch.add(integers, integers, alpha=2), integers, integers, 2)
    with pytest.raises(RuntimeError, match="alpha"):
        _native.call_kernel("aten::add.out", integers, integers, 0.5, torch.empty(33, dtype=torch.int32))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8], ids=str
)
@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division(dtype: torch.dtype, mode: str | None) -> None:
    a, b = random_values((200,), dtype, 1), random_values((200,), dtype, 2)
    if not dtype.is_floating_point:
        b = b + (b == 0).to(dtype)
    else:
        b[:3] = 0
    check("aten::div.out_mode", torch.div(a, b, rounding_mode=mode), a, b, mode)
    check("aten::div.Scalar_mode_out", torch.div(a, 3, rounding_mode=mode), a, 3, mode)
    check("aten::fmod.Scalar_out", torch.fmod(a, 3), a, 3)
    check("aten::remainder.Scalar_out", torch.remainder(a, 3), a, 3)


@pytest.mark.parametrize("name", REMAINDER)
def test_remainders_are_exact(name: str) -> None:
    """Chunks with plain quotients, and chunks with a huge, infinite or NaN quotient, or a remainder of signed zero."""
    torch.manual_seed(0)
    a, b = torch.randn(3000) * 1e4, torch.randn(3000)
    a[1500:] *= 10 ** torch.linspace(-40, 30, 1500)
    hard = [
        (3e37, 0.3),
        (1.0, 0.0),
        (torch.inf, 2.0),
        (2.0, -torch.inf),
        (-6.0, 3.0),
        (-0.0, 3.0),
        (torch.nan, 1.0),
        (2.0**27 - 1, 1 / 3),
    ]
    a[700 : 700 + len(hard)], b[700 : 700 + len(hard)] = torch.tensor(hard).T
    expected = getattr(torch, name)(a, b)
    (result,) = run(overload(name), a, b, like=[expected])
    _native.call_kernel(overload(name), a, b, a)  # overwrites an operand
    for ours in (result, a):
        assert torch.equal(
            ours.nan_to_num(99.0).view(torch.int32), expected.nan_to_num(99.0).view(torch.int32)
        )


@pytest.mark.parametrize(
    "name", ["div.out_mode", "remainder.Tensor_out", "fmod.Tensor_out", "floor_divide.out"]
)
def test_integer_division_by_zero_is_an_error(name: str) -> None:
    a, b = torch.tensor([1, 2, 3]), torch.tensor([1, 0, 1])
    mode = ["floor"] if name == "div.out_mode" else []
    with pytest.raises(RuntimeError, match="divided by zero"):
        _native.call_kernel(f"aten::{name}", a, b, *mode, torch.empty(3, dtype=torch.int64))


def test_minimum_integer_divided_by_minus_one_does_not_trap() -> None:
    a = torch.tensor([torch.iinfo(torch.int64).min, 6])
    run("aten::floor_divide.out", a, torch.tensor([-1, -1]), like=[a])
    run("aten::remainder.Tensor_out", a, torch.tensor([-1, -1]), like=[a])


@pytest.mark.parametrize("exponent", [0.5, -0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_roots_of_special_values(exponent: float, dtype: torch.dtype) -> None:
    """In float16, torch's power of -infinity is not that of a square root."""
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, -1.0, 4.0] * 5, dtype=dtype)
    check("aten::pow.Tensor_Scalar_out", torch.pow(x, exponent), x, exponent)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 1.7])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int32, torch.uint8], ids=str
)
def test_pow(exponent: float, dtype: torch.dtype) -> None:
    x = random_values((100,), dtype, low=0.1, high=5)
    if not dtype.is_floating_point and isinstance(exponent, int) and exponent < 0:
        pytest.skip("eager refuses")
    check("aten::pow.Tensor_Scalar_out", torch.pow(x, exponent), x, exponent)
    if dtype.is_floating_point:
        check("aten::pow.Scalar_out", torch.pow(1.5, x), 1.5, x)
        check("aten::pow.Tensor_Tensor_out", torch.pow(x, x), x, x)


def test_bits() -> None:
    a, b = random_values((50,), torch.int32), random_values((50,), torch.int32, 2).abs()
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        check(f"aten::{name}.Tensor_out", getattr(torch, name)(a, b), a, b)
        check(f"aten::{name}.Tensor_Scalar_out", getattr(torch, name)(a, 3), a, 3)
    for x in (a, a.to(torch.uint8), a > 0):
        check("aten::bitwise_not.out", torch.bitwise_not(x), x)
        check("aten::bitwise_and.Scalar_out", torch.bitwise_and(x, 1), x, 1)
    with pytest.raises(RuntimeError, match="no meaning"):
        _native.call_kernel("aten::bitwise_and.Tensor_out", a.float(), a.float(), torch.empty(50))


def test_clamps() -> None:
    x = torch.cat([random_values((300,), torch.float32), torch.tensor(SPECIAL)])
    check("aten::clamp.out", x.clamp(-1, 2), x, -1, 2)
    check("aten::clamp.out", x.clamp(min=0.5), x, 0.5, None)
    check("aten::clamp.out", x.clamp(max=0.5), x, None, 0.5)
    check("aten::clamp.out", x.clamp(2, 1), x, 2, 1)
    bound = torch.tensor(0.25)
    check("aten::clamp.Tensor_out", torch.clamp(x, bound, None), x, bound, None)
    check("aten::hardtanh.out", torch.nn.functional.hardtanh(x, 0, 6), x, 0, 6)
    check("aten::leaky_relu.out", torch.nn.functional.leaky_relu(x, 0.1), x, 0.1)
    check("aten::elu.out", torch.nn.functional.elu(x, 1.5), x, 1.5, 1, 1)
    integers = random_values((30,), torch.int64)
    check("aten::clamp.out", integers.clamp(-3, 5), integers, -3, 5)
    check("aten::clamp.out", integers.clamp(-3.5, 5), integers, -3.5, 5)
    with pytest.raises(RuntimeError, match="min or max"):
        _native.call_kernel("aten::clamp.out", x, None, None, x.clone())


def test_masks() -> None:
    x, mask = random_values((4, 70), torch.float32), random_values((70,), torch.bool)
    check("aten::masked_fill.Scalar_out", x.masked_fill(mask, -1e9), x, mask, -1e9)
    check("aten::logit.out", torch.logit(x.sigmoid()), x.sigmoid(), None)
    check("aten::logit.out", torch.logit(x, eps=0.1), x, 0.1)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_conversions(dtype: torch.dtype) -> None:
    for target_dtype in FLOATS + INTEGERS:
        x = random_values((3, 100), dtype, low=0, high=100)
        check("aten::_to_copy.out", x.to(target_dtype), x, False, None)
        check(
            "aten::copy.out",
            torch.zeros(3, 100, dtype=target_dtype).copy_(x[0]),
            torch.zeros(3, 100, dtype=target_dtype),
            x[0],
            False,
        )
    x = random_values((4, 5, 6), dtype)
    check(
        "dim_order_ops::_to_dim_order_copy.out",
        x.float().permute(2, 0, 1).contiguous().permute(1, 2, 0),
        x,
        False,
        None,
    )
    check(
        "dim_order_ops::_clone_dim_order.out",
        x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        x,
        False,
        [1, 2, 0],
    )


def test_half_precision_conversion_is_exact() -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        x = bits.view(dtype)
        check("aten::_to_copy.out", x.float(), x, False, None)
        x = torch.cat([x.float() * 1.00048828125, torch.tensor(SPECIAL)])
        (output,) = run("aten::_to_copy.out", x, False, None, like=[x.to(dtype)])
        assert torch.equal(output.nan_to_num(7), x.to(dtype).nan_to_num(7))


def test_in_place_calls() -> None:
    x, y = random_values((700,), torch.float32), random_values((700,), torch.float32, 2)
    expected = x + y
    _native.call_kernel("aten::add.out", x, y, 1, x)
    assert torch.equal(x, expected)
    half = x.half()
    expected = half * 2
    _native.call_kernel("aten::mul.Scalar_out", half, 2, half)
    assert torch.equal(half, expected)


def test_fills() -> None:
    for dtype in FLOATS + INTEGERS:
        check("aten::full.out", torch.full((3, 4), 1, dtype=dtype), [3, 4], 1)
        check("aten::full_like.out", torch.full((3, 4), 1, dtype=dtype), torch.zeros(3, 4), True, None)
        check("aten::zeros.out", torch.zeros(5, dtype=dtype), [5])
        check("aten::scalar_tensor.out", torch.tensor(3.0).to(dtype), 3.0)
        if dtype != torch.bool:
            check("aten::arange.start_out", torch.arange(2, 90, 3, dtype=dtype), 2, 90, 3)
    check("aten::full.out", torch.full((3,), -math.inf), [3], -math.inf)
    check("aten::arange.out", torch.arange(0.0, 3.5), 3.5)
    check("aten::arange.start_out", torch.arange(1.0, -2.0, -0.25), 1.0, -2.0, -0.25)
    check("aten::fill.Scalar_out", torch.full((3,), 7), torch.zeros(3), 7)
    check("aten::fill.Tensor_out", torch.full((3,), 7), torch.zeros(3), torch.tensor(7.0).long())
    x = torch.zeros(2, 3)
    _native.call_kernel("aten::copy_", x, torch.tensor([1, 2, 3]), False)
    assert torch.equal(x, torch.tensor([[1.0, 2, 3]] * 2))


def test_outputs_are_resized_to_the_broadcast_sizes() -> None:
    sizes = _native.call_kernel("aten::add.out", torch.ones(2, 1), torch.ones(1, 3), 1, torch.empty(4, 4))
    assert tuple(sizes[0]) == (2, 3)
    with pytest.raises(RuntimeError, match="broadcast"):
        _native.call_kernel("aten::add.out", torch.ones(2), torch.ones(3), 1, torch.empty(3))
    with pytest.raises(RuntimeError, match="memory"):
        _native.call_kernel("aten::add.out", torch.ones(9), torch.ones(9), 1, torch.empty(3))
    with pytest.raises(RuntimeError, match="cast"):
        _native.call_kernel(
            "aten::add.out", torch.ones(3), torch.ones(3), 1, torch.empty(3, dtype=torch.int32)
        )


# Inputs that are large enough for several threads: some chunks use another code path, rows are long or short.
IMAGE = torch.linspace(-3000, 3000, 188160).view(1, 28, 28, 240)
DIVIDED: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "same geometry": ("add.out", torch.add, (IMAGE, IMAGE.flip(1), 1)),
    "a row for all": ("mul.out", torch.mul, (IMAGE, IMAGE[:, :1, :1])),
    "a column for all": ("mul.out", torch.mul, (IMAGE, IMAGE[..., :1])),
    "channels first": ("mul.out", torch.mul, (IMAGE.view(1, 240, 28, 28), IMAGE[0, 0, 0].view(1, 240, 1, 1))),
    "far angles in some chunks": ("sin.out", torch.sin, (IMAGE * 1000,)),
    "angles, permuted": ("sin.out", torch.sin, ((IMAGE * 1000).permute(0, 3, 1, 2),)),
    "far remainders": ("remainder.Tensor_out", torch.remainder, (IMAGE * 1e9, IMAGE.flip(2))),
    "comparison": ("gt.Tensor_out", torch.gt, (IMAGE, IMAGE.flip(2))),
    "integers": ("mul.out", torch.mul, (IMAGE.long(), IMAGE.long().flip(1))),
    "half": ("mul.out", torch.mul, (IMAGE.half(), IMAGE[..., :1].half())),
    "two types": ("sub.out", torch.sub, (IMAGE.int(), IMAGE, 1)),
}


@pytest.mark.parametrize("case", DIVIDED)
def test_thread_count_does_not_change_results(case: str) -> None:
    name, eager, arguments = DIVIDED[case]
    expected = eager(*arguments[:2])
    (alone,) = run(f"aten::{name}", *arguments, like=[expected])
    for threads in (2, 3):
        (shared,) = run(f"aten::{name}", *arguments, like=[expected], threads=threads)
        assert torch.equal(shared, alone)
    torch.testing.assert_close(alone, expected, equal_nan=True)


def test_a_division_by_zero_on_any_thread_is_an_error() -> None:
    dividend, divisor = torch.ones(200_000, dtype=torch.int64), torch.ones(200_000, dtype=torch.int64)
    divisor[-1] = 0
    with pytest.raises(RuntimeError, match="divided by zero"):
        run("aten::div.out_mode", dividend, divisor, "floor", like=[dividend], threads=2)
