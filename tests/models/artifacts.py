# SPDX-License-Identifier: BSD-3-Clause
# What the end-to-end and interop tests share about one reference model: eager's answer, our file and the peer's. Each
# is made once per test process; tests of one model are grouped (`each_model`) so that one process makes it.

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import torchette
from tests.models import zoo
from torchette._compile import CompiledModel

# Equal to eager means this close, for float32; other dtypes are equal bit by bit.
RTOL, ATOL = 1e-4, 1e-5

each_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in zoo.names()]
)


def assert_equal_to_eager(actual: Any, name: str) -> None:
    torch.testing.assert_close(torch.as_tensor(actual), eager(name), rtol=RTOL, atol=ATOL)


@functools.cache
def built(name: str) -> zoo.Built:
    """The module and its arguments; never call the module itself, which may have state (use `fresh_module`)."""
    return zoo.build(name)


def fresh_module(name: str) -> torch.nn.Module:
    """A copy of the module in its initial state."""
    return copy.deepcopy(built(name)[0])


def args(name: str) -> tuple[Tensor, ...]:
    return built(name)[1]


@functools.cache
def eager(name: str) -> Tensor:
    """What the module gives on its arguments in its initial state."""
    with torch.no_grad():
        return fresh_module(name)(*args(name))


@functools.cache
def compiled(name: str) -> CompiledModel:
    """Our compiler's work on the model, through the front door."""
    return torchette.compile(built(name)[0], args(name))


@functools.cache
def our_file(name: str) -> bytes:
    """The .pte that ExecuTorch's own calls give in our compiler: planned inputs and outputs."""
    from torchette.exir import to_edge

    return to_edge(exported(name)).to_executorch().buffer


@functools.cache
def peer_file(name: str) -> bytes:
    """The .pte that ExecuTorch's compiler makes of the model without a delegate."""
    from executorch.exir import to_edge

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return to_edge(exported(name)).to_executorch().buffer


def exported(name: str) -> torch.export.ExportedProgram:
    """The model captured anew, since a compiler may change what it is given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of how its own LSTM keeps its weights
        return torch.export.export(built(name)[0], args(name))
