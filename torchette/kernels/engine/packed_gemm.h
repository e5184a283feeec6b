// SPDX-License-Identifier: BSD-3-Clause
// The product that the engine's linear layers and convolutions stand on: rows of floats times packed panels,
// and what follows it.
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
  const void* w;  // panels [panels_of(n)][k][kPanelWidth]
  Stored stored;  // what they hold
  bool cut;       // the last one is [k][cut_columns(n)]
  float* c;       // rows of n contiguous floats
  ptrdiff_t c_row;
  const float* bias;      // n floats, or null
  const float* residual;  // rows as those of C, or null; may be C itself
  ptrdiff_t residual_row;
  Activation activation;
  float* wide;  // where `widened` asks for it
  // If not 0, a row of A is in pieces of so many floats, which begin `a_piece` apart. `k` is at most
  // kProductDepth, and no panel of float32 is cut.
  size_t piece;
  ptrdiff_t a_piece;

  /// Floats of scratch memory that a call takes for its weights of 16 bits; 0 where it reads them in place.
  size_t widened() const;
  /// The same from row `first` on, `count` rows.
  PackedProduct rows(size_t first, size_t count) const;
};

/// So much of the depth is summed up in registers at once: a panel of it fits into the L1 cache beside the
/// rows, and rounding errors grow with the length of a chain of sums.
constexpr size_t kProductDepth = 384;

/// Computes the columns of panels [first, last).
void packed_gemm(const PackedProduct& product, size_t first, size_t last);
/// All of it, on the context's threads, each of which has its own part of `wide`.
void packed_gemm(Context& context, const PackedProduct& product);
/// Scratch memory for the latter. Error: MemoryAllocationFailed, by `op`.
Error allocate_wide(Context& context, const char* op, PackedProduct& product);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
