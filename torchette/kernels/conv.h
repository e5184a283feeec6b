// SPDX-License-Identifier: BSD-3-Clause
// What a convolution is: sizes, steps and groups, read from the operator's arguments and checked.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// One convolution, always with three spatial dimensions (missing ones are of size 1).
struct Conv {
  size_t batch, groups;
  size_t in_channels, out_channels;  // of one group
  ptrdiff_t in[3], out[3], kernel[3];
  ptrdiff_t stride[3], padding[3], dilation[3];
  bool transposed;

  size_t in_plane() const { return static_cast<size_t>(in[0] * in[1] * in[2]); }
  size_t out_plane() const { return static_cast<size_t>(out[0] * out[1] * out[2]); }
  size_t taps() const { return static_cast<size_t>(kernel[0] * kernel[1] * kernel[2]); }
};

/// Errors: InvalidArgument (sizes that do not fit each other, numbers out of range).
Error describe_convolution(const Tensor& input, const Tensor& weight, const Optional<Tensor>& bias,
                           Span<const int64_t> stride, Span<const int64_t> padding,
                           Span<const int64_t> dilation, bool transposed, Span<const int64_t> output_padding,
                           int64_t groups, Conv& conv);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
