// SPDX-License-Identifier: BSD-3-Clause
// Tensor factories: full, zeros, arange.
#include <cmath>
#include <cstring>

#include "torchette/kernels/dims.h"
#include "torchette/kernels/elementwise.h"

namespace torchette {
namespace TORCHETTE_ISA {

static Error resize(const Tensor& out, Span<const int64_t> sizes) {
  SizesType narrow[kMaxDim];
  TORCHETTE_CHECK(sizes.size() <= kMaxDim, InvalidArgument, "size has more than 16 dimensions");
  for (size_t d = 0; d < sizes.size(); ++d) {
    TORCHETTE_CHECK(sizes[d] >= 0 && sizes[d] <= INT32_MAX, InvalidArgument, "size is negative or too large");
    narrow[d] = static_cast<SizesType>(sizes[d]);
  }
  return resize_result(out, {narrow, sizes.size()});
}

static Error full_out(Context&, Span<const int64_t> sizes, const Scalar& value, Tensor& out) {
  TORCHETTE_TRY(resize(out, sizes));
  return fill(out, value);
}
static Error zeros_out(Context&, Span<const int64_t> sizes, Tensor& out) {
  TORCHETTE_TRY(resize(out, sizes));
  if (out.nbytes() != 0) memset(out.mutable_data_ptr(), 0, out.nbytes());
  return Error::Ok;
}
static Error ones_out(Context& context, Span<const int64_t> sizes, Tensor& out) {
  return full_out(context, sizes, Scalar(int64_t{1}), out);
}
/// Uninitialized tensors are filled with zeros, so that runs are reproducible.
static Error empty_out(Context& context, Span<const int64_t> sizes, Optional<int64_t>, Tensor& out) {
  return zeros_out(context, sizes, out);
}
static Error empty_dim_order_out(Context& context, Span<const int64_t> sizes, Optional<Span<const int64_t>>,
                                 Tensor& out) {
  return zeros_out(context, sizes, out);
}
static Error empty_strided_out(Context& context, Span<const int64_t> sizes, Span<const int64_t>,
                               Tensor& out) {
  return zeros_out(context, sizes, out);
}
static Error full_like_out(Context&, const Tensor& like, const Scalar& value, Optional<int64_t>,
                           Tensor& out) {
  TORCHETTE_TRY(resize_result(out, like.sizes()));
  return fill(out, value);
}
static Error zeros_like_out(Context& context, const Tensor& like, Optional<int64_t> format, Tensor& out) {
  return full_like_out(context, like, Scalar(int64_t{0}), format, out);
}
static Error ones_like_out(Context& context, const Tensor& like, Optional<int64_t> format, Tensor& out) {
  return full_like_out(context, like, Scalar(int64_t{1}), format, out);
}
static Error fill_scalar_out(Context&, const Tensor& like, const Scalar& value, Tensor& out) {
  TORCHETTE_TRY(resize_result(out, like.sizes()));
  return fill(out, value);
}
static Error fill_tensor_out(Context&, const Tensor& like, const Tensor& value, Tensor& out) {
  TORCHETTE_CHECK(value.numel() == 1, InvalidArgument, "value has %d elements, expected 1",
                  static_cast<int>(value.numel()));
  TORCHETTE_TRY(resize_result(out, like.sizes()));
  TensorImpl point = *value.unsafe_impl();
  point.dim = 0;
  return assign(Tensor(&point), out);
}
static Error scalar_tensor_out(Context&, const Scalar& value, Tensor& out) {
  TORCHETTE_TRY(resize_result(out, {}));
  return fill(out, value);
}

template <typename T>
static void count(Tensor& out, double start, double step, int64_t int_start, int64_t int_step) {
  T* y = out.mutable_data_ptr<T>();
  const auto n = static_cast<size_t>(out.numel());
  for (size_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<T>)
      y[i] = static_cast<T>(int_start + int_step * static_cast<int64_t>(i));
    else
      y[i] = T(start + step * static_cast<double>(i));
  }
}
static Error arange_start_out(Context&, const Scalar& start, const Scalar& end, const Scalar& step,
                              Tensor& out) {
  const double first = start.to_double(), stride = step.to_double();
  const double steps = std::ceil((end.to_double() - first) / stride);
  TORCHETTE_CHECK(steps >= 0 && steps <= INT32_MAX, InvalidArgument,
                  "arange: start %g, end %g and step %g do not form a valid range", first, end.to_double(),
                  stride);
  const SizesType size = static_cast<SizesType>(steps);
  TORCHETTE_TRY(resize_result(out, {&size, 1}));
  // For integer outputs, start and step are truncated, as in torch.
  const int64_t int_start = start.to_int(), int_step = step.to_int();
  const auto built = [&](auto t) {
    using T = decltype(t);
    if constexpr (has_dtype(kScalarType<T>)) count<T>(out, first, stride, int_start, int_step);
    return Error::Ok;
  };
  switch (out.scalar_type()) {
    case ScalarType::Byte:
      return built(uint8_t());
    case ScalarType::Char:
      return built(int8_t());
    case ScalarType::Short:
      return built(int16_t());
    case ScalarType::Int:
      return built(int32_t());
    case ScalarType::Long:
      return built(int64_t());
    case ScalarType::Half:
      return built(Half(0.0f));
    case ScalarType::BFloat16:
      return built(BFloat16(0.0f));
    case ScalarType::Float:
      return built(float());
    case ScalarType::Double:
      return built(double());
    default:
      TORCHETTE_LOG(Error, "arange: out is of unsupported type %d", static_cast<int>(out.scalar_type()));
      return Error::InvalidType;
  }
}
static Error arange_out(Context& context, const Scalar& end, Tensor& out) {
  return arange_start_out(context, Scalar(int64_t{0}), end, Scalar(int64_t{1}), out);
}

TORCHETTE_KERNELS_ONCE(fill,                                            //
                       TORCHETTE_KERNEL("aten::full.out", full_out),    //
                       TORCHETTE_KERNEL("aten::zeros.out", zeros_out),  //
                       TORCHETTE_KERNEL("aten::ones.out", ones_out),    //
                       TORCHETTE_KERNEL("aten::empty.out", empty_out),  //
                       TORCHETTE_KERNEL("aten::empty_strided.out", empty_strided_out),
                       TORCHETTE_KERNEL("dim_order_ops::_empty_dim_order.out", empty_dim_order_out),  //
                       TORCHETTE_KERNEL("aten::full_like.out", full_like_out),                        //
                       TORCHETTE_KERNEL("aten::zeros_like.out", zeros_like_out),                      //
                       TORCHETTE_KERNEL("aten::ones_like.out", ones_like_out),                        //
                       TORCHETTE_KERNEL("aten::fill.Scalar_out", fill_scalar_out),                    //
                       TORCHETTE_KERNEL("aten::fill.Tensor_out", fill_tensor_out),                    //
                       TORCHETTE_KERNEL("aten::scalar_tensor.out", scalar_tensor_out),                //
                       TORCHETTE_KERNEL("aten::arange.out", arange_out),                              //
                       TORCHETTE_KERNEL("aten::arange.start_out", arange_start_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
