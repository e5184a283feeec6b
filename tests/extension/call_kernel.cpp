// SPDX-License-Identifier: BSD-3-Clause
// Calls the kernel of kernel.cpp on tensors of either kind and prints what it writes.
#include <cstdio>

#include "kernel.cpp"

using namespace torch::executor;

namespace {

float a_data[6] = {0, 1, 2, 3, 4, 5}, b_data[6] = {2, 2, 2, 3, 3, 3}, out_data[6];
executorch::aten::SizesType sizes[2] = {2, 3};

#ifdef TORCHETTE_ATEN
Tensor make(float* data, executorch::aten::SizesType (&shape)[2]) {
  return at::from_blob(data, {shape[0], shape[1]}, at::kFloat);
}
Tensor a = make(a_data, sizes), b = make(b_data, sizes), out = make(out_data, sizes);
#else
TensorImpl a_impl(ScalarType::Float, 2, sizes, a_data), b_impl(ScalarType::Float, 2, sizes, b_data),
    out_impl(ScalarType::Float, 2, sizes, out_data);
Tensor a(&a_impl), b(&b_impl), out(&out_impl);

EXECUTORCH_LIBRARY(tests, "scale.out", native::scale_out);
#endif

}  // namespace

int main() {
  KernelRuntimeContext context;
  native::scale_out(context, a, b, Scalar(1.5), out);
  for (float x : out_data) std::printf("%g ", x);
  native::scale_out(context, a, executorch::aten::nullopt, Scalar(int64_t{2}), out);
  for (float x : out_data) std::printf("%g ", x);
  std::printf("%d ", context.failure_state() == Error::Ok);
#ifndef TORCHETTE_ATEN
  ET_CHECK(registry_has_op_function("tests::scale.out") && !registry_has_op_function("tests::scale"));
#endif
  return 0;
}
