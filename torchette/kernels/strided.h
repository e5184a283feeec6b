// SPDX-License-Identifier: BSD-3-Clause
// Moving elements of one size between two strided layouts: what permutes, slices, expands and concatenations
// come down to.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// A nest of loops, the innermost last.
struct Loops {
  size_t dim = 0;
  size_t size[kMaxDim];
};

/// A nest over two places at once. Strides count elements and may be zero or, in the source, negative.
struct Move {
  static constexpr size_t kMaxLoops = 2 * kMaxDim;  // repeat has two per dimension
  size_t dim = 0;
  size_t size[kMaxLoops];
  ptrdiff_t to[kMaxLoops];
  ptrdiff_t from[kMaxLoops];

  TORCHETTE_INLINE void add(size_t n, ptrdiff_t to_stride, ptrdiff_t from_stride) {
    size[dim] = n;
    to[dim] = to_stride;
    from[dim++] = from_stride;
  }
};

/// Drops dimensions of size 1, orders the rest from the largest stride of the target to the smallest, and
/// merges neighbours that are one run on both sides; at least one dimension is left. False when there is
/// nothing to move.
bool simplify(Move& nest);
/// Copies the elements of a nest that has been simplified.
void move_simplified(const Move& nest, void* to, const void* from, size_t element);

/// Copies every element of the nest, its dimensions in any order. `element` is 1, 2, 4, 8 or 16 bytes. The
/// places must not overlap.
void move(Move nest, void* to, const void* from, size_t element);

/// Coordinates that count through `rank` sizes, the last dimension fastest, carrying offsets of strided
/// tensors along.
template <size_t kTensors>
struct Walk {
  size_t rank = 0;
  size_t size[kMaxDim];
  size_t at[kMaxDim] = {};
  ptrdiff_t stride[kTensors][kMaxDim];
  ptrdiff_t offset[kTensors] = {};

  /// False after the last place.
  TORCHETTE_INLINE bool next() {
    for (size_t d = rank; d-- > 0;) {
      for (size_t t = 0; t < kTensors; ++t) offset[t] += stride[t][d];
      if (++at[d] < size[d]) return true;
      for (size_t t = 0; t < kTensors; ++t) offset[t] -= static_cast<ptrdiff_t>(at[d]) * stride[t][d];
      at[d] = 0;
    }
    return false;
  }
};

}  // namespace TORCHETTE_ISA
}  // namespace torchette
