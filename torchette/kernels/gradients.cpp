// SPDX-License-Identifier: BSD-3-Clause
// Backward operators for training: convolution_backward, native_layer_norm_backward,
// native_group_norm_backward. Outputs that the mask does not select remain unchanged.
#include "torchette/kernels/conv.h"
#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// A gradient: a zero-initialized array of T, or null if it is not requested.
template <typename T>
struct Gradient {
  T* data = nullptr;
  Dense dense;

  Error open(Context& context, bool requested, Span<const SizesType> sizes, ScalarType type,
             const Tensor& out, const char* name) {
    if (!requested) return Error::Ok;
    TORCHETTE_CHECK(out.scalar_type() == type, InvalidType, "%s is of type %d, expected %d", name,
                    static_cast<int>(out.scalar_type()), static_cast<int>(type));
    TORCHETTE_TRY(resize_result(out, sizes, name));
    TORCHETTE_TRY(dense.open(context, out, kScalarType<T>));
    data = dense.data<T>();
    for (ptrdiff_t i = 0; i < out.numel(); ++i) data[i] = 0;
    return Error::Ok;
  }
  Error finish() { return data == nullptr ? Error::Ok : dense.finish(); }
};

Error convolution_backward_out(Context& context, const Tensor& grad, const Tensor& input,
                               const Tensor& weight, Optional<Span<const int64_t>>,
                               Span<const int64_t> stride, Span<const int64_t> padding,
                               Span<const int64_t> dilation, bool transposed,
                               Span<const int64_t> output_padding, int64_t groups, Span<const bool> mask,
                               Tensor& input_out, Tensor& weight_out, Tensor& bias_out) {
  Conv conv;
  TORCHETTE_TRY(describe_convolution(input, weight, {}, stride, padding, dilation, transposed, output_padding,
                                     groups, conv));
  TORCHETTE_CHECK(mask.size() == 3, InvalidArgument,
                  "convolution_backward: output_mask has %zu elements, expected 3", mask.size());
  TORCHETTE_TRY(same_type(grad, input, "grad_output or grad_out and input"));
  TORCHETTE_TRY(same_type(weight, input, "weight and input"));
  const auto rank = static_cast<size_t>(input.dim());
  const auto channels = static_cast<SizesType>(conv.groups * conv.out_channels);
  bool fits = grad.dim() == input.dim() && grad.sizes()[0] == input.sizes()[0] && grad.sizes()[1] == channels;
  for (size_t d = 2; fits && d < rank; ++d) fits = grad.sizes()[d] == conv.out[5 - rank + d - 2];
  TORCHETTE_CHECK(fits, InvalidArgument,
                  "convolution_backward: grad_output does not have the sizes of the result");
  return for_compute<false>(input.scalar_type(), "convolution_backward", "input", [&](auto t) {
    using T = decltype(t);
    Dense g, x, w;
    TORCHETTE_TRY(g.read(context, grad, kScalarType<T>));
    TORCHETTE_TRY(x.read(context, input, kScalarType<T>));
    TORCHETTE_TRY(w.read(context, weight, kScalarType<T>));
    Gradient<T> of_input, of_weight, of_bias;
    const ScalarType type = input.scalar_type();
    TORCHETTE_TRY(of_input.open(context, mask[0], input.sizes(), type, input_out, "out0"));
    TORCHETTE_TRY(of_weight.open(context, mask[1], weight.sizes(), type, weight_out, "out1"));
    TORCHETTE_TRY(of_bias.open(context, mask[2], {&channels, 1}, type, bias_out, "out2"));
    if (transposed)
      connect<T>(conv, {x.data<T>(), g.data<T>(), w.data<T>(), of_input.data, nullptr, of_weight.data});
    else
      connect<T>(conv, {g.data<T>(), x.data<T>(), w.data<T>(), nullptr, of_input.data, of_weight.data});
    if (of_bias.data != nullptr) {
      const T* from = g.data<T>();
      for (size_t row = 0; row < conv.batch * static_cast<size_t>(channels); ++row) {
        T sum = 0;
        for (size_t i = 0; i < conv.out_plane(); ++i) sum += *from++;
        of_bias.data[row % static_cast<size_t>(channels)] += sum;
      }
    }
    TORCHETTE_TRY(of_input.finish());
    TORCHETTE_TRY(of_weight.finish());
    return of_bias.finish();
  });
}

/// Normalizations of `rows` rows of `length` elements. Element j of row r uses the weight of channel
/// (r % groups) * (length / run) + j / run.
struct Norm {
  size_t rows, length, groups, run;
  size_t channels() const { return groups * (length / run); }
};

Error norm_backward(Context& context, const char* name, const Norm& norm, const Tensor& grad,
                    const Tensor& input, const Tensor& mean, const Tensor& rstd,
                    const Optional<Tensor>& weight, Span<const SizesType> parameter_sizes,
                    Span<const bool> mask, const Tensor& input_out, const Tensor& weight_out,
                    const Tensor& bias_out) {
  TORCHETTE_CHECK(
      mask.size() == 3 && grad.numel() == input.numel() && static_cast<size_t>(mean.numel()) == norm.rows &&
          static_cast<size_t>(rstd.numel()) == norm.rows &&
          (!weight.has_value() || static_cast<size_t>(weight->numel()) == norm.channels()),
      InvalidArgument,
      "%s: grad_out, mean, rstd or weight does not fit input, or output_mask does not have 3 elements", name);
  TORCHETTE_TRY(same_type(grad, input, "grad_output or grad_out and input"));
  TORCHETTE_CHECK(is_real(mean.scalar_type()) && is_real(rstd.scalar_type()) &&
                      (!weight.has_value() || is_real(weight->scalar_type())),
                  InvalidType, "%s: mean, rstd or weight is not a real tensor", name);
  return for_compute<false>(input.scalar_type(), name, "input", [&](auto t) {
    using T = decltype(t);
    Dense g, x, means, rstds, w;
    TORCHETTE_TRY(g.read(context, grad, kScalarType<T>));
    TORCHETTE_TRY(x.read(context, input, kScalarType<T>));
    TORCHETTE_TRY(means.read(context, mean, kScalarType<T>));
    TORCHETTE_TRY(rstds.read(context, rstd, kScalarType<T>));
    if (weight.has_value()) TORCHETTE_TRY(w.read(context, *weight, kScalarType<T>));
    Gradient<T> of_input, of_weight, of_bias;
    const ScalarType type = input.scalar_type();
    TORCHETTE_TRY(of_input.open(context, mask[0], input.sizes(), type, input_out, "out0"));
    TORCHETTE_TRY(of_weight.open(context, mask[1], parameter_sizes, type, weight_out, "out1"));
    TORCHETTE_TRY(of_bias.open(context, mask[2], parameter_sizes, type, bias_out, "out2"));
    const T *from = g.data<T>(), *value = x.data<T>();
    T* to = of_input.data;
    for (size_t r = 0; r < norm.rows; ++r) {
      const T center = means.data<T>()[r], scale = rstds.data<T>()[r];
      const size_t first = r % norm.groups * (norm.length / norm.run);
      T sum = 0, product = 0;
      for (size_t j = 0; j < norm.length; ++j) {
        const size_t channel = first + j / norm.run;
        const T normal = (value[j] - center) * scale;
        const T weighted = weight.has_value() ? from[j] * w.data<T>()[channel] : from[j];
        sum += weighted;
        product += weighted * normal;
        if (of_weight.data != nullptr) of_weight.data[channel] += from[j] * normal;
        if (of_bias.data != nullptr) of_bias.data[channel] += from[j];
      }
      sum /= static_cast<T>(norm.length);
      product /= static_cast<T>(norm.length);
      for (size_t j = 0; to != nullptr && j < norm.length; ++j) {
        const T weighted = weight.has_value() ? from[j] * w.data<T>()[first + j / norm.run] : from[j];
        *to++ = scale * (weighted - sum - (value[j] - center) * scale * product);
      }
      from += norm.length;
      value += norm.length;
    }
    TORCHETTE_TRY(of_input.finish());
    TORCHETTE_TRY(of_weight.finish());
    return of_bias.finish();
  });
}

Error native_layer_norm_backward_out(Context& context, const Tensor& grad, const Tensor& input,
                                     Span<const int64_t> shape, const Tensor& mean, const Tensor& rstd,
                                     Optional<Tensor> weight, Optional<Tensor>, Span<const bool> mask,
                                     Tensor& input_out, Tensor& weight_out, Tensor& bias_out) {
  const auto rank = static_cast<size_t>(input.dim());
  SizesType sizes[kMaxDim];
  size_t length = 1;
  TORCHETTE_CHECK(
      shape.size() <= rank, InvalidArgument,
      "native_layer_norm_backward: normalized_shape has %zu elements, more than input has dimensions",
      shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    sizes[i] = input.sizes()[rank - shape.size() + i];
    TORCHETTE_CHECK(sizes[i] == shape[i], InvalidArgument,
                    "native_layer_norm_backward: input has size %d, normalized_shape has %lld", sizes[i],
                    static_cast<long long>(shape[i]));
    length *= static_cast<size_t>(sizes[i]);
  }
  const Norm norm = {length == 0 ? 0 : static_cast<size_t>(input.numel()) / length, length, 1, 1};
  return norm_backward(context, "native_layer_norm_backward", norm, grad, input, mean, rstd, weight,
                       {sizes, shape.size()}, mask, input_out, weight_out, bias_out);
}

Error native_group_norm_backward_out(Context& context, const Tensor& grad, const Tensor& input,
                                     const Tensor& mean, const Tensor& rstd, Optional<Tensor> weight,
                                     int64_t batch, int64_t channels, int64_t plane, int64_t groups,
                                     Span<const bool> mask, Tensor& input_out, Tensor& weight_out,
                                     Tensor& bias_out) {
  constexpr const char* kName = "native_group_norm_backward";
  TORCHETTE_CHECK(
      batch >= 0 && channels > 0 && plane > 0 && groups > 0 && channels <= INT32_MAX && batch <= INT32_MAX &&
          plane <= INT32_MAX && groups <= channels && channels % groups == 0 &&
          batch * channels <= INT32_MAX && batch * channels * plane == input.numel(),
      InvalidArgument, "%s: input of %d elements does not fit N %lld, C %lld, HxW %lld, group %lld", kName,
      static_cast<int>(input.numel()), static_cast<long long>(batch), static_cast<long long>(channels),
      static_cast<long long>(plane), static_cast<long long>(groups));
  const Norm norm = {static_cast<size_t>(batch * groups), static_cast<size_t>(channels / groups * plane),
                     static_cast<size_t>(groups), static_cast<size_t>(plane)};
  const auto size = static_cast<SizesType>(channels);
  return norm_backward(context, kName, norm, grad, input, mean, rstd, weight, {&size, 1}, mask, input_out,
                       weight_out, bias_out);
}

}  // namespace

TORCHETTE_KERNELS_ONCE(gradients,                                                                     //
                       TORCHETTE_KERNEL("aten::convolution_backward.out", convolution_backward_out),  //
                       TORCHETTE_KERNEL("aten::native_layer_norm_backward.out",                       //
                                        native_layer_norm_backward_out),                              //
                       TORCHETTE_KERNEL("aten::native_group_norm_backward.out",
                                        native_group_norm_backward_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
