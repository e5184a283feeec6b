# SPDX-License-Identifier: BSD-3-Clause
# Operators in a user's C++ file: compiled by the command line, used in eager, exported, run by the runtime.

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchette
from tests.building import CXX, ROOT, built, run
from torchette import cli
from torchette.errors import (
    BuildError,
    ExecutionError,
    MissingKernelError,
    MissingKernelWarning,
    ModelNotFoundError,
    RuntimeLoadError,
)
from torchette.exir import to_edge
from torchette.runtime import Runtime, operator_names

SOURCE = ROOT / "tests/extension/my_op.cpp"

pytestmark = pytest.mark.skipif(shutil.which(CXX) is None, reason="the C++ compiler is missing")


class Spread(torch.nn.Module):
    def forward(self, x):
        least, greatest = torch.ops.tests_custom.range(torch.ops.tests_custom.scale(x, 3.0))
        return greatest - least


def expected(x: torch.Tensor) -> torch.Tensor:
    return (3 * x).amax(1) - (3 * x).amin(1)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("custom") / "libmy_op.so"
    assert cli.main(["custom", "build", str(SOURCE), "-o", str(path)]) == 0
    assert torchette.load_library(path) == ["tests_custom::scale", "tests_custom::range"]
    return path


def test_eager_calls_the_kernels(library: Path) -> None:
    x = torch.randn(5, 3)
    assert torch.equal(torch.ops.tests_custom.scale(x), 2 * x)
    assert torch.equal(torch.ops.tests_custom.scale(x.t(), by=0.5), 0.5 * x.t())  # made row-major first
    out = torch.empty(5, 3)
    assert torch.ops.tests_custom.scale.out(x, -1.0, out=out) is out and torch.equal(out, -x)
    least, greatest = torch.ops.tests_custom.range(x)
    assert torch.equal(least, x.amin(1)) and torch.equal(greatest, x.amax(1))
    outs = torch.empty(5), torch.empty(5)
    torch.ops.tests_custom.range.out(x, out0=outs[0], out1=outs[1])
    assert torch.equal(outs[1], x.amax(1))
    with pytest.raises(ExecutionError, match="scale requires float32"):
        torch.ops.tests_custom.scale(x.double())


def test_the_edge_program_has_the_operators(library: Path) -> None:
    edge = to_edge(torch.export.export(Spread().eval(), (torch.ones(5, 3),)))
    targets = [str(node.target) for node in edge.exported_program().graph.nodes if node.op == "call_function"]
    assert any("tests_custom.scale" in target for target in targets) and any(
        "tests_custom.range" in target for target in targets
    )


@pytest.mark.parametrize("dynamic", [None, ({0: torch.export.Dim("rows", min=1, max=9)},)])
def test_models_run(library: Path, dynamic: tuple | None, tmp_path: Path) -> None:
    x = torch.randn(5, 3)
    model = torchette.compile(Spread().eval(), (x,), dynamic_shapes=dynamic)
    assert torch.equal(model(x), expected(x))
    if dynamic:
        assert torch.equal(model(x[:2]), expected(x[:2]))
    model.save(tmp_path / "spread.pte")
    method = Runtime.get().load_program(tmp_path / "spread.pte").load_method("forward")
    assert torch.equal(torch.as_tensor(method.execute([x])[0]), expected(x))
    assert {"tests_custom::scale.out", "tests_custom::range.out"} <= operator_names()


def test_loading_twice_changes_nothing(library: Path, tmp_path: Path) -> None:
    assert torchette.load_library(library) == ["tests_custom::scale", "tests_custom::range"]
    copy = shutil.copyfile(library, tmp_path / "copy.so")
    with pytest.raises(RuntimeLoadError, match=r"kernel tests_custom::scale\.out is already registered"):
        torchette.load_library(copy)


def test_a_program_of_its_own(library: Path, tmp_path: Path) -> None:
    """The same file works linked into a program without Python, and loaded by such a program."""
    x = torch.arange(6.0).reshape(2, 3)
    torchette.compile(Spread().eval(), (x,)).save(tmp_path / "spread.pte")
    program = tmp_path / "main.cpp"
    program.write_text(
        """
#include <cstdio>
#include "torchette/extension/custom_library.h"
#include "torchette/extension/module.h"
using namespace torchette;
int main(int argc, char** argv) {
  if (argc > 2 && !extension::load_custom_library(argv[2]).ok()) return 2;
  float data[6] = {0, 1, 2, 3, 4, 5};
  extension::Module module(argv[1]);
  const auto out = module.forward(extension::from_blob(data, {2, 3}));
  if (!out.ok()) return 1;
  std::printf("%g %g", (*out)[0].toTensor().const_data_ptr<float>()[0], (*out)[0].toTensor().const_data_ptr<float>()[1]);
}
"""
    )
    static = built("torchette_static")
    archive = static if static.is_file() else static.with_name("libtorchette.a")
    common = ["-std=c++17", f"-I{ROOT}", program]
    run(CXX, *common, SOURCE, archive, "-ldl", "-lpthread", "-o", tmp_path / "linked")
    assert run(tmp_path / "linked", tmp_path / "spread.pte").stdout == "6 6"
    run(CXX, *common, archive, "-ldl", "-lpthread", "-o", tmp_path / "loading")
    assert run(tmp_path / "loading", tmp_path / "spread.pte", library).stdout == "6 6"
    run(tmp_path / "loading", tmp_path / "spread.pte", status=1)  # OperatorMissing


def test_missing_kernel_is_an_error_ahead_of_time() -> None:
    """An operator that only torch implements gets an out variant, and the compiler reports that it has no kernel."""

    @torch.library.custom_op("torchette_tests_custom::alone", mutates_args=())
    def alone(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    alone.register_fake(torch.empty_like)

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.torchette_tests_custom.alone(x)

    with pytest.raises(MissingKernelError) as caught:
        torchette.compile(Model().eval(), (torch.ones(2),))
    assert caught.value.operators == ("torchette_tests_custom::alone.out",)
    assert "test_custom_ops.py" in str(caught.value) and "torchette.load_library" in str(caught.value)
    edge = to_edge(torch.export.export(Model().eval(), (torch.ones(2),)))
    with pytest.warns(
        MissingKernelWarning, match=r"(?s)torchette_tests_custom::alone\.out.*\.alone\(x\)"
    ) as warned:
        program = edge.to_executorch()  # the device may have the kernel
    assert "torchette.load_library" in str(warned[0].message)
    assert warned[0].filename == __file__
    with pytest.raises(RuntimeLoadError, match=r"torchette\.load_library"):
        torchette.load(program.buffer)
    out = torch.empty(2)
    torch.ops.torchette_tests_custom.alone.out(torch.ones(2), out=out)
    assert out.tolist() == [2, 2]


def test_unresized_result_gets_the_input_shape_or_is_an_error(tmp_path: Path) -> None:
    """If sizes vary, a result has no planned memory. A result with the first input's shape gets memory by that shape; for another
    shape the kernel must resize the result."""
    source = tmp_path / "careless.cpp"
    source.write_text(
        """
#include "torchette/extension/custom_op.h"
using namespace torchette;
static Error twice_out(Context&, const Tensor& x, Tensor& out) {
  for (int64_t i = 0; i < x.numel(); ++i) out.data_ptr<float>()[i] = 2 * x.const_data_ptr<float>()[i];
  return Error::Ok;
}
TORCHETTE_OP("tests_careless::twice(Tensor x) -> Tensor", twice_out)
static Error heads_out(Context&, const Tensor& x, Tensor& out) {
  for (int64_t i = 0; i < out.numel(); ++i) out.data_ptr<float>()[i] = x.const_data_ptr<float>()[i];
  return Error::Ok;
}
TORCHETTE_OP("tests_careless::heads(Tensor x) -> Tensor", heads_out, "x.new_empty(x.shape[0])")
"""
    )
    from torchette.build import custom

    torchette.load_library(custom.build([source], tmp_path / "libcareless.so"))

    class Model(torch.nn.Module):
        def __init__(self, op):
            super().__init__()
            self.op = op

        def forward(self, x):
            return self.op(x + 1) * 1  # inside of the method, where memory is its own

    unbounded = ({0: torch.export.Dim("rows", min=1)},)
    x = torch.randn(5, 3)
    ops = torch.ops.tests_careless
    for dynamic in (None, unbounded):
        model = torchette.compile(Model(ops.twice).eval(), (x,), dynamic_shapes=dynamic)
        assert torch.equal(model(x), (x + 1) * 2)
    assert torch.equal(model(x[:2]), (x[:2] + 1) * 2)
    for dynamic in (unbounded, ({0: torch.export.Dim("rows", min=1, max=9)},)):
        model = torchette.compile(Model(ops.heads).eval(), (x,), dynamic_shapes=dynamic)
        for _ in range(2):
            with pytest.raises(ExecutionError, match="did not resize its result"):
                model(x)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nothing\.cpp"):
        from torchette.build import custom

        custom.build([tmp_path / "nothing.cpp"])
    (tmp_path / "wrong.cpp").write_text("int main( {")
    with pytest.raises(BuildError, match=r"wrong\.cpp cannot be compiled"):
        custom.build([tmp_path / "wrong.cpp"], tmp_path / "wrong.so")
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(RuntimeLoadError, match="cannot load"):
        torchette.load_library(tmp_path / "text.so")
    (tmp_path / "empty.cpp").write_text("int nothing;")
    run(CXX, "-shared", "-fPIC", tmp_path / "empty.cpp", "-o", tmp_path / "empty.so")
    with pytest.raises(RuntimeLoadError, match="contains no operators"):
        torchette.load_library(tmp_path / "empty.so")


def test_without_torch_the_kernels_load(library: Path) -> None:
    script = f"import sys; sys.modules['torch'] = None; import torchette.runtime as r; r.load_kernels({str(library)!r});"
    script += "assert 'tests_custom::scale.out' in r.operator_names()"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def compiled(source: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "kernel.cpp"
    file.write_text('#include "torchette/extension/custom_op.h"\nusing namespace torchette;\n' + source)
    command = [CXX, "-std=c++17", "-fsyntax-only", f"-I{ROOT}", file]
    return subprocess.run(command, capture_output=True, text=True)


def test_kernel_with_every_schema_type_compiles(tmp_path: Path) -> None:
    source = """
static Error all_out(Context&, const Tensor& x, const Optional<Tensor>& y, const Scalar& s, Optional<Scalar> os,
                     int64_t i, Optional<int64_t> oi, double f, bool b, Span<const char> text,
                     Span<const int64_t> is, Optional<Span<const int64_t>> ois, Span<const double> fs,
                     Span<const bool> bs, Span<const Tensor> ts, Span<const Optional<Tensor>> ots, int64_t symbol,
                     int64_t dtype, Tensor&, Tensor& out) {
  size_t n = 3;
  int64_t m = 2;
  TORCHETTE_TRY(resize_tensor(out, {n}));
  TORCHETTE_TRY(resize_tensor(out, {m, 2 * n, x.size(0)}));
  TORCHETTE_TRY(resize_tensor(out, {0, 1}));
  TORCHETTE_TRY(resize_tensor(out, {}));
  TORCHETTE_TRY(resize_tensor(out, {x.sizes().data(), 1}));
  return resize_tensor(out, x.sizes());
}
TORCHETTE_OP("my::all(Tensor x, Tensor? y, Scalar s, Scalar? os, int i=3, int? oi=None, float f=2., *, bool b=True, "
             "str text='a, (b', int[2] is=[1, 2], int[]? ois=None, float[] fs, bool[3] bs, Tensor[] ts, Tensor?[] ots, "
             "SymInt symbol, ScalarType dtype) -> (Tensor first, Tensor second)", all_out, "x, x")
static Error none_out(Context&, Tensor&) { return Error::Ok; }
TORCHETTE_OP("my::none() -> Tensor", none_out, "torch.zeros(1)")
"""
    assert compiled(source, tmp_path).stderr == ""


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("Error scale_out(Context&, const Tensor& x, float by, Tensor&)", "parameter of another type"),
        (
            "Error scale_out(Context&, const Tensor& x, int64_t by, Tensor&)",
            "scale_out differ from its schema",
        ),
        ("Error scale_out(Context&, const Tensor& x, Tensor&)", "scale_out differ from its schema"),
        ("Error scale_out(Context&, const Tensor& x, Optional<double>, Tensor&)", "differ from its schema"),
        ("Error scale_out(Context&, const Tensor& x, double by, const Tensor&)", "differ from its schema"),
        ("Error scale_out(Context&, const Tensor& x, double, Tensor&, Tensor&)", "differ from its schema"),
        ("Error scale_out(const Tensor& x, double by, Tensor&)", "a kernel is a function Error(Context&"),
        (
            "Tensor& scale_out(Context&, const Tensor&, double, Tensor&)",
            "a kernel is a function Error(Context&",
        ),
    ],
)
def test_wrong_kernel_has_one_error(kernel: str, message: str, tmp_path: Path) -> None:
    result = "return out;" if kernel.startswith("Tensor") else "return Error::Ok;"
    source = f"""
static {kernel.removesuffix(")")} out) {{ {result} }}
TORCHETTE_OP("my::scale(Tensor x, float by=2) -> Tensor", scale_out)
"""
    (error,) = [line for line in compiled(source, tmp_path).stderr.splitlines() if "error:" in line]
    assert message in error


def test_size_of_a_result_may_depend_on_the_data(tmp_path: Path) -> None:
    source = tmp_path / "positive.cpp"
    source.write_text(
        """
#include "torchette/extension/custom_op.h"
using namespace torchette;
static Error positive_out(Context&, const Tensor& x, Tensor& out) {
  const float* from = x.const_data_ptr<float>();
  int64_t count = 0;
  for (int64_t i = 0; i < x.numel(); ++i) count += from[i] > 0;
  TORCHETTE_TRY(resize_tensor(out, {count}));
  for (int64_t i = 0, at = 0; i < x.numel(); ++i)
    if (from[i] > 0) out.data_ptr<float>()[at++] = from[i];
  return Error::Ok;
}
TORCHETTE_OP("tests_custom::positive(Tensor x) -> Tensor", positive_out, "x.new_empty(up_to(x.numel()))")
"""
    )
    assert cli.main(["custom", "build", str(source), "-o", str(tmp_path / "libpositive.so")]) == 0
    torchette.load_library(tmp_path / "libpositive.so")

    class Model(torch.nn.Module):
        def forward(self, x):
            return 2 * torch.ops.tests_custom.positive(x)

    x = torch.tensor([[1.0, -1, 2], [3, -4, -5]])
    rows = ({0: torch.export.Dim("rows", max=50)},)
    assert Model()(x).tolist() == [2, 4, 6]
    for shapes in (None, rows):
        model = torchette.compile(Model(), (x,), dynamic_shapes=shapes)
        assert model(x).tolist() == [2, 4, 6] and model(-x).tolist() == [2, 8, 10]
        assert model(0 * x).shape == (0,)
    program = to_edge(torch.export.export(Model(), (x,))).to_executorch()  # memory for the upper bound
    assert torchette.load(program.buffer)(x).tolist() == [2, 4, 6]
