// SPDX-License-Identifier: BSD-3-Clause
// A test of a user's kernel, compiled against the installed package.
#include "torchette/extension/testing.h"
#include "torchette/runtime/kernel_registry.h"

using namespace torchette;

int main() {
  extension::TensorFactory<ScalarType::Float> make;
  Value values[] = {Value(make.make({2, 2}, {1, -2, 3, -4})), Value(make.zeros({2, 2}))};
  const int32_t index[] = {0, 1};
  Context context;
  if (find_kernel("aten::relu.out")->function(context, {values, index}) != Error::Ok) return 1;
  if (!extension::tensors_are_close(values[1].to_tensor(), make.make({2, 2}, {1, 0, 3, 0}))) return 2;
  return extension::tensors_are_equal(make.ones({2}), make.make({2}, {1, 2})) ? 3 : 0;
}
