# SPDX-License-Identifier: BSD-3-Clause
# Interoperability with ExecuTorch 1.5.1 without delegates: each runtime runs the files of both compilers, and `inspect`
# reads both.

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import artifacts
from tests.models.artifacts import each_kind_of_model
from torchette.devtools.device_memory import bills
from torchette.exir import ExecutorchBackendConfig
from torchette.format import pte

pytest.importorskip("executorch", reason="the peer is not installed")


@each_kind_of_model
def test_peer_runtime_runs_our_file(name: str) -> None:
    artifacts.assert_equal_to_eager(_run_peer(artifacts.our_file(name), artifacts.args(name)), name)


@each_kind_of_model
def test_peer_runtime_runs_our_zero_copy_file(name: str) -> None:
    """`torchette.compile` does not plan memory for inputs and outputs."""
    ours = bytes(artifacts.compiled(name, "portable"))
    artifacts.assert_equal_to_eager(_run_peer(ours, artifacts.args(name)), name)


@each_kind_of_model
def test_our_runtime_runs_peer_file(name: str) -> None:
    artifacts.assert_equal_to_eager(_run_ours(artifacts.peer_file(name), artifacts.args(name)), name)


@each_kind_of_model
def test_our_runtime_runs_our_file(name: str) -> None:
    """The same file that the peer runs above."""
    artifacts.assert_equal_to_eager(_run_ours(artifacts.our_file(name), artifacts.args(name)), name)


def test_peer_runs_file_that_compares_sizes() -> None:
    """Replaces the expected texts by the results of the comparisons, and continues."""
    import torchette
    from torchette.exir.config import DynamicMemoryPlanningMode

    n = torch.export.Dim("n", min=2, max=9)
    model = torchette.compile(
        Added().eval(),
        (torch.ones(6), torch.ones(3)),
        dynamic_shapes=({0: 2 * n}, {0: n}),
        backend="portable",
        config=ExecutorchBackendConfig(dynamic_memory_planning_mode=DynamicMemoryPlanningMode.UPPER_BOUND),
    )
    (plan,) = model.program.executorch_program.execution_plan
    assert any(
        isinstance(value.val, pte.String) and "must be" in value.val.string_val for value in plan.values
    )
    method = _peer_method(bytes(model))
    for size in (3, 9, 2, 2):
        args = torch.randn(2 * size), torch.randn(size)
        torch.testing.assert_close(torch.as_tensor(method.execute(args)[0]), Added()(*args))


class Added(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2).sum(1) + y


@pytest.mark.xdist_group("llama")
@pytest.mark.parametrize("file", ["ours", "peer"])
@pytest.mark.parametrize("runtime", ["ours", "peer"])
def test_state_persists_between_calls(file: str, runtime: str) -> None:
    contents = (artifacts.our_file if file == "ours" else artifacts.peer_file)("llama")
    method = (_our_method if runtime == "ours" else _peer_method)(contents)
    decoder = artifacts.fresh_module("llama")
    for position, token in enumerate([1, 2041, 732, 293, 75]):
        step = torch.tensor([[token]]), torch.tensor([position])
        with torch.no_grad():
            expected = decoder(*step)
        torch.testing.assert_close(
            torch.as_tensor(method.execute(step)[0]), expected, rtol=artifacts.RTOL, atol=artifacts.ATOL
        )


@each_kind_of_model
@pytest.mark.parametrize("compiler", ["ours", "peer"])
def test_inspect_reads_both(name: str, compiler: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from torchette import cli

    path = tmp_path / "model.pte"
    path.write_bytes((artifacts.our_file if compiler == "ours" else artifacts.peer_file)(name))
    assert cli.main(["inspect", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (method,) = report["methods"]
    assert method["name"] == "forward"
    signature = [f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" for a in artifacts.args(name)]
    assert [entry["text"] for entry in method["inputs"]] == signature
    assert method["instructions"]
    assert cli.main(["inspect", str(path)]) == 0
    assert "forward" in capsys.readouterr().out


@each_kind_of_model
def test_planned_and_method_memory_are_less_than_peer(name: str) -> None:
    (ours,) = bills(artifacts.our_file(name), "x86-64", temp=False)
    (theirs,) = pte.read(artifacts.peer_file(name)).program.execution_plan
    # a lower bound of its method memory: 16 bytes for a value and 64 for a tensor, without arguments
    kinds = [type(value.val).__name__ for value in theirs.values]
    peer = sum(theirs.non_const_buffer_sizes) + 16 * len(kinds) + 64 * kinds.count("Tensor")
    assert sum(ours.planned) + ours.method < peer


def test_both_runtimes_have_same_operator_names() -> None:
    """If the peer's runtime has an operator, the compiler must emit it under the same name."""
    from executorch.extension.pybindings.portable_lib import _get_operator_names

    from torchette.format import pte

    emitted = {
        f"{operator.name}.{operator.overload}" if operator.overload else operator.name
        for name in ("mobilenet_v3_small", "minilm", "llama", "gru")
        for operator in pte.read(artifacts.our_file(name)).program.execution_plan[0].operators
    }
    assert emitted <= set(_get_operator_names())


def _run_ours(contents: bytes, args: tuple[torch.Tensor, ...]) -> Any:
    (output,) = _our_method(contents).execute(args)
    return output


def _run_peer(contents: bytes, args: tuple[torch.Tensor, ...]) -> Any:
    (output,) = _peer_method(contents).execute(args)
    return output


def _our_method(contents: bytes) -> Any:
    from torchette.runtime import Runtime

    return Runtime.get().load_program(contents).load_method("forward")


# The peer's method does not keep its program alive, nor does the program keep its bytes alive.
_alive: list[Any] = []


def _peer_method(contents: bytes) -> Any:
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(contents)
    _alive[:] = [contents, program]
    return program.load_method("forward")


# In a separate process: after other tests, the peer does not find its out variants.
_QUANTIZE = """
import sys
import torch
import executorch.exir as peer
import executorch.kernels.quantized
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x)

torch.manual_seed(0)
layers = torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), Residual(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)
module, args = torch.nn.Sequential(*layers).eval(), (torch.randn(1, 3, 8, 8),)
quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
prepared = prepare_pt2e(torch.export.export(module, args).module(), quantizer)
prepared(*args)
converted = convert_pt2e(prepared)
config = peer.EdgeCompileConfig(_check_ir_validity=False)
edge = peer.to_edge(torch.export.export(converted, args), compile_config=config)
open(sys.argv[1] + "/model.pte", "wb").write(edge.to_executorch().buffer)
torch.save((args, converted(*args).detach()), sys.argv[1] + "/values.pt")
"""


def test_our_runtime_runs_peer_quantized_kernels(tmp_path: Path) -> None:
    """A network quantized by PT2E without delegation: in the peer's file, portable kernels process its integers."""
    done = subprocess.run([sys.executable, "-c", _QUANTIZE, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    contents = (tmp_path / "model.pte").read_bytes()
    args, expected = torch.load(tmp_path / "values.pt")
    names = {op.name for op in pte.read(contents).program.execution_plan[0].operators}
    assert {
        "quantized_decomposed::quantize_per_tensor",
        "quantized_decomposed::dequantize_per_channel",
    } <= names
    torch.testing.assert_close(_run_ours(contents, args), expected, rtol=1e-5, atol=1e-5)
