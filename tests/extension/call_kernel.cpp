// SPDX-License-Identifier: BSD-3-Clause
// Calls the kernel of kernel.cpp on Torchette tensors or torch tensors and prints its outputs.
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
#endif
EXECUTORCH_LIBRARY(tests, "scale.out", native::scale_out);

/// Calls the operator like a program: with tensors of the runtime, also if the kernel uses torch tensors.
void call_registered() {
  float data[6] = {0, 1, 2, 3, 4, 5}, result[6] = {};
  int32_t shape[] = {2, 3}, smaller[] = {2, 2}, strides[] = {3, 1}, result_strides[] = {3, 1};
  uint8_t order[] = {0, 1};
  torchette::TensorImpl in{data,
                           shape,
                           strides,
                           order,
                           6,
                           6,
                           2,
                           torchette::ScalarType::Float,
                           torchette::TensorShapeDynamism::STATIC};
  torchette::TensorImpl to{result,
                           shape,
                           result_strides,
                           order,
                           6,
                           6,
                           2,
                           torchette::ScalarType::Float,
                           torchette::TensorShapeDynamism::DYNAMIC_BOUND};
  torchette::Value values[] = {torchette::Value(torchette::Tensor(&in)), torchette::Value(),
                               torchette::Value(0.5), torchette::Value(torchette::Tensor(&to))};
  const int32_t index[] = {0, 1, 2, 3};
  torchette::Context context;
  const torchette::Kernel* const kernel = torchette::find_kernel("tests::scale.out");
  std::printf("%s ", kernel->signature);
  std::printf("%d ", kernel->function(context, {values, index}) == torchette::Error::Ok);
  in.sizes = smaller, in.numel = 4, strides[0] = 2;  // the kernel resizes the result
  std::printf("%d ", kernel->function(context, {values, index}) == torchette::Error::Ok);
  std::printf("%d %d ", to.sizes[0], to.sizes[1]);
  for (float x : result) std::printf("%g ", x);
  in.type = torchette::ScalarType::Double;  // the kernel returns an error
  std::printf("%d ", kernel->function(context, {values, index}) == torchette::Error::InvalidArgument);
}

}  // namespace

int main() {
  KernelRuntimeContext context;
  native::scale_out(context, a, b, Scalar(1.5), out);
  for (float x : out_data) std::printf("%g ", x);
  native::scale_out(context, a, executorch::aten::nullopt, Scalar(int64_t{2}), out);
  for (float x : out_data) std::printf("%g ", x);
  std::printf("%d ", context.failure_state() == Error::Ok);
  ET_CHECK(registry_has_op_function("tests::scale.out") && !registry_has_op_function("tests::scale"));
  call_registered();
  return 0;
}
