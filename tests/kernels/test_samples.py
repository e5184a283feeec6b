# SPDX-License-Identifier: BSD-3-Clause
# Every kernel of the table is called at least once and compared with eager, or with Python if eager has no such
# operator: with torch's samples (test_parity.py), or here.

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.kernels import samples
from tests.kernels.kernel_call import check, run
from tests.kernels.test_misuse import argument_names, names_an_argument
from torchette.cli.ops import stored
from torchette.runtime import _native


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", samples.CALLS)
def test_calls_equal_eager(name: str) -> None:
    for call in samples.CALLS[name]:
        expected, arguments = samples.results(name, call), samples.arguments(name, copy.deepcopy(call))
        if isinstance(expected, list):
            results = [torch.empty_like(tensor) for tensor in expected]
            _native.call_kernel(name, *arguments, results)
            for ours, theirs in zip(results, expected, strict=True):
                assert torch.equal(ours, theirs)
        elif name.startswith("aten::_embedding_bag"):  # the other outputs only serve the backward operator
            first, *_ = run(name, *arguments, like=expected)
            torch.testing.assert_close(first, expected[0])
        else:
            check(name, expected, *arguments)


@pytest.mark.parametrize("name", samples.SCALARS)
def test_scalar_operators_equal_python(name: str) -> None:
    function, calls = samples.SCALARS[name]
    for args in calls:
        expected = function(*args)
        (result,) = _native.call_kernel(name, *args, None)
        assert type(result) is type(expected) and result == expected, args


@pytest.mark.parametrize("name", samples.OTHERS)
def test_mutated_arguments(name: str) -> None:
    for args, at, expected in samples.OTHERS[name]:
        _native.call_kernel(name, *args)
        assert torch.equal(args[at], expected)


def test_running_statistics_are_updated() -> None:
    x, mean, var = samples.IMAGE, samples.MEAN.clone(), samples.SPREAD.clone()
    expected = torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)
    ours = samples.MEAN.clone(), samples.SPREAD.clone()
    outs = [torch.empty_like(result) for result in expected]
    _native.call_kernel("aten::_native_batch_norm_legit.out", x, None, None, *ours, True, 0.1, 1e-5, *outs)
    for result, reference in zip((*outs, *ours), (*expected, mean, var), strict=True):
        torch.testing.assert_close(result, reference)


def spoilt(value: Any) -> list[Any]:
    """Returns invalid variants of an argument, without sizes, which depend on other arguments."""
    if isinstance(value, torch.Tensor):
        wrong_dtype = torch.int32 if value.is_floating_point() else torch.float32
        beyond = [value + 1000, value - 1000] if value.dtype == torch.int64 else []
        return [value.to(wrong_dtype), value.to(torch.bool), *beyond]
    if isinstance(value, str):
        return ["zz"]
    return [10**6, -(10**6)] if isinstance(value, int) and not isinstance(value, bool) else []


@pytest.mark.filterwarnings("ignore")
def test_errors_name_the_invalid_argument() -> None:
    refused, blameless = 0, []
    for name, calls in (*samples.CALLS.items(), *samples.VECTORS.items()):
        names, expected = argument_names(name), samples.results(name, calls[0])
        for at, argument in enumerate(samples.arguments(name, calls[0])):
            for value in spoilt(argument):
                arguments = copy.deepcopy(samples.arguments(name, calls[0]))
                arguments[at] = value
                outs = [copy.deepcopy(expected)] if isinstance(expected, list) else None
                outs = outs or [torch.empty_like(out) for out in pytree.tree_leaves(expected)]
                try:
                    _native.call_kernel(name, *arguments, *outs)
                except RuntimeError as error:
                    message = str(error).partition(" failed with error ")[2].partition(": ")[2]
                    refused += 1
                    # Values that are valid except in relation to the outputs may be reported for the outputs.
                    of_results = (
                        message.startswith("out")
                        or "cannot hold" in message
                        or "not have enough memory" in message
                    )
                    if not of_results and not names_an_argument(message, [names[at], f"argument {at}"]):
                        blameless.append(f"{name}, {names[at]} wrong: {message}")
    assert refused > 300 and not blameless, "\n".join(blameless)


def test_every_kernel_is_called() -> None:
    by_torch = set(stored()["kernels"])
    by_hand = {*samples.CALLS, *samples.SCALARS, *samples.OTHERS}
    drawn = set(re.findall(r'"(aten::[^"]+)"', Path(__file__).with_name("test_random.py").read_text()))
    assert drawn >= samples.RANDOM
    quantized = re.findall(r'"(\w+\.\w+)"', Path(__file__).with_name("test_quantized.py").read_text())
    by_hand |= {f"quantized_decomposed::{name}" for name in quantized}
    # tests/backends/engine/test_operators.py calls the kernels of the CPU engine.
    kernels = {name for name, _ in _native.operators() if not name.startswith("cpu::")}
    assert kernels - by_torch - by_hand - samples.RANDOM == set()
    assert by_hand | samples.RANDOM <= kernels
