# SPDX-License-Identifier: BSD-3-Clause
# Tests ExecuTorch's names in CMake: a project links the targets of the package executorch, and a project selects and registers
# kernels.

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.building import run
from tests.extension.test_guides import installed  # noqa: F401
from torchette.errors import MissingKernelWarning
from torchette.exir import to_edge

TARGETS = """executorch executorch_core portable_kernels portable_ops_lib optimized_kernels optimized_native_cpu_ops_lib
quantized_kernels quantized_ops_lib xnnpack_backend vulkan_backend extension_data_loader extension_module
extension_module_static extension_tensor extension_flat_tensor extension_named_data_map extension_runner_util
extension_evalue_util extension_threadpool etdump bundled_program executorch::backends executorch::extensions
executorch::kernels executorch::runtime executorch::kernels_optimized executorch::kernels_quantized
executorch::backend_xnnpack executorch::threadpool executorch::etdump"""

PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(app LANGUAGES CXX)
find_package(executorch REQUIRED)
foreach(name IN ITEMS @targets@)
  if(NOT TARGET ${name})
    message(FATAL_ERROR "no target ${name}")
  endif()
endforeach()
if(NOT EXECUTORCH_FOUND OR NOT EXECUTORCH_LIBRARIES OR NOT EXECUTORCH_INCLUDE_DIRS)
  message(FATAL_ERROR "a variable is missing")
endif()
add_executable(app main.cpp)
target_link_libraries(app PRIVATE @targets@)
target_link_options_gc_sections(app)
"""

MAIN = """
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <cstdio>

int main(int, char** argv) {
  executorch::extension::Module module(argv[1]);
  const auto result = module.forward(executorch::extension::ones({2, 3}));
  if (!result.ok()) return static_cast<int>(result.error());
  const auto& tensor = result->at(0).toTensor();
  for (ssize_t i = 0; i < tensor.numel(); ++i) std::printf("%.9g\\n", tensor.const_data_ptr<float>()[i]);
}
"""

SELECTING = """
cmake_minimum_required(VERSION 3.20)
project(app LANGUAGES CXX)
find_package(executorch REQUIRED)
gen_selected_ops(LIB_NAME chosen OPS_SCHEMA_YAML ${CMAKE_SOURCE_DIR}/custom.yaml ROOT_OPS "aten::mul.out" OPS_FROM_MODEL ${MODEL})
generate_bindings_for_kernels(LIB_NAME chosen FUNCTIONS_YAML ${CMAKE_SOURCE_DIR}/functions.yaml
                              CUSTOM_OPS_YAML ${CMAKE_SOURCE_DIR}/custom.yaml)
add_library(my_kernels my_kernels.cpp)
target_link_libraries(my_kernels PRIVATE executorch_core)
gen_operators_lib(LIB_NAME chosen KERNEL_LIBS my_kernels DEPS executorch_core)
add_executable(app main.cpp)
target_link_libraries(app PRIVATE executorch extension_module extension_tensor chosen)
"""
FUNCTIONS = "- op: add.out\n  kernels:\n    - arg_meta: null\n      kernel_name: torch::executor::add_out\n"
CUSTOM = """- func: compat_test::twice.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
  kernels:
    - arg_meta: null
      kernel_name: compat_test::twice_out
"""
KERNELS = """
#include <executorch/runtime/kernel/kernel_includes.h>

namespace compat_test::native {
using executorch::aten::Tensor;

Tensor& twice_out(executorch::runtime::KernelRuntimeContext& context, const Tensor& self, Tensor& out) {
  ET_KERNEL_CHECK(context, executorch::runtime::resize_tensor(out, self.sizes()) == executorch::runtime::Error::Ok,
                  InvalidArgument, out);
  ET_SWITCH_FLOAT_TYPES(self.scalar_type(), context, "twice.out", CTYPE, [&]() {
    for (ssize_t i = 0; i < self.numel(); ++i)
      out.mutable_data_ptr<CTYPE>()[i] = 2 * self.const_data_ptr<CTYPE>()[i];
  });
  return out;
}
}  // namespace compat_test::native
"""


class Twice(torch.nn.Module):
    """Uses a custom kernel and aten::sub.out, which compiles faster than a matmul."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.less = torch.nn.Parameter(torch.rand(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.compat_test.twice(x - self.less)


@pytest.fixture(scope="module", autouse=True)
def operator():
    with torch.library._scoped_library("compat_test", "FRAGMENT") as library:
        library.define("twice(Tensor self) -> Tensor")
        library.define("twice.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)")
        library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
        library.impl("twice.out", lambda x, out: out.copy_(2 * x), "CompositeExplicitAutograd")
        yield


def saved(module: torch.nn.Module, path: Path) -> list[float]:
    """Writes the program of a module. Returns the output of eager mode for ones."""
    x = torch.ones(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingKernelWarning)  # the project provides the kernels
        to_edge(torch.export.export(module.eval(), (x,))).to_executorch().save(str(path))
    return module(x).detach().flatten().tolist()


def built_project(prefix: Path, folder: Path, files: dict[str, str], *options: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    options = (f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Debug", *options)
    run("cmake", "-S", folder, "-B", folder / "build", f"-DPython_EXECUTABLE={sys.executable}", *options)
    run("cmake", "--build", folder / "build")
    return folder / "build" / "app"


def numbers(program: Path, model: Path) -> list[float]:
    return [float(line) for line in run(program, model).stdout.split()]


@pytest.mark.gate
def test_find_package_executorch(installed: Path, tmp_path: Path) -> None:  # noqa: F811
    expected = saved(torch.nn.Linear(3, 2), tmp_path / "net.pte")
    project = PROJECT.replace("@targets@", " ".join(TARGETS.split()))
    app = built_project(installed, tmp_path / "project", {"CMakeLists.txt": project, "main.cpp": MAIN})
    np.testing.assert_allclose(numbers(app, tmp_path / "net.pte"), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.gate
def test_selected_and_custom_kernels_in_cmake(installed: Path, tmp_path: Path) -> None:  # noqa: F811
    expected = saved(Twice(), tmp_path / "twice.pte")
    texts = {"CMakeLists.txt": SELECTING, "main.cpp": MAIN, "my_kernels.cpp": KERNELS}
    texts |= {"functions.yaml": FUNCTIONS, "custom.yaml": CUSTOM}
    app = built_project(installed, tmp_path / "project", texts, f"-DMODEL={tmp_path / 'twice.pte'}")
    np.testing.assert_allclose(numbers(app, tmp_path / "twice.pte"), expected, rtol=1e-5, atol=1e-6)
    # The program does not contain a kernel that was not selected.
    saved(torch.nn.Tanh(), tmp_path / "tanh.pte")
    assert "aten::tanh.out" in run(app, tmp_path / "tanh.pte", status=0x14).stderr


@pytest.mark.gate
def test_a_changed_selection_replaces_the_library(installed: Path, tmp_path: Path) -> None:  # noqa: F811
    project = """
cmake_minimum_required(VERSION 3.20)
project(app LANGUAGES CXX)
find_package(executorch REQUIRED)
gen_selected_ops(LIB_NAME chosen ${SELECTION})
add_executable(app main.cpp)
target_link_libraries(app PRIVATE executorch extension_module extension_tensor)
"""
    expected = {
        name: saved(net, tmp_path / f"{name}.pte")
        for name, net in (("linear", torch.nn.Linear(3, 2)), ("tanh", torch.nn.Tanh()))
    }
    texts = {"CMakeLists.txt": project, "main.cpp": MAIN, "custom.yaml": CUSTOM}
    folder = tmp_path / "project"
    app = built_project(installed, folder, texts, "-DSELECTION=ROOT_OPS;aten::tanh.out")
    for selection, there in (
        ("", {"tanh"}),
        ("ROOT_OPS;aten::linear.out", {"linear"}),
        # The list contains only operators of the project, so the program links the installed library, which has all kernels.
        (f"OPS_SCHEMA_YAML;{folder / 'custom.yaml'}", {"linear", "tanh"}),
    ):
        if selection:
            run("cmake", "-S", folder, "-B", folder / "build", f"-DSELECTION={selection}")
            run("cmake", "--build", folder / "build")
        for name, values in expected.items():
            if name in there:
                np.testing.assert_allclose(
                    numbers(app, tmp_path / f"{name}.pte"), values, rtol=1e-5, atol=1e-6
                )
            else:
                assert f"aten::{name}.out" in run(app, tmp_path / f"{name}.pte", status=0x14).stderr


@pytest.mark.gate
def test_unsupported_cmake_calls_are_errors(installed: Path, tmp_path: Path) -> None:  # noqa: F811
    start = "cmake_minimum_required(VERSION 3.20)\nproject(app LANGUAGES CXX)\nfind_package(executorch REQUIRED)\n"
    for number, (call, message) in enumerate(
        {
            "gen_custom_ops_aot_lib(LIB_NAME x KERNEL_SOURCES y.cpp)": "torchette custom build",
            "gen_selected_ops(ROOT_OPS aten::add.out)": "LIB_NAME is missing",
            "gen_selected_ops(LIB_NAME x ROOT_OPS aten::ad.out)": "aten::ad.out",
            "gen_selected_ops(LIB_NAME x DTYPE_SELECTIVE_BUILD ON)": "needs OPS_FROM_MODEL",
        }.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text(start + call)
        options = (f"-DCMAKE_PREFIX_PATH={installed}", f"-DPython_EXECUTABLE={sys.executable}")
        failed = run("cmake", "-S", folder, "-B", folder / "build", *options, status=1)
        assert message in " ".join(failed.stderr.split())
