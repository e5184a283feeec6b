# SPDX-License-Identifier: BSD-3-Clause
# Decomposition: preserved operators, and attention with as few operators as its mask allows.

import pytest
import torch
from graphs import called, export, lower, results
from torch.nn.functional import scaled_dot_product_attention

import torchette

aten = torch.ops.aten
Q, K, V = (torch.randn(2, 4, n, 8) for n in (5, 7, 7))


def test_linear_is_kept_and_others_on_request():
    program, _ = lower(
        torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.SiLU()), (torch.randn(2, 4),), "core"
    )
    assert called(program) == ["linear.default", "sigmoid.default", "mul.Tensor"]
    program, _ = lower(torch.nn.SiLU(), (torch.randn(2, 4),), "core", preserve_ops=(aten.silu.default,))
    assert called(program) == ["silu.default"]


MASKS = {
    "none": (None, {}, 3),
    "causal": (None, {"is_causal": True}, 4),
    "bool": (torch.rand(5, 7) > 0.4, {}, 6),
    "additive": (torch.randn(1, 1, 5, 7), {}, 6),
    "dead_rows": (torch.arange(5)[:, None].expand(5, 7) > 1, {}, 6),
    "dead_additive": (
        torch.zeros(5, 7).index_fill(0, torch.tensor([0, 3]), float("-inf")),
        {"scale": 0.3},
        6,
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_attention_equals_eager_with_every_mask(name):
    mask, options, most = MASKS[name]
    inputs = (Q, K, V) if mask is None else (Q, K, V, mask)

    def attention(q, k, v, mask=None):
        return scaled_dot_product_attention(q, k, v, mask, **options)

    program, _ = lower(attention, inputs, "optimize")
    eager = scaled_dot_product_attention(Q, K, V, mask, **options)
    torch.testing.assert_close(results(program, inputs)[0], eager, rtol=1e-4, atol=1e-5)
    # Operators on score tensors, in addition to the two matmuls: scale, mask, softmax.
    work = [
        n
        for n in called(program)
        if n.split(".")[0] in ("mul", "add", "where", "eq", "any", "_softmax", "gt")
    ]
    assert len(work) <= most, work


def test_grouped_heads_equal_eager():
    k, v = torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)

    def attention(q, k, v):
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)

    program, _ = lower(attention, (Q, k, v), "optimize")
    torch.testing.assert_close(results(program, (Q, k, v))[0], attention(Q, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": torch.randn(5, 7), "scale": 0.3}])
@pytest.mark.parametrize("heads", [4, 2])
def test_flash_attention_returns_the_logsumexp_of_the_scores(options, heads):
    inputs = (Q, K[:, :heads], V[:, :heads])

    def attention(q, k, v):
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, **options)

    program, _ = lower(attention, inputs, "optimize")
    torch.testing.assert_close(results(program, inputs), list(attention(*inputs)), rtol=1e-4, atol=1e-5)


FLOATS, INTS = torch.randn(3, 8), torch.randint(0, 9, (3, 4))
OURS = {
    "max": (lambda x: x.max(), (FLOATS,)),
    "min": (lambda x: x.min(), (FLOATS,)),
    "exp2": (torch.exp2, (FLOATS,)),
    "take_one": (torch.take, (FLOATS, torch.tensor(-3))),
    "falling_edges": (
        lambda x, edges: torch.histogram(x, edges)[0],
        (FLOATS, torch.tensor([-0.5, 1.0, -1.0, 0.5])),
    ),
    "fake quantize": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.3, 7, 0, 15), (FLOATS,)),
    "fake quantize by tensors": (
        lambda x: torch.fake_quantize_per_tensor_affine(
            x, torch.tensor(0.3), torch.tensor(7, dtype=torch.int32), 0, 15
        ),
        (FLOATS,),
    ),
    "product of bytes": (
        torch._int_mm,
        (
            torch.full((20, 40_000), 127, dtype=torch.int8),
            torch.full((40_000, 8), 127, dtype=torch.int8),
        ),
    ),
    "round": (lambda x: x.round(decimals=2), (FLOATS,)),
    "norm": (torch.nn.functional.normalize, (FLOATS,)),
    "shifts": (lambda i: (i << 2, i >> 1), (INTS,)),
    "bilinear": (torch.nn.Bilinear(8, 8, 5), (FLOATS, FLOATS)),
    "adaptive_max_pool": (
        lambda x: torch.nn.functional.adaptive_max_pool2d(x, 2),
        (torch.randn(1, 2, 4, 6),),
    ),
    "rrelu": (lambda x: torch.nn.functional.rrelu(x), (FLOATS,)),
    "unfold": (lambda x: x.unfold(1, 3, 2), (FLOATS,)),
    "roll": (lambda x: (x.roll((1, -2), (0, 1)), x.roll(16, 1), x.roll(-9), x.roll(3, 0)), (FLOATS,)),
}


@pytest.mark.parametrize("name", OURS)
def test_additional_decompositions_equal_eager(name):
    function, inputs = OURS[name]
    program, _ = lower(function, inputs)  # compared with eager mode after every pass
    assert called(program)


def test_mutation_becomes_functional():
    program, _ = lower(lambda x: x.clone().add_(1).mul_(x), (torch.randn(3),), "core")
    assert not any("_." in name for name in called(program))
    assert export(lambda x: x.clone().add_(1), (torch.randn(3),)) is not None


def test_view_that_only_the_strides_of_eager_permit():
    """Eager returns attention of transposed tensors in the memory order of its operands, our decomposition contiguous."""

    def attention(x):
        y = x.transpose(1, 2)
        return scaled_dot_product_attention(y, y, y).transpose(1, 2).view(2, 5, -1)

    inputs = (torch.randn(2, 5, 4, 8),)
    program, _ = lower(attention, inputs, "optimize")
    torch.testing.assert_close(results(program, inputs)[0], attention(*inputs), rtol=1e-4, atol=1e-5)


def test_view_of_an_updated_tensor_stays_a_view():
    def update(x):
        y = x + 1
        part = y.split(2)[1]
        part.view(-1).mul_(3)
        return y

    inputs = (torch.randn(4, 3),)
    program, _ = lower(update, inputs, "optimize")
    torch.testing.assert_close(results(program, inputs)[0], update(*inputs))


NORMS = {
    "layer": (torch.nn.LayerNorm(8), (2, 3, 8)),
    "layer without bias": (torch.nn.LayerNorm(8, bias=False), (2, 3, 8)),
    "group": (torch.nn.GroupNorm(2, 8), (2, 8, 5)),
    "batch": (torch.nn.BatchNorm2d(8), (2, 8, 5, 5)),
    "instance": (torch.nn.InstanceNorm1d(8, affine=True), (2, 8, 5)),
}


@pytest.mark.parametrize("backend", ["cpu", "portable", "xnnpack"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NORMS)
def test_norm_of_16_bit_values_with_float32_weights(name, dtype, backend):
    norm, shape = NORMS[name]
    model = torch.nn.Sequential(norm).eval()
    x = torch.randn(shape, dtype=dtype)
    torch.testing.assert_close(torchette.compile(model, (x,), backend=backend)(x), model(x))


def test_grouped_matmul_reads_only_the_selected_matrices():
    """Mixture of experts: the offsets depend on the data, and no weight is gathered."""

    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 16, 8, dtype=torch.bfloat16))

        def forward(self, x, offsets):
            return torch.nn.functional.grouped_mm(x, self.weight.transpose(1, 2), offs=offsets)

    model = Experts()
    x = torch.randn(6, 8, dtype=torch.bfloat16)
    compiled = torchette.compile(model, (x, torch.tensor([1, 1, 6], dtype=torch.int32)))
    for ends in ([1, 1, 6], [6, 6, 6], [0, 3, 6]):
        offsets = torch.tensor(ends, dtype=torch.int32)
        torch.testing.assert_close(compiled(x, offsets), model(x, offsets))
    assert compiled.planned_bytes < 512


def test_grouped_matmul_of_transformers():
    moe = pytest.importorskip("transformers.integrations.moe")

    x, weight, offsets = torch.randn(6, 8), torch.randn(3, 8, 4), torch.tensor([1, 1, 6])

    class Experts(torch.nn.Module):
        def forward(self, x, weight, offsets):
            return torch.ops.transformers.grouped_mm_fallback(x, weight, offs=offsets)

    got = torchette.compile(Experts(), (x, weight, offsets))(x, weight, offsets)
    torch.testing.assert_close(got, moe._grouped_mm_fallback(x, weight, offsets))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(8,), (2, 3, 8)])
def test_linear_with_a_vector_as_weight(shape: tuple[int, ...], bias: bool) -> None:
    class Linear(torch.nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, weight, offset if bias else None)

    inputs = torch.randn(shape), torch.randn(8), torch.randn(())
    compiled = torchette.compile(Linear().eval(), inputs)
    torch.testing.assert_close(compiled(*inputs), Linear()(*inputs), rtol=1e-4, atol=1e-5)
