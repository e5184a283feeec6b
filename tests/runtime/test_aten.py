# SPDX-License-Identifier: BSD-3-Clause
# ATen mode: a program with torch's kernels has the same results as its compiled graph in eager mode, bit by bit. Errors of torch
# name the operator. The library is compiled once for all tests and cached.

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

import torchette
from tests.building import CXX, LAUNCHER, ROOT, built, run
from tests.models import architectures, zoo
from tests.sweep import sweep
from torchette.build import aten as aten_build
from torchette.cli import main
from torchette.errors import (
    ExecutionError,
    InputTypeError,
    MissingCompilerError,
    MissingKernelWarning,
    MissingPackageError,
    RuntimeLoadError,
)
from torchette.exir import EdgeCompileConfig, to_edge
from torchette.exir.check import evaluate, user_results
from torchette.runtime import Method, Runtime

aten = torch.ops.aten


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> Any:
    if shutil.which(CXX) is None:
        pytest.skip("no C++ compiler")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # reductions are divided among threads, also in eager mode
    yield
    torch.set_num_threads(threads)


def assert_equal(results: Any, expected: Any) -> None:
    """Asserts bitwise equality, which `torch.equal` tests except for NaN."""
    results, expected = pytree.tree_leaves(results), pytree.tree_leaves(expected)
    assert len(results) == len(expected)
    for actual, reference in zip(results, expected, strict=True):
        if isinstance(reference, torch.Tensor):
            assert actual.dtype == reference.dtype and actual.shape == reference.shape
            assert torch.equal(actual.isnan(), reference.isnan())
            assert torch.equal(actual.nan_to_num(), reference.nan_to_num()), float(
                (actual - reference).abs().max()
            )
        else:
            assert actual == reference


def load_aten(model: nn.Module, args: tuple, keep: Sequence[Any] = (), **options: Any) -> Method:
    """Returns the portable program in ATen mode. `keep` lists operators that are not decomposed; dialect checks are off."""
    exported = torch.export.export(model, args, **options)
    config = EdgeCompileConfig(_check_ir_validity=False, preserve_ops=list(keep))
    program = to_edge(exported, compile_config=config).to_executorch()
    return Runtime.get(aten=True).load_program(program.buffer).load_method("forward")


def assert_equals_graph(model: nn.Module, args: tuple) -> None:
    compiled = torchette.compile(model, args, backend="portable")
    graph = compiled.program.exported_program("forward")
    expected = user_results(graph, evaluate(graph, args))
    inputs = [each.clone() if isinstance(each, torch.Tensor) else each for each in pytree.tree_leaves(args)]
    method = Runtime.get(aten=True).load_program(bytes(compiled)).load_method("forward")
    assert_equal(method.execute(inputs), expected)


class FunctionModule(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


# --- Complete models

QUICK = ("digits", "lstm")


@pytest.mark.parametrize("name", sweep(zoo.names(), *QUICK))
def test_reference_models_equal_their_graph(name: str) -> None:
    assert_equals_graph(*zoo.build(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", architectures.NAMES)
def test_architectures_equal_their_graph(name: str) -> None:
    assert_equals_graph(*architectures.build(name))


def test_model_with_unchanged_arithmetic_equals_eager() -> None:
    model, args = zoo.build("gru")
    data = bytes(torchette.compile(model, args, backend="portable"))
    assert_equal(torchette.load(data, aten=True)(*args), model(*args))


# --- Contents of a program


@pytest.mark.parametrize(
    "dtype",
    [
        *(
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.uint8,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
        ),
        *(torch.bool, torch.uint16),
    ],
    ids=str,
)
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.arange(12).reshape(3, 4).to(dtype)
    model = FunctionModule(lambda x: (torch.cat([x, x], 1), x.to(torch.float32) * 2, torch.stack([x, x])))
    assert_equal(load_aten(model, (x,)).execute([x]), model(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_operator_without_torchette_kernel(dtype: torch.dtype) -> None:
    x = torch.randn(4, 8, dtype=dtype)
    model = FunctionModule(lambda x: torch.view_as_real(torch.fft.ifft(torch.fft.fft(x) * 2)))
    keep = [aten.fft_fft.default, aten.fft_ifft.default, aten.mul.Tensor]
    with pytest.warns(MissingKernelWarning):
        method = load_aten(model, (x,), keep)
    assert_equal(method.execute([x]), model(x))


def test_operators_with_several_results_and_lists() -> None:
    x = torch.randn(6, 6)
    model = FunctionModule(
        lambda x: (
            *torch.linalg.qr(x), torch.exp2(x), torch.dist(x, x + 1), *torch.split(x, [2, 4]), *torch.topk(x, 2),
            x[torch.tensor([1, 0])], torch.index_put(x, (torch.tensor([0]),), torch.ones(1, 6)), *torch.aminmax(x),
        )
    )  # fmt: skip
    keep = [aten.linalg_qr.default, aten.exp2.default, aten.dist.default]
    with pytest.warns(MissingKernelWarning):
        method = load_aten(model, (x,), keep)
    assert_equal(method.execute([x]), model(x))


def test_default_runtime_is_not_affected() -> None:
    x = torch.randn(4)
    exported = torch.export.export(FunctionModule(torch.exp2), (x,))
    with pytest.warns(MissingKernelWarning):
        program = to_edge(
            exported, compile_config=EdgeCompileConfig(preserve_ops=[aten.exp2.default])
        ).to_executorch()
    default_runtime, aten_runtime = Runtime.get(), Runtime.get(aten=True)
    assert (
        aten_runtime is Runtime.get(aten=True)
        and default_runtime is Runtime.get()
        and default_runtime is not aten_runtime
    )
    assert_equal(aten_runtime.load_program(program.buffer).load_method("forward").execute([x]), torch.exp2(x))
    with pytest.raises(RuntimeLoadError, match=r"no kernel for aten::exp2.out[\s\S]*aten=True"):
        default_runtime.load_program(program.buffer).load_method("forward")
    aten_runtime._aten(True)  # for the current thread only
    try:
        with (
            ThreadPoolExecutor(1) as pool,
            pytest.raises(RuntimeLoadError, match=r"no kernel for aten::exp2.out"),
        ):
            pool.submit(default_runtime.load_program(program.buffer).load_method, "forward").result()
    finally:
        assert aten_runtime._aten(False) is True
    names = aten_runtime.operator_registry.operator_names
    assert (
        "aten::exp2.out" in names and "aten::exp2.out" not in default_runtime.operator_registry.operator_names
    )


def test_dynamic_shapes() -> None:
    n = torch.export.Dim("n", max=16)
    model = FunctionModule(lambda x: (x.cumsum(0), x.reshape(-1, 2).sum(1), x * x.shape[0]))
    method = load_aten(model, (torch.randn(8, 4),), dynamic_shapes=(({0: n},),))
    for size in (1, 16, 5, 16):
        x = torch.randn(size, 4)
        assert_equal(method.execute([x]), model(x))


def test_data_dependent_shapes() -> None:
    model = FunctionModule(lambda x: (torch.nonzero(x), torch.masked_select(x, x > 0)))
    method = load_aten(model, (torch.eye(4),))
    for x in (torch.eye(4), torch.ones(4, 4), torch.zeros(4, 4), torch.randn(4, 4)):
        assert_equal(method.execute([x]), model(x))


def test_control_flow_and_scalars() -> None:
    def loop(x: torch.Tensor) -> Any:
        count, total = torch.while_loop(
            lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.5 + i), (torch.zeros((), dtype=torch.int64), x)
        )
        return count, torch.cond(total.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (total,))

    method = load_aten(FunctionModule(loop), (torch.ones(3),))
    for x in (torch.ones(3), -torch.ones(3)):
        assert_equal(method.execute([x]), loop(x))


def test_state_persists_until_reset() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(x)
            return self.seen * 2

    method = load_aten(Counter(), (torch.ones(3),))
    x = torch.randn(3)
    assert [float(method.execute([x])[0][0]) for _ in range(2)] == [float(2 * x[0]), float(4 * x[0])]
    method.reset()
    assert_equal(method.execute([x]), x * 2)


@pytest.mark.parametrize("backend", ["null", "cpu"])
@pytest.mark.filterwarnings("ignore::torchette.errors.DelegationWarning")
def test_delegates_and_the_engine_run_inside(backend: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), FunctionModule(lambda x: (x + x).sinh())).eval()
    x = torch.randn(2, 4)
    compiled = torchette.compile(model, (x,), backend=backend)
    torch.testing.assert_close(torchette.load(bytes(compiled), aten=True)(x), model(x))


def test_layouts() -> None:
    # x + 1, then dim_order_ops::_clone_dim_order and aten::_to_copy
    model = FunctionModule(lambda x: (x + 1, x.contiguous(), x.double(), nn.functional.max_pool2d(x, 2)))
    x = torch.randn(1, 3, 9, 9).to(memory_format=torch.channels_last)
    method = load_aten(model, (x,))
    results = method.execute([x])
    assert_equal(results, model(x))
    planned = [method.metadata.output_tensor_meta(i).dim_order for i in range(4)]
    assert [tuple(np.argsort([-s for s in y.stride()], kind="stable")) for y in results] == planned


def test_random_values_equal_torch() -> None:
    model = FunctionModule(lambda x: torch.rand_like(x) + nn.functional.dropout(x, 0.5, True))
    x = torch.ones(64)
    method = load_aten(model, (x,))
    torch.manual_seed(3)
    expected = model(x)
    torch.manual_seed(3)
    assert_equal(method.execute([x]), expected)


def test_eager_modes_do_not_affect_program() -> None:
    model = nn.Linear(4, 4).eval()
    x = torch.randn(2, 4)
    method = load_aten(model, (x,))
    expected = model(x).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_equal(method.execute([x]), expected)
    with torch.utils._device.DeviceContext("meta"):
        assert_equal(method.execute([x]), expected)
    numbers = x.numpy()
    with FakeTensorMode():
        results = method.execute([numbers])
    assert np.array_equal(results[0], expected.numpy())


# --- Custom operators


@pytest.mark.filterwarnings("ignore::torchette.errors.MissingKernelWarning")
def test_custom_operator_is_registered_once() -> None:
    with torch.library._scoped_library("atentest", "FRAGMENT") as library:
        library.define("twice(Tensor x, *, Scalar by=2) -> Tensor")
        library.impl("twice", lambda x, by=2: x * by, "CPU")
        torch.library.register_fake("atentest::twice", lambda x, by=2: torch.empty_like(x), lib=library)
        x = torch.randn(3)
        method = load_aten(FunctionModule(lambda x: torch.ops.atentest.twice(x, by=3.5)), (x,))
        assert_equal(method.execute([x]), x * 3.5)

        library.define("fails(Tensor x) -> Tensor")
        torch.library.register_fake("atentest::fails", torch.empty_like, lib=library)

        def fails(x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not today")

        library.impl("fails", fails, "CPU")
        method = load_aten(FunctionModule(torch.ops.atentest.fails), (x,))
        with pytest.raises(ExecutionError, match=r"atentest::fails.*not today"):
            method.execute([x])
        assert_equal(load_aten(FunctionModule(torch.sin), (x,)).execute([x]), x.sin())


@pytest.mark.filterwarnings("ignore::torchette.errors.MissingKernelWarning")
def test_unregistered_operator_raises_execution_error() -> None:
    def load(factor: float) -> Method:
        library.define("fleeting(Tensor x) -> Tensor")
        library.impl("fleeting", lambda x: x * factor, "CPU")
        torch.library.register_fake("atentest::fleeting", torch.empty_like, lib=library)
        return load_aten(FunctionModule(torch.ops.atentest.fleeting), (x,))

    x = torch.randn(3)
    with torch.library._scoped_library("atentest", "FRAGMENT") as library:
        first = load(2.0)
        assert_equal(first.execute([x]), x * 2)
    with torch.library._scoped_library("atentest", "FRAGMENT") as library:
        assert_equal(load(3.0).execute([x]), x * 3)
        with pytest.raises(ExecutionError, match=r"atentest::fleeting.out is no longer registered"):
            first.execute([x])


# --- Errors


@pytest.mark.filterwarnings("ignore::torchette.errors.MissingKernelWarning")
def test_sparse_tensors_are_refused_by_name() -> None:
    x = torch.eye(3)
    method = load_aten(FunctionModule(torch.sin), (x,))
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        with pytest.raises(
            InputTypeError, match=r"input 0 \(args_0\).*sparse tensor \(sparse_(coo|csr)\).*dense"
        ):
            method.execute([sparse])
    with torch.library._scoped_library("atentest", "FRAGMENT") as library:
        library.define("sparse(Tensor x) -> Tensor")
        library.impl("sparse", torch.Tensor.to_sparse, "CPU")
        torch.library.register_fake("atentest::sparse", torch.empty_like, lib=library)
        method = load_aten(FunctionModule(torch.ops.atentest.sparse), (x,))
        with pytest.raises(
            ExecutionError, match=r"atentest::sparse.out returned a sparse tensor[\s\S]*instruction 0"
        ):
            method.execute([x])


@pytest.mark.filterwarnings("ignore::torchette.errors.MissingKernelWarning")
def test_unknown_operator_is_named() -> None:
    with torch.library._scoped_library("atentest", "FRAGMENT") as library:
        library.define("abstract(Tensor x) -> Tensor")
        torch.library.register_fake("atentest::abstract", torch.empty_like, lib=library)
        exported = torch.export.export(FunctionModule(torch.ops.atentest.abstract), (torch.ones(3),))
        program = to_edge(exported).to_executorch()
        method = Runtime.get(aten=True).load_program(program.buffer).load_method("forward")
        with pytest.raises(ExecutionError, match=r"Could not run 'atentest::abstract'"):
            method.execute([torch.ones(3)])
    data = program.buffer.replace(b"atentest::abstract", b"atentest::nobodys_")
    with pytest.raises(RuntimeLoadError, match=r"no kernel for atentest::nobodys_.out") as caught:
        Runtime.get(aten=True).load_program(data).load_method("forward")
    assert not any("aten=True" in hint for hint in caught.value.hints)


def test_torch_error_names_operator_and_line() -> None:
    method = load_aten(FunctionModule(lambda x, i: x[i]), (torch.ones(3), torch.tensor([0])))
    assert_equal(method.execute([torch.ones(3), torch.tensor([2])]), torch.ones(1))
    with pytest.raises(
        ExecutionError, match=r"aten::index.Tensor_out: index 7 is out of bounds[\s\S]*test_aten.py:\d+"
    ):
        method.execute([torch.ones(3), torch.tensor([7])])


@pytest.mark.filterwarnings("ignore::torchette.errors.MissingKernelWarning")
def test_result_of_wrong_size_is_refused() -> None:
    with torch.library._scoped_library("atentest", "FRAGMENT") as library:
        library.define("grows(Tensor x) -> Tensor")
        library.impl("grows", lambda x: torch.cat([x, x]), "CPU")
        torch.library.register_fake("atentest::grows", torch.empty_like, lib=library)
        method = load_aten(FunctionModule(torch.ops.atentest.grows), (torch.ones(3),))
        with pytest.raises(ExecutionError, match=r"fixed sizes[\s\S]*atentest::grows.out"):
            method.execute([torch.ones(3)])


def test_missing_torch_or_compiler_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHETTE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingCompilerError, match=r"first use.*no-such-compiler"):
        aten_build.library()
    with monkeypatch.context() as patch:
        patch.setattr(aten_build.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MissingPackageError, match=r"torch is not installed[\s\S]*pip install"):
            aten_build.library()


# --- The command line


def test_run_and_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(
        textwrap.dedent("""
            import torch

            class Net(torch.nn.Module):
                def forward(self, x):
                    return torch.softmax(x @ x, -1)

                example_inputs = (torch.ones(4, 4),)
            """)
    )
    x = torch.randn(4, 4)
    np.save(tmp_path / "x.npy", x.numpy())
    model = FunctionModule(lambda x: torch.softmax(x @ x, -1))
    torchette.compile(model, (x,), backend="portable").save(tmp_path / "net.pte")
    words = [str(tmp_path / "net.pte"), "--inputs", str(tmp_path / "x.npy"), "--aten"]
    assert main(["run", *words, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out).values()
    assert np.array_equal(np.array(output["values"], "float32"), model(x).numpy())
    assert main(["diff", *words, "--no-search", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["numbers"]["max_abs"] for row in report["operators"]} == {0.0}, "torch's kernels are torch's"


# --- C++

PROGRAM = """
#include <torch/library.h>
#include <cstdio>
#include "torchette/extension/aten.h"
#include "torchette/extension/aten_mode.h"
#include "torchette/extension/module.h"

at::Tensor twice(const at::Tensor& x) { return x * 2; }
TORCH_LIBRARY(atencpp, m) {
  m.def("twice(Tensor x) -> Tensor");
  m.impl("twice", c10::DispatchKey::CPU, TORCH_FN(twice));
}

using namespace torchette::extension;

int main(int, char** words) {
  if (load_aten(words[2]) != torchette::Error::Ok) return 1;
  const AtenScope scope;
  Module module(words[1]);
  const auto result = module.forward(from_aten(at::arange(1, 4, at::kFloat)));
  if (!result.ok()) return 2;
  const at::Tensor sum = to_aten(result->at(0).toTensor());
  std::printf("%g %g %g\\n", sum[0].item<double>(), sum[1].item<double>(), sum[2].item<double>());
}
"""


@pytest.mark.slow
def test_cpp_program_with_torch_library_operator(tmp_path: Path) -> None:
    with torch.library._scoped_library("atencpp", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        torch.library.register_fake("atencpp::twice", torch.empty_like, lib=library)
        exported = torch.export.export(
            FunctionModule(lambda x: torch.ops.atencpp.twice(x).exp2()), (torch.ones(3),)
        )
        config = EdgeCompileConfig(_check_ir_validity=False, preserve_ops=[aten.exp2.default])
        with pytest.warns(MissingKernelWarning):  # the default runtime lacks both kernels
            to_edge(exported, compile_config=config).to_executorch().save(tmp_path / "net.pte")
    (tmp_path / "main.cpp").write_text(PROGRAM)
    home, library = (
        Path(torch.__file__).parent,
        built("torchette_aten", tree="aten").with_name(aten_build.NAME),
    )
    built("torchette_static")
    run(
        *(*LAUNCHER, CXX, "-std=c++20", "-c", tmp_path / "main.cpp", "-o", tmp_path / "main.o", f"-I{ROOT}"),
        *(f"-I{torchette_compat()}", "-isystem", home / "include"),
    )
    run(
        *(
            CXX,
            tmp_path / "main.o",
            ROOT / "build" / "dev" / "libtorchette.a",
            library,
            "-o",
            tmp_path / "main",
        ),
        *(
            f"-L{home / 'lib'}",
            "-ltorch_cpu",
            "-lc10",
            f"-Wl,-rpath,{home / 'lib'}",
            f"-Wl,-rpath,{library.parent}",
        ),
    )
    assert run(tmp_path / "main", tmp_path / "net.pte", library).stdout == "4 16 64\n"


def torchette_compat() -> Path:
    from torchette.build.library import compat_folder

    return compat_folder()


PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(app LANGUAGES CXX)
find_package(torchette REQUIRED COMPONENTS aten)
add_executable(app main.cpp)
target_link_libraries(app PRIVATE torchette::torchette torchette::aten)
"""


@pytest.mark.slow
def test_program_of_guide_builds_with_package(tmp_path: Path) -> None:
    config = EdgeCompileConfig(_check_ir_validity=False, preserve_ops=[aten.exp2.default])
    exported = torch.export.export(FunctionModule(lambda x: x.exp2()), (torch.ones(3),))
    with pytest.warns(MissingKernelWarning):
        to_edge(exported, compile_config=config).to_executorch().save(tmp_path / "net.pte")
    folder = built("all", tree="aten").parent
    run("cmake", "--install", folder, "--prefix", tmp_path / "prefix")
    (guide,) = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs" / "aten-mode.md").read_text(), flags=re.S)
    # the program sets no input, so only the call fails, after torch's kernel was found
    main = "int main(int, char** words) { return runs(words[1]) ? 0 : 3; }\n"
    (tmp_path / "main.cpp").write_text(guide + main)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    run("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    run("cmake", "--build", tmp_path / "b")
    assert "input 0 is not set" in run(tmp_path / "b" / "app", tmp_path / "net.pte", status=3).stderr
