# SPDX-License-Identifier: BSD-3-Clause
# Properties of operators according to torch's schemas.

import pytest
import torch

from torchette.errors import MissingOutVariantError
from torchette.exir import dialects, ops

aten = torch.ops.aten

# (functional, its out variant): multiple results, lists, renamed outs, dtypes that the out tensor implies.
OUT = [
    (aten.add.Tensor, aten.add.out),
    (aten.native_layer_norm.default, aten.native_layer_norm.out),
    (aten.max.dim, aten.max.dim_max),
    (aten.topk.default, aten.topk.values),
    (aten.split_with_sizes_copy.default, aten.split_with_sizes_copy.out),
    (aten.mean.dim, aten.mean.out),
    (aten._to_copy.default, aten._to_copy.out),
    (aten.arange.start_step, aten.arange.start_out),
    (aten.full.default, aten.full.out),
    (aten.linear.default, aten.linear.out),
    (aten.index.Tensor, aten.index.Tensor_out),
    (aten.add.out, aten.add.out),
]


@pytest.mark.parametrize(("functional", "out"), OUT, ids=[str(f) for f, _ in OUT])
def test_out_variant_is_found_by_its_schema(functional, out):
    assert ops.out_variant(functional) is out


def test_most_core_operators_have_an_out_variant():
    core = [
        op
        for op in ops.all_aten()
        if ops.is_core(op) and not ops.is_mutating(op) and not ops.is_view(op) and not ops.is_symbolic(op)
    ]
    without = {str(op) for op in core if ops.out_variant(op) is None}
    assert len(core) > 150 and len(without) < 10, without
    assert len(dialects.core_operators()) >= len(core)


def test_in_place_overloads_have_functional_twins():
    assert ops.functional(aten.hardswish_.default) is aten.hardswish.default
    assert ops.functional(aten.add_.Tensor) is aten.add.Tensor
    for op in (aten.add.Tensor, aten.add.out, torch.ops.higher_order.cond):
        assert ops.functional(op) is op


def test_views_have_copying_twins():
    assert ops.is_view(aten.view.default) and not ops.is_view(aten.view_copy.default)
    assert not ops.is_view(aten.add_.Tensor) and ops.is_mutating(aten.add_.Tensor)
    assert ops.copying(aten.transpose.int) is aten.transpose_copy.int
    assert ops.copying(aten._unsafe_view.default) is aten.view_copy.default
    assert ops.copying(aten.add.Tensor) is None


def test_scalar_and_tensor_overloads_are_twins():
    assert ops.tensor_overload(aten.mul.Scalar) is aten.mul.Tensor
    assert ops.scalar_overload(aten.mul.Tensor) is aten.mul.Scalar
    # pow with a scalar exponent has separate kernels. The core set has no tensor overload of masked_fill.
    assert ops.tensor_overload(aten.pow.Tensor_Scalar) is None
    assert ops.tensor_overload(aten.masked_fill.Scalar) is None


def test_dim_order_operators_are_named_as_in_the_file():
    out = ops.out_variant(ops.clone_dim_order)
    assert ops.kernel_name(out) == ("dim_order_ops::_clone_dim_order", "out")
    x = torch.randn(2, 3, 4, 5)
    copied = ops.to_dim_order_copy(x, dtype=torch.float64, dim_order=[0, 2, 3, 1])
    assert copied.is_contiguous(memory_format=torch.channels_last) and torch.equal(copied, x.double())


def test_registration_snippet_works():
    library = torch.library.Library("torchette_test_ops", "DEF")
    library.define("clip(Tensor x, int[2] size, *, float by=1.0, ScalarType? dtype=None) -> Tensor")
    library.define("halves(Tensor x) -> (Tensor, Tensor)")
    library.impl("clip", lambda x, size, by=1.0, dtype=None: x.clamp(-by, by), "CompositeExplicitAutograd")
    library.impl("halves", lambda x: (x / 2, x / 2), "CompositeExplicitAutograd")
    clip, halves = torch.ops.torchette_test_ops.clip.default, torch.ops.torchette_test_ops.halves.default
    error = ops.missing_out_variants([(clip, "model.py:3"), (halves, "model.py:4"), (clip, "model.py:3")])
    assert isinstance(error, MissingOutVariantError) and error.code == "missing-out-variant"
    assert error.operators == ("torchette_test_ops.clip", "torchette_test_ops.halves")
    assert error.where == (
        "torchette_test_ops.clip.default: model.py:3",
        "torchette_test_ops.halves.default: model.py:4",
    )
    namespace = {"torch": torch}
    for hint in error.hints:
        exec(hint.partition("\n")[2], namespace)
        namespace.setdefault("alive", []).append(namespace["library"])
    ops.out_variant.cache_clear()
    assert ops.out_variant(clip) is torch.ops.torchette_test_ops.clip.out
    out = torch.empty(3)
    torch.ops.torchette_test_ops.clip.out(torch.tensor([-3.0, 0.0, 3.0]), [1, 1], by=2.0, out=out)
    assert out.tolist() == [-2.0, 0.0, 2.0]
    first, second = torch.empty(2), torch.empty(2)
    torch.ops.torchette_test_ops.halves.out(torch.tensor([2.0, 4.0]), out0=first, out1=second)
    assert second.tolist() == [1.0, 2.0]
