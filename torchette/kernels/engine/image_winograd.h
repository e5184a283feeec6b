// SPDX-License-Identifier: BSD-3-Clause
// 3x3 convolutions of stride 1 with 16 multiplications where the definition has 36, channels last: Winograd's
// F(2x2, 3x3).
#pragma once

#include "torchette/kernels/engine/image.h"
#include "torchette/kernels/engine/packed_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Whether the method takes a convolution of one group, and less time than the definition for it.
bool winograd_pays(const Window& window, size_t outputs);

/// Convolves all images. `product` is that of the definition: the packed filter, bias, residual, activation
/// and the first row of the result. False, and nothing is done, where there is no scratch memory.
bool convolve_by_winograd(Context& context, const Window& window, const float* images,
                          const PackedProduct& product);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
