# SPDX-License-Identifier: BSD-3-Clause
"""ExecuTorch's quantization tutorial for XNNPACK runs under both import roots; only the root changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchette.runtime import Runtime

pytest.importorskip("torchao")

# The names of torchao do not change; ROOT is executorch or torchette.
_SCRIPT = """
import sys

import torch
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ROOT.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from ROOT.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from ROOT.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from ROOT.runtime import Runtime

folder, lowered, ours = sys.argv[1], sys.argv[2] == "lowered", "ROOT" == "torchette"


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU6()
        )
        self.depth = torch.nn.Conv2d(16, 16, 3, 1, 1, groups=16)
        self.point, self.head = torch.nn.Conv2d(16, 16, 1), torch.nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.point(torch.nn.functional.relu(self.depth(x)))
        return self.head(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


torch.manual_seed(0)
model, samples = Classifier().eval(), [torch.randn(1, 3, 32, 32) for _ in range(4)]
example = (samples[0],)

quantizer = XNNPACKQuantizer()
quantizer.set_global(get_symmetric_quantization_config(is_per_channel=True))
prepared = prepare_pt2e(torch.export.export(model, example).module(), quantizer)
for sample in samples:
    prepared(sample)
quantized = convert_pt2e(prepared)

program = to_edge_transform_and_lower(
    torch.export.export(quantized, example), partitioner=[XnnpackPartitioner()] if lowered else None
).to_executorch(ExecutorchBackendConfig(**({"portable_fallback": True} if ours and lowered else {})))
with open(f"{folder}/model.pte", "wb") as file:
    file.write(program.buffer)

expected = [quantized(sample).detach() for sample in samples]
method = Runtime.get().load_program(program.buffer).load_method("forward")
got = [torch.as_tensor(method.execute([sample])[0]).clone() for sample in samples]
(step,) = {n.args[1] for n in quantized.graph.output_node().all_input_nodes}
torch.save((samples, expected, got, step), f"{folder}/values.pt")
"""


def _run(root: str, folder: Path, how: str) -> tuple[list, list, list, float]:
    folder.mkdir()
    script = _SCRIPT.replace("ROOT", root)
    done = subprocess.run([sys.executable, "-c", script, folder, how], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "values.pt")


def _agree(got: list[torch.Tensor], expected: list[torch.Tensor], step: float) -> None:
    assert len(got) == len(expected) == 4
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=step * 1.01
        )  # integers may round in either direction


def _run_file(folder: Path, portable: bool = False) -> list[torch.Tensor]:
    samples = torch.load(folder / "values.pt")[0]
    program = Runtime.get().load_program(folder / "model.pte")
    method = program._load_portable("forward") if portable else program.load_method("forward")
    return [torch.as_tensor(method.execute([sample])[0]).clone() for sample in samples]


def test_without_a_backend(tmp_path: Path) -> None:
    _, expected, got, step = _run("torchette", tmp_path / "ours", "portable")
    _agree(got, expected, step)
    _agree(_run_file(tmp_path / "ours"), expected, step)


def test_lowered_to_xnnpack(tmp_path: Path) -> None:
    """Without the library, the portable form of the method replaces the delegate."""
    _, expected, got, step = _run("torchette", tmp_path / "ours", "lowered")
    _agree(got, expected, step)
    assert b"XnnpackBackend" in (tmp_path / "ours" / "model.pte").read_bytes()
    _agree(_run_file(tmp_path / "ours", portable=True), expected, step)


@pytest.mark.slow
def test_results_match_executorch(tmp_path: Path) -> None:
    pytest.importorskip("executorch.exir")
    _, expected, got, step = _run("torchette", tmp_path / "ours", "lowered")
    _, their_expected, theirs, their_step = _run("executorch", tmp_path / "theirs", "lowered")
    assert step == pytest.approx(their_step, rel=1e-6)
    _agree(expected, their_expected, step)
    _agree(got, theirs, step)
    _agree(_run_file(tmp_path / "theirs"), theirs, step)
