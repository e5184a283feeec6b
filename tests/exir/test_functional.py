# SPDX-License-Identifier: BSD-3-Clause
# All functions of torch.nn.functional are decomposed to operators that are core or on the published lists. The calls
# are torch's samples and, for functions without samples, those of CALLS.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from graphs import export
from torch.nn import functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from tests.kernels import parity
from torchette.exir import dialects, ops
from torchette.exir.dialects import accepted
from torchette.exir.dialects._refused import REFUSED
from torchette.exir.passes.decompose_to_core import decompose_to_core

X, IMAGE, VOLUME = torch.randn(2, 4, 8), torch.randn(2, 4, 8, 8), torch.randn(2, 4, 6, 6, 6)
EIGHT_BITS = torch.ones(16, 16).to(torch.float8_e4m3fn)
HALF = torch.ones(2, 16, 16, dtype=torch.bfloat16)

# Functions without samples in torch, or without samples on the CPU: (function, its tensors).
CALLS: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "adaptive_max_pool1d_with_indices": (lambda x: F.adaptive_max_pool1d_with_indices(x, 3), (X,)),
    "adaptive_max_pool2d_with_indices": (lambda x: F.adaptive_max_pool2d_with_indices(x, 3), (IMAGE,)),
    "adaptive_max_pool3d_with_indices": (lambda x: F.adaptive_max_pool3d_with_indices(x, 3), (VOLUME,)),
    "affine_grid": (lambda x: F.affine_grid(x, [2, 3, 4, 5]), (torch.randn(2, 2, 3),)),
    "batch_norm": (lambda x, m, v: F.batch_norm(x, m, v), (X, torch.zeros(4), torch.ones(4))),
    "celu_": (lambda x: F.celu_(x + 0), (X,)),
    "conv_tbc": (F.conv_tbc, (torch.randn(5, 2, 4), torch.randn(3, 4, 6), torch.randn(6))),
    "dropout1d": (lambda x: F.dropout1d(x, training=False), (X,)),
    "elu_": (lambda x: F.elu_(x + 0), (X,)),
    "fold": (lambda x: F.fold(x, (4, 5), 2), (torch.randn(2, 8, 12),)),
    "fractional_max_pool2d_with_indices": (lambda x: F.fractional_max_pool2d_with_indices(x, 2, 3), (IMAGE,)),
    "fractional_max_pool3d_with_indices": (
        lambda x: F.fractional_max_pool3d_with_indices(x, 2, 3),
        (VOLUME,),
    ),
    "grouped_mm": (F.grouped_mm, (HALF, HALF)),
    "gumbel_softmax": (F.gumbel_softmax, (X,)),
    "hardtanh_": (lambda x: F.hardtanh_(x + 0), (X,)),
    "leaky_relu_": (lambda x: F.leaky_relu_(x + 0), (X,)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (X,)),
    "lp_pool1d": (lambda x: F.lp_pool1d(x, 2, 3), (X,)),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 2, 3), (IMAGE,)),
    "lp_pool3d": (lambda x: F.lp_pool3d(x, 2, 3), (VOLUME,)),
    "max_pool1d_with_indices": (lambda x: F.max_pool1d_with_indices(x, 2), (X,)),
    "max_pool2d_with_indices": (lambda x: F.max_pool2d_with_indices(x, 2), (IMAGE,)),
    "max_pool3d_with_indices": (lambda x: F.max_pool3d_with_indices(x, 2), (VOLUME,)),
    "native_channel_shuffle": (lambda x: F.native_channel_shuffle(x, 2), (IMAGE,)),
    "relu_": (lambda x: F.relu_(x + 0), (X,)),
    "rrelu_": (lambda x: F.rrelu_(x + 0), (X,)),
    "scaled_mm": (
        lambda a, b: F.scaled_mm(
            a, b.t(), torch.ones(()), F.ScalingType.TensorWise, torch.ones(()), F.ScalingType.TensorWise
        ),
        (EIGHT_BITS, EIGHT_BITS),
    ),
    "selu_": (lambda x: F.selu_(x + 0), (X,)),
    "sigmoid": (F.sigmoid, (X,)),
    "softmax": (lambda x: F.softmax(x, -1), (X,)),
    "tanh": (F.tanh, (X,)),
    "threshold_": (lambda x: F.threshold_(x + 0, 0.1, 2.0), (X,)),
    "upsample": (lambda x: F.upsample(x, scale_factor=2), (IMAGE,)),
}
# Names in the namespace that are not operators, and a function with arguments for several GPUs and no CPU
# implementation.
HELPERS = {
    "assert_int_or_pair", "boolean_dispatch", "handle_torch_function", "has_torch_function",
    "has_torch_function_unary", "has_torch_function_variadic", "scaled_grouped_mm",
}  # fmt: skip
LATER = {"scaled_addmm", "scaled_addmm_"}  # torch 2.15, for 8-bit floats on a GPU
# torch.export cannot capture these functions, because their Python code reads tensor values.
NOT_CAPTURED = {"ctc_loss", "gaussian_nll_loss"}
SAMPLES = 2

INFOS = [info for info in op_db if info.name.startswith("nn.functional.") and info.dtypes]


def info_name(info: Any) -> str:
    return (
        f"{info.name.removeprefix('nn.functional.')}{info.variant_test_name and '-' + info.variant_test_name}"
    )


def sampled(info: Any) -> Iterator[tuple[Callable, tuple[torch.Tensor, ...]]]:
    """Yields torch's samples as functions of only their tensors."""
    dtype = torch.float32 if torch.float32 in info.dtypes else min(info.dtypes, key=str)
    # All samples first: the finalizer of a suspended generator of torch switches gradients, which fails while torch.export
    # traces another function.
    for sample in list(parity.sample_inputs(info, dtype)):
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def call(*tensors, leaves=leaves, spec=spec, where=where):
            leaves = list(leaves)
            for i, tensor in zip(where, tensors):
                leaves[i] = tensor
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            return info.op(*args, **kwargs)

        yield call, tuple(leaves[i] for i in where)


def left_over(call: Callable, tensors: tuple[torch.Tensor, ...]) -> set[str]:
    """Returns the operators in the decomposition of a call that are neither core nor preserved for a kernel."""
    program = decompose_to_core(export(call, tensors))
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    return {
        accepted.operator_name(target) for target in targets if ops.is_operator(target) and not known(target)
    }


def known(target: torch._ops.OpOverload) -> bool:
    return ops.is_core(target) or ops.is_symbolic(target) or target in ops.EXTRAS


def test_every_function_is_called() -> None:
    public = {name for name in dir(F) if callable(getattr(F, name)) and name[0].islower()}
    sampled_names = {info.name.removeprefix("nn.functional.") for info in INFOS}
    assert public - LATER == sampled_names | CALLS.keys() | HELPERS | {"batch_norm"}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch deprecates some of the functions
def test_calls_become_core_operators(name: str) -> None:
    assert left_over(*CALLS[name]) <= REFUSED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("info", INFOS, ids=info_name)
@pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # torch deprecates some of the calls, or some of their shapes
def test_samples_become_core_operators(info: Any) -> None:
    captured = 0
    for call, tensors in sampled(info):
        try:
            left = left_over(call, tensors)
        except Exception as error:
            # torch captures one_hot only with a given number of classes.
            assert "data-dependent" in str(error) or "DynamicOutputShape" in type(error).__name__, error
            continue
        assert left <= REFUSED.keys()
        captured += 1
        if captured == SAMPLES:
            break
    assert bool(captured) == (info.name.removeprefix("nn.functional.") not in NOT_CAPTURED)


def test_rejected_operators_are_not_accepted_elsewhere() -> None:
    assert not REFUSED.keys() & {*dialects.core_operators(), *dialects.edge_extras()}
