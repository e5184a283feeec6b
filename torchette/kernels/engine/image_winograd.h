// SPDX-License-Identifier: BSD-3-Clause
// Winograd's F(2x2, 3x3) for channels-last 3x3 convolutions with stride 1: 16 multiplications instead of 36
// per 2x2 pixels.
#pragma once

#include "torchette/kernels/engine/image.h"
#include "torchette/kernels/engine/packed_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Whether Winograd supports this convolution of one group and is faster than the direct method.
bool winograd_pays(const Window& window, size_t outputs);

/// Convolves all images. `product` describes the direct convolution: packed filter, bias, residual,
/// activation and the first row of the result. Returns false and does nothing if there is no scratch memory.
bool convolve_by_winograd(Context& context, const Window& window, const float* images,
                          const PackedProduct& product);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
