# SPDX-License-Identifier: BSD-3-Clause
# Weights in .ptd files, and bundled programs. Files of Torchette and ExecuTorch run in the Python runtime, in Module and in
# executor_runner. Errors name data that is missing or does not match.

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchette
from tests.building import built, run
from torchette.devtools.bundle import Module, load_bundled_program
from torchette.devtools.device_memory import bills
from torchette.errors import ExecutionError, FormatError, ModelNotFoundError, RuntimeLoadError
from torchette.exir import ExecutorchBackendConfig
from torchette.format import bundled, ptd, pte
from torchette.runtime import Runtime

X = np.linspace(-1, 1, 8).astype(np.float32).reshape(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)
        self.register_buffer("count", torch.full((1,), 5.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count.add_(1)
        return torch.relu(self.linear(x)), self.count * 1


@pytest.fixture(scope="module")
def expected() -> list[np.ndarray]:
    with torch.no_grad():
        return [tensor.numpy() for tensor in Net()(torch.from_numpy(X))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Returns a program and its data files by writer."""
    folder = tmp_path_factory.mktemp("data")
    result = {"ours": with_moved_weights(folder)}
    for name, choice in (("constants", True), ("split", lambda node: "b" if "bias" in node.name else "w")):
        for compiler in ("torchette", "executorch"):
            (folder / f"{compiler}-{name}").mkdir()
            result[f"{compiler}-{name}"] = compiled(folder / f"{compiler}-{name}", choice, compiler)
    return result


def compiled_by_executorch(folder: Path, external_constants: Any) -> list[Path]:
    """Returns a program that ExecuTorch has compiled, and its data files."""
    return compiled(folder, external_constants, "executorch")


def compiled(folder: Path, external_constants: Any, compiler: str) -> list[Path]:
    """Returns a program with weights in data files that one of the two compilers has written."""
    exir = pytest.importorskip(f"{compiler}.exir")
    exported = torch.export.export(Net().eval(), (torch.from_numpy(X),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = exir.ExecutorchBackendConfig(external_constants=external_constants)
        program = exir.to_edge(exported).to_executorch(config)
    (folder / "model.pte").write_bytes(program.buffer)
    program.write_tensor_data_to_file(str(folder))
    return [folder / "model.pte", *sorted(folder.glob("*.ptd"))]


def with_moved_weights(folder: Path) -> list[Path]:
    """Returns a compiled program with its weights and the initial value of its buffer in a data file."""
    from torchette.exir import to_edge

    program = to_edge(torch.export.export(Net().eval(), (torch.from_numpy(X),))).to_executorch()
    file = pte.read(bytes(program.buffer))
    named = {}
    for value in file.program.execution_plan[0].values:
        tensor = value.val
        if not isinstance(tensor, pte.Tensor) or tensor.data_buffer_idx == 0:
            continue
        name = f"weight.{len(named)}"
        stored = file.mutable if tensor.allocation_info else file.constant
        data = bytes(stored(tensor.data_buffer_idx))[: pte.tensor_nbytes(tensor)]
        layout = ptd.layout(tensor.scalar_type, list(tensor.sizes), bytes(tensor.dim_order))
        named[name] = ptd.NamedBytes(data, layout)
        tensor.data_buffer_idx = 0
        tensor.extra_tensor_info = pte.ExtraTensorInfo(
            fully_qualified_name=name, location=pte.TensorDataLocation.EXTERNAL
        )
    assert len(named) >= 3
    paths = [folder / "ours.pte", folder / "ours.ptd"]
    pte.write(file.program).write_to(paths[0])
    paths[1].write_bytes(ptd.write(named))
    return paths


KINDS = ["ours", "torchette-constants", "torchette-split", "executorch-constants", "executorch-split"]


@pytest.mark.parametrize("kind", KINDS)
def test_runtime_for_python(kind: str, files: dict[str, list[Path]], expected: list[np.ndarray]) -> None:
    program, *data = files[kind]
    assert len(data) == (2 if kind.endswith("split") else 1)
    method = Runtime.get().load_program(program, data_files=data).load_method("forward")
    outputs = method.execute([X])[-2:]
    np.testing.assert_allclose(outputs[0], expected[0], rtol=1e-6)
    if not kind.startswith("executorch"):  # ExecuTorch stores the initial value of a buffer only on request
        assert outputs[1] == expected[1]
        assert method.execute([X])[-1] == expected[1] + 1
        method.reset()
        assert method.execute([X])[-1] == expected[1]


@pytest.mark.parametrize("kind", KINDS)
def test_module_and_executor_runner(
    kind: str, files: dict[str, list[Path]], expected: list[np.ndarray], tmp_path: Path
) -> None:
    program, *data = files[kind]
    np.save(tmp_path / "x.npy", X)
    run(
        *(built("executor_runner"), "--model_path", program, "--data_path", ",".join(map(str, data))),
        *("--inputs", tmp_path / "x.npy", "--output_file", tmp_path / "y", "--print_output=none"),
    )
    outputs = [np.load(path) for path in sorted(tmp_path.glob("y-*.npy"))]
    np.testing.assert_allclose(outputs[-2], expected[0], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_report_is_exact(kind: str, files: dict[str, list[Path]]) -> None:
    program, *data = files[kind]
    method = Runtime.get().load_program(program, data_files=data).load_method("forward")
    assert bills(program, temp=False)[0].method == method.method_bytes


def test_executorch_runs_torchette_files(files: dict[str, list[Path]], expected: list[np.ndarray]) -> None:
    bindings = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    program, data = files["torchette-constants"]
    outputs = bindings._load_for_executorch(str(program), str(data)).forward([torch.from_numpy(X)])
    np.testing.assert_allclose(outputs[0].numpy(), expected[0], rtol=1e-6)


def test_names_are_unique_and_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    from torchette.exir import ExecutorchBackendConfig, to_edge

    class Linear(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((3, 4), value))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.weight) * torch.tensor([2.0, 3.0, 4.0])

    x = torch.from_numpy(X)
    modules = {"first": Linear(1.0).eval(), "second": Linear(1.0).eval(), "third": Linear(2.0).eval()}
    programs = {name: torch.export.export(module, (x,)) for name, module in modules.items()}
    program = to_edge(programs).to_executorch(ExecutorchBackendConfig(external_constants=True))
    program.save(tmp_path / "model.pte")
    program.write_tensor_data_to_file(tmp_path)
    (data,) = tmp_path.glob("*.ptd")
    named = ptd.read(data.read_bytes())
    assert set(named) == {"weight", "weight.1"}, "the numbers of the code stay in the program"
    runtime = Runtime.get().load_program(tmp_path / "model.pte", data_files=[data])
    for name, module in modules.items():
        with torch.no_grad():
            np.testing.assert_allclose(
                runtime.load_method(name).execute([X])[0], module(x).numpy(), rtol=1e-6
            )


def test_programs_share_a_data_file(files: dict[str, list[Path]], expected: list[np.ndarray]) -> None:
    program, data = files["executorch-constants"]
    methods = [
        Runtime.get().load_program(program, data_files=[data]).load_method("forward") for _ in range(3)
    ]
    for method in methods:
        np.testing.assert_allclose(method.execute([X])[-2], expected[0], rtol=1e-6)


# Runs two programs with the same data file. Prints the resident bytes before, after the first and after the second program.
MEASURE = """
import re
import numpy as np
from torchette.runtime import Runtime

def resident() -> int:
    # Pss counts a page that two mappings share once; Rss counts it for each mapping.
    rollup = open("/proc/self/smaps_rollup").read()
    return int(re.search(r"^Pss:\\s+(\\d+) kB", rollup, re.M)[1]) * 1024

x = np.ones((1, 2048), np.float32)
sizes, methods = [resident()], []
for name in ("first", "second"):
    program = Runtime.get().load_program(f"{name}.pte", data_files=["weights.ptd"])
    methods.append(program.load_method("forward"))
    methods[-1].execute([x])
    sizes.append(resident())
print(*sizes)
"""


def test_second_program_shares_the_weights_in_memory(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(2048, 2048)).eval(), (torch.ones(1, 2048),)
    config = ExecutorchBackendConfig(external_constants=True)
    for name in ("first", "second"):
        torchette.compile(model, inputs, config=config).save(tmp_path / f"{name}.pte")
    (data,) = tmp_path.glob("*.ptd")
    assert data.stat().st_size > 16e6
    data.rename(tmp_path / "weights.ptd")
    before, first, second = map(int, run(sys.executable, "-c", MEASURE, cwd=tmp_path).stdout.split())
    assert first - before > 16e6, "the weights are in memory"
    assert second - first < 0.05 * (first - before)


def test_data_files_are_readable_by_both_runtimes(files: dict[str, list[Path]]) -> None:
    executorch_data = ptd.read(files["executorch-constants"][1].read_bytes())
    assert {"linear.weight", "linear.bias"} <= set(executorch_data)
    serialize = pytest.importorskip("executorch.extension.flat_tensor.serialize.serialize")
    cord = pytest.importorskip("executorch.exir._serialize._cord").Cord
    blob = bytes(ptd.write(executorch_data))
    payload = serialize.FlatTensorSerializer().deserialize(cord(blob))
    assert set(payload.named_data) == set(executorch_data)
    for name, entry in payload.named_data.items():
        assert payload.buffers[entry.buffer_index] == bytes(executorch_data[name].data)
        assert entry.tensor_layout.sizes == list(executorch_data[name].layout.sizes)


# ---- invalid data files ----


def test_missing_data_file_is_an_error(files: dict[str, list[Path]], tmp_path: Path) -> None:
    program = files["executorch-constants"][0]
    with pytest.raises(
        RuntimeLoadError, match=r"linear\.\w+ are in another file \(\.ptd\).*none is given"
    ) as e:
        Runtime.get().load_program(program).load_method("forward")
    assert any("data_files" in hint for hint in e.value.hints)
    with pytest.raises(ModelNotFoundError, match=r"none\.ptd"):
        Runtime.get().load_program(program, data_files=[tmp_path / "none.ptd"])
    with pytest.raises(FormatError, match=r"model\.pte: .*is not a data file"):
        Runtime.get().load_program(program, data_files=[program])
    text = run(built("executor_runner"), "--model_path", program, status=1).stderr
    assert "linear." in text and "InvalidExternalData" in text


def changed(files: dict[str, list[Path]], folder: Path, **items: Any) -> list[Path]:
    """Returns the files of `constants` with items of the data file replaced, or removed if the new item is None."""
    named = {**ptd.read(files["executorch-constants"][1].read_bytes()), **items}
    path = folder / "changed.ptd"
    path.write_bytes(ptd.write({name: item for name, item in named.items() if item is not None}))
    return [files["executorch-constants"][0], path]


@pytest.mark.parametrize(
    "item, message",
    [
        (None, "data files? contains? the tensor linear.bias|does not contain the tensor linear.bias"),
        (ptd.NamedBytes(bytes(12)), "linear.bias is not a tensor in the data file"),
        (ptd.NamedBytes(bytes(12), ptd.layout(3, [3])), "linear.bias has another dtype"),
        (ptd.NamedBytes(bytes(16), ptd.layout(6, [4])), "linear.bias has another dtype, shape"),
        (ptd.NamedBytes(bytes(12), ptd.layout(6, [1, 3])), "linear.bias has another dtype, shape"),
    ],
    ids=["absent", "no tensor", "dtype", "shape", "rank"],
)
def test_mismatched_tensor_is_an_error(
    item: Any, message: str, files: dict[str, list[Path]], tmp_path: Path
) -> None:
    program, data = changed(files, tmp_path, **{"linear.bias": item})
    with pytest.raises(RuntimeLoadError, match=message):
        Runtime.get().load_program(program, data_files=[data]).load_method("forward")


def test_size_of_data_must_match_the_shape(files: dict[str, list[Path]], tmp_path: Path) -> None:
    short = ptd.NamedBytes(bytes(8), ptd.layout(6, [3]))
    program, data = changed(files, tmp_path, **{"linear.bias": short})
    with pytest.raises(FormatError, match=r"linear\.bias does not match its tensor layout"):
        Runtime.get().load_program(program, data_files=[data])


def test_truncated_data_files_are_rejected(files: dict[str, list[Path]], tmp_path: Path) -> None:
    program, data = files["executorch-constants"]
    content, cut = data.read_bytes(), tmp_path / "cut.ptd"
    for length in [*range(0, 200, 3), *range(200, len(content), 17)]:
        cut.write_bytes(content[:length])
        with pytest.raises((FormatError, RuntimeLoadError)):
            Runtime.get().load_program(program, data_files=[cut])


# ---- bundled programs ----


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a bundled program that ExecuTorch has written, with two cases. The expected output of the second is wrong."""
    exir = pytest.importorskip("executorch.exir")
    core = pytest.importorskip("executorch.devtools.bundled_program.core")
    config = pytest.importorskip("executorch.devtools.bundled_program.config")
    serialize = pytest.importorskip("executorch.devtools.bundled_program.serialize")
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).eval()
    x = torch.from_numpy(X)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = exir.to_edge(torch.export.export(net, (x,))).to_executorch()
        cases = [
            config.MethodTestCase(inputs=[x], expected_outputs=[net(x)]),
            config.MethodTestCase(inputs=[x], expected_outputs=[net(x) + torch.eye(2, 3)]),
        ]
        record = core.BundledProgram(program, [config.MethodTestSuite("forward", cases)])
        contents = serialize.serialize_from_bundled_program_to_flatbuffer(record)
    path = tmp_path_factory.mktemp("bundle") / "model.bpte"
    path.write_bytes(contents)
    return path


def test_a_bundled_program_of_executorch(bundle: Path) -> None:
    runner = built("executor_runner")
    table = run(runner, "--model_path", bundle, "--bundleio").stdout.splitlines()
    assert table[0].split() == ["output", "elements", "mismatches", "largest", "difference"]
    assert table[1].split()[:3] == ["0", "6", "0"] and table[1].endswith("matches")
    wrong = run(runner, "--model_path", bundle, "--testset_idx=1", status=1).stdout.splitlines()[1].split()
    assert wrong[:3] == ["0", "6", "2"] and abs(float(wrong[3]) - 1) < 1e-5 and wrong[4] == "differs"
    run(runner, "--model_path", bundle, "--testset_idx=1", "--bundleio_atol=1.1")
    assert "has 2 cases" in run(runner, "--model_path", bundle, "--testset_idx=2", status=2).stderr
    assert len(bundled.read(bundle.read_bytes()).method_test_suites[0].test_cases) == 2
    bundle_module = load_bundled_program(bundle)
    (output,) = Module(bundle_module.program).verify_result_with_bundled_expected_output(
        bundle_module, "forward", 0
    )
    assert output.shape == (2, 3)
    with pytest.raises(ExecutionError, match="output 0 differs in 2 of 6 elements"):
        Module(bundle_module.program).verify_result_with_bundled_expected_output(bundle_module, "forward", 1)


def test_damaged_bundled_program_is_rejected(bundle: Path, tmp_path: Path) -> None:
    runner, cut = built("executor_runner"), tmp_path / "cut.bpte"
    content = bundle.read_bytes()
    for length in (8, 60, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:length])
        assert "InvalidProgram" in run(runner, "--model_path", cut, status=1).stderr
    record = bundled.read(content)
    record.method_test_suites[0].test_cases[0].inputs[0].val.sizes = [2, 5]
    cut.write_bytes(bundled.write(record))
    assert "value 0 of case 0" in run(runner, "--model_path", cut, status=1).stderr
    refused = run(runner, "--model_path", cut, "--bundleio_rtol", "x", status=2).stderr
    assert "--bundleio_rtol must be a number" in refused
