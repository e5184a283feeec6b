# SPDX-License-Identifier: BSD-3-Clause
# Every layer of torch.nn on all of torch's own samples of it: compiled, run on the runtime, held against eager.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

import torchette
from torchette.errors import TorchetteError

# Layers that are refused, with the code that says why: what draws random numbers has no answer that could be compared.
REFUSED = {
    "nn.FractionalMaxPool2d": "not-core",
    "nn.FractionalMaxPool3d": "not-core",
}


def samples(info: Any) -> Iterator[tuple[str, nn.Module, tuple, dict]]:
    """(description, a module in eval mode, args, kwargs) of each of torch's samples."""
    dtype = torch.float32 if torch.float32 in info.dtypes else info.dtypes[0]
    torch.manual_seed(0)
    given = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=False)
    for index, sample in enumerate(given):
        if sample.forward_input is None:
            continue
        made, called = sample.constructor_input, sample.forward_input
        module = info.module_cls(*made.args, **made.kwargs).to(dtype).eval()
        yield f"{index} {sample.desc}", module, tuple(called.args), dict(called.kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_all_samples_equal_eager(info: Any) -> None:
    failed, count = [], 0
    for what, module, args, kwargs in samples(info):
        count += 1
        with torch.no_grad():
            expected = module(*args, **kwargs)  # which is also what makes a lazy layer
        try:
            actual = torchette.compile(module.requires_grad_(False), args, kwargs)(*args, **kwargs)
            for ours, eager in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
                torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5, equal_nan=True)
        except TorchetteError as error:
            failed.append(error.code)
        except AssertionError as error:
            failed.append(f"{what}: {error}")
    refused = REFUSED.get(info.name)
    assert count and failed == [refused] * (count if refused else 0), failed
