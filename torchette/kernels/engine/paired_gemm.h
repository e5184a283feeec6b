// SPDX-License-Identifier: BSD-3-Clause
// The GEMM on weights in pairs of bfloat16, for processors with instructions for them.
#pragma once

#include "torchette/kernels/engine/packed_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Whether the processor multiplies pairs of bfloat16. Otherwise their weights are widened.
bool multiplies_pairs();
/// Computes the columns of panels [first, last) of a product whose weights are pairs, with instructions for
/// pairs. `k` is even, and `piece` is 0.
void paired_gemm(const PackedProduct& product, size_t first, size_t last);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
