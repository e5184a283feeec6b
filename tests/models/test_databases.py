# SPDX-License-Identifier: BSD-3-Clause
# Torch's collections of supported exports: all examples, and the samples of the higher-order operators.

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._export.db.case import SupportLevel
from torch._export.db.examples import all_examples
from torch.testing._internal.hop_db import hop_db
from torch.utils import _pytree as pytree

import torchette
from tests.models.test_control_flow import assert_equal
from torchette.errors import CompileError

EXAMPLES = all_examples()

# Operators that are rejected ahead of time, because torch.export cannot capture them or only GPUs or torch's tests have
# kernels for them.
REFUSED = {
    "auto_functionalize": "the sample calls an operator of torch's tests",
    "flex_attention_backward": "torch.export calls a function that the sample does not define",
    "flex_gemm": "GPU operator of torch 2.14",
    "inline_asm_elementwise": "the sample contains GPU assembly",
    "invoke_quant": "torch.export cannot find the value of the node",
    "invoke_quant_packed": "passes its graph to torch.compile",
    "local_map_hop": "torch.export fails: the call is not an operator",
    "switch": "prototype of torch 2.14",
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.filterwarnings("ignore::UserWarning")  # warnings of torch's examples
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
        assert_equal(ours, theirs)  # the arguments that the model mutates


@pytest.mark.parametrize("info", hop_db, ids=[f"{info.name}{n}" for n, info in enumerate(hop_db)])
@pytest.mark.filterwarnings("ignore::UserWarning")  # warnings of torch's examples
def test_samples_of_higher_order_operators_equal_eager(info: Any) -> None:
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=False):
        leaves, tree = pytree.tree_flatten((sample.input, *sample.args))
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

        class Model(torch.nn.Module):
            def forward(
                self, *values: torch.Tensor
            ) -> Any:  # functions belong to the model, not to its inputs
                remaining = iter(values)
                args = [next(remaining) if isinstance(x, torch.Tensor) else x for x in leaves]  # noqa: B023  used within the turn
                return info.op(*pytree.tree_unflatten(args, tree), **sample.kwargs)  # noqa: B023

        module = Model().eval()
        if info.name in REFUSED:
            with pytest.raises(CompileError):
                torchette.compile(module, tensors)
        else:
            assert_equal(torchette.compile(module, tensors)(*tensors), module(*tensors))
