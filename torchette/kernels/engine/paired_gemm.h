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
/// Rounds `count` rows of `depth` floats into panels [panels_of(count)][depth / 2][kPanelWidth] of pairs,
/// whose outputs are the rows. `depth` is even. Only if `multiplies_pairs()`.
void pack_row_pairs(const float* rows, size_t row, size_t count, size_t depth, int32_t* to);
/// Rounds `count` rows of `width` floats into panels [panels_of(width)][(count + 1) / 2][kPanelWidth] of
/// pairs, whose inputs are the rows. Only if `multiplies_pairs()`.
void pack_column_pairs(const float* rows, size_t row, size_t count, size_t width, int32_t* to);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
