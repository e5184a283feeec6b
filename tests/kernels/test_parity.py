# SPDX-License-Identifier: BSD-3-Clause
# The operators of torch's sample database return the results of eager: one sample of each operator is compiled, the
# others call the kernels directly. --full checks more samples in every dtype. parity_exclusions.json lists exclusions
# with reasons.

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.kernels import direct, parity
from tests.sweep import sweep
from torchette.errors import CompileError

QUICK, FULL = 16, 64
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # deprecated torch operators


@pytest.mark.parametrize("limit", sweep([1, 2], 1))
@pytest.mark.parametrize("shard", range(QUICK))
def test_samples_equal_eager(shard: int, limit: int) -> None:
    result = parity.sweep(list(parity.operators())[shard::QUICK], limit, parity.two_dtypes, directly=True)
    assert not result.failures, "\n".join(result.failures)
    assert result.direct > 25 * limit, "kernels cannot be called without a program any more"


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(FULL))
def test_all_dtypes_equal_eager(shard: int) -> None:
    names = list(parity.operators())[shard::FULL]
    result = parity.sweep(names, 3, directly=True)
    assert not result.failures, "\n".join(result.failures)


def test_exclusions_name_samples_and_have_reasons() -> None:
    known = parity.operators()
    for key, (reason, _) in parity.exclusions().items():
        name, _, _ = key.partition("#")
        name, _, dtype = name.partition(":")
        assert name in known and dtype in ("", *parity.DTYPES), key
        assert len(reason) > 5


def refusal(sample: parity.Sample) -> CompileError:
    with pytest.raises(CompileError) as caught:
        parity.compiled([sample])
    return caught.value


@pytest.mark.parametrize("key", sorted(parity.exclusions()))
def test_excluded_samples_are_rejected_ahead_of_time(key: str) -> None:
    name, _, index = key.partition("#")
    name, _, dtype = name.partition(":")
    for kind in [dtype] if dtype else parity.two_dtypes(name) or ["float32"]:
        samples = parity.database(name, kind, 64 if index else 2)
        samples = [sample for sample in samples if index in ("", str(sample.index))]
        assert samples
        for sample in samples:
            error = refusal(sample)
            assert error.code == parity.exclusions()[key][1], error
            assert "in forward" in str(error) and ("Try:" in str(error) or "try:" in str(error)), error
            if error.code == "export-failed":  # the message quotes the error of torch
                assert f"{type(error.__cause__).__name__}: " in str(error), error


@pytest.mark.parametrize("name", ["dropout", "dropout3d", "feature_alpha_dropout.with_train", "rrelu"])
def test_training_mode_randomness_is_rejected_unless_requested(name: str) -> None:
    every = parity.database(f"nn.functional.{name}", "float32", 64)
    drawing = next(s for s in every if not torch.equal(*(r[0] for r in s.drawn(2))))
    assert refusal(drawing).code == "train-mode"
    assert parity.hold_drawn(drawing).passed == [drawing]


def test_different_distribution_is_detected() -> None:
    x = torch.rand(parity.DRAWS, 5)
    assert parity._alike((x > 0.5) * 2.0, (torch.rand(parity.DRAWS, 5) > 0.5) * 2.0)
    assert not parity._alike((x > 0.5) * 2.0, (x > 0.9) * 2.0)
    assert not parity._alike((x > 0.5) * 2.0, (x > 0.5) * 1.0)


def test_rounded_distribution_is_compared_with_eager() -> None:
    def draws(p: float, value: float) -> torch.Tensor:
        return ((torch.rand(parity.DRAWS, 5) > p) * value).bfloat16()

    exact = draws(0.5, 51.0).double()
    assert parity._alike_as_eager(draws(0.5, 52.0), draws(0.5, 50.5), exact)
    assert not parity._alike_as_eager(draws(0.5, 54.0), draws(0.5, 50.5), exact)
    assert not parity._alike_as_eager(draws(0.9, 51.0), draws(0.5, 50.5), exact)


def test_wrong_kernel_is_detected_without_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    right = next(iter(parity.database("add", "int32", 2)))
    assert parity.hold_directly(right).passed == [right]
    call = direct._native.call_kernel

    def off_by_one(name: str, *arguments: Any) -> Any:
        sizes = call(name, *arguments)
        arguments[-1].add_(1)
        return sizes

    monkeypatch.setattr(direct.kernel_call._native, "call_kernel", off_by_one)
    assert parity.hold_directly(right) is None, "a compiled program is to decide"


def test_wrong_result_is_detected() -> None:
    right = parity.Sample("add", "float32", 0, torch.add, (torch.ones(2), 1), {})
    assert parity.difference(right, [torch.full((2,), 2.0)]) is None
    assert parity.difference(right, [torch.full((2,), 2.001)]) is not None
    assert parity.difference(right, [torch.full((2,), 2.0, dtype=torch.float64)]) is not None
