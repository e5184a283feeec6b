# SPDX-License-Identifier: BSD-3-Clause
# Delegates with weights in a data file (.ptd): delegates of XNNPACK and of a demo backend.
"""The Python and C++ runtimes find a delegate's named data in data files. An error names data that is absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import export

from tests.building import ROOT, built, program, run
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.errors import ExecutionError, RuntimeLoadError
from torchette.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from torchette.exir.delegation.delegate import (
    BackendDetails,
    CompileSpec,
    DelegationSpec,
    Partitioner,
    PartitionResult,
    PreprocessResult,
    tag_constant_data,
)
from torchette.exir.delegation.named_data import NamedDataStore
from torchette.exir.delegation.partition import TAG
from torchette.exir.graph import calls
from torchette.format import ptd
from torchette.runtime import Runtime


class ScaleBackend(BackendDetails):
    """Multiplies by the data with the name `factors`, in the data file that its option names."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        store = NamedDataStore()
        (factors,) = edge_program.state_dict.values()
        store.add_named_data("factors", factors, 16, compile_specs[0].value.decode())
        return PreprocessResult(b"factors", data_store_output=store.get_named_data_store_output())


class ScalePartitioner(Partitioner):
    def __init__(self, external_tag: str) -> None:
        super().__init__()
        self._spec = DelegationSpec("ScaleBackend", [CompileSpec("external_tag", external_tag.encode())])

    def partition(self, exported_program):
        for node in calls(exported_program, torch.ops.aten.mul.Tensor):
            node.meta[TAG] = "scale"
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, {"scale": self._spec})


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factors", torch.randn(4, 32))

    def forward(self, x):
        return x * self.factors


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).eval()


X = torch.linspace(-1, 1, 128).reshape(4, 32)
BACKENDS: dict[str, tuple[Any, Any]] = {
    "ScaleBackend": (_Scale, ScalePartitioner),
    "XnnpackBackend": (_layers, lambda tag: XnnpackPartitioner(external_tag=tag)),
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns the registry with the demo backend."""
    backends = Runtime.get().backend_registry
    if not backends.is_available("ScaleBackend"):
        archive = built("torchette_static").with_name("libtorchette.a")
        library = tmp_path_factory.mktemp("scale") / "scale.so"
        program(
            *(library, [ROOT / "tests/backends/named_data_backend.cpp"], f"-I{ROOT}"),
            *("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden"),
            link=["-shared", archive],
        )
        backends.load(library)
    return backends


@pytest.fixture(params=BACKENDS)
def files(request: pytest.FixtureRequest, registry: Any, tmp_path: Path) -> tuple[nn.Module, Path, Path]:
    """Returns the model, its program, and its data file."""
    if not registry.is_available(request.param):
        pytest.skip(f"{request.param} is not in this build")
    torch.manual_seed(0)
    build, partitioner = BACKENDS[request.param]
    model = build()
    edge = to_edge_transform_and_lower(export(model, (X,)), partitioner=partitioner("weights"))
    assert not [item for item in edge.delegation().placements if item.backend is None]
    return (model, *_save(edge.to_executorch(), tmp_path))


def _run(program: Path, *data: Path) -> torch.Tensor:
    return torch.as_tensor(
        Runtime.get().load_program(program, data_files=data).load_method("forward").execute([X])[0]
    )


def _load_error(program: Path, *data: Path) -> str:
    with pytest.raises(RuntimeLoadError) as error:
        Runtime.get().load_program(program, data_files=data).load_method("forward")
    return str(error.value)


def _largest(data: Path) -> tuple[dict, str]:
    named = ptd.read(data.read_bytes())
    return named, max(named, key=lambda key: len(bytes(named[key].data)))


def test_weights_are_found_in_the_data_file(files: tuple[nn.Module, Path, Path]) -> None:
    model, program, data = files
    named, key = _largest(data)
    assert bytes(named[key].data) not in program.read_bytes()
    for _ in range(2):
        torch.testing.assert_close(_run(program, data), model(X))


def test_error_names_absent_data(
    files: tuple[nn.Module, Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """The exception names it. The library of the demo backend has a separate log, which is written to stderr."""
    _, program, data = files
    named, key = _largest(data)
    text = _load_error(program)
    assert "Backend refused delegate 0" in text and "data_files=" in text
    assert f"no data named {key}, and there is no data file" in text + capfd.readouterr().err
    changed = tmp_path / "changed.ptd"
    changed.write_bytes(ptd.write({name: item for name, item in named.items() if name != key}))
    text = _load_error(program, changed)
    assert f"nor its 1 data files contain data named {key}" in text and "data_files=" in text
    changed.write_bytes(ptd.write({**named, key: ptd.NamedBytes(bytes(13))}))
    assert f"{key} has 13 bytes" in _load_error(program, changed) + capfd.readouterr().err


def test_too_few_factors_fail_at_execution(
    registry: Any, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    edge = to_edge_transform_and_lower(export(_Scale(), (X,)), partitioner=ScalePartitioner("weights"))
    edge.to_executorch().save(tmp_path / "model.pte")
    (tmp_path / "few.ptd").write_bytes(ptd.write({"factors": ptd.NamedBytes(bytes(12))}))
    with pytest.raises(ExecutionError, match="method 'forward' failed"):
        _run(tmp_path / "model.pte", tmp_path / "few.ptd")
    assert "128 elements for 3 factors" in capfd.readouterr().err


def _save(program: Any, folder: Path, data: str = "weights") -> tuple[Path, Path]:
    program.save(folder / "model.pte")
    program.write_tensor_data_to_file(folder)
    return folder / "model.pte", folder / f"{data}.ptd"


def test_portable_plan_shares_the_weights_of_the_data_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    edge = to_edge_transform_and_lower(
        export(_layers(), (X,)), partitioner=XnnpackPartitioner(external_tag="weights")
    )
    alone = [path.stat().st_size for path in _save(edge.to_executorch(), tmp_path)]
    config = ExecutorchBackendConfig(portable_fallback=True, external_constants=lambda node: "weights")
    both = [path.stat().st_size for path in _save(edge.to_executorch(config), tmp_path)]
    assert both[1] < alone[1] + 1500 and both[0] < alone[0] + 4000


def test_executor_runner_reads_data_files(tmp_path: Path) -> None:
    """The Module of executor_runner falls back to the portable plan if the backend refuses its payload."""
    torch.manual_seed(0)
    model, runner = _layers(), built("executor_runner")
    edge = to_edge_transform_and_lower(
        export(model, (X,)), partitioner=XnnpackPartitioner(external_tag="weights")
    )
    program, data = _save(edge.to_executorch(), tmp_path)
    np.save(tmp_path / "x.npy", X.numpy())
    more = ("--inputs", tmp_path / "x.npy", "--print_output", "none", "--output_file", tmp_path / "y")
    run(runner, "--model_path", program, "--data_path", data, *more)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y-0.npy")), model(X).detach())
    named, key = _largest(data)
    file_with_fallback = edge.to_executorch(ExecutorchBackendConfig(portable_fallback=True)).buffer
    (tmp_path / "absent.pte").write_bytes(
        file_with_fallback.replace(b"XnnpackBackend\0", b"?nnpackBackend\0")
    )
    done = run(runner, "--model_path", tmp_path / "absent.pte", *more)
    assert "needs the backend ?nnpackBackend" in done.stderr and "forward runs on the portable" in done.stderr
    for change, words in (
        ({}, f"nor its 1 data files contain data named {key}"),
        ({key: ptd.NamedBytes(bytes(13))}, f"{key} has 13 bytes"),
    ):
        data.write_bytes(ptd.write({**{k: v for k, v in named.items() if k != key}, **change}))
        done = run(runner, "--model_path", program, "--data_path", data, *more, status=1)
        assert words in done.stderr and "XnnpackBackend refused delegate 0" in done.stderr
        (tmp_path / "whole.pte").write_bytes(file_with_fallback)
        (tmp_path / "y-0.npy").unlink(missing_ok=True)
        done = run(runner, "--model_path", tmp_path / "whole.pte", "--data_path", data, *more)
        assert words in done.stderr and done.stderr.count("forward runs on the portable kernels") == 1
        torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y-0.npy")), model(X).detach())


def test_data_files_are_compatible_with_executorch(tmp_path: Path) -> None:
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner as TheirPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower as their_lowering

    model = _layers()
    edge = to_edge_transform_and_lower(
        export(model, (X,)), partitioner=XnnpackPartitioner(external_tag="weights")
    )
    program, data = _save(edge.to_executorch(), tmp_path)
    got = peer._load_for_executorch(str(program), str(data)).forward([X])[0]
    torch.testing.assert_close(got, model(X).detach())
    exported = export(model, (X,))
    for node in exported.graph.find_nodes(op="placeholder"):
        node.meta["custom"] = {"delegate_constant_tag": "theirs"}  # ExecuTorch's pass writes this tag
    theirs = their_lowering(exported, partitioner=[TheirPartitioner()]).to_executorch()
    (tmp_path / "theirs.pte").write_bytes(theirs.buffer)
    theirs.write_tensor_data_to_file(str(tmp_path))
    torch.testing.assert_close(_run(tmp_path / "theirs.pte", tmp_path / "theirs.ptd"), model(X).detach())
