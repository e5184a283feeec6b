// SPDX-License-Identifier: BSD-3-Clause
// The product that linear layers stand on whose inputs become bytes in each execution: sums of groups,
// scaled.
#pragma once

#include "torchette/kernels/engine/integer_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// C = activation(row.scale * sum of groups of inputs((A - row.zero) W * the group's scale) + bias +
/// residual). A group's sum is exact; from it on each operation is rounded, the groups in their order.
struct ScaledProduct {
  size_t m, n, k;
  const int8_t* a;  // rows of k numbers
  const RowScale* rows;
  const uint8_t* w;  // panels [panels_of(n)][quads_of(k)][kPanelWidth][kQuad], or half as many of nibbles
  bool nibbles;
  size_t groups;          // of inputs, several of whole quads each, or of whole octets
  const float* scales;    // panels [panels_of(n)][groups][kPanelWidth]
  float* c;               // rows of n numbers
  const float* bias;      // n numbers, or null
  const float* residual;  // as C, or null; may be C itself
  Activation activation;
};

/// All of it, on the context's threads. Errors: no scratch memory.
Error scaled_gemm(Context& context, const char* op, const ScaledProduct& product);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
