// SPDX-License-Identifier: BSD-3-Clause
// A sliding window over a channels-last image: the common part of convolutions and pools.
#pragma once

#include "torchette/kernels/engine/operands.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// A window with three spatial dimensions. Missing leading dimensions have size 1.
struct Window {
  size_t batch, channels;
  ptrdiff_t in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
  int spatial;  // number of spatial dimensions of the tensors

  size_t in_pixels() const { return static_cast<size_t>(in[0] * in[1] * in[2]); }
  size_t out_pixels() const { return static_cast<size_t>(out[0] * out[1] * out[2]); }
  size_t taps() const { return static_cast<size_t>(kernel[0] * kernel[1] * kernel[2]); }
  /// Whether each output pixel uses exactly the input pixel at the same position.
  bool is_pointwise() const {
    return taps() == 1 && stride[0] * stride[1] * stride[2] == 1 && padding[0] + padding[1] + padding[2] == 0;
  }
};

/// Reads the geometry of an input [N, *spatial, C] and a window of `kernel`, except for the result's sizes.
/// The caller checks the element types. Errors: InvalidArgument, reported for `op`.
inline Error read_window(const char* op, const Tensor& input, const SizesType* kernel,
                         Span<const int64_t> stride, Span<const int64_t> padding,
                         Span<const int64_t> dilation, Window& window) {
  TORCHETTE_CHECK(input.dim() >= 3 && input.dim() <= 5, InvalidArgument,
                  "%s: input has %d dimensions, expected 3 to 5", op, static_cast<int>(input.dim()));
  const int spatial = static_cast<int>(input.dim()) - 2;
  const size_t count = static_cast<size_t>(spatial);
  TORCHETTE_CHECK(stride.size() == count && padding.size() == count && dilation.size() == count,
                  InvalidArgument,
                  "%s: stride, padding and dilation have %d, %d and %d elements for %d spatial dimensions",
                  op, static_cast<int>(stride.size()), static_cast<int>(padding.size()),
                  static_cast<int>(dilation.size()), spatial);
  window.spatial = spatial;
  window.batch = static_cast<size_t>(input.size(0));
  window.channels = static_cast<size_t>(input.size(input.dim() - 1));
  for (int d = 0; d < 3; ++d) {
    const int given = d - (3 - spatial);
    window.in[d] = window.out[d] = window.kernel[d] = window.stride[d] = window.dilation[d] = 1;
    window.padding[d] = 0;
    if (given < 0) continue;
    const auto g = static_cast<size_t>(given);
    constexpr int64_t kMax = int64_t{1} << 24;
    TORCHETTE_CHECK(stride[g] >= 1 && stride[g] <= kMax && padding[g] >= 0 && padding[g] <= kMax &&
                        dilation[g] >= 1 && dilation[g] <= kMax && kernel[g] >= 1 && kernel[g] <= kMax,
                    InvalidArgument,
                    "%s: kernel %d, stride %lld, padding %lld or dilation %lld is out of range", op,
                    static_cast<int>(kernel[g]), static_cast<long long>(stride[g]),
                    static_cast<long long>(padding[g]), static_cast<long long>(dilation[g]));
    window.in[d] = input.size(given + 1);
    window.kernel[d] = kernel[g];
    window.stride[d] = static_cast<ptrdiff_t>(stride[g]);
    window.padding[d] = static_cast<ptrdiff_t>(padding[g]);
    window.dilation[d] = static_cast<ptrdiff_t>(dilation[g]);
  }
  return Error::Ok;
}

/// Reads the geometry and computes the output sizes for a window over the image and its padding.
inline Error describe_window(const char* op, const Tensor& input, const SizesType* kernel,
                             Span<const int64_t> stride, Span<const int64_t> padding,
                             Span<const int64_t> dilation, bool ceil, Window& window) {
  TORCHETTE_TRY(read_window(op, input, kernel, stride, padding, dilation, window));
  for (int d = 3 - window.spatial; d < 3; ++d) {
    const int64_t step = window.stride[d], before = window.in[d] + window.padding[d];
    const int64_t reach = (window.kernel[d] - 1) * window.dilation[d] + 1;
    // With `ceil`, a window may extend beyond the padding.
    const int64_t space = before + window.padding[d] - reach + (ceil ? step - 1 : 0);
    TORCHETTE_CHECK(space >= 0, InvalidArgument, "%s: a window of %lld exceeds %lld elements of padded input",
                    op, static_cast<long long>(reach), static_cast<long long>(before + window.padding[d]));
    int64_t positions = space / step + 1;
    // Drops a window that begins after the image and its leading padding.
    if (ceil && (positions - 1) * step >= before) --positions;
    window.out[d] = static_cast<ptrdiff_t>(positions);
  }
  return Error::Ok;
}

/// Returns the sizes of a result with `channels` channels: at most five dimensions.
inline Span<const SizesType> result_sizes(const Window& window, size_t channels, SizesType (&sizes)[5]) {
  sizes[0] = static_cast<SizesType>(window.batch);
  for (int d = 0; d < window.spatial; ++d)
    sizes[d + 1] = static_cast<SizesType>(window.out[3 - window.spatial + d]);
  sizes[window.spatial + 1] = static_cast<SizesType>(channels);
  return {sizes, static_cast<size_t>(window.spatial) + 2};
}

/// Checks a result [..., channels] and the tensor with its other channels, `into`, for a call that computes
/// the channels [first, first + count). Copies `into` to the result unless it is in the same memory. Errors:
/// InvalidArgument, InvalidType, reported for `op`.
inline Error prepare_part(const char* op, const Optional<Tensor>& into, Span<const SizesType> shape,
                          int64_t first, int64_t count, Tensor& out) {
  const SizesType channels = shape[shape.size() - 1];
  TORCHETTE_CHECK(first >= 0 && count >= 0 && first <= channels && count <= channels - first, InvalidArgument,
                  "%s: channels %lld to %lld are not in a result of %d channels", op,
                  static_cast<long long>(first), static_cast<long long>(first + count),
                  static_cast<int>(channels));
  TORCHETTE_TRY(check_operand(op, into, shape, "into"));
  TORCHETTE_TRY(check_result(op, out, shape));
  if (into.has_value() && into->const_data_ptr() != out.const_data_ptr())
    memmove(out.mutable_data_ptr(), into->const_data_ptr(), into->nbytes());
  return Error::Ok;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
