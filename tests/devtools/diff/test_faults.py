# SPDX-License-Identifier: BSD-3-Clause
# Faults of each class are found and named, and none is found in correct programs. `--full` injects 100 of each class.

from __future__ import annotations

import pytest
import torch

from tests.devtools.diff import faults
from tests.sweep import sweep
from torchette.devtools.diff import compare

pytestmark = pytest.mark.usefixtures("portable_plan")


@pytest.mark.parametrize("kind", faults.CLASSES)
def test_injected_faults_are_named(kind: str) -> None:
    name = "perceptron" if kind == "quantization" else "residual"
    for tried in faults.trials(kind, 2, seed=1, names=(name,)):
        assert tried.is_found and tried.named, f"{tried.injected.description}: {tried.summary}"


@pytest.mark.parametrize(
    "name",
    sweep(faults.networks(), "residual"),
)
def test_correct_programs_have_no_faults(name: str) -> None:
    subject = faults.make(name)
    result = compare(subject.compiled, None, subject.inputs)
    assert result.equal, result.summary()
    assert {row.verdict for row in result.operators} <= {"ok", "not run"}
    assert result.stages[-1].stage == "file on device"


@pytest.mark.slow
@pytest.mark.parametrize("kind", faults.CLASSES)
def test_95_of_100_faults_are_found_and_90_named(kind: str) -> None:
    tried = list(faults.trials(kind, 100))
    assert sum(each.is_found for each in tried) >= 95
    assert sum(each.named for each in tried) >= 90, [each.summary for each in tried if not each.named]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_torch_layers_have_no_faults() -> None:
    compared, differences = faults.layers()
    assert compared > 100
    assert not differences, "\n".join(differences)


def test_a_first_fault_is_not_amplified_into_others() -> None:
    """One of many kernels is wrong: the later kernels use its result, and depart from eager."""
    subject = faults.make("transformer")
    injected = next(
        each for seed in range(99)
        if (each := faults.kernel_fault(subject, faults.random.Random(seed))) is not None
        and faults.visible(subject, each) and min(each.instructions) < 8
    )  # fmt: skip
    device = faults.Runtime.get().load_program(injected.executed).load_method("forward", tracing=True)
    result = compare(None, injected.file, subject.inputs, device=device, search=False)
    assert {fault.instruction for fault in result.faults} == injected.instructions
    assert result.first is not None and result.first.kind == "kernel"
    assert result.first.source.startswith("tests/devtools/diff/faults.py:")
    assert torch.tensor(result.first.numbers.max_abs) > 0
