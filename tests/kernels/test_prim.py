# SPDX-License-Identifier: BSD-3-Clause
# Scalar operators compared with Python's arithmetic, and operators that read sizes, elements and views.
from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchette.runtime import _native

INTEGERS = [0, 1, -1, 2, 3, -3, 7, -7, 100, 2**40, -(2**40)]
FLOATS = [0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 7.25, -1e9]
BINARY: list[tuple[str, Callable[..., Any]]] = [
    ("add.Scalar", operator.add),
    ("sub.Scalar", operator.sub),
    ("mul.Scalar", operator.mul),
    ("truediv.Scalar", operator.truediv),
    ("floordiv.Scalar", operator.floordiv),
    ("mod.Scalar", operator.mod),
    ("eq.Scalar", operator.eq),
    ("lt.Scalar", operator.lt),
    ("le.Scalar", operator.le),
    ("gt.Scalar", operator.gt),
    ("ge.Scalar", operator.ge),
    ("sym_max.Scalar", max),
    ("sym_min.Scalar", min),
    ("ne.Scalar", operator.ne),
]
BITWISE = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def call(name: str, *arguments: Any) -> Any:
    """Returns the value that the prim operator stores in its output slot."""
    (result,) = _native.call_kernel(f"executorch_prim::{name}", *arguments, None)
    return result


def equal(got: Any, expected: Any) -> bool:
    return type(got) is type(expected) and got == expected


@pytest.mark.parametrize(("name", "function"), BINARY)
def test_binary_operators(name: str, function: Callable[..., Any]) -> None:
    for numbers in (INTEGERS, FLOATS):
        for a, b in itertools.product(numbers, numbers):
            if b == 0 and ("div" in name or "mod" in name):
                with pytest.raises(RuntimeError, match="zero"):
                    call(name, a, b)
            elif isinstance(a, int) and not -(2**63) <= function(a, b) < 2**63:
                continue
            else:
                assert equal(call(name, a, b), function(a, b)), (a, b)


@pytest.mark.parametrize(("name", "function"), BINARY[:11])
def test_mixed_operands(name: str, function: Callable[..., Any]) -> None:
    for a, b in ((3, 0.5), (-7, 2.5), (0.5, 3), (-7.5, 2), (4, 4.0)):
        assert equal(call(name, a, b), function(a, b)), (a, b)


@pytest.mark.parametrize(
    ("name", "function"), [("floordiv.int", operator.floordiv), ("mod.int", operator.mod)]
)
def test_integer_division(name: str, function: Callable[..., Any]) -> None:
    for a, b in itertools.product(INTEGERS, [1, -1, 2, -2, 7, -7]):
        assert equal(call(name, a, b), function(a, b)), (a, b)


def test_int64_limits() -> None:
    least = -(2**63)
    assert call("add.Scalar", 2**63 - 1, 1) == least
    assert call("mul.Scalar", 2**62, 4) == 0
    assert call("neg.Scalar", least) == least
    assert call("floordiv.Scalar", least, -1) == least
    assert call("mod.Scalar", least, -1) == 0
    for name, x in itertools.product(
        ("ceil", "round", "trunc", "sym_int"), (1e300, -1e300, math.nan, math.inf)
    ):
        with pytest.raises(RuntimeError, match="int64"):
            call(f"{name}.Scalar", x)


def test_nan_compares_false() -> None:
    for name in ("eq", "lt", "le", "gt", "ge"):
        assert call(f"{name}.Scalar", math.nan, 1.0) is False
        assert call(f"{name}.Scalar", 1.0, math.nan) is False


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("neg.Scalar", operator.neg),
        ("ceil.Scalar", math.ceil),
        ("round.Scalar", round),
        ("trunc.Scalar", math.trunc),
        ("sym_int.Scalar", int),
        ("sym_float.Scalar", float),
    ],
)
def test_unary_operators(name: str, function: Callable[..., Any]) -> None:
    for a in [*INTEGERS, *FLOATS, 0.49, 1.5, 3.5, -0.5, -1.5, 2.0**52 + 0.5]:
        assert equal(call(name, a), function(a)), a


def test_conditions() -> None:
    assert call("sym_not.Scalar", True) is False
    assert call("sym_not.Scalar", False) is True
    for condition in (True, False):
        assert equal(call("sym_ite.Scalar", condition, 3, 4), 3 if condition else 4)
        assert equal(call("sym_ite.Scalar", condition, 3.5, True), 3.5 if condition else True)


def test_sizes() -> None:
    x = torch.empty(2, 3, 5)
    for dim in range(-3, 3):
        assert _native.call_kernel("aten::sym_size.int", x, dim, None) == [x.shape[dim]]
    assert _native.call_kernel("aten::sym_numel", x, None) == [30]
    assert _native.call_kernel("aten::sym_numel", torch.tensor(1), None) == [1]
    for y, dim in ((x, 3), (x, -4), (torch.tensor(1), 0)):
        with pytest.raises(RuntimeError):
            _native.call_kernel("aten::sym_size.int", y, dim, None)


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(200, dtype=torch.uint8),
        torch.tensor(-100, dtype=torch.int8),
        torch.tensor([-30000], dtype=torch.int16),
        torch.tensor([[-(2**31)]], dtype=torch.int32),
        torch.tensor(-(2**63)),
        torch.tensor(40000, dtype=torch.uint16),
        torch.tensor(2**32 - 1, dtype=torch.uint32),
        torch.tensor(1.5, dtype=torch.float16),
        torch.tensor(-2.5, dtype=torch.bfloat16),
        torch.tensor(0.1),
        torch.tensor(0.1, dtype=torch.float64),
        torch.tensor(True),
        torch.tensor(False),
    ],
    ids=lambda x: str(x.dtype)[6:],
)
def test_single_element(x: torch.Tensor) -> None:
    (result,) = _native.call_kernel("aten::_local_scalar_dense", x, None)
    assert equal(result, x.item())


def test_several_elements_are_rejected() -> None:
    for x in (torch.empty(0), torch.empty(2)):
        with pytest.raises(RuntimeError):
            _native.call_kernel("aten::_local_scalar_dense", x, None)


def test_view_with_separate_memory() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    for sizes in ([24], [-1, 4], [3, 8], [2, 3, 4], [1, 24, 1]):
        out = torch.zeros_like(x.view(sizes))
        assert _native.call_kernel("executorch_prim::et_view.default", x, sizes, out) == [tuple(out.shape)]
        assert torch.equal(out, x.view(sizes))
    for sizes in ([25], [-1, -1], [-1, 5], [-2, -12], [2**32, 6]):
        with pytest.raises(RuntimeError):
            _native.call_kernel("executorch_prim::et_view.default", x, sizes, torch.zeros([1] * len(sizes)))
    with pytest.raises(RuntimeError):
        _native.call_kernel("executorch_prim::et_view.default", x, [24], torch.zeros(24).long())


def test_view_of_another_dim_order() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="row-major"):
        _native.call_kernel("executorch_prim::et_view.default", x, [120], torch.zeros(120))
    out = torch.zeros_like(x)
    _native.call_kernel("executorch_prim::et_view.default", x, [2, 3, 4, 5], out)
    assert torch.equal(out, x)


def test_copy_index() -> None:
    rows = torch.randn(4, 2, 3)
    out = torch.zeros(4, 2, 3)
    for i in range(4):
        # The tensor grows by one row per call.
        assert _native.call_kernel("executorch_prim::et_copy_index.tensor", out, rows[i], i) == [
            (i + 1, 2, 3)
        ]
    assert torch.equal(out, rows)
    for row, index in (
        (rows[0], 4),
        (rows[0], -1),
        (rows[0], 2**40),
        (rows[0, 0], 0),
        (rows[0].t().contiguous(), 0),
        (rows[0].long(), 0),
    ):
        with pytest.raises(RuntimeError):
            _native.call_kernel("executorch_prim::et_copy_index.tensor", out, row, index)
    assert torch.equal(out, rows)


@pytest.mark.parametrize("name", BITWISE)
def test_bitwise_operators_on_integers_and_booleans(name: str) -> None:
    for numbers in (INTEGERS, [False, True]):
        for a, b in itertools.product(numbers, numbers):
            assert equal(call(f"{name}.Scalar", a, b), BITWISE[name](a, b)), (a, b)
    with pytest.raises(RuntimeError, match="bitwise"):
        call(f"{name}.Scalar", 1.5, 2)


def test_powers() -> None:
    for a, b in itertools.product([0, 1, -1, 2, -3, 10], range(12)):
        assert equal(call("pow.Scalar", a, b), a**b), (a, b)
    for a, b in ((2, -2), (2.0, 3), (2, 0.5), (0.25, 0.5)):
        assert equal(call("pow.Scalar", a, b), float(a) ** b), (a, b)


def test_shifts() -> None:
    for a, b in itertools.product([0, 1, 5, -5, 2**40], [0, 1, 7, 20]):
        assert equal(call("lshift.Scalar", a, b), a << b) and equal(call("rshift.Scalar", a, b), a >> b)
    assert (
        call("rshift.Scalar", -1, 200) == -1
        and call("rshift.Scalar", 1, 200) == call("lshift.Scalar", 1, 200) == 0
    )
    with pytest.raises(RuntimeError, match="at least 0"):
        call("lshift.Scalar", 1, -1)


def test_square_root_and_magnitude() -> None:
    for a in (0, 1, 2.25, 1e10):
        assert equal(call("sym_sqrt.Scalar", a), math.sqrt(a))
    with pytest.raises(RuntimeError, match="square root"):
        call("sym_sqrt.Scalar", -1)
    for numbers in (INTEGERS, FLOATS):
        for number in numbers:
            assert equal(call("abs.Scalar", number), abs(number))


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_failed_assertion_is_an_error_with_its_message(name: str) -> None:
    def fails(a: Any, b: Any) -> str:
        try:
            _native.call_kernel(f"executorch_prim::{name}.Scalar", a, b, "what is wrong")
        except RuntimeError as error:
            return str(error)
        return ""

    holds = getattr(operator, name)
    for a, b in itertools.product([-2, 0, 3, 2**53, 0.5], repeat=2):
        assert ("what is wrong: " in fails(a, b)) == (not holds(a, b)), (a, b)
    for a, b in itertools.product([False, True], repeat=2):
        message = fails(a, b)
        assert ("what is wrong" in message and " is not " not in message) if not holds(a, b) else not message
