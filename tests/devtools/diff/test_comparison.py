# SPDX-License-Identifier: BSD-3-Clause
# `compare` from Python: a file without a model, with its model, with a faulty compiler, and invalid arguments.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchette
from torchette.devtools.diff import compare
from torchette.errors import FormatError, InputError
from torchette.exir.passes import fuse_linear as pass_file


class Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.linear(x), x * 2], 0).sum(0, keepdim=True) + x.shape[0]


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2 + x


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * 2 + 1, lambda y: y - 3, (x,))


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16).to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.linear(x))


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Counter(), (torch.randn(4),)),
        (Branch(), (torch.randn(4),)),
        (Half(), (torch.randn(2, 16).bfloat16(),)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_nothing_departs(module: nn.Module, inputs: tuple) -> None:
    result = compare(module.eval(), None, inputs)
    assert result.equal, result.summary()


def test_the_corners_of_dynamic_shapes_are_compared() -> None:
    shapes = ({0: torch.export.Dim("n", min=2, max=9)},)
    result = compare(Dynamic().eval(), None, (torch.randn(3, 6),), dynamic_shapes=shapes)
    assert result.equal, result.summary()
    assert {"minimum shape", "maximum shape", "infinity", "zeros"} <= {
        name for name, status in result.inputs.items() if status == "compared"
    }


def test_file_without_model_gets_random_inputs(tmp_path: Path) -> None:
    path = tmp_path / "net.pte"
    torchette.compile(nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), (torch.ones(2, 4),)).save(path)
    result = compare(file=path)
    assert result.equal
    assert [row.verdict for row in result.operators] == ["ok"] * len(result.operators)
    again = compare(file=path, inputs=[np.ones((2, 4), "float32")], search=False)
    assert list(again.inputs) == ["the given inputs"]
    stored = json.loads(json.dumps(again.to_dict(), allow_nan=False))
    assert stored["equal"] and stored["operators"][0]["operator"] == "cpu::linear.out"
    assert "cpu::linear.out" in str(again) and "nothing departs" in str(again)


class _Keywords(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: dict[str, torch.Tensor]) -> torch.Tensor:
        return x * scale["by"] + x.shape[0]


def test_model_gets_random_inputs_and_dynamic_bounds_of_file() -> None:
    rows = torch.export.Dim("rows", min=2, max=9)
    x, scale = torch.ones(3, 4), {"by": torch.ones(3, 4)}
    shapes = {"x": {0: rows}, "scale": {"by": {0: rows}}}
    model = _Keywords().eval()
    data = bytes(torchette.compile(model, (x,), {"scale": scale}, dynamic_shapes=shapes))
    result = compare(model, data)
    assert result.equal, result.summary()
    assert result.random_inputs == ["x float32[9, 4]", "scale['by'] float32[9, 4]"]
    assert result.inputs["random inputs"] == result.inputs["minimum shape"] == "compared"
    assert not compare(model, data, (x,), kwargs={"scale": scale}, search=False).random_inputs


def test_another_model_departs_at_first_weight() -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval() for _ in range(2))
    theirs[0] = ours[0]
    data = bytes(torchette.compile(ours, (torch.ones(2, 4),)))
    result = compare(theirs, data, (torch.ones(2, 4),), search=False)
    assert result.first is not None
    assert (result.first.kind, result.first.operator, result.first.module) == (
        "weight",
        "cpu::linear.out",
        "2",
    )
    assert "compare" not in result.first.reason and "should be" not in result.first.operator


def test_faulty_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler still has the fault with which it wrote the file: the comparison with eager finds it."""
    right = pass_file.fuse_linear

    def wrong(program: Any) -> Any:
        program = right(program)
        for node in program.graph.nodes:
            if node.target is torch.ops.aten.relu.default:
                node.target = torch.ops.aten.neg.default
        return program

    wrong.__name__ = "fuse_linear"
    monkeypatch.setattr("torchette.exir.pipeline.fuse_linear", wrong)
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    result = compare(module, None, (torch.randn(2, 4),), search=False)
    assert result.first is not None
    assert result.first.kind == "pass" and "fuse_linear" in result.first.reason
    assert result.first.operator == "aten::neg.out"


def test_weights_in_data_file(tmp_path: Path) -> None:
    from torchette.exir import ExecutorchBackendConfig

    module = nn.Linear(4, 4).eval()
    config = ExecutorchBackendConfig(external_constants=lambda node: "weights")
    torchette.compile(module, (torch.ones(1, 4),), config=config).save(tmp_path / "net.pte")
    result = compare(None, tmp_path / "net.pte", (torch.randn(1, 4),), data_files=[tmp_path / "weights.ptd"])
    assert result.equal and result.operators[0].verdict == "ok"


def test_invalid_arguments_raise(tmp_path: Path) -> None:
    module = nn.Linear(4, 4).eval()
    data = bytes(torchette.compile(module, (torch.ones(1, 4),)))
    with pytest.raises(InputError, match="no model and no file"):
        compare()
    with pytest.raises(InputError, match="no method 'encode'"):
        compare(file=data, method="encode")
    with pytest.raises(InputError, match="expects 1 input "):
        compare(file=data, inputs=())
    with pytest.raises(InputError, match="requires inputs"):
        compare(module)
    with pytest.raises(InputError, match="got a tensor"):
        compare(module, data, torch.ones(1, 4))
    with pytest.raises(InputError, match="shape"):
        compare(file=data, inputs=(torch.ones(2, 4),))
    with pytest.raises(FormatError):
        compare(file=data[:100])
