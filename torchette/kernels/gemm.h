// SPDX-License-Identifier: BSD-3-Clause
// Matrix product of floats: C[m,n] = A[m,k] B[k,n] (+ bias), any strides of A and B, rows of C contiguous.
// Convolutions bring their own way of fetching a panel of B.
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

// One register tile: `rows` rows by `vectors` vectors of accumulators. The shapes use the machine's
// registers.
constexpr int kMaxRows = kVectorRegisters == 32 ? 14 : 6;
constexpr int kMaxVectors = 3;
/// Most rows of a tile that is `vectors` wide.
constexpr int max_rows(int vectors) { return vectors <= 2 ? kMaxRows : (kVectorRegisters == 32 ? 9 : 4); }
/// Depth of a panel of B: deep enough that loading and storing C does not count, shallow enough for the L1/L2
/// cache.
constexpr size_t kMaxDepth = 384;
/// So many products at most are added up one after the other: rounding errors grow with the root of a chain's
/// length.
constexpr size_t kMaxChain = kMaxDepth / 2;
constexpr size_t kPanelFloats = kMaxDepth * kMaxVectors * kLanes;
/// Shallow panels are fetched several at a time, in so many floats: machines with short vectors have less
/// memory and gain less.
constexpr size_t kMaxPanels = 8;
constexpr size_t kShallowFloats = kLanes >= 8 ? kPanelFloats : kPanelFloats / 4;
/// So few columns behind the last whole vector are summed up as dot products along the depth.
constexpr size_t kMaxTail = kLanes / 3;

/// Splits `total` into as few nearly equal parts of at most `most` as possible; gives the size of the next
/// one.
TORCHETTE_INLINE size_t next_part(size_t total, size_t most) {
  if (total <= most) return total;
  const size_t parts = (total + most - 1) / most;
  return (total + parts - 1) / parts;
}

/// `count` rounded up to whole vectors.
TORCHETTE_INLINE size_t whole_vectors(size_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

/// Floats of the panels of B, for products of inner size `k` with up to `n` columns.
size_t panel_floats(size_t n, size_t k);

/// Scratch memory of matrix products, taken from the context on first need and shared by all products of a
/// kernel, of which the first is the largest. It grows with them, at most to kPanelFloats and the columns
/// behind, and kBlockRows x kMaxDepth where the left side is copied: 270 KB at 16 lanes, 94 KB at 4.
class GemmScratch {
 public:
  explicit GemmScratch(Context& context) : context_(context) {}
  /// panel_floats(n, k) floats, or null.
  float* panels(size_t n, size_t k) {
    return panels_ != nullptr ? panels_ : panels_ = take(panel_floats(n, k));
  }
  /// `count` floats, the same number each time, for the caller's own blocks; or null.
  float* blocks(size_t count) { return blocks_ != nullptr ? blocks_ : blocks_ = take(count); }
  /// A block of the left side: up to kBlockRows of `m` rows, of the depth of a panel; or null.
  float* rows(size_t m, size_t k) {
    return rows_ != nullptr ? rows_
                            : rows_ = take((m < kBlockRows ? m : kBlockRows) * next_part(k, kMaxDepth));
  }

  /// By lanes alone, as all scratch memory, so that what a machine of one width takes is known of all of
  /// them.
  static constexpr size_t kBlockRows = kLanes == 16 ? 112 : 48;

 private:
  /// One float at least: a product of inner size 0 needs none, and null says that there is no memory.
  float* take(size_t count) {
    return static_cast<float*>(context_.allocate_temp((count > 0 ? count : 1) * sizeof(float)));
  }

  Context& context_;
  float* panels_ = nullptr;
  float* rows_ = nullptr;
  float* blocks_ = nullptr;
};

/// C[m,n] = bias + A[m,k] B[k,n]. `row_bias` (one per row) and `col_bias` (one per column) may be null.
/// Error: MemoryAllocationFailed if scratch memory is needed but not available.
Error gemm(GemmScratch& scratch, size_t m, size_t n, size_t k, Matrix a, Matrix b, float* c, ptrdiff_t c_row,
           const float* row_bias, const float* col_bias);

/// Where panels of B come from. Extended by what the function needs.
struct PanelSource {
  /// Gives B[k0 .. k0 + depth, n0 .. n0 + columns] as rows of `width` floats (a multiple of kLanes; zeros
  /// behind `columns`): writes them to `panel`, or points `from` at where they lie already. Returns how far
  /// apart the rows are.
  ptrdiff_t (*fetch)(const PanelSource& self, size_t k0, size_t depth, size_t n0, size_t columns,
                     size_t width, float* panel, const float*& from);
};

/// The left side and the result of a product whose right side is fetched.
struct Product {
  size_t m, n, k;
  const float* a;  // rows of contiguous floats, `a_row` apart
  ptrdiff_t a_row;
  float* c;
  ptrdiff_t c_row;
  const float* row_bias;  // one per row, or null
  const float* col_bias;  // one per column, or null
  bool accumulate;        // start from what C holds instead of the biases
};

/// C (+)= A B. `panels` has panel_floats(n, k) floats.
void gemm_panels(const Product& product, const PanelSource& source, float* panels);
/// C (+)= A B where B's rows are contiguous, `b_row` apart and near enough to be read in place.
void gemm_of_rows(const Product& product, const float* b, ptrdiff_t b_row, float* panels);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
