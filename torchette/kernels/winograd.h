// SPDX-License-Identifier: BSD-3-Clause
// 3x3 convolutions of stride 1 with 16 multiplications where the definition has 36: Winograd's F(2x2, 3x3).
#pragma once

#include "torchette/kernels/gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// One image and its 3x3 filters; contiguous [channels, height, width].
struct Winograd {
  size_t in_channels, out_channels;
  ptrdiff_t in_height, in_width, out_height, out_width;
  ptrdiff_t pad_y, pad_x;

  /// Whether it pays: the transforms cost as much per channel as they save per pair of channels.
  bool pays() const;
  size_t weight_floats() const { return 16 * in_channels * out_channels; }
  size_t scratch_floats() const;

  /// weight [out, in, 3, 3] -> `to`, weight_floats() of them.
  void transform_weight(const float* weight, float* to) const;
  /// Convolves one image. False when the output has an infinity or NaN: the sums and differences of the
  /// method spread them further than the definition does, so the caller then has to convolve by the
  /// definition.
  bool run(const float* image, const float* transformed_weight, const float* bias, float* out,
           float* scratch) const;
};

}  // namespace TORCHETTE_ISA
}  // namespace torchette
