# SPDX-License-Identifier: BSD-3-Clause
# Torch's own collections of what export supports: all of its examples, and the samples of its higher-order operators.

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._export.db.case import SupportLevel
from torch._export.db.examples import all_examples
from torch.testing._internal.hop_db import hop_db

import torchette
from tests.models.test_control_flow import assert_equal

EXAMPLES = all_examples()

# Operators that export yields and that no other device than a GPU, or nobody but a test, has kernels for.
FOREIGN = {
    "auto_functionalize": "the sample calls an operator of torch's own tests",
    "inline_asm_elementwise": "the sample is assembly for a GPU",
    "invoke_quant_packed": "hands its graph to torch.compile",
    "while_loop_stack_output": "what torch.compile makes of while_loop in training",
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_supported_example_of_export_equals_eager(name: str) -> None:
    case = EXAMPLES[name]
    if case.support_level is not SupportLevel.SUPPORTED:
        pytest.skip("torch.export does not support it")
    module, kwargs = case.model.eval(), case.example_kwargs or {}
    exported = torch.export.export(
        copy.deepcopy(module),
        copy.deepcopy(case.example_args),
        kwargs,
        dynamic_shapes=case.dynamic_shapes,
        strict=False,
    )
    model = torchette.compile(exported)
    for args in (case.example_args, case.extra_args):
        if args is None:
            continue
        ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
        assert_equal(model(*ours, **kwargs), copy.deepcopy(module)(*theirs, **kwargs))
        assert_equal(ours, theirs)  # what the model writes to


@pytest.mark.parametrize("info", hop_db, ids=[f"{info.name}{n}" for n, info in enumerate(hop_db)])
def test_samples_of_higher_order_operators_equal_eager(info: Any) -> None:
    if info.name in FOREIGN:
        pytest.skip(FOREIGN[info.name])
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=False):

        class Model(torch.nn.Module):
            def forward(self, *args: Any) -> Any:
                return info.op(*args, **sample.kwargs)  # noqa: B023  used within the turn

        args, module = (sample.input, *sample.args), Model().eval()
        try:
            exported = torch.export.export(module, args, strict=False)
        except Exception as error:
            pytest.skip(f"torch.export does not yield it: {type(error).__name__}")
        assert_equal(torchette.compile(exported)(*args), module(*args))
