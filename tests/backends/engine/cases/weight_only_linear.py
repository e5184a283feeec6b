# SPDX-License-Identifier: BSD-3-Clause
# Cases of torchette/backends/engine/operators/weight_only_linear.py.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.backends.engine.cases.linear import SHAPES
from tests.backends.engine.draw import Draw
from torchette.backends.engine.pack import OCTET, QUAD, pack_linear, pack_nibbles, pack_quads


def weight_only_linear(draw: Draw) -> Iterator[tuple[Any, ...]]:
    for pack, most, unit in ((pack_quads, 128, QUAD), (pack_nibbles, 8, OCTET)):
        for leading, inputs, outputs in SHAPES:
            for groups in (1, 3):
                if groups > 1:
                    inputs = groups * unit * (inputs // unit + 1)
                weight = (draw.below(2 * most, outputs, inputs) - most).char()
                scales = draw(outputs, groups).abs() * 0.02
                bias = draw(outputs) if groups == 1 else None
                yield draw(*leading, inputs), pack(weight), pack_linear(scales), bias, outputs
        weight = (draw.below(2 * most, 70, 4096) - most).char()  # panels that are unpacked one at a time
        yield draw(2, 4096), pack(weight), pack_linear(draw(70, 128) * 0.01), draw(70), 70
