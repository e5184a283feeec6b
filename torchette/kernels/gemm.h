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

/// What a tile of C starts from.
struct TileStart {
  const float* row_bias;  // one per row of the tile, or null
  const float* col_bias;  // one per column of the tile, or null
  bool accumulate;        // start from what C holds instead
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
constexpr size_t kPanelFloats = kMaxDepth * kMaxVectors * kLanes + kLanes;  // whole vectors may end behind

/// C tile (+)= A tile x B panel. A's rows are `a_row` apart and its depth is contiguous; B's rows are `b_row`
/// apart; the last vector of the tile stores `last` lanes.
using MicroKernel = void (*)(size_t depth, const float* a, ptrdiff_t a_row, const float* b, ptrdiff_t b_row,
                             float* c, ptrdiff_t c_row, const TileStart& start, size_t last);
/// 1 <= rows <= max_rows(vectors), 1 <= vectors <= kMaxVectors.
MicroKernel micro_kernel(int rows, int vectors);

/// Splits `total` into as few nearly equal parts of at most `most` as possible; gives the size of the next
/// one.
TORCHETTE_INLINE size_t next_part(size_t total, size_t most) {
  if (total <= most) return total;
  const size_t parts = (total + most - 1) / most;
  return (total + parts - 1) / parts;
}

/// Scratch memory of matrix products, taken from the context on first need and shared by all products of a
/// kernel: about 150 KB at 16 lanes, a quarter of it at 4.
class GemmScratch {
 public:
  explicit GemmScratch(Context& context) : context_(context), panel_(nullptr), rows_(nullptr) {}
  /// kPanelFloats floats, or null.
  float* panel() { return panel_ != nullptr ? panel_ : panel_ = take(kPanelFloats); }
  /// kBlockRows x kMaxDepth floats, or null.
  float* rows() { return rows_ != nullptr ? rows_ : rows_ = take(kBlockRows * kMaxDepth); }

  static constexpr size_t kBlockRows = 4 * kMaxRows;

 private:
  float* take(size_t count) { return static_cast<float*>(context_.allocate_temp(count * sizeof(float))); }

  Context& context_;
  float* panel_;
  float* rows_;
};

/// C[m,n] = bias + A[m,k] B[k,n]. `row_bias` (one per row) and `col_bias` (one per column) may be null.
/// Error: MemoryAllocationFailed when scratch memory is needed and not to be had.
Error gemm(GemmScratch& scratch, size_t m, size_t n, size_t k, Matrix a, Matrix b, float* c, ptrdiff_t c_row,
           const float* row_bias, const float* col_bias);

/// The loops around the register tile for a B that is fetched panel by panel:
/// `fetch(k0, depth, n0, columns, vectors, panel)` fills panel[depth][vectors * kLanes] with B[k0.., n0..],
/// zeros in the lanes behind `columns`. A's depth is contiguous. `panel` holds kPanelFloats.
template <typename Fetch>
static void gemm_panels(size_t m, size_t n, size_t k, const float* a, ptrdiff_t a_row, float* c,
                        ptrdiff_t c_row, const float* row_bias, const float* col_bias, bool accumulate,
                        float* panel, Fetch&& fetch) {
  // Blocks of rows keep the part of A that every panel meets again in the L2 cache.
  constexpr size_t kRowBlock = 504;
  for (size_t m0 = 0; m0 < m; m0 += kRowBlock) {
    const size_t m_end = m0 + kRowBlock < m ? m0 + kRowBlock : m;
    size_t k0 = 0;
    do {  // once even where k is 0: the bias is to be written
      const size_t depth = next_part(k - k0, kMaxDepth);
      for (size_t n0 = 0; n0 < n;) {
        const size_t left = (n - n0 + kLanes - 1) / kLanes;
        // An odd vector joins a wider tile: a tile of one vector waits for loads. Few rows want it wide.
        int vectors = left < 2 ? 1 : 2;
        if (left == 3 || (left > 3 && m_end - m0 <= static_cast<size_t>(max_rows(3)))) vectors = 3;
        const size_t width = static_cast<size_t>(vectors) * kLanes;
        const size_t columns = n - n0 < width ? n - n0 : width;
        const size_t last = columns - (width - kLanes);
        const float* b;
        const ptrdiff_t b_row = fetch(k0, depth, n0, columns, vectors, panel, b);
        for (size_t i = m0; i < m_end;) {
          const size_t rows = next_part(m_end - i, static_cast<size_t>(max_rows(vectors)));
          const TileStart start = {row_bias != nullptr ? row_bias + i : nullptr,
                                   col_bias != nullptr ? col_bias + n0 : nullptr, accumulate || k0 > 0};
          micro_kernel(static_cast<int>(rows), vectors)(
              depth, a + static_cast<ptrdiff_t>(i) * a_row + k0, a_row, b, b_row,
              c + static_cast<ptrdiff_t>(i) * c_row + n0, c_row, start, last);
          i += rows;
        }
        n0 += columns;
      }
      k0 += depth;
    } while (k0 < k);
  }
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
