// SPDX-License-Identifier: BSD-3-Clause
// The float GEMM of the engine's linear layers and convolutions: rows of floats times packed panels, with a
// fused epilogue.
#pragma once

#include "torchette/kernels/engine/epilogue.h"
#include "torchette/kernels/engine/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// C = activation(A W + bias + residual).
struct PackedProduct {
  size_t m, n, k;
  const float* a;  // rows of k contiguous floats
  ptrdiff_t a_row;
  const void* w;  // panels [panels_of(n)][k][kPanelWidth], or pairs [panels_of(n)][k / 2][kPanelWidth]
  Stored stored;  // storage type of w
  bool cut;       // the last panel is [k][cut_columns(n)]
  float* c;       // rows of n contiguous floats
  ptrdiff_t c_row;
  const float* bias;      // n floats, or null
  const float* residual;  // same layout as C, or null; may be C itself
  ptrdiff_t residual_row;
  Activation activation;
  float* wide;  // scratch memory if widened() > 0
  // If not 0, a row of A consists of pieces of this many floats at stride `a_piece`. Then `k` is at most
  // kProductDepth, and float32 panels are not cut.
  size_t piece;
  ptrdiff_t a_piece;

  /// Returns the address of row `row` of a panel that is not cut and not of pairs.
  const void* weights(size_t panel, size_t row) const {
    return static_cast<const char*>(w) + (panel * k + row) * kPanelWidth * size_of(stored);
  }
  /// Returns the scratch floats that a call needs for 16-bit weights; 0 if it reads them in place.
  size_t widened() const;
  /// Returns the product of rows [first, first + count).
  PackedProduct rows(size_t first, size_t count) const;
};

/// Maximum depth that is accumulated in registers at once. A panel of this depth and the rows fit into the L1
/// cache, and rounding error grows with the length of the accumulation.
constexpr size_t kProductDepth = 384;

/// Computes the columns of panels [first, last).
void packed_gemm(const PackedProduct& product, size_t first, size_t last);
/// Computes all panels on the context's threads; each thread uses its own part of `wide`.
void packed_gemm(Context& context, const PackedProduct& product);
/// Allocates `wide` for the threaded overload. Errors: MemoryAllocationFailed, reported for `op`.
Error allocate_wide(Context& context, const char* op, PackedProduct& product);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
