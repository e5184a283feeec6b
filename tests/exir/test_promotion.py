# SPDX-License-Identifier: BSD-3-Clause
# Operands with all pairs of dtypes: casts are explicit in the graph, and the runtime's results have the dtype and
# values of eager mode. Pairs that only eager mode supports are rejected ahead of time.

import operator

import pytest
import torch
from graphs import Function, export

import torchette
from tests.sweep import sweep
from torchette.errors import DialectError
from torchette.exir import to_edge
from torchette.exir.dialects._ops import ops as exir_ops

edge = exir_ops.edge.aten
DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
)  # fmt: skip
UNUSUAL = (torch.uint16, torch.complex64)
OPERATORS = (operator.add, operator.sub, operator.mul, operator.truediv)
NUMBERS = (True, 3, 1.5)


def left(dtype):
    return torch.tensor([0, 1, 3, 100]).to(dtype)


def right(dtype, shape=(4,)):
    return (torch.tensor([1, 1, 2, 7]) if shape else torch.tensor(3)).to(dtype)


def in_eager(function, *args):
    try:
        return function(*args)
    except RuntimeError:  # eager mode does not support this pair
        return None


def compiled(pairs, function):
    """Returns (model that computes all pairs, its inputs, results of eager mode)."""
    valid_pairs = [(a, b) for a, b in pairs if in_eager(function, a, b) is not None]
    tensors = tuple(value for pair in valid_pairs for value in pair if isinstance(value, torch.Tensor))

    def forward(*inputs):
        remaining = iter(inputs)
        both = [[next(remaining) if isinstance(v, torch.Tensor) else v for v in pair] for pair in valid_pairs]
        return tuple(function(a, b) for a, b in both)

    return torchette.compile(Function(forward), tensors), tensors, forward(*tensors)


def check(pairs, function):
    """Checks that all results have the dtypes and values of eager mode."""
    model, tensors, expected = compiled(pairs, function)
    assert len(expected) > 15
    for result, reference in zip(map(torch.as_tensor, model(*tensors)), expected, strict=True):
        assert result.dtype == reference.dtype
        torch.testing.assert_close(
            result, reference, rtol=1e-2 if reference.dtype.itemsize == 2 else 1e-6, atol=0
        )


@pytest.mark.parametrize("shape", [(4,), ()], ids=["1-d", "0-d"])
@pytest.mark.parametrize(
    "function", sweep(OPERATORS, operator.add, operator.truediv), ids=lambda f: f.__name__
)
def test_pairs_of_dtypes(function, shape):
    check([(left(a), right(b, shape)) for a in DTYPES for b in DTYPES], function)


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_dtypes_and_scalars(function):
    check([(left(a), number) for a in DTYPES for number in NUMBERS], function)


@pytest.mark.parametrize("unusual", UNUSUAL, ids=str)
@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_pairs_without_runtime_dtype_are_rejected_or_correct(function, unusual):
    dtypes = (*DTYPES, *UNUSUAL)
    pairs = [(left(a), right(b)) for dtype in dtypes for a, b in ((unusual, dtype), (dtype, unusual))]
    try:
        check(pairs, function)
    except DialectError as error:
        assert {v.code for v in error.violations} <= {
            "unsupported-dtype",
            "no-kernel-for-dtype",
            "complex-tensor",
        }
    else:
        assert unusual is not torch.complex64


def test_integer_tensor_and_float_scalar_become_a_cast_and_a_float_operator():
    x = torch.tensor([1, 2, 3], dtype=torch.int32)
    program = to_edge(export(lambda x: x + 1.5, (x,))).exported_program()
    cast, add = [node for node in program.graph.nodes if node.op == "call_function"]
    assert cast.target == edge._to_copy.default and cast.kwargs == {"dtype": torch.float32}
    assert add.target == edge.add.Tensor and add.args[0] is cast
    assert {node.meta["val"].dtype for node in (cast, add, *add.args)} == {torch.float32}
    assert add.args[1].op == "placeholder"


def test_members_of_a_list_are_cast():
    x = torch.arange(3)
    args = (x, x.float() + 0.5, x.half())
    for function in (lambda *tensors: torch.cat(tensors), lambda *tensors: torch.stack(tensors)):
        result = torch.as_tensor(torchette.compile(Function(function), args)(*args))
        torch.testing.assert_close(result, function(*args), rtol=0, atol=0)
