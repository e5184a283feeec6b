// SPDX-License-Identifier: BSD-3-Clause
// Float GEMM: C[m,n] = A[m,k] B[k,n] (+ bias). A and B may have any strides; the rows of C are contiguous.
// Convolutions supply their own function that fetches a panel of B.
#pragma once

#include "torchette/kernels/simd.h"
#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Element (i, j) of a matrix is data[i * row + j * col].
struct Matrix {
  const float* data;
  ptrdiff_t row;
  ptrdiff_t col;
};

// Limits of a register tile of `rows` rows by `vectors` vectors of accumulators, chosen so that the
// accumulators fill the vector registers.
constexpr int kMaxRows = kVectorRegisters == 32 ? 14 : 6;
constexpr int kMaxVectors = 3;
/// Maximum number of rows of a tile that is `vectors` vectors wide.
constexpr int max_rows(int vectors) { return vectors <= 2 ? kMaxRows : (kVectorRegisters == 32 ? 9 : 4); }
/// Depth of a panel of B: large enough to amortize loading and storing C, small enough for the L1/L2 cache.
constexpr size_t kMaxDepth = 384;
/// Maximum number of products that are accumulated in sequence. Rounding error grows with the square root of
/// this length.
constexpr size_t kMaxChain = kMaxDepth / 2;
constexpr size_t kPanelFloats = kMaxDepth * kMaxVectors * kLanes;
/// Shallow panels are fetched several at a time, up to this number of floats. Targets with short vectors have
/// less memory and benefit less.
constexpr size_t kMaxPanels = 8;
constexpr size_t kShallowFloats = kLanes >= 8 ? kPanelFloats : kPanelFloats / 4;
/// Up to this number of columns after the last full vector are computed as dot products along the depth.
constexpr size_t kMaxTail = kLanes / 3;

/// Splits `total` into the fewest nearly equal parts of at most `max_size` and returns the size of the next
/// part.
TORCHETTE_INLINE size_t next_part(size_t total, size_t max_size) {
  if (total <= max_size) return total;
  const size_t parts = (total + max_size - 1) / max_size;
  return (total + parts - 1) / parts;
}

/// Rounds `count` up to a multiple of kLanes.
TORCHETTE_INLINE size_t round_to_vectors(size_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

/// Returns the number of floats in the panels of B for inner size `k` and at most `n` columns.
size_t panel_floats(size_t n, size_t k);

/// Scratch memory for GEMMs, allocated from the context on first use and shared by all GEMMs of a kernel; the
/// first GEMM must be the largest. Its size is at most kPanelFloats plus the tail columns, and
/// kBlockRows x kMaxDepth if the left side is copied: 270 KB at 16 lanes, 94 KB at 4 lanes.
class GemmScratch {
 public:
  explicit GemmScratch(Context& context) : context_(context) {}
  /// Returns panel_floats(n, k) floats, or null if the allocation fails.
  float* panels(size_t n, size_t k) {
    return panels_ != nullptr ? panels_ : panels_ = take(panel_floats(n, k));
  }
  /// Returns `count` floats for the caller's own blocks, or null. Every call must pass the same count.
  float* blocks(size_t count) { return blocks_ != nullptr ? blocks_ : blocks_ = take(count); }
  /// Returns a block of the left side, or null: min(kBlockRows, m) rows of the depth of a panel.
  float* rows(size_t m, size_t k) {
    return rows_ != nullptr ? rows_
                            : rows_ = take((m < kBlockRows ? m : kBlockRows) * next_part(k, kMaxDepth));
  }

  /// Depends only on the number of lanes, like all scratch sizes, so that the scratch memory measured on one
  /// machine is valid for all machines with the same vector width.
  static constexpr size_t kBlockRows = kLanes == 16 ? 112 : 48;

 private:
  /// Allocates at least one float: a GEMM with inner size 0 needs none, and null means out of memory.
  float* take(size_t count) {
    return static_cast<float*>(context_.allocate_temp((count > 0 ? count : 1) * sizeof(float)));
  }

  Context& context_;
  float* panels_ = nullptr;
  float* rows_ = nullptr;
  float* blocks_ = nullptr;
};

/// C[m,n] = bias + A[m,k] B[k,n]. `row_bias` (one per row) and `col_bias` (one per column) may be null.
/// Errors: MemoryAllocationFailed if scratch memory is needed but not available.
Error gemm(GemmScratch& scratch, size_t m, size_t n, size_t k, Matrix a, Matrix b, float* c, ptrdiff_t c_row,
           const float* row_bias, const float* col_bias);

/// Source of the panels of B. Derived structs add the state that `fetch` needs.
struct PanelSource {
  /// Fetches B[k0 .. k0 + depth, n0 .. n0 + columns] as rows of `width` floats, a multiple of kLanes, with
  /// zeros after `columns`. Writes them to `panel`, or sets `from` to their existing location. Returns the
  /// row stride.
  ptrdiff_t (*fetch)(const PanelSource& self, size_t k0, size_t depth, size_t n0, size_t columns,
                     size_t width, float* panel, const float*& from);
};

/// The left side and the result of a GEMM with a fetched right side.
struct Product {
  size_t m, n, k;
  const float* a;  // contiguous rows with stride `a_row`
  ptrdiff_t a_row;
  float* c;
  ptrdiff_t c_row;
  const float* row_bias;  // one per row, or null
  const float* col_bias;  // one per column, or null
  bool accumulate;        // start from C instead of the biases
};

/// C (+)= A B. `panels` has panel_floats(n, k) floats.
void gemm_panels(const Product& product, const PanelSource& source, float* panels);
/// C (+)= A B for B with contiguous rows and a stride `b_row` small enough to read B in place.
void gemm_of_rows(const Product& product, const float* b, ptrdiff_t b_row, float* panels);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
