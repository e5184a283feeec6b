// SPDX-License-Identifier: BSD-3-Clause
// Moves elements between two strided layouts, the basis of permutes, slices, expands and concatenations.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// A loop nest, ordered from the outermost to the innermost loop.
struct Loops {
  size_t dim = 0;
  size_t size[kMaxDim];
};

/// A loop nest over a destination and a source. Strides are in elements; they may be zero or, in the source,
/// negative.
struct Move {
  static constexpr size_t kMaxLoops = 2 * kMaxDim;  // repeat uses two loops per dimension
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

/// Drops dimensions of size 1, sorts the others by descending destination stride, and merges adjacent
/// dimensions that are contiguous on both sides. At least one dimension remains. Returns false if there are
/// no elements.
bool simplify(Move& nest);
/// Copies the elements of a simplified nest.
void move_simplified(const Move& nest, void* to, const void* from, size_t element);

/// Copies every element of the nest, with dimensions in any order. `element` is 1, 2, 4, 8 or 16 bytes. The
/// memory ranges must not overlap.
void move(Move nest, void* to, const void* from, size_t element);
/// The same, on the context's threads.
void move(Context& context, Move nest, void* to, const void* from, size_t element);

/// Iterates over coordinates of `rank` sizes, the last dimension fastest, and updates the offsets of strided
/// tensors.
template <size_t kTensors>
struct Walk {
  size_t rank = 0;
  size_t size[kMaxDim];
  size_t at[kMaxDim] = {};
  ptrdiff_t stride[kTensors][kMaxDim];
  ptrdiff_t offset[kTensors] = {};

  /// Advances to the next position. Returns false after the last one.
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
