# SPDX-License-Identifier: BSD-3-Clause
# Operators that sort values into bins or rows into segments, in core operators. decompose_to_core uses the table.
"""Histograms with one or several dimensions, and segment reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def _edges(
    x: torch.Tensor, bins: Sequence[int], bounds: Sequence[float] | None, *_: object, **__: object
) -> list[torch.Tensor]:
    """Returns the edges of bins of equal width between `bounds` (lower and upper per dimension), or between the
    extrema."""
    points = x.reshape(-1, len(bins))
    edges = []
    for dim, count in enumerate(bins):
        if bounds is not None:
            low, high = (torch.full((), bound, dtype=x.dtype) for bound in bounds[2 * dim : 2 * dim + 2])
        elif points.shape[0] == 0:
            low, high = torch.zeros((), dtype=x.dtype), torch.ones((), dtype=x.dtype)
        else:
            low, high = points[:, dim].amin(), points[:, dim].amax()
        half = torch.where(low == high, 0.5, 0.0)
        low, high = low - half, high + half
        step = (high - low) / count
        # Computed from both ends, like torch.linspace, so that both ends are exact.
        places = torch.arange(count + 1)
        edges.append(
            torch.where(places < (count + 1) // 2, low + step * places, high - step * (count - places))
        )
    return edges


def _counts(
    x: torch.Tensor, edges: Sequence[torch.Tensor], weight: torch.Tensor | None = None, density: bool = False
) -> torch.Tensor:
    """Returns the count or weight of the points in each bin. The last bin of a dimension includes both edges."""
    points = x.reshape(-1, len(edges))
    shape = [len(of) - 1 for of in edges]
    bin_of = torch.zeros(points.shape[0], dtype=torch.int64)
    inside = torch.ones(points.shape[0], dtype=torch.bool)
    for dim, (of, size) in enumerate(zip(edges, shape, strict=True)):
        values = points[:, dim].contiguous()
        place = (torch.searchsorted(of, values, right=True) - 1).clamp(0, size - 1)
        inside = inside & (values >= of[0]) & (values <= of[-1])
        bin_of = bin_of * size + place
    amounts = torch.ones_like(bin_of, dtype=x.dtype) if weight is None else weight.reshape(-1)
    none = torch.zeros(math.prod(shape), dtype=x.dtype)
    counts = none.index_put(
        [torch.where(inside, bin_of, 0)], torch.where(inside, amounts, 0.0).to(x.dtype), True
    )
    counts = counts.reshape(shape)
    if density:
        counts = counts / counts.sum()
        for dim, of in enumerate(edges):
            counts = counts / (of[1:] - of[:-1]).reshape([-1] + [1] * (len(edges) - dim - 1))
    return counts


def _histogram_of_edges(
    x: torch.Tensor, bins: torch.Tensor, *, weight: torch.Tensor | None = None, density: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return _counts(x.reshape(-1, 1), [bins], weight, density), bins.clone()


def _histogram(
    x: torch.Tensor, bins: int = 100, *, range: Sequence[float] | None = None,
    weight: torch.Tensor | None = None, density: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    points = x.reshape(-1, 1)
    (edges,) = _edges(points, [bins], range)
    return _counts(points, [edges], weight, density), edges


def _histogramdd_edges(
    x: torch.Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None, **_: object
) -> list[torch.Tensor]:
    return _edges(x, bins, range)


def _histogramdd(
    x: torch.Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None,
    weight: torch.Tensor | None = None, density: bool = False,
) -> torch.Tensor:  # fmt: skip
    return _counts(x, _edges(x, bins, range), weight, density)


def _histogramdd_of_edges(
    x: torch.Tensor, bins: Sequence[torch.Tensor], *, weight: torch.Tensor | None = None, density: bool = False
) -> torch.Tensor:  # fmt: skip
    return _counts(x, bins, weight, density)


_REDUCTIONS = {
    "sum": ("sum", 0.0),
    "mean": ("sum", 0.0),
    "prod": ("prod", 1.0),
    "max": ("amax", -math.inf),
    "min": ("amin", math.inf),
}


def _segment_reduce(
    x: torch.Tensor, reduce: str, *, lengths: torch.Tensor | None = None, indices: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Any:  # fmt: skip
    axis = axis % x.dim()
    if offsets is not None:
        starts, ends = (
            offsets.narrow(-1, 0, offsets.shape[-1] - 1),
            offsets.narrow(-1, 1, offsets.shape[-1] - 1),
        )
        sizes = ends - starts
    elif lengths is not None:
        sizes, ends = lengths, torch.cumsum(lengths, -1)
        starts = ends - sizes
    else:
        return NotImplemented
    segments = sizes.shape[-1]
    rows = torch.arange(x.shape[axis])
    # The segment of a row is the number of segments that end before it. Rows without a segment go to an extra segment,
    # which is removed.
    of_row = (rows.unsqueeze(-1) >= ends.unsqueeze(-2)).sum(-1)
    in_one = ((rows.unsqueeze(-1) >= starts.unsqueeze(-2)) & (rows.unsqueeze(-1) < ends.unsqueeze(-2))).any(
        -1
    )
    of_row = torch.where(in_one, of_row, segments)
    fold, first = _REDUCTIONS[reduce]
    trailing = x.dim() - axis - 1
    places = of_row.reshape(*of_row.shape, *[1] * trailing).expand(x.shape)
    shape = [*x.shape[:axis], segments + 1, *x.shape[axis + 1 :]]
    start = torch.full(shape, first if initial is None else initial, dtype=x.dtype)
    result = start.scatter_reduce(axis, places, x, fold).narrow(axis, 0, segments)
    if reduce != "mean":
        return result
    sizes = sizes.reshape(*sizes.shape, *[1] * trailing)
    of_none = math.nan if initial is None else initial
    return torch.where(sizes > 0, result / sizes.clamp(min=1), of_none).to(x.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.histogram.bins_tensor: _histogram_of_edges,
    aten.histogram.bin_ct: _histogram,
    aten._histogramdd_bin_edges.default: _histogramdd_edges,
    aten._histogramdd_from_bin_cts.default: _histogramdd,
    aten._histogramdd_from_bin_tensors.default: _histogramdd_of_edges,
    aten.segment_reduce.default: _segment_reduce,
}
