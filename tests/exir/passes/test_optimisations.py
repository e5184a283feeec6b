# SPDX-License-Identifier: BSD-3-Clause
# Each optimization has its effect, preserves programs that it must not change, and can be disabled. `lower` compares
# the results after each pass.

import pytest
import torch
from graphs import ConvNet, called, lower
from torch import nn
from torch._higher_order_ops.while_loop import while_loop

from torchette.exir import control_flow
from torchette.exir.graph import calls, constants, outputs
from torchette.exir.passes import fold_constants

X = torch.randn(2, 3, 8, 8)


def stored_bytes(program):
    return sum(
        {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in constants(program).values()
        }.values()
    )


def test_batch_norm_is_folded():
    program, report = lower(ConvNet(), (X,), "optimize")
    assert called(program) == [
        "convolution.default",
        "relu.default",
        "mean.dim",
        "view_copy.default",
        "linear.default",
    ]
    assert report.notes("fold_batch_norm") == ["1 batch norms folded into the preceding layers"]
    program, _ = lower(ConvNet(), (X,), "optimize", disable_passes={"fold_batch_norm"})
    assert "_native_batch_norm_legit_no_training.default" in called(program)


@pytest.mark.parametrize(
    ("layer", "norm", "x"),
    [
        (nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), torch.randn(2, 3, 9)),
        (nn.Conv2d(4, 4, 3, groups=4, padding="same"), nn.BatchNorm2d(4), torch.randn(2, 4, 9, 9)),
        (nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4, affine=False), torch.randn(1, 2, 4, 4, 4)),
        (nn.ConvTranspose2d(3, 4, 2, stride=2), nn.BatchNorm2d(4), torch.randn(1, 3, 4, 4)),
        (nn.Linear(5, 4), nn.BatchNorm1d(4), torch.randn(3, 5)),
    ],
    ids=["conv1d", "depthwise", "conv3d", "transposed", "linear"],
)
def test_batch_norm_folds_into_every_layer(layer, norm, x):
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    program, _ = lower(nn.Sequential(layer, norm), (x,), "optimize")
    assert len(called(program)) == 1 and "norm" not in called(program)[0]


def test_folded_weights_are_rounded_once():
    layer, norm = nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)
    norm.running_var.uniform_(0.5, 2)
    program, _ = lower(nn.Sequential(layer, norm), (X,), "optimize")
    scale = (norm.running_var.double() + norm.eps).rsqrt() * norm.weight.detach().double()
    expected = (layer.weight.detach().double() * scale.reshape(-1, 1, 1, 1)).float()
    (weight,) = (value for value in constants(program).values() if value.shape == layer.weight.shape)
    assert torch.equal(weight, expected)


class SharedConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.a, self.b = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x, y):
        return self.a(self.conv(x)), self.b(self.conv(y))


def test_batch_norm_stays_where_folding_would_be_wrong():
    program, _ = lower(SharedConv(), (X, X), "optimize")
    assert called(program).count("_native_batch_norm_legit_no_training.default") == 2
    grouped = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, groups=2), nn.BatchNorm2d(4))
    program, _ = lower(grouped, (torch.randn(1, 4, 3, 3),), "optimize")
    assert "_native_batch_norm_legit_no_training.default" in called(program)
    used_twice = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = used_twice

        def forward(self, x):
            y = self.inner[0](x)
            return self.inner[1](y) + y

    program, _ = lower(Both(), (X,), "optimize")
    assert "_native_batch_norm_legit_no_training.default" in called(program)


class Folding(nn.Module):
    """A computed weight, a constant that would grow, and a tied weight with a transpose."""

    def __init__(self):
        super().__init__()
        self.g, self.v = nn.Parameter(torch.rand(64, 1)), nn.Parameter(torch.randn(64, 64))
        self.tied = nn.Parameter(torch.randn(100, 64))
        self.row = nn.Parameter(torch.randn(1, 64))

    def forward(self, x, index):
        weight = self.g * self.v / self.v.norm(dim=1, keepdim=True)
        y = nn.functional.linear(x, weight) + self.row.expand(2000, 64).sigmoid()[:1]
        return y @ self.tied.t() + nn.functional.embedding(index, self.tied).sum()


def test_constants_are_folded_but_the_file_does_not_grow():
    inputs = (torch.randn(1, 64), torch.tensor([3]))
    program, report = lower(Folding(), inputs, "optimize")
    plain, _ = lower(Folding(), inputs, "optimize", disable_passes={"fold_constants"})
    assert "values computed ahead of time" in report.notes("fold_constants")[0]
    # The normalized weight and the small row are stored. Both layers read the tied weight in its stored layout.
    assert called(program).count("linear.default") == 2
    assert not {"pow.Tensor_Scalar", "sum.dim_IntList", "sigmoid.default", "div.Tensor"} & set(
        called(program)[:-3]
    )
    assert stored_bytes(program) <= stored_bytes(plain) + 4096
    tied = [node for node, tensor in constants(program).items() if tensor.shape == (100, 64)]
    assert len(tied) == 1 and len(tied[0].users) == 2


class ConstantsInBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        def body(turn, x):
            return turn + 1, x * (torch.ones(8) * 2) + torch.arange(8.0)

        def repeated(x):
            return while_loop(lambda turn, x: turn < 3, body, (torch.zeros((), dtype=torch.int64), x))[1]

        return torch.cond(x.sum() > 0, repeated, lambda x: x @ (self.a @ self.b), (x,))


def test_constants_computed_in_branches_are_folded():
    program, _ = lower(ConstantsInBranches(), (X.abs(),), "optimize")
    branches = [
        [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
        for module in control_flow.owners(program.graph_module)
    ]
    flat = [name for names in branches for name in names]
    assert not [name for name in flat if "arange" in name or "full" in name or "ones" in name]
    assert sum("mm" in name or "matmul" in name for name in flat) == 1 and flat.count("aten.mul.Tensor") == 1


def test_random_and_empty_are_never_folded():
    program, _ = lower(
        lambda x: x + torch.rand(3),
        (torch.randn(3),),
        "optimize",
        _check_ir_validity=False,
        check_passes=False,
    )
    assert "rand.default" in called(program)


def test_repeated_calls_are_merged():
    program, _ = lower(lambda x: (x.exp() + 1) * (x.exp() + 1), (torch.randn(3),), "optimize")
    assert called(program) == ["exp.default", "add.Tensor", "mul.Tensor"]
    program, _ = lower(lambda x: (x.exp(), x.exp()), (torch.randn(3),), "optimize")
    assert called(program) == ["exp.default", "exp.default"]  # two outputs are two values
    program, _ = lower(lambda x: x.exp() * x.exp(), (torch.randn(3),), "optimize", disable_passes={"merge_common_subexpressions"})  # fmt: skip
    assert called(program) == ["exp.default", "exp.default", "mul.Tensor"]


def test_large_fills_are_not_kept_for_later_calls():
    def forward(x):
        return torch.cat([torch.zeros(2000, 3), x, torch.zeros(2000, 3)])

    program, _ = lower(forward, (torch.randn(1, 3),), "optimize")
    assert called(program) == ["full.default", "full.default", "cat.default"]


def test_operands_are_broadcast_instead_of_expanded():
    x, row = torch.randn(2, 3), torch.randn(2, 1)
    program, report = lower(lambda x, row: x / row.expand(2, 3), (x, row), "optimize")
    assert called(program) == ["div.Tensor"]
    assert report.notes("remove_expands") == ["1 operands are broadcast instead of expanded"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, row: row.expand(2, 3).exp(),
        lambda x, row: row.expand(2, 3) * row.expand(2, 3),
        lambda x, row: row.expand(4, 2, 3) * x[:, :1],
        lambda x, row: row.expand(2, 3) @ x.T,
    ],
)
def test_an_expansion_that_determines_the_shape_stays(function):
    program, _ = lower(function, (torch.randn(2, 3), torch.randn(2, 1)), "optimize")
    assert "expand_copy.default" in called(program)


def test_operand_of_equal_elements_becomes_one_element():
    def forward(x):
        ones = torch.ones_like(x)
        return (x - x.sum(1, keepdim=True) / ones.sum(1, keepdim=True)) * ones

    program, report = lower(forward, (torch.randn(2, 3),), "optimize")
    assert called(program) == ["sum.dim_IntList", "div.Tensor", "sub.Tensor", "mul.Tensor"]
    assert report.notes("narrow_fills") == [
        "1 operands are one element instead of a tensor of equal elements"
    ]
    assert stored_bytes(program) == 4 * (2 + 1)
    program, _ = lower(forward, (torch.randn(2, 3),), "optimize", disable_passes={"narrow_fills"})
    assert "full_like.default" in called(program)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.zeros_like(x) + torch.ones_like(x) * x[:1],
        lambda x: torch.zeros_like(x, dtype=torch.int32) + x.to(torch.int16),
        lambda x: torch.full((2000, 3), 0.5) @ x.T,
        lambda x: torch.where(x > 0, torch.zeros_like(x), x.new_ones(1, 3)),
    ],
)
def test_operand_of_equal_elements_keeps_shape_and_dtype(function):
    x = torch.randn(2, 3)
    program, _ = lower(function, (x,), "optimize")
    (result,) = outputs(program)
    assert (result.meta["val"].shape, result.meta["val"].dtype) == (function(x).shape, function(x).dtype)


def test_values_that_read_the_same_stored_tensor_are_one_group():
    graph = torch.fx.Graph()
    weights = [graph.placeholder(name) for name in "abc"]
    first, second, third = (graph.call_function(torch.relu, (weight,)) for weight in weights)
    unrelated = graph.call_function(torch.full, ([2], 1.0))
    both = graph.call_function(torch.add, (first, second))
    frontier = [first, second, third, unrelated, both]
    stored = {weight: torch.randn(3) for weight in weights}
    groups = fold_constants._groups(frontier, stored, frontier)
    assert groups == [
        {third: {weights[2]}},
        {unrelated: set()},
        {first: {weights[0]}, second: {weights[1]}, both: set(weights[:2])},
    ]


def test_small_fills_with_equal_elements_are_stored_once():
    def forward(x):
        rows = [torch.cat([x, torch.full_like(x[:1], value)]) for value in (0.0, 0.0, -0.0, 1.0)]
        ones = torch.ones_like(rows[0])
        return (rows[0] + rows[1] + rows[2] + rows[3]) * ones + torch.ones_like(rows[0])

    program, _ = lower(forward, (torch.randn(2, 3),), "optimize")
    assert sorted(tuple(tensor.shape) for tensor in constants(program).values()) == [
        (1,),
        (1, 3),
        (1, 3),
        (1, 3),
    ]


def test_fill_of_symbolic_size_becomes_one_element():
    shapes = ({0: torch.export.Dim("n", min=2)},)
    program, _ = lower(
        lambda x: torch.where(x > 0, x, torch.zeros_like(x)), (torch.randn(4, 3),), "optimize", shapes
    )
    assert called(program) == ["gt.Tensor", "where.self"]


def shift(scores, right=True):
    """Attention with relative positions: row i of the result is row i of the scores from column rows - 1 - i on."""
    *batch, rows, columns = scores.shape
    padded = nn.functional.pad(scores, (1, 0) if right else (0, 1))
    return padded.view(*batch, columns + 1, rows)[..., 1:, :].view_as(scores)[..., : columns // 2 + 1]


def test_shift_of_relative_positions_is_one_strided_copy():
    scores = torch.randn(2, 3, 5, 9)
    program, report = lower(shift, (scores,), "optimize")
    assert called(program) == ["as_strided_copy.default"]
    assert report.notes("compose_copies") == ["1 paddings became strided copies"]
    (copy,) = calls(program)
    assert copy.args[1:] == ([2, 3, 5, 5], [135, 45, 8, 1], 4)
    program, _ = lower(shift, (scores,), "optimize", disable_passes={"compose_copies"})
    assert called(program)[0] == "constant_pad_nd.default"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: shift(x, right=False),  # contains padded elements
        lambda x: nn.functional.pad(x, (1, 0)).view(2, 3, 10, 5),
        lambda x: nn.functional.pad(x, (0, 0, 0, 0, 1, -1)).view(2, 3, 45)[
            ..., 1:
        ],  # moves a leading dimension
        lambda x: (nn.functional.pad(x, (1, 0)), shift(x).exp()),  # another reader of the padded tensor
        lambda x: nn.functional.pad(x, (1, 1))[..., 1:-1].exp(),
    ],
)
def test_padded_elements_stay(function):
    program, report = lower(function, (torch.randn(2, 3, 5, 9),), "optimize")
    assert "constant_pad_nd.default" in called(program) and not report.notes("compose_copies")


def test_linear_is_restored():
    weight, bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3))

    class Spelled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = weight, bias

        def forward(self, x):
            return (
                torch.addmm(self.b, x, self.w.t())
                + x @ self.w.t()
                + torch.addmm(self.b, x, self.w.t(), beta=2)
            )

    program, report = lower(Spelled(), (torch.randn(2, 4),), "optimize")
    assert called(program).count("linear.default") == 2 and called(program).count("addmm.default") == 1
    assert report.notes("fuse_linear") == ["2 matmuls with a transposed weight became linear layers"]
