# SPDX-License-Identifier: BSD-3-Clause
# The API of ExecuTorch's first releases returns programs with the results of the module.

from __future__ import annotations

import warnings

import pytest
import torch

import torchette.exir as exir
from torchette.errors import InputTypeError
from torchette.exir.passes import RemoveNoopPass
from torchette.runtime import Runtime


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).clone() + 1


X = torch.linspace(-1, 1, 4)


def run(buffer: bytes, x: torch.Tensor) -> torch.Tensor:
    return Runtime.get().load_program(buffer).load_method("forward").execute([x])[0]


def test_2023_snippet_runs_with_one_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        edge = exir.capture(Net(), (X,), exir.CaptureConfig(enable_aot=True)).to_edge(
            exir.EdgeCompileConfig()
        )
        program = edge.to_executorch(exir.ExecutorchBackendConfig())
    assert [str(w.message).split(":")[0] for w in caught if w.category is DeprecationWarning and "exir" in str(w.message)] == [
        "exir.capture is the API of ExecuTorch's first releases"
    ]  # fmt: skip
    assert isinstance(program, exir.ExecutorchProgram) and isinstance(edge, exir.ExirExportedProgram)
    torch.testing.assert_close(run(program.buffer, X), Net()(X))
    assert program.program.execution_plan[0].name == "forward"
    assert len(program.debug_handle_map) == len(program.program.execution_plan[0].chains[0].instructions)
    assert program.delegate_map == {} and program.manager.methods == {"forward"}


@pytest.mark.filterwarnings("ignore:exir.capture")
def test_capture_functions_passes_and_eager(capsys: pytest.CaptureFixture[str]) -> None:
    captured = exir.capture(lambda x, y: x * y, (X, X))
    torch.testing.assert_close(captured(X, X), X * X)
    captured.dump()
    assert "mul" in captured.code and "aten.mul.Tensor" in capsys.readouterr().out
    captured = exir.capture(Net(), (X,))
    calls = [
        n.target
        for n in captured.transform(RemoveNoopPass()).graph_module.graph.nodes
        if n.op == "call_function"
    ]
    assert calls == [torch.ops.aten.relu.default, torch.ops.aten.add.Tensor]
    assert "clone" in captured.code
    edge = captured.to_edge().transform(RemoveNoopPass())
    torch.testing.assert_close(edge(X), Net()(X))
    torch.testing.assert_close(run(edge.to_executorch().buffer, X), Net()(X))


@pytest.mark.filterwarnings("ignore:exir.capture")
def test_dynamic_sizes_require_dynamic_shapes() -> None:
    with pytest.raises(InputTypeError, match="must be a tuple, got Tensor"):
        exir.capture(Net(), X)  # type: ignore[arg-type]
    config = exir.CaptureConfig(enable_dynamic_shape=True)
    with pytest.raises(InputTypeError, match="does not name the dynamic sizes"):
        exir.capture(Net(), (X,), config)
    captured = exir.capture(Net(), (X,), config, {"x": {0: torch.export.Dim("n", max=8)}})
    buffer = captured.to_executorch().buffer
    for n in (2, 7):
        torch.testing.assert_close(run(buffer, torch.ones(n)), torch.full((n,), 2.0))


def test_package_does_not_hide_function() -> None:
    import torchette.exir.capture._config as config

    assert config.CaptureConfig is exir.CaptureConfig
    with pytest.warns(DeprecationWarning, match="exir.capture"):
        assert exir.capture(Net(), (X,)).graph_module
