# SPDX-License-Identifier: BSD-3-Clause
# What torch.export cannot capture as torch writes it, compiled with dynamic sizes too and held against eager; torch's
# own samples of these functions are in tests/kernels/test_parity.py.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import flex_attention

import torchette
from torchette.capture.rewrites import TABLE, Rewrites


class Function(nn.Module):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def test_a_start_that_is_a_tensor_may_move_between_runs() -> None:
    model = Function(lambda x, start: x.narrow(1, start, 2)).eval()
    compiled = torchette.compile(model, (torch.zeros(3, 5), torch.tensor(1)))
    x = torch.randn(3, 5)
    for start in (0, 3, -2):
        torch.testing.assert_close(compiled(x, torch.tensor(start)), x.narrow(1, start, 2))


def test_one_hot_has_as_many_classes_as_the_values_ask_for() -> None:
    compiled = torchette.compile(Function(nn.functional.one_hot).eval(), (torch.tensor([1, 0]),))
    for values in ([0, 0], [3, 1], [8, 2]):
        x = torch.tensor(values)
        torch.testing.assert_close(compiled(x), nn.functional.one_hot(x))


def test_comparisons_of_whole_tensors_choose_nothing_ahead_of_time() -> None:
    model = Function(lambda a, b: (torch.equal(a, b), torch.allclose(a, b, atol=0.1))).eval()
    compiled = torchette.compile(model, (torch.zeros(3), torch.zeros(3)))
    for b in (torch.zeros(3), torch.full((3,), 0.01), torch.ones(3)):
        assert compiled(torch.zeros(3), b) == model(torch.zeros(3), b)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_connectionist_temporal_classification(reduction: str) -> None:
    loss = nn.CTCLoss(reduction=reduction, zero_infinity=True).eval()
    steps, batch, classes = 12, 3, 5
    logits = torch.randn(steps, batch, classes).log_softmax(-1)
    targets = torch.tensor([[1, 1, 2, 0], [3, 4, 4, 4], [2, 0, 0, 0]])
    lengths = (torch.tensor([12, 9, 4]), torch.tensor([3, 4, 0]))
    compiled = torchette.compile(loss, (logits, targets, *lengths))
    torch.testing.assert_close(compiled(logits, targets, *lengths), loss(logits, targets, *lengths))
    # Another sample's labels, one that cannot be emitted in so few steps, and one without a label.
    lengths = (torch.tensor([2, 12, 5]), torch.tensor([3, 4, 0]))
    torch.testing.assert_close(compiled(logits, targets, *lengths), loss(logits, targets, *lengths))
    one_after_the_other = targets[targets > 0]
    lengths = (torch.tensor([12, 12, 12]), torch.tensor([3, 4, 1]))
    expected = loss(logits, one_after_the_other, *lengths)
    compiled = torchette.compile(loss, (logits, one_after_the_other, *lengths))
    torch.testing.assert_close(compiled(logits, one_after_the_other, *lengths), expected)
    single = torchette.compile(loss, (logits[:, 0], targets[0], torch.tensor(12), torch.tensor(3)))
    given = (logits[:, 0], targets[0, :3], torch.tensor(12), torch.tensor(3))
    torch.testing.assert_close(
        single(logits[:, 0], targets[0], torch.tensor(12), torch.tensor(3)), loss(*given)
    )


@pytest.mark.parametrize("driver", [None, "gels", "gelsd"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 3), (2, 3, 5)])
def test_least_squares(shape: tuple[int, ...], driver: str | None) -> None:
    a, b, of_vectors = torch.randn(shape), torch.randn(*shape[:-1], 2), torch.randn(shape[:-1])
    model = Function(
        lambda a, *sides: [list(torch.linalg.lstsq(a, side, driver=driver)) for side in sides]
    ).eval()
    if driver == "gelsd" and shape == (5, 3):  # how many sums of residuals there are is found while it runs
        with pytest.raises(torchette.TorchetteError, match="shape of a result depends on the values"):
            torchette.compile(model, (a, b))
        return
    compiled = torchette.compile(model, (a, b, of_vectors))
    poor = torch.ones(shape)  # of rank one, where the driver looks for it
    for x in (a, poor) if driver is None else (a,):
        torch.testing.assert_close(compiled(x, b, of_vectors), model(x, b, of_vectors), rtol=1e-4, atol=1e-5)


def test_a_variance_that_eager_refuses_is_held_at_the_least_one() -> None:
    loss = nn.GaussianNLLLoss(full=True).eval()
    x, y, var = torch.randn(4, 3), torch.randn(4, 3), torch.rand(4)
    compiled = torchette.compile(loss, (x, y, var))
    torch.testing.assert_close(compiled(x, y, var), loss(x, y, var))
    torch.testing.assert_close(compiled(x, y, -var), loss(x, y, 0 * var))


def test_only_what_is_asked_for_is_rewritten() -> None:
    x = torch.randn(3, 4)
    with Rewrites():
        assert torch.equal(x.narrow(0, 1, 2), x[1:])
        assert torch.nn.functional.one_hot(torch.tensor([1]), 3).shape == (1, 3)
    assert all(callable(function) for function in TABLE)


class Flexible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.randn(4))
        self.window = flex_attention.create_block_mask(
            lambda b, h, i, j: (i >= j) & (i - j < 3), None, None, 16, 16, device="cpu", BLOCK_SIZE=16
        )

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> Any:
        attention = flex_attention.flex_attention

        def nearer(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score + self.slope[h] * (i - j)

        def not_the_second(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return torch.where((i >= j) & (i != 2), score, -float("inf"))

        return (
            attention(q, k, k, score_mod=nearer, enable_gqa=True),
            attention(q, k, k, score_mod=not_the_second, enable_gqa=True, return_lse=True),
            attention(q, k, k, block_mask=self.window, enable_gqa=True, scale=0.3),
        )


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_attention_with_scores_of_ones_own() -> None:
    q, k, model = torch.randn(2, 4, 16, 8), torch.randn(2, 2, 16, 8), Flexible().eval()
    compiled = torchette.compile(model, (q, k))
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k), model(q, k), rtol=1e-4, atol=1e-4)
