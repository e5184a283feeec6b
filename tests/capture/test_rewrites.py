# SPDX-License-Identifier: BSD-3-Clause
# Functions that torch.export cannot capture in torch's form, also compiled with dynamic sizes and compared with eager; torch's
# own samples of these functions are in tests/kernels/test_parity.py.

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.attention import flex_attention

import torchette
from torchette.capture.rewrites import TABLE, Rewrites, _scaled_size
from torchette.errors import ExecutionError
from torchette.exir import to_edge


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


def test_comparisons_of_tensors_are_not_evaluated_at_capture() -> None:
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
    # The labels of another sample, labels that do not fit into the number of steps, and no labels.
    lengths = (torch.tensor([2, 12, 5]), torch.tensor([3, 4, 0]))
    torch.testing.assert_close(compiled(logits, targets, *lengths), loss(logits, targets, *lengths))
    one_after_the_other = targets[targets > 0]
    lengths = (torch.tensor([12, 12, 12]), torch.tensor([3, 4, 1]))
    expected = loss(logits, one_after_the_other, *lengths)
    compiled = torchette.compile(loss, (logits, one_after_the_other, *lengths))
    torch.testing.assert_close(compiled(logits, one_after_the_other, *lengths), expected)
    single = torchette.compile(loss, (logits[:, 0], targets[0], torch.tensor(12), torch.tensor(3)))
    loss_args = (logits[:, 0], targets[0, :3], torch.tensor(12), torch.tensor(3))
    torch.testing.assert_close(
        single(logits[:, 0], targets[0], torch.tensor(12), torch.tensor(3)), loss(*loss_args)
    )


@pytest.mark.parametrize("driver", [None, "gels", "gelsd"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 3), (2, 3, 5)])
def test_least_squares(shape: tuple[int, ...], driver: str | None) -> None:
    a, b, of_vectors = torch.randn(shape), torch.randn(*shape[:-1], 2), torch.randn(shape[:-1])
    model = Function(
        lambda a, *sides: [list(torch.linalg.lstsq(a, side, driver=driver)) for side in sides]
    ).eval()
    if driver == "gelsd" and shape == (5, 3):  # the number of residuals depends on the values
        with pytest.raises(torchette.TorchetteError, match="shape of a result depends on the values"):
            torchette.compile(model, (a, b))
        return
    compiled = torchette.compile(model, (a, b, of_vectors))
    poor = torch.ones(shape)  # of rank one, where the driver looks for it
    for x in (a, poor) if driver is None else (a,):
        torch.testing.assert_close(compiled(x, b, of_vectors), model(x, b, of_vectors), rtol=1e-4, atol=1e-5)


def test_instance_norm_of_a_length_that_follows_from_data() -> None:
    model = Function(
        lambda x: nn.functional.instance_norm(x[:, :, x[0, 0] > 0], weight=torch.tensor([1.0, -2, 3]))
    )
    compiled = torchette.compile(model.eval(), (torch.randn(1, 3, 9),))
    for _ in range(3):
        x = torch.randn(1, 3, 9)
        x[0, 0, :2] = x[0, 0, :2].abs()
        torch.testing.assert_close(compiled(x), model(x))
    x[0, 0] = torch.tensor([1.0] + [-1] * 8)
    with pytest.raises(ExecutionError, match="Expected more than 1 spatial element"):
        compiled(x)


def test_sizes_scaled_by_floats_are_integers() -> None:
    """One dimension is scaled down and up again, so that torch.export must prove that the sizes are equal."""

    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        high = nn.functional.interpolate(x, scale_factor=60.0)
        low = nn.functional.interpolate(high, scale_factor=1 / 60, mode="linear")
        return x + low + nn.functional.interpolate(x, scale_factor=1 / 3)[..., :1]

    model = Function(there_and_back).eval()
    compiled = torchette.compile(
        model, (torch.randn(1, 2, 7),), dynamic_shapes=((({2: Dim("n", min=6, max=50)}),),)
    )
    for n in (6, 7, 49, 50):
        x = torch.randn(1, 2, n)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("factor", [1 / 2, 1 / 3, 1 / 60, 1 / 300, 3.0, 2])
def test_integer_arithmetic_of_scales_is_that_of_torch(factor: float) -> None:
    symbol = ShapeEnv().create_unbacked_symint()
    sizes = range(1, 5000)
    expression = _scaled_size(symbol, factor).node.expr
    scaled = [int(expression.subs(symbol.node.expr, n)) for n in sizes[::37]]
    assert scaled == [math.floor(n * factor) for n in sizes[::37]]
    assert _scaled_size(symbol, 1 / 49) is None  # 49 * (1 / 49) is less than 1
    assert _scaled_size(symbol, 0.75) is None


def test_variance_that_eager_rejects_is_clamped_to_the_minimum() -> None:
    loss = nn.GaussianNLLLoss(full=True).eval()
    x, y, var = torch.randn(4, 3), torch.randn(4, 3), torch.rand(4)
    compiled = torchette.compile(loss, (x, y, var))
    torch.testing.assert_close(compiled(x, y, var), loss(x, y, var))
    torch.testing.assert_close(compiled(x, y, -var), loss(x, y, 0 * var))


def test_only_requested_functions_are_rewritten() -> None:
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


class Keeps(nn.Module):
    """A parameter and a buffer, and a forward that may change them."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        self.register_buffer("state", torch.tensor([0.5, 0.25, -1.0]))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def added_to_data(self: Keeps, x: torch.Tensor) -> Any:
    y = x * 2
    y.data += 5
    y.data[0] = -1.0
    y.data.mul_(x)
    return y + 1, y.data * 2


def added_to_an_inputs_data(self: Keeps, x: torch.Tensor) -> Any:
    x.data += 1
    return x * 2


def added_to_a_parameters_data(self: Keeps, x: torch.Tensor) -> Any:
    self.weight.data.add_(x)
    return self.weight * x


def added_to_a_buffers_data(self: Keeps, x: torch.Tensor) -> Any:
    self.state.data[1:].copy_(x[1:])
    self.state.data += 1
    return self.state * x


@pytest.mark.parametrize(
    "function", [added_to_data, added_to_an_inputs_data, added_to_a_parameters_data, added_to_a_buffers_data]
)
def test_writing_to_data_is_writing_to_the_tensor(function: Callable) -> None:
    eager, x = Keeps(function).eval(), torch.tensor([1.0, 2.0, 4.0])
    compiled = torchette.compile(Keeps(function).eval(), (x.clone(),))
    with torch.no_grad():
        for step in range(3):  # the state continues from call to call
            theirs, ours = x + step, x + step
            torch.testing.assert_close(compiled(ours), eager(theirs))
            torch.testing.assert_close(ours, theirs)


def assigned(self: Keeps, x: torch.Tensor) -> Any:
    y = x * 2
    y.data = x * 3
    return y + 1


def assigned_to_a_view(self: Keeps, x: torch.Tensor) -> Any:
    y = x * 2
    y[:2].data = x[1:] * 3
    return y + 1


def assigned_to_an_input(self: Keeps, x: torch.Tensor) -> Any:
    x.data = torch.ones(3)
    return x + 1


def assigned_to_a_parameter(self: Keeps, x: torch.Tensor) -> Any:
    self.weight.data = self.weight * 2
    return x + self.weight


def assigned_to_a_buffer(self: Keeps, x: torch.Tensor) -> Any:
    self.state.data = x * 2
    return x + self.state


def assigned_by_name(self: Keeps, x: torch.Tensor) -> Any:
    setattr(self.state, "data", x * 2)  # noqa: B010
    return x + self.state


def assigned_by_descriptor(self: Keeps, x: torch.Tensor) -> Any:
    torch.Tensor.data.__set__(self.state, x * 2)  # type: ignore[attr-defined]
    return x + self.state


def set_as_source(self: Keeps, x: torch.Tensor) -> Any:
    self.state.set_(x * 2)
    return x + self.state


@pytest.mark.parametrize("strict", [None, False, True], ids=["compile", "export", "strict export"])
@pytest.mark.parametrize(
    "function",
    [
        assigned, assigned_to_a_view, assigned_to_an_input, assigned_to_a_parameter, assigned_to_a_buffer,
        assigned_by_name, assigned_by_descriptor, set_as_source,
    ],
)  # fmt: skip
def test_other_memory_is_rejected_in_every_capture(function: Callable, strict: bool | None) -> None:
    model, x = Keeps(function).eval(), torch.zeros(3)
    if strict is None:
        with pytest.raises(torchette.TorchetteError, match="is assigned other memory") as caught:
            torchette.compile(model, (x,))
        assert Path(__file__).name in str(caught.value.where) and caught.value.hints
        return
    try:
        with torch.no_grad():
            program = torch.export.export(model, (x,), strict=strict)
    except Exception:  # torch refuses it itself
        assert strict
        return
    with pytest.raises(torchette.TorchetteError, match="is assigned other memory") as caught:
        to_edge(program)
    assert caught.value.code == "other-memory"


@pytest.mark.parametrize("strict", [False, True])
def test_data_that_torch_treats_as_constant_is_an_error(strict: bool) -> None:
    model = Keeps(lambda self, x: (x * 2).data + 1).eval()
    try:
        program = torch.export.export(model, (torch.zeros(3),), strict=strict)
    except RuntimeError:
        assert not strict
        return
    with pytest.raises(torchette.TorchetteError, match="has no values, only a shape") as caught:
        to_edge(program)
    assert caught.value.code == "tensor-without-values"
