# SPDX-License-Identifier: BSD-3-Clause
# Every layer of torch.nn with all of torch's samples: compiled, run on the runtime and compared with eager.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

import torchette
from torchette.errors import TorchetteError

# These layers draw random values, so only dtype and shape are compared.
DRAWN = (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
# (description, a module in eval mode, args, kwargs)
Sample = tuple[str, nn.Module, tuple, dict]


def samples(info: Any) -> Iterator[Sample]:
    """Yields each of torch's samples of a layer."""
    dtype = torch.float32 if torch.float32 in info.dtypes else info.dtypes[0]
    torch.manual_seed(0)
    inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=False)
    for index, sample in enumerate(inputs):
        if sample.forward_input is None:
            continue
        constructor, called = sample.constructor_input, sample.forward_input
        module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype).eval()
        yield f"{index} {sample.desc}", module, tuple(called.args), dict(called.kwargs)


class Several(nn.Module):
    """Several layers with the inputs of all of them. Compiling one program costs less than compiling many."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, *calls: tuple[tuple, dict]) -> list[Any]:
        return [part(*args, **kwargs) for part, (args, kwargs) in zip(self.parts, calls, strict=True)]


def eager(module: nn.Module, args: tuple, kwargs: dict) -> Any:
    """Returns the results of the layers as torch.export captures them. Eager's fast path writes zeros at padding, and a
    decoder after it attends to them."""
    padded = any("padding_mask" in name and value is not None for name, value in kwargs.items())
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled and not padded)
    try:
        with torch.no_grad():  # also initializes a lazy layer
            return module(*args, **kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def faults(batch: Sequence[Sample]) -> list[str]:
    """Returns the faults of samples: error codes of rejections, and differences from eager."""
    expected = [eager(module, args, kwargs) for _, module, args, kwargs in batch]
    batch_module = Several([module for _, module, _, _ in batch]).eval().requires_grad_(False)
    calls = tuple((args, kwargs) for _, _, args, kwargs in batch)
    try:
        actual = torchette.compile(batch_module, calls)(*calls)
        for (_, module, _, _), *results in zip(batch, actual, expected, strict=True):
            for ours, theirs in zip(*map(pytree.tree_leaves, results), strict=True):
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
                if not isinstance(module, DRAWN):
                    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    except (TorchetteError, AssertionError) as error:
        if len(batch) == 1:
            refused = isinstance(error, TorchetteError)
            return [error.code if refused else f"{batch[0][0]}: {error}"]  # type: ignore[union-attr]
        half = len(batch) // 2
        return faults(batch[:half]) + faults(batch[half:])
    return []


@pytest.mark.slow
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_all_samples_equal_eager(info: Any) -> None:
    every = list(samples(info))
    differences = [fault for start in range(0, len(every), 24) for fault in faults(every[start : start + 24])]
    assert every and not differences, differences
