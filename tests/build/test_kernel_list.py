# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's kernel lists are read and converted to C++ that compiles; kernels are selected by dtype and dim order.

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.building import CXX, ROOT, run
from torchette import cli
from torchette.build import kernel_list, library
from torchette.errors import FormatError, ModelNotFoundError
from torchette.runtime import operator_signatures

pytest.importorskip("yaml")

# A custom list: a kernel for float32 matrices in row-major or column-major order, and a kernel for other tensors.
LIST = """
- func: mine::blend.out(Tensor a, Tensor b, float share=0.5, *, Tensor(a!) out) -> Tensor(a!)
  variants: function
  type_alias:
    T0: [Float, Double]
    T1: Int
  dim_order_alias:
    D0: [0, 1]
    D1: [[0, 1], [1, 0]]
  kernels:
    - arg_meta: null
      kernel_name: mine::blend_out
    - arg_meta:
        out: [T0, D0]
        a: [T0, D0]
        b: [T0, D0]
      kernel_name: mine::blend_rows_out
    - arg_meta:
        a: [T1, D1]
        b: [T1, D1]
        out: [T1, D1]
      kernel_name: mine::blend_int_out
- op: add.out
  kernels:
    - arg_meta:
        self: [Float, [0, 1]]
        other: [Float, [0, 1]]
        out: [Float, [0, 1]]
      kernel_name: mine::add_out
"""

KERNELS = """
#include "Functions.h"
extern "C" __attribute__((visibility("default"))) int calls[4] = {};
namespace mine::native {
using namespace torch::executor;
template <typename T>
Tensor& blend(const Tensor& a, const Tensor& b, double share, Tensor& out, int which) {
  ++calls[which];
  for (ssize_t i = 0; i < out.numel(); ++i)
    out.data_ptr<T>()[i] = static_cast<T>((1 - share) * a.const_data_ptr<T>()[i] + share * b.const_data_ptr<T>()[i]);
  return out;
}
Tensor& blend_out(KernelRuntimeContext&, const Tensor& a, const Tensor& b, double share, Tensor& out) {
  return a.scalar_type() == ScalarType::Float ? blend<float>(a, b, share, out, 0) : blend<int64_t>(a, b, share, out, 0);
}
Tensor& blend_rows_out(KernelRuntimeContext&, const Tensor& a, const Tensor& b, double share, Tensor& out) {
  return a.scalar_type() == ScalarType::Float ? blend<float>(a, b, share, out, 1) : blend<double>(a, b, share, out, 1);
}
Tensor& blend_int_out(KernelRuntimeContext&, const Tensor& a, const Tensor& b, double share, Tensor& out) {
  return blend<int32_t>(a, b, share, out, 2);
}
Tensor& add_out(KernelRuntimeContext&, const Tensor& a, const Tensor& b, const Scalar&, Tensor& out) {
  ++calls[3];
  for (ssize_t i = 0; i < out.numel(); ++i) out.data_ptr<float>()[i] = a.data_ptr<float>()[i] + b.data_ptr<float>()[i] + 100;
  return out;
}
}  // namespace mine::native
"""

# Runs in a separate process, because it replaces addition.
SCRIPT = """
import ctypes, sys
import numpy as np
from torchette import runtime
runtime.load_kernels(sys.argv[1])
calls = (ctypes.c_int * 4).in_dll(ctypes.CDLL(sys.argv[1]), "calls")

def call(name, dtype, columns=False, rank=2, *numbers):
    a, b, out = (np.full((2, 3, 1)[:rank], value, dtype, order="F" if columns else "C") for value in (2, 4, 0))
    runtime.call_kernel(name, [a, b, *numbers, out])
    counted, calls[:] = list(calls), [0] * 4
    return float(out.flat[0]), counted.index(1) if 1 in counted else None

blend = lambda *arguments: call("mine::blend.out", *arguments)
assert blend("float32", False, 2, 0.5) == (3, 1)
assert blend("float64", False, 2, 0.5) == (3, 1)
assert blend("int32", False, 2, 0.5) == (3, 2)
assert blend("int32", True, 2, 0.5) == (3, 2)
assert blend("float32", True, 2, 0.5) == (3, 0), "another dim order"
assert blend("float32", False, 3, 0.5) == (3, 0), "another rank"
assert blend("int64", False, 2, 0.5) == (3, 0), "another dtype"
add = lambda *arguments: call("aten::add.out", *arguments)
assert add("float32", False, 2, 1) == (106, 3)
assert add("float32", True, 2, 1) == (6, None), "the built-in kernel"
assert add("float64", False, 2, 1) == (6, None), "the built-in kernel"
"""


def compiled(folder: Path) -> None:
    """Compiles registration and functions of a list with ExecuTorch's include paths."""
    (folder / "functions.cpp").write_text('#include "Functions.h"\n')
    for source in ("RegisterKernels.cpp", "functions.cpp"):
        flags = ["-std=c++17", "-Wall", "-Werror", "-fsyntax-only"]
        run(CXX, *flags, f"-I{ROOT}", f"-I{library.compat_folder()}", f"-I{folder}", folder / source)


def test_each_call_selects_matching_kernel(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(LIST)
    (tmp_path / "kernels.cpp").write_text(KERNELS)
    assert cli.main(["custom", "yaml", str(tmp_path / "mine.yaml"), "-o", str(tmp_path)]) == 0
    sources = [str(tmp_path / name) for name in ("RegisterKernels.cpp", "kernels.cpp")]
    built = tmp_path / "libmine.so"
    assert cli.main(["custom", "build", *sources, "-o", str(built)]) == 0
    subprocess.run([sys.executable, "-c", SCRIPT, str(built)], check=True, cwd=ROOT)


def test_keys_are_all_alias_combinations(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(LIST)
    kernels, left_out = kernel_list.read(tmp_path / "mine.yaml", {"aten::add.out": "TTst"})
    assert left_out == []
    assert [kernel.keys for kernel in kernels] == [
        ("",),
        ("6;0,1|6;0,1|6;0,1", "7;0,1|7;0,1|7;0,1"),
        ("3;0,1|3;0,1|3;0,1", "3;1,0|3;1,0|3;1,0"),
        ("6;0,1|6;0,1|6;0,1",),
    ]


@pytest.mark.parametrize(
    "names",
    [
        ("kernels/portable/functions.yaml", "kernels/portable/custom_ops.yaml"),
        ("kernels/quantized/quantized.yaml",),
        ("runtime/kernel/test/functions.yaml",),
    ],
    ids=lambda names: names[0],
)
def test_executorch_lists_compile(names: tuple[str, ...], tmp_path: Path) -> None:
    spec = importlib.util.find_spec("executorch")
    if spec is None:
        pytest.skip("executorch is not installed")
    (package,) = spec.submodule_search_locations or ()
    _, left_out = kernel_list.write([Path(package) / name for name in names], tmp_path)
    assert left_out in ([], ["allclose.Tensor"])
    compiled(tmp_path)


def test_kernel_list_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(LIST)
    script = "import sys; sys.modules['torch'] = None; from torchette.cli import main;"
    script += f"sys.exit(main(['custom', 'yaml', {str(tmp_path / 'mine.yaml')!r}, '-o', {str(tmp_path)!r}]))"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)
    compiled(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: b", "not a list of kernels"),
        ("- kernels: []", "neither op nor func"),
        (
            "- op: nothing.out\n  kernels: [{arg_meta: null, kernel_name: x}]",
            "aten::nothing|nothing.out: this runtime does not have",
        ),
        ("- op: add.out", "add.out: it has no kernels"),
        (
            "- op: add.out\n  kernels: [{arg_meta: null, kernel_name: 'a b'}]",
            "kernel_name must be a C\\+\\+ name",
        ),
        (
            "- func: f.out(Tensor a, Stream s, *, Tensor(a!) out) -> Tensor(a!)\n  kernels: [{}]",
            "the type Stream is not supported",
        ),
        (LIST.replace("Float, Double", "Float, Quad"), "there is no dtype Quad"),
        (LIST.replace("[T1, D1]", "[T1, D7]"), "there is no dim_order_alias D7"),
        (LIST.replace("D0: [0, 1]", "D0: [0, 2]"), "not a dim order: \\[0, 2\\]"),
        (
            LIST.replace("        b: [T0, D0]\n", ""),
            "arg_meta contains out, a, but the tensors are a, b, out",
        ),
        ("- [", "is not YAML"),
    ],
)
def test_invalid_lists_raise(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(FormatError, match=complaint):
        kernel_list.read(tmp_path / "wrong.yaml", operator_signatures())


def test_missing_list_raises(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nothing"):
        kernel_list.read(tmp_path / "nothing.yaml")
