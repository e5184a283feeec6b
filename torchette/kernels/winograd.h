// SPDX-License-Identifier: BSD-3-Clause
// Winograd's F(2x2, 3x3) for 3x3 convolutions with stride 1: 16 multiplications instead of 36 per 2x2
// outputs.
#pragma once

#include "torchette/kernels/gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// One image and its 3x3 filters; contiguous [channels, height, width].
struct Winograd {
  size_t in_channels, out_channels;
  ptrdiff_t in_height, in_width, out_height, out_width;
  ptrdiff_t pad_y, pad_x;

  /// Whether Winograd is faster. The transforms cost per channel, and the savings are per pair of channels.
  bool pays() const;
  size_t weight_floats() const { return 16 * in_channels * out_channels; }
  size_t scratch_floats() const;

  /// Transforms weight [out, in, 3, 3] to weight_floats() floats at `to`.
  void transform_weight(const float* weight, float* to) const;
  /// Convolves one image. Returns false if the output contains an infinity or NaN: the transforms propagate
  /// them to more outputs than the convolution does, so the caller must convolve directly.
  bool run(const float* image, const float* transformed_weight, const float* bias, float* out,
           float* scratch) const;
};

}  // namespace TORCHETTE_ISA
}  // namespace torchette
