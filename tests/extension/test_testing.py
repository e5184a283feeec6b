# SPDX-License-Identifier: BSD-3-Clause
# Tests the utilities for kernel tests: a user's test in 15 lines, and the same functions with ExecuTorch's names.

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.building import ROOT, built, program, run
from torchette.build import library

EXECUTORCH_TEST = """
#include <cstdio>
#define EXPECT_TRUE(condition) failures += !(condition)
int failures = 0;
#include <executorch/extension/testing_util/temp_file.h>
#include <executorch/runtime/core/exec_aten/testing_util/tensor_factory.h>
#include <executorch/runtime/core/exec_aten/testing_util/tensor_util.h>
using executorch::aten::ScalarType;
using executorch::extension::testing::TempFile;
using executorch::runtime::testing::TensorFactory;
#define EXPECT_FALSE(condition) EXPECT_TRUE(!(condition))

int main() {
  using torchette::extension::tensors_are_equal;
  TensorFactory<ScalarType::Float> floats;
  TensorFactory<ScalarType::Bool> bools;
  TensorFactory<ScalarType::Long> longs;
  const auto rows = floats.make({2, 3}, {1, 2, 3, 4, 5, 6});
  const auto columns = floats.make_with_dimorder({2, 3}, {1, 4, 2, 5, 3, 6}, {1, 0});
  EXPECT_TENSOR_EQ(rows, columns);
  EXPECT_TENSOR_EQ(floats.make({2, 3}, {1, 4, 2, 5, 3, 6}, {1, 2}), rows);
  EXPECT_FALSE(tensors_are_equal(rows, floats.make({3, 2}, {1, 2, 3, 4, 5, 6})));
  EXPECT_FALSE(tensors_are_equal(rows, floats.make({2, 3}, {1, 2, 3, 4, 5, 7})));
  EXPECT_TENSOR_CLOSE(floats.full({2}, 1.0f), floats.full({2}, 1.000001f));
  EXPECT_FALSE(tensors_are_equal(floats.full({2}, 1.0f), floats.full({2}, 1.000001f)));
  EXPECT_TENSOR_EQ(floats.full({1}, NAN), floats.full({1}, NAN));
  EXPECT_FALSE(torchette::extension::tensors_are_close(floats.full({1}, 1), floats.full({1}, INFINITY)));
  EXPECT_FALSE(tensors_are_equal(floats.ones({1}), longs.ones({1})));
  EXPECT_TENSOR_EQ(bools.make({2}, {true, false}), bools.make({2}, {true, false}));
  EXPECT_FALSE(tensors_are_equal(longs.full({1}, INT64_MAX), longs.full({1}, INT64_MAX - 1)));
  EXPECT_TENSOR_EQ(floats.zeros_like(columns), floats.zeros({2, 3}));
  EXPECT_TENSOR_EQ(floats.zeros({0, 3}), floats.zeros({0, 3}));
  std::string path;
  {
    TempFile file(std::string("bytes"));
    path = file.path();
    char read[8] = {};
    FILE* const opened = fopen(path.c_str(), "rb");
    EXPECT_TRUE(opened != nullptr && fread(read, 1, 8, opened) == 5 && std::string(read) == "bytes");
    fclose(opened);
  }
  EXPECT_TRUE(fopen(path.c_str(), "rb") == nullptr);
  std::printf("%d failures", failures);
}
"""


@pytest.fixture(scope="module")
def flags() -> list[str | Path]:
    return ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", f"-I{library.compat_folder()}"]


@pytest.fixture(scope="module")
def archive() -> list[str | Path]:
    return [built("torchette_static").with_name("libtorchette.a"), "-ldl", "-lpthread"]


def test_kernel_test_in_15_lines(flags: list, archive: list, tmp_path: Path) -> None:
    source = ROOT / "tests/extension/kernel_test.cpp"
    assert len([line for line in source.read_text().splitlines() if line.strip()]) <= 15
    run(program(tmp_path / "test", [source], *flags, link=archive))


def test_testing_utilities_have_executorch_names(flags: list, archive: list, tmp_path: Path) -> None:
    (tmp_path / "executorch_test.cpp").write_text(EXECUTORCH_TEST)
    test = program(tmp_path / "test", ["executorch_test.cpp"], *flags, "-include", "climits", link=archive)
    assert run(test).stdout == "0 failures"


EARLY_WRITE = """
#include "torchette/extension/testing.h"
using namespace torchette;
static int kind;  // 0: a correct kernel, 1: a write before the resize, 2: a write beyond the size
static Error twice_out(Context&, const Tensor& x, Tensor& out) {
  if (kind != 1) TORCHETTE_TRY(resize_tensor(out, {x.sizes().data(), static_cast<size_t>(out.dim())}));
  for (int64_t i = 0; i < x.numel(); ++i)
    out.data_ptr<float>()[i] = 2 * x.const_data_ptr<float>()[i];  // the write
  return resize_tensor(out, x.sizes());
}
int main(int, char** argv) {
  kind = atoi(argv[1]);
  extension::TensorFactory<ScalarType::Float> make;
  const Tensor x = make.make({2, 2}, {1, -2, 3, 0});
  Tensor out = make.unsized(kind == 2 ? 1 : 2);
  Context context;
  if (out.numel() != 0 || twice_out(context, x, out) != Error::Ok) return 1;
  return extension::tensors_are_equal(out, make.make({2, 2}, {2, -4, 6, 0})) ? 0 : 2;
}
"""


def test_write_before_resize_is_detected(flags: list, tmp_path: Path) -> None:
    (tmp_path / "early.cpp").write_text(EARLY_WRITE)
    core = [ROOT / "torchette/runtime" / f"{name}.cpp" for name in ("tensor", "platform", "platform_posix")]
    core += [ROOT / "torchette/extension" / f"{name}.cpp" for name in ("tensor_ptr", "element")]
    program(tmp_path / "test", ["early.cpp", *core], *flags, "-g1", "-fsanitize=address")
    run(tmp_path / "test", "0")
    for kind, fault in (("1", "SEGV on unknown address"), ("2", "heap-buffer-overflow")):
        done = subprocess.run([tmp_path / "test", kind], capture_output=True, text=True)
        assert done.returncode != 0 and fault in done.stderr and "early.cpp:8" in done.stderr, done.stderr
