// SPDX-License-Identifier: BSD-3-Clause
// The GEMM of linear layers with dynamically quantized inputs: integer sums per group, which are scaled.
#pragma once

#include "torchette/kernels/engine/integer_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// C = activation(row.scale * sum over groups of ((A - row.zero) W * group scale) + bias + residual). The sum
/// of a group is exact. Each later operation is rounded, in the order of the groups.
struct ScaledProduct {
  size_t m, n, k;
  const int8_t* a;  // rows of k elements
  const RowScale* rows;
  const uint8_t* w;  // panels [panels_of(n)][quads_of(k)][kPanelWidth][kQuad], half as large if 4-bit
  bool nibbles;
  size_t groups;          // groups of inputs; if several, of full quads (8-bit) or octets (4-bit)
  const float* scales;    // panels [panels_of(n)][groups][kPanelWidth]
  float* c;               // rows of n elements
  const float* bias;      // n elements, or null
  const float* residual;  // same layout as C, or null; may be C itself
  Activation activation;
};

/// Computes C on the context's threads. Errors: MemoryAllocationFailed without scratch memory.
Error scaled_gemm(Context& context, const char* op, const ScaledProduct& product);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
