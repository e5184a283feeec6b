# SPDX-License-Identifier: BSD-3-Clause
# _cdist_forward and _pdist_forward compared with eager.
from __future__ import annotations

import pytest
import torch

from tests.kernels.kernel_call import check
from torchette.runtime import _native

aten = torch.ops.aten
ORDERS = [0.0, 0.5, 1.0, 2.0, 3.5, float("inf")]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances(order: float, dtype: torch.dtype) -> None:
    a, b = torch.randn(2, 1, 5, 7, dtype=dtype), torch.randn(3, 4, 7, dtype=dtype)
    for x, y in ((a, b), (a[0, 0], b[0]), (a[..., :0], b[..., :0]), (a[:, :, :0], b)):
        check("aten::_cdist_forward.out", aten._cdist_forward(x, y, order, None), x, y, order, None)
    for x in (a[0, 0], a[0, 0, :1]):
        check("aten::_pdist_forward.out", aten._pdist_forward(x, order), x, order)


def test_points_of_other_dimensions_are_refused() -> None:
    with pytest.raises(RuntimeError, match="last sizes"):
        x, y = torch.randn(2, 3), torch.randn(2, 4)
        _native.call_kernel("aten::_cdist_forward.out", x, y, 2.0, None, torch.empty(2, 2))
