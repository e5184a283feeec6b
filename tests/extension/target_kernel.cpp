// SPDX-License-Identifier: BSD-3-Clause
// The program of tutorial.cpp with a kernel of a custom operator, tgt::linear_relu: relu(x @ weight.T +
// bias).
#include <executorch/runtime/kernel/kernel_includes.h>

#include "tutorial.cpp"

namespace {

using executorch::runtime::KernelRuntimeContext;
using OptionalTensor = executorch::aten::optional<executorch::aten::Tensor>;

Tensor& linear_relu_out(KernelRuntimeContext& context, const Tensor& x, const Tensor& weight,
                        const OptionalTensor& bias, Tensor& out) {
  const ssize_t rows = out.numel() / weight.size(0), features = weight.size(0), depth = weight.size(1);
  ET_KERNEL_CHECK(context, x.numel() == rows * depth && x.scalar_type() == ScalarType::Float, InvalidArgument,
                  out);
  for (ssize_t row = 0; row < rows; ++row)
    for (ssize_t feature = 0; feature < features; ++feature) {
      float sum = bias.has_value() ? bias.value().const_data_ptr<float>()[feature] : 0;
      for (ssize_t i = 0; i < depth; ++i)
        sum +=
            x.const_data_ptr<float>()[row * depth + i] * weight.const_data_ptr<float>()[feature * depth + i];
      out.mutable_data_ptr<float>()[row * features + feature] = sum > 0 ? sum : 0;
    }
  return out;
}

EXECUTORCH_LIBRARY(tgt, "linear_relu.out", linear_relu_out);

}  // namespace
