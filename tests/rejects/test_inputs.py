# SPDX-License-Identifier: BSD-3-Clause
# Inputs that must be refused or converted, and never misread. Each test checks the message that a user reads.

from __future__ import annotations

import numpy as np
import pytest
import torch

import torchette
from torchette.errors import InputError


class Scale(torch.nn.Module):
    """Its output reveals the order in which the input was read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Pair(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right


@pytest.fixture(scope="module")
def pair() -> torchette.Model:
    return torchette.compile(Pair().eval(), (torch.ones(2, 3), torch.ones(2, 3)))


@pytest.mark.parametrize(
    ("right", "words"),
    [
        (torch.ones(2, 3, dtype=torch.float64), ["float64", "float32"]),
        (torch.ones(2, 3, dtype=torch.int64), ["int64", "float32"]),
        (torch.ones(2, 4), ["4", "3"]),
        (torch.ones(3, 2), ["(3, 2)|[3, 2]", "(2, 3)|[2, 3]"]),
        (torch.ones(6), ["(6,)|[6]", "(2, 3)|[2, 3]"]),
        (torch.ones(1, 2, 3), ["(1, 2, 3)|[1, 2, 3]", "(2, 3)|[2, 3]"]),
        (torch.tensor(1.0), ["(2, 3)|[2, 3]"]),
        (torch.ones(0, 3), ["(0, 3)|[0, 3]", "(2, 3)|[2, 3]"]),
        ("three", ["str"]),
        (None, ["None"]),
    ],
    ids=["float64", "int64", "columns", "transposed", "rank-1", "rank-3", "scalar", "empty", "text", "None"],
)
def test_wrong_input(pair: torchette.Model, right: object, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        pair(torch.ones(2, 3), right)
    message = str(caught.value)
    assert "right" in message or "input 1" in message, message  # the input
    for word in words:  # the actual and the expected value
        assert any(choice in message for choice in word.split("|")), message
    assert "0x" not in message


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_inputs(pair: torchette.Model, count: int) -> None:
    with pytest.raises((InputError, TypeError), match=r"2|right"):
        pair(*[torch.ones(2, 3)] * count)


def test_unknown_keyword(pair: torchette.Model) -> None:
    with pytest.raises((InputError, TypeError), match="middle"):
        pair(torch.ones(2, 3), torch.ones(2, 3), middle=torch.ones(2, 3))


def test_each_dimension_has_its_own_bound() -> None:
    batch, width = torch.export.Dim("batch", min=1, max=4), torch.export.Dim("width", min=1, max=4)
    shapes = {"x": {0: batch, 1: width}}
    model = torchette.compile(Scale().eval(), (torch.ones(3, 2),), dynamic_shapes=shapes)
    for shape in [(3, 2), (4, 4), (1, 4)]:
        assert torch.equal(model(torch.ones(shape)), 2 * torch.ones(shape))
    # (2, 8) does not exceed the maximum number of elements.
    with pytest.raises(InputError, match=r"8.*4|4.*8"):
        model(torch.ones(2, 8))


@pytest.mark.parametrize("via", ["torch", "numpy"])
def test_channels_last_is_never_read_in_the_wrong_order(via: str) -> None:
    x = torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    model = torchette.compile(Scale().eval(), (x,))
    tensor = x.to(memory_format=torch.channels_last)
    array = tensor if via == "torch" else tensor.numpy()
    try:
        actual = model(array)
    except InputError as error:
        assert "channels_last" in str(error) or "dim order" in str(error)
    else:
        torch.testing.assert_close(torch.as_tensor(np.asarray(actual)), 2 * x)


@pytest.mark.parametrize("layout", ["transposed", "strided", "offset", "expanded", "reversed"])
def test_other_layouts_are_never_read_in_the_wrong_order(layout: str) -> None:
    model = torchette.compile(Scale().eval(), (torch.ones(4, 6),))
    base = torch.arange(200.0)
    x: torch.Tensor | np.ndarray = {
        "transposed": base[:24].reshape(6, 4).T,
        "strided": base[:96].reshape(8, 12)[::2, ::2],
        "offset": base[7:31].reshape(4, 6),
        "expanded": base[:6].expand(4, 6),
        "reversed": base[:24].reshape(4, 6).numpy()[::-1, ::-1],
    }[layout]
    expected = 2 * torch.as_tensor(np.ascontiguousarray(np.asarray(x)))
    for array in (x, np.asarray(x)):
        torch.testing.assert_close(torch.as_tensor(np.asarray(model(array))), expected)


def test_channels_last_model_accepts_channels_last() -> None:
    x = torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    model = torchette.compile(Scale().eval(), (x.to(memory_format=torch.channels_last),))
    for array in (x, x.to(memory_format=torch.channels_last)):
        torch.testing.assert_close(model(array), 2 * x)
