# SPDX-License-Identifier: BSD-3-Clause
# NaN and infinity propagate through Vulkan's payloads as in eager, on a device and on our kernels: torch's samples with
# such elements.

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

from tests.backends.vulkan.cases import BINARY, POSITIVE, UNARY
from tests.backends.vulkan.device import needs_device, on_processor
from tests.backends.vulkan.test_operators import Calls, expected, outputs, run
from tests.backends.vulkan.test_parity import called, difference, is_near, samples
from tests.backends.vulkan.test_parity import run as run_samples
from tests.kernels import parity
from tests.kernels.nonfinite import VALUES
from tests.kernels.test_nonfinite import is_skipped as is_skipped_everywhere
from tests.kernels.test_nonfinite import with_values
from torchette.backends.vulkan import VulkanPartitioner
from torchette.errors import TorchetteError
from torchette.exir import to_edge_transform_and_lower

pytestmark = [needs_device, pytest.mark.filterwarnings("ignore::UserWarning")]
SHARDS = 24
# Patterns of operators that are not compared on Vulkan, with the reason.
SKIPPED = {
    **dict.fromkeys(
        ("fft.*fft", "fft.*fft[2n]", "stft"),
        "the transform is a matmul: 0 times NaN is NaN, but eager returns exact zeros as imaginary parts",
    ),
    **dict.fromkeys(
        ("nn.functional.multi_margin_loss", "nn.functional.multilabel_margin_loss"), "eager ignores NaN, because it compares with < in a loop"
    ),
    **dict.fromkeys(("char", "byte", "short", "int", "long"), "C++ does not define the conversion of NaN to an integer"),
}  # fmt: skip
QUICK = [
    "add", "amax", "clamp", "div.no_rounding_mode", "exp", "maximum", "mean", "mm", "nn.functional.avg_pool2d",
    "nn.functional.gelu", "nn.functional.layer_norm", "nn.functional.max_pool2d", "nn.functional.relu", "pow",
    "sigmoid", "softmax", "sqrt", "sum", "tanh", "where",
]  # fmt: skip


def is_skipped(name: str) -> bool:
    return is_skipped_everywhere(name) or any(fnmatch.fnmatchcase(name, pattern) for pattern in SKIPPED)


def is_refused(sample: parity.Sample) -> bool:
    """Whether a program of the sample fails without a backend, too."""
    try:
        model, inputs = parity.compiled([sample])
        model(*map(torch.clone, inputs))
    except TorchetteError:
        return True
    return False


def compare(batch: Sequence[parity.Sample]) -> list[str]:
    """Runs samples in one program, or in halves if the program is rejected, and returns the failures."""
    try:
        device_results = run_samples(batch)
        if device_results is None:
            return []
        with on_processor():
            emulated = run_samples(batch)
    except TorchetteError as error:
        if len(batch) == 1:
            return [] if is_refused(batch[0]) else [f"{batch[0]}: {' '.join(str(error).split())[:300]}"]
        half = len(batch) // 2
        return compare(batch[:half]) + compare(batch[half:])
    assert emulated is not None
    return [
        f"{where}: {sample}: {problem}"
        for where, every in (("device", device_results), ("kernels", emulated))
        for sample, results in zip(batch, every, strict=True)
        if (problem := difference(sample, results)) is not None
    ]


def changed(names: Sequence[str], limit: int) -> list[parity.Sample]:
    every = [s for s in samples(names, "float32", limit) if not is_skipped(s.operator)]
    return [
        new for sample in every for kind in VALUES if parity.eager_accepts(new := with_values(sample, kind))
    ]


# Functions of one and of two operands, in addition to those of cases.py.
UNARY_FUNCTIONS: dict[str, Callable] = {
    **{name: getattr(torch, name) for name in (*UNARY, *POSITIVE, "asinh", "atanh")},
    **{name: getattr(F, name) for name in ("elu", "hardshrink", "hardsigmoid", "hardswish", "leaky_relu", "silu", "softplus")},
    "gelu of tanh": lambda x: F.gelu(x, approximate="tanh"),
    "clamp": lambda x: x.clamp(-1.5, 1.5),
    **{f"pow {power}": lambda x, power=power: x**power for power in (-3, -1, -0.5, 0, 0.5, 1.5, 2, 3, 4, math.inf, -math.inf)},
    **{f"{base} pow": lambda x, base=base: base**x for base in (-2.0, 0.5, 1.0, 3.0)},
    **{f"remainder {by}": lambda x, by=by: torch.remainder(x, by) for by in (3.0, -math.inf)},
}  # fmt: skip
BINARY_FUNCTIONS: dict[str, Callable] = {
    **{name: getattr(torch, name) for name in (*BINARY, "pow")},
    **{f"div {mode}": lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode) for mode in ("floor", "trunc")},
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("count", [1, 2])
def test_pointwise_operators_propagate_as_in_eager(count: int, dtype: torch.dtype) -> None:
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0]
    operands = torch.tensor(list(itertools.product(special, repeat=count)), dtype=dtype).T
    inputs = tuple(operand.contiguous() for operand in operands)
    functions = dict(UNARY_FUNCTIONS if count == 1 else BINARY_FUNCTIONS)
    if dtype is torch.float16:  # Vulkan refuses these powers of float16
        functions.pop("pow 0.5", None), functions.pop("pow -0.5", None)
    module = Calls(lambda *x: tuple(function(*x) for function in functions.values()))
    failures = [
        f"{name}: {ours[wrong]} instead of {theirs[wrong]} for {[x[wrong] for x in inputs]}"
        for name, ours, theirs in zip(functions, run(module, inputs), expected(module, inputs), strict=True)
        if (wrong := ~torch.tensor([is_near(a, b) for a, b in zip(ours, theirs, strict=True)])).any()
    ]
    assert not failures, "\n".join(failures)


NORMS: dict[str, Callable] = {
    "batch_norm": lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b),
    "instance_norm": lambda x, w, b, mean, var: F.instance_norm(x[:1], weight=w, bias=b),
    "group_norm": lambda x, w, b, mean, var: F.group_norm(x, 2, w, b),
    "layer_norm": lambda x, w, b, mean, var: F.layer_norm(x.transpose(1, 2), (4,), w, b),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_propagate_as_in_eager(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    module = Calls(NORMS[name]).eval()
    inputs = [torch.randn(shape, generator=generator) for shape in ((2, 4, 5), 4, 4, 4, 4)]
    inputs[4].abs_()
    exported = torch.export.export(module, tuple(inputs))
    data = to_edge_transform_and_lower(exported, partitioner=VulkanPartitioner()).to_executorch().buffer
    for place, value in itertools.product(range(5), (math.nan, math.inf, -math.inf)):
        changed = [tensor.clone() for tensor in inputs]
        changed[place].view(-1)[2] = value
        theirs = module(*changed)
        with on_processor():
            emulated = outputs(data, tuple(changed))[0]
        for ours in (outputs(data, tuple(changed))[0], emulated):
            assert is_near(ours, theirs), (place, value, ours, theirs)


def _attention_cases() -> dict[str, tuple[Calls, tuple[torch.Tensor, ...]]]:
    """Causal attention with a value in keys or values that some queries must not see, and masks that hide all keys from
    query 1."""
    cases, generator = {}, torch.Generator().manual_seed(0)
    hidden = torch.ones(4, 6, dtype=torch.bool).tril()
    hidden[1] = False
    causal = Calls(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True))
    masked = Calls(F.scaled_dot_product_attention)
    for batch in ((1, 1), (2,)):  # torch has separate kernels for four dimensions and for three
        q, k, v = (torch.randn(*batch, tokens, 8, generator=generator) for tokens in (4, 6, 6))
        for name, value in itertools.product("kv", (math.nan, math.inf, -math.inf)):
            tensors = {"q": q, "k": k.clone(), "v": v.clone()}
            tensors[name][..., 2, 3] = value
            cases[f"{len(batch) + 2} dimensions, causal, {name} {value}"] = (causal, tuple(tensors.values()))
        cases[f"{len(batch) + 2} dimensions, masked"] = (masked, (q, k, v, hidden))
        lowest = torch.zeros(4, 6).masked_fill(~hidden, -math.inf)
        cases[f"{len(batch) + 2} dimensions, masked by floats"] = (masked, (q, k, v, lowest))
    return cases


ATTENTION = _attention_cases()


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_propagates_as_in_eager(name: str) -> None:
    module, inputs = ATTENTION[name]
    for ours, theirs in zip(run(module, inputs), expected(module, inputs), strict=True):
        assert is_near(ours, theirs), (ours, theirs)


def test_common_operators_propagate_as_in_eager() -> None:
    batch = changed(QUICK, 1)
    assert len(batch) == len(QUICK) * len(VALUES)
    called.clear()
    failures = compare(batch)
    assert not failures, "\n".join(failures)
    assert len(called) >= len(QUICK) // 2, f"Vulkan ran only {sorted(called)}"


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_all_operators_propagate_as_in_eager(shard: int) -> None:
    batch = changed(list(parity.operators())[shard::SHARDS], 2)
    failures = [text for at in range(0, len(batch), 24) for text in compare(batch[at : at + 24])]
    assert not failures, "\n".join(failures)
