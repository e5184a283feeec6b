# SPDX-License-Identifier: BSD-3-Clause
# The passes that produce the Edge dialect: scalars, dtypes, memory formats, views, no-ops. `lower` compares with eager.

import itertools

import pytest
import torch
from graphs import Function, called, export, lower, results

from torchette.exir.graph import constants, placeholders

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
]  # fmt: skip


def sample(dtype, shape=(3,)):
    values = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape)
    return values.to(dtype)


def test_scalars_become_constants_once():
    program, report = lower(
        lambda x, y: (x * 2.0 + y * 2.0, x > 2, y - 1), (torch.randn(3), torch.randn(3)), "edge"
    )
    assert called(program) == ["mul.Tensor", "mul.Tensor", "add.Tensor", "gt.Tensor", "sub.Tensor"]
    assert len(constants(program)) == 2  # 2.0 for both multiplications and the comparison, 1.0
    assert report.notes("scalars_to_tensors") == ["2 distinct scalars became constants"]


@pytest.mark.parametrize("number", [3, 2.5, True])
def test_scalar_with_tensor_has_the_dtype_of_eager(number):
    def forward(*tensors):
        return [y for x in tensors for y in (x + number, x * number, x < number)]

    inputs = tuple(sample(dtype) for dtype in DTYPES)
    program, _ = lower(forward, inputs, "edge", check_passes=False)
    for ours, eager in zip(results(program, inputs), forward(*inputs), strict=True):
        assert ours.dtype == eager.dtype
        torch.testing.assert_close(ours, eager, rtol=1e-2, atol=1e-2)


def test_every_pair_of_dtypes_is_cast_as_eager_does():
    pairs = list(itertools.product(DTYPES, DTYPES))

    def forward(*tensors):
        return [a + b for a, b in zip(tensors[::2], tensors[1::2], strict=True)] + [
            a / b for a, b in zip(tensors[::2], tensors[1::2], strict=True)
        ]

    inputs = tuple(sample(dtype) for pair in pairs for dtype in pair)
    program, _ = lower(forward, inputs, "edge", check_passes=False)
    for ours, eager in zip(results(program, inputs), forward(*inputs), strict=True):
        assert ours.dtype == eager.dtype
        torch.testing.assert_close(ours, eager, rtol=1e-2, atol=1e-2)


def test_zero_dimensional_tensor_has_lower_promotion_priority():
    x, scalar = sample(torch.float16), torch.tensor(2.0, dtype=torch.float64)
    program, _ = lower(lambda x, s: x * s, (x, scalar), "edge", check_passes=False)
    assert called(program) == ["_to_copy.default", "mul.Tensor"]
    assert results(program, (x, scalar))[0].dtype == torch.float16


def test_condition_does_not_affect_promotion():
    program, _ = lower(
        lambda c, x: torch.where(c, x, 0), (torch.tensor([True, False]), torch.randn(2)), "optimize"
    )
    assert called(program) == ["where.self"]


def test_views_become_copies_and_values_are_dense():
    program, _ = lower(lambda x: x.transpose(0, 1) + 1, (torch.randn(2, 3),), "edge")
    assert called(program) == ["permute_copy.default", "add.Tensor"]
    assert all(n.meta["val"].is_contiguous() for n in program.graph.nodes if "val" in n.meta)


def test_channels_last_input_is_converted_once():
    x = torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last)
    program, report = lower(torch.nn.Conv2d(3, 2, 1), (x,), "edge")
    assert called(program)[0] == "_clone_dim_order.default" or "dim_order" in called(program)[0]
    assert report.notes("normalize_memory_formats") == ["1 channels-last inputs converted once"]
    user_input = next(n for n in placeholders(program) if n.name == "input")
    assert user_input.meta["val"].is_contiguous(memory_format=torch.channels_last)


def test_memory_format_inside_is_dropped():
    def forward(x):
        return x.to(memory_format=torch.channels_last).relu().contiguous()

    program, _ = lower(forward, (torch.randn(1, 3, 4, 4),), "edge")
    assert called(program) == ["relu.default"]


def test_channels_last_weights_are_stored_contiguous_without_modifying_the_model():
    module = torch.nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last)
    strides = module.weight.stride()
    program, _ = lower(module, (torch.randn(1, 3, 8, 8),), "edge")
    assert all(tensor.is_contiguous() for tensor in constants(program).values())
    assert module.weight.stride() == strides != constants(program)[placeholders(program)[0]].stride()


def test_noops_are_removed_but_an_output_stays_a_copy_of_its_input():
    def forward(x):
        return (x.to(torch.float32).expand(2, 3)[:, :].clone() + 1, x.clone())

    program, report = lower(forward, (torch.randn(2, 3),), "edge")
    assert called(program) == ["add.Tensor", "clone.default"]
    assert "calls without effect removed" in report.notes("remove_noops")[0]


def test_concatenation_of_one_tensor_is_removed():
    program, _ = lower(lambda x: torch.cat((x.exp(),), 1).sin(), (torch.randn(2, 3),), "edge")
    assert called(program) == ["exp.default", "sin.default"]


def test_selection_from_a_dimension_of_size_1_copies_nothing():
    x = torch.randn(2, 1, 3)
    program, _ = lower(lambda x: x.exp().select(1, -1) + x[:, 0].exp(), (x,), "edge")
    assert called(program).count("squeeze_copy.dims") == 2 and "select_copy.int" not in called(program)
    program, _ = lower(lambda x: x.select(0, 0).exp(), (x,), "edge")
    assert called(program) == ["select_copy.int", "exp.default"]


def test_dead_code_is_removed_with_its_tensors():
    class Unused(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = torch.nn.Linear(4, 4)

        def forward(self, x):
            self.unused(x)
            return x + 1

    program, _ = lower(Unused(), (torch.randn(1, 4),), "edge")
    assert called(program) == ["add.Tensor"] and len(constants(program)) == 1
    assert not program.state_dict


def test_exported_program_and_module_are_not_modified():
    module = Function(lambda x: x.view(-1) * 2)
    exported = export(module, (torch.randn(2, 3),))
    before = exported.graph_module.code, str(exported.graph_signature)
    from torchette.exir.pipeline import build

    build().until("exec").run(exported)
    assert (exported.graph_module.code, str(exported.graph_signature)) == before
