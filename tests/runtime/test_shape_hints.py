# SPDX-License-Identifier: BSD-3-Clause
# The hints for an input of a wrong shape name the input, the dimension and the option.

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torchette.runtime.shape_hints import shape_hints
from torchette.runtime.tensor_info import TensorInfo

IMAGE = ((1, 3, 8, 8), ())
BATCH = ((8, 4), ((2, 8), (4, 4)))
FREE = ((8,), ((2, 2**31 - 1),))


def hints(signature: tuple, shape: tuple[int, ...], names: tuple[str, ...] = ("x", "image")) -> list[str]:
    sizes, ranges = signature
    info = TensorInfo(
        SimpleNamespace(
            sizes=sizes, ranges=ranges, is_dynamic=bool(ranges), dtype=6, is_memory_planned=True, nbytes=0,
            name=names[1], dim_order=(),
        )
    )  # fmt: skip
    return shape_hints(names, 1, info, shape)


@pytest.mark.parametrize(
    ("signature", "shape", "expected"),
    [
        (
            IMAGE,
            (1, 3, 8, 16),
            [
                "dimension 3 of image must be 8, got 16",
                "or compile for sizes that vary: dynamic_shapes={'x': None, 'image': {3: torch.export.Dim('n3', min=8, "
                "max=16)}}, or `torchette compile --dynamic 1:3=n3:8..16`",
            ],
        ),
        (
            IMAGE,
            (1, 8, 8, 3),
            [
                "dimension 1 of image must be 3, got 8",
                "dimension 3 of image must be 8, got 3",
                "or reorder the dimensions: image.transpose(0, 3, 1, 2) in numpy, image.permute(0, 3, 1, 2) in torch",
            ],
        ),
        (IMAGE, (3, 8, 8), ["image must have 4 dimensions, got 3", "to add dimension 0: image[None]"]),
        (IMAGE, (8, 8), ["image must have 4 dimensions, got 2"]),
        (
            BATCH,
            (9, 4),
            [
                "dimension 0 of image must be 2 to 8, got 9",
                "or compile for sizes that vary: dynamic_shapes={'x': None, 'image': {0: torch.export.Dim('n0', min=2, "
                "max=9)}}, or `torchette compile --dynamic 1:0=n0:2..9`",
            ],
        ),
    ],
)
def test_hints(signature: tuple, shape: tuple[int, ...], expected: list[str]) -> None:
    assert hints(signature, shape) == expected


def test_size_without_maximum() -> None:
    assert hints(FREE, (1,))[0] == "dimension 0 of image must be 2 or more, got 1"


def test_nested_input_has_no_name_in_dynamic_shapes() -> None:
    text = hints(IMAGE, (1, 3, 8, 16), ("args[0][0]", "args[0][1]"))[-1]
    assert "{3: torch.export.Dim('n3', min=8, max=16)} for args[0][1] in dynamic_shapes" in text
