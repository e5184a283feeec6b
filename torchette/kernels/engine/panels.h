// SPDX-License-Identifier: BSD-3-Clause
// The layout of packed weights and the checks that kernels apply to them, because a file may contain any
// data.
#pragma once

#include "torchette/kernels/simd.h"
#include "torchette/runtime/kernel.h"
#include "torchette/runtime/selected.h"

namespace torchette {
namespace TORCHETTE_ISA {

#define TORCHETTE_CONSTANT(name, value) constexpr size_t name = value;
#include "torchette/schema/engine.def"
/// Number of vectors in a row of a panel.
constexpr size_t kPanelVectors = kPanelWidth / kLanes;

/// Storage type of the weights. 16-bit weights are converted to float when they are read; all arithmetic is
/// in float. Exception: `pairs` are 32-bit words of two bfloat16, the weights of inputs 2j and 2j + 1 of an
/// output. Their inputs may be rounded to bfloat16 (paired_gemm.cpp).
enum class Stored : uint8_t { float32, bfloat16, float16, pairs };
constexpr size_t size_of(Stored stored) {
  return stored == Stored::float32 ? sizeof(float) : sizeof(uint16_t);
}
/// Calls `body` with the weights as a pointer to their storage type.
template <typename Body>
TORCHETTE_INLINE auto with_stored(Stored stored, const void* weights, const Body& body) {
  if constexpr (has_dtype(ScalarType::BFloat16))
    if (stored == Stored::bfloat16) return body(static_cast<const BFloat16*>(weights));
  if constexpr (has_dtype(ScalarType::Half))
    if (stored == Stored::float16) return body(static_cast<const Half*>(weights));
  return body(static_cast<const float*>(weights));
}

/// Part: the unit of a register tile, a vector, or a float if the target has no vectors.
#if TORCHETTE_HAS_VECTORS
typedef Vec Part;
template <typename T>
TORCHETTE_INLINE Part load_part(const T* p) {
  return load(p);
}
TORCHETTE_INLINE void store_part(float* p, Part x) { store(p, x); }
/// Loads the first `n` lanes; n must be less than kLanes.
TORCHETTE_INLINE Part load_part(const float* p, size_t n) { return load_partial(p, n); }
TORCHETTE_INLINE void store_part(float* p, Part x, size_t n) { store_partial(p, x, n); }
#else
typedef float Part;
template <typename T>
TORCHETTE_INLINE Part load_part(const T* p) {
  return *p;
}
TORCHETTE_INLINE void store_part(float* p, Part x) { *p = x; }
TORCHETTE_INLINE Part load_part(const float*, size_t) { return 0.0f; }
TORCHETTE_INLINE void store_part(float*, Part, size_t) {}
#endif
TORCHETTE_INLINE Part load_weights(const float* p, Stored) { return load_part(p); }
TORCHETTE_INLINE Part load_weights(const uint16_t* p, Stored stored) {
  return stored == Stored::bfloat16 ? load_part(reinterpret_cast<const BFloat16*>(p))
                                    : load_part(reinterpret_cast<const Half*>(p));
}
TORCHETTE_INLINE float fma(float a, float b, float c) { return a * b + c; }
TORCHETTE_INLINE Part part_of(float x) { return x - Part{}; }
constexpr size_t kPartLanes = sizeof(Part) / sizeof(float);
/// Returns the number of parts of a panel that are computed at a time for `rows` rows. With few registers, a
/// panel needs several passes over the rows.
constexpr int parts_of_pass(int rows, int parts = static_cast<int>(kPanelWidth / kPartLanes)) {
  const int max_parts = !TORCHETTE_HAS_VECTORS                             ? (rows <= 2 ? 8 : 4)
                        : kLanes == 4 && kVectorRegisters < 32 && rows > 1 ? 2
                                                                           : parts;
  return parts < max_parts ? parts : max_parts;
}

/// Converts a row of a panel of pairs: the lower or the upper half of each word.
TORCHETTE_INLINE void widen_half(const int32_t* words, bool upper, float* to) {
  for (size_t j = 0; j < kPanelWidth; j += kLanes) {
    const VecInt word = load(words + j);
    store(to + j, bit_cast<Vec>(upper ? word & -65536 : word << 16));
  }
}

constexpr size_t panels_of(size_t outputs) { return (outputs + kPanelWidth - 1) / kPanelWidth; }
/// Number of columns of the last panel if it is cut after the last output.
constexpr size_t cut_columns(size_t outputs) {
  return outputs % kPanelWidth == 0 ? kPanelWidth : outputs % kPanelWidth;
}

/// Bytes of a row of a panel of floats or of pairs.
constexpr size_t kRowBytes = kPanelWidth * sizeof(float);

/// Splits `total` into the fewest nearly equal parts of at most `max_part` and returns the size of the first.
constexpr size_t next_part(size_t total, size_t max_part) {
  if (total <= max_part) return total;
  const size_t parts = (total + max_part - 1) / max_part;
  return (total + parts - 1) / parts;
}

/// Weights of the next block of panels, which the tiles of a block prefetch while they compute. A tile
/// prefetches one line for each row of its panels at most.
struct WeightsAhead {
  const char* data = nullptr;  // the first panel of the next block, from its first row on; or null
  size_t panel = 0;            // bytes from a panel to the next one
  size_t depth = 0;            // rows of a panel
  size_t calls = 1;            // tiles per panel
  size_t panels = 0;

  /// `tiles`: number of tiles of the block that computes.
  WeightsAhead(const void* next, size_t stride, size_t rows, size_t count, size_t tiles)
      : data(static_cast<const char*>(next)),
        panel(stride),
        depth(rows),
        calls(count == 0 || tiles < count ? 1 : tiles / count),
        panels(count) {}
  WeightsAhead() = default;

  /// Returns the address of the first line for a tile, and the bytes from row to row in `step`.
  TORCHETTE_INLINE const char* of_tile(size_t tile, const void* otherwise, size_t& step) const {
    const size_t at = tile / calls;
    step = 0;
    if (at >= panels) return static_cast<const char*>(otherwise);
    step = kRowBytes / calls;
    return data + at * panel + tile % calls * depth * step;
  }
};

/// The panels that a thread computes, block after block: [first, last) of `rows` rows each.
struct PanelRange {
  const void* weights;  // panel 0, or null if nothing is prefetched
  size_t rows;
  size_t max_depth;  // maximum number of rows of a block
  size_t first, last;

  /// Returns the weights after a block that ends before panel `end` and has the rows [row, row + depth):
  /// those of the next panels, or of the next rows from panel `first` on.
  ///
  /// `at_most`: maximum number of panels of the next block. `tiles`: number of tiles of the block.
  WeightsAhead after(size_t end, size_t row, size_t depth, size_t at_most, size_t tiles) const {
    size_t next = end;
    if (end >= last) {
      next = first;
      row += depth;
      depth = next_part(rows - row, max_depth);
    }
    if (weights == nullptr || depth == 0) return {};
    const size_t count = last - next < at_most ? last - next : at_most, panel = rows * kRowBytes;
    return {static_cast<const char*>(weights) + next * panel + row * kRowBytes, panel, depth, count, tiles};
  }
};

/// Minimum number of multiply-adds for which a thread pays off: starting one costs 10 to 20 microseconds,
/// mostly cache misses on data that another core has written.
constexpr size_t kMinWork = size_t{1} << (kLanes >= 8 ? 19 : 18);

/// Returns the minimum number of items per thread if each item has `work` multiply-adds.
TORCHETTE_INLINE size_t min_items(size_t work) { return work >= kMinWork ? 1 : kMinWork / (work + 1) + 1; }

}  // namespace TORCHETTE_ISA
}  // namespace torchette
