// SPDX-License-Identifier: BSD-3-Clause
// Two custom operators: by * x, and the minimum and maximum of each row.
#include "torchette/extension/custom_op.h"

using namespace torchette;

static Error scale_out(Context&, const Tensor& x, double by, Tensor& out) {
  TORCHETTE_CHECK(x.scalar_type() == ScalarType::Float, InvalidArgument, "scale requires float32");
  TORCHETTE_TRY(resize_tensor(out, x.sizes()));
  const float* from = x.const_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) out.data_ptr<float>()[i] = static_cast<float>(by) * from[i];
  return Error::Ok;
}
TORCHETTE_OP("tests_custom::scale(Tensor x, float by=2) -> Tensor", scale_out)

static Error range_out(Context&, const Tensor& x, Tensor& least, Tensor& greatest) {
  TORCHETTE_CHECK(x.scalar_type() == ScalarType::Float && x.dim() == 2 && x.size(1) > 0, InvalidArgument,
                  "range requires float32 and rows with at least one element");
  for (Tensor* out : {&least, &greatest}) TORCHETTE_TRY(resize_tensor(*out, {x.sizes().data(), 1}));
  for (int64_t i = 0; i < x.numel(); ++i) {
    float &low = least.data_ptr<float>()[i / x.size(1)], &high = greatest.data_ptr<float>()[i / x.size(1)];
    const float element = x.const_data_ptr<float>()[i];
    const bool first = i % x.size(1) == 0;
    low = first || element < low ? element : low;
    high = first || element > high ? element : high;
  }
  return Error::Ok;
}
TORCHETTE_OP("tests_custom::range(Tensor x) -> (Tensor, Tensor)", range_out,
             "x.new_empty(x.shape[0]), x.new_empty(x.shape[0])")
