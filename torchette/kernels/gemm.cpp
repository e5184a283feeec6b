// SPDX-License-Identifier: BSD-3-Clause
// The matrix product: register tiles from vector extensions, panels of B packed where it pays, and
// matrix-vector products at the speed of memory.
#include "torchette/kernels/gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Rows go in groups of three off one pointer, so that fourteen rows need five address registers.
template <int kRows, int kVectors>
static void tile(size_t depth, const float* a, ptrdiff_t a_row, const float* b, ptrdiff_t b_row, float* c,
                 ptrdiff_t c_row, const TileStart& start, size_t last) {
  Vec acc[kRows][kVectors];
  const bool whole = last == kLanes;
  if (start.accumulate) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        const float* p = c + i * c_row + j * kLanes;
        acc[i][j] = j + 1 < kVectors || whole ? load(p) : load_partial(p, last);
      }
    }
  } else {
    Vec column[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const float* p = start.col_bias + j * kLanes;
      column[j] = start.col_bias == nullptr   ? Vec{}
                  : j + 1 < kVectors || whole ? load(p)
                                              : load_partial(p, last);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec row = start.row_bias != nullptr ? broadcast(start.row_bias[i]) : Vec{};
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) acc[i][j] = row + column[j];
    }
  }
  const float* group[(kRows + 2) / 3];
#pragma GCC unroll 8
  for (int g = 0; g < (kRows + 2) / 3; ++g) group[g] = a + 3 * g * a_row;
  for (size_t p = 0; p < depth; ++p) {
    Vec bv[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) bv[j] = load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec av = broadcast(group[i / 3][(i % 3) * a_row]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) acc[i][j] = fma(av, bv[j], acc[i][j]);
    }
    b += b_row;
#pragma GCC unroll 8
    for (int g = 0; g < (kRows + 2) / 3; ++g) ++group[g];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      float* p = c + i * c_row + j * kLanes;
      if (j + 1 < kVectors || whole)
        store(p, acc[i][j]);
      else
        store_partial(p, acc[i][j], last);
    }
  }
}

template <int kVectors, int... kRow>
static MicroKernel pick(int rows, std::integer_sequence<int, kRow...>) {
  static constexpr MicroKernel kTiles[] = {tile<kRow + 1, kVectors>...};
  return kTiles[rows - 1];
}

MicroKernel micro_kernel(int rows, int vectors) {
  if (vectors == 1) return pick<1>(rows, std::make_integer_sequence<int, max_rows(1)>{});
  if (vectors == 2) return pick<2>(rows, std::make_integer_sequence<int, max_rows(2)>{});
  return pick<3>(rows, std::make_integer_sequence<int, max_rows(3)>{});
}

/// Transposes kLanes rows of kLanes floats at `src` (rows `row` apart) to dst (rows `to` apart).
static void transpose_square(const float* src, ptrdiff_t row, float* dst, ptrdiff_t to) {
  Vec square[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) square[i] = load(src + i * row);
  transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(dst + i * to, square[i]);
}

/// Fills panel[depth][width] with B[k0.., n0..], zeros behind `columns`.
static void pack_panel(Matrix b, size_t depth, size_t columns, size_t width, float* panel) {
  if (b.col == 1) {
    const size_t whole = columns / kLanes * kLanes, rest = columns - whole;
    for (size_t p = 0; p < depth; ++p) {
      const float* src = b.data + static_cast<ptrdiff_t>(p) * b.row;
      float* dst = panel + p * width;
      size_t j = 0;
      for (; j < whole; j += kLanes) store(dst + j, load(src + j));
      if (rest != 0) {
        store(dst + j, load_partial(src + j, rest));
        j += kLanes;
      }
      for (; j < width; j += kLanes) store(dst + j, Vec{});
    }
    return;
  }
  if (columns < width) memset(panel, 0, depth * width * sizeof(float));
  size_t j = 0;
  if (b.row == 1) {
    for (; j + kLanes <= columns; j += kLanes) {
      const float* src = b.data + static_cast<ptrdiff_t>(j) * b.col;
      size_t p = 0;
      for (; p + kLanes <= depth; p += kLanes)
        transpose_square(src + p, b.col, panel + p * width + j, static_cast<ptrdiff_t>(width));
      for (; p < depth; ++p)
        for (int i = 0; i < kLanes; ++i) panel[p * width + j + i] = src[p + i * b.col];
    }
  }
  for (; j < columns; ++j) {
    const float* src = b.data + static_cast<ptrdiff_t>(j) * b.col;
    for (size_t p = 0; p < depth; ++p) panel[p * width + j] = src[static_cast<ptrdiff_t>(p) * b.row];
  }
}

/// c[n] = bias + x[k] B[k,n], rows of B contiguous: eight rows stream at once, c stays in the L1 cache.
static void vector_times_rows(size_t n, size_t k, const float* x, ptrdiff_t x_step, const float* b,
                              ptrdiff_t b_row, float* c, const float* col_bias, float start) {
  size_t p = 0;
  for (size_t j = 0; j < n; ++j) c[j] = start + (col_bias != nullptr ? col_bias[j] : 0.0f);
  for (; p < k;) {
    constexpr int kAtOnce = 8;
    if (k - p < kAtOnce) {
      const Vec xv = broadcast(x[static_cast<ptrdiff_t>(p) * x_step]);
      const float* row = b + static_cast<ptrdiff_t>(p) * b_row;
      size_t j = 0;
      for (; j + kLanes <= n; j += kLanes) store(c + j, fma(xv, load(row + j), load(c + j)));
      if (j < n)
        store_partial(c + j, fma(xv, load_partial(row + j, n - j), load_partial(c + j, n - j)), n - j);
      ++p;
      continue;
    }
    Vec xv[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) xv[i] = broadcast(x[static_cast<ptrdiff_t>(p + i) * x_step]);
    const float* rows = b + static_cast<ptrdiff_t>(p) * b_row;
    size_t j = 0;
    for (; j + kLanes <= n; j += kLanes) {
      Vec s = load(c + j), t = Vec{};
#pragma GCC unroll 8
      for (int i = 0; i < kAtOnce; i += 2) {
        s = fma(xv[i], load(rows + i * b_row + j), s);
        t = fma(xv[i + 1], load(rows + (i + 1) * b_row + j), t);
      }
      store(c + j, s + t);
    }
    if (j < n) {
      Vec s = load_partial(c + j, n - j);
#pragma GCC unroll 8
      for (int i = 0; i < kAtOnce; ++i) s = fma(xv[i], load_partial(rows + i * b_row + j, n - j), s);
      store_partial(c + j, s, n - j);
    }
    p += kAtOnce;
  }
}

/// kRows dot products of k contiguous floats with one vector.
template <int kRows>
static void dots(size_t k, const float* x, const float* rows, ptrdiff_t row, float* out) {
  Vec acc[kRows][2] = {};
  size_t p = 0;
  for (; p + 2 * kLanes <= k; p += 2 * kLanes) {
    const Vec x0 = load(x + p), x1 = load(x + p + kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      acc[i][0] = fma(load(rows + i * row + p), x0, acc[i][0]);
      acc[i][1] = fma(load(rows + i * row + p + kLanes), x1, acc[i][1]);
    }
  }
  for (; p < k; p += kLanes) {
    const size_t here = k - p < kLanes ? k - p : kLanes;
    const Vec xv = load_partial(x + p, here);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) acc[i][0] = fma(load_partial(rows + i * row + p, here), xv, acc[i][0]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) out[i] = horizontal_sum(acc[i][0] + acc[i][1]);
}

/// out[i * out_step] = bias + (row i of `rows`) . x for `count` rows.
static void rows_times_vector(size_t count, size_t k, const float* rows, ptrdiff_t row, const float* x,
                              float* out, ptrdiff_t out_step, const float* bias, float start) {
  size_t i = 0;
  float sums[4];
  for (; i + 4 <= count; i += 4) {
    dots<4>(k, x, rows + static_cast<ptrdiff_t>(i) * row, row, sums);
    for (size_t q = 0; q < 4; ++q)
      out[static_cast<ptrdiff_t>(i + q) * out_step] =
          sums[q] + start + (bias != nullptr ? bias[i + q] : 0.0f);
  }
  for (; i < count; ++i) {
    dots<1>(k, x, rows + static_cast<ptrdiff_t>(i) * row, row, sums);
    out[static_cast<ptrdiff_t>(i) * out_step] = sums[0] + start + (bias != nullptr ? bias[i] : 0.0f);
  }
}

/// dst[m][k] contiguous from any strides.
static void pack_rows(Matrix a, size_t m, size_t k, float* dst) {
  for (size_t i = 0; i < m; ++i) {
    const float* src = a.data + static_cast<ptrdiff_t>(i) * a.row;
    for (size_t p = 0; p < k; ++p) dst[i * k + p] = src[static_cast<ptrdiff_t>(p) * a.col];
  }
}

Error gemm(GemmScratch& scratch, size_t m, size_t n, size_t k, Matrix a, Matrix b, float* c, ptrdiff_t c_row,
           const float* row_bias, const float* col_bias) {
  if (m == 0 || n == 0) return Error::Ok;
  if (m == 1) {
    const float start = row_bias != nullptr ? row_bias[0] : 0.0f;
    if (b.col == 1) {
      vector_times_rows(n, k, a.data, a.col, b.data, b.row, c, col_bias, start);
      return Error::Ok;
    }
    if (b.row == 1 && a.col == 1) {
      rows_times_vector(n, k, b.data, b.col, a.data, c, 1, col_bias, start);
      return Error::Ok;
    }
  }
  if (n == 1 && a.col == 1 && b.row == 1) {
    rows_times_vector(m, k, a.data, a.row, b.data, c, c_row, row_bias,
                      col_bias != nullptr ? col_bias[0] : 0.0f);
    return Error::Ok;
  }
  float* panel = scratch.panel();
  TORCHETTE_CHECK(panel != nullptr, MemoryAllocationFailed, "no scratch memory for a matrix product");
  if (a.col != 1) {
    // Rare (a transposed left side): copied block by block, each block a product of its own.
    constexpr size_t kBlockRows = GemmScratch::kBlockRows;
    float* rows = scratch.rows();
    TORCHETTE_CHECK(rows != nullptr, MemoryAllocationFailed, "no scratch memory for a matrix product");
    size_t k0 = 0;
    do {
      const size_t depth = next_part(k - k0, kMaxDepth);
      for (size_t i = 0; i < m; i += kBlockRows) {
        const size_t count = m - i < kBlockRows ? m - i : kBlockRows;
        const float* corner = a.data + static_cast<ptrdiff_t>(i) * a.row + static_cast<ptrdiff_t>(k0) * a.col;
        pack_rows({corner, a.row, a.col}, count, depth, rows);
        const Matrix part = {b.data + static_cast<ptrdiff_t>(k0) * b.row, b.row, b.col};
        gemm_panels(
            count, n, depth, rows, static_cast<ptrdiff_t>(depth), c + static_cast<ptrdiff_t>(i) * c_row,
            c_row, row_bias != nullptr ? row_bias + i : nullptr, col_bias, k0 > 0, panel,
            [&](size_t q0, size_t d, size_t n0, size_t columns, int vectors, float* to, const float*& from) {
              const auto width = static_cast<size_t>(vectors) * kLanes;
              const float* src =
                  part.data + static_cast<ptrdiff_t>(q0) * part.row + static_cast<ptrdiff_t>(n0) * part.col;
              pack_panel({src, part.row, part.col}, d, columns, width, to);
              from = to;
              return static_cast<ptrdiff_t>(width);
            });
      }
      k0 += depth;
    } while (k0 < k);
    return Error::Ok;
  }
  const bool few_rows = m <= static_cast<size_t>(kMaxRows);
  gemm_panels(
      m, n, k, a.data, a.row, c, c_row, row_bias, col_bias, false, panel,
      [&](size_t k0, size_t depth, size_t n0, size_t columns, int vectors, float* to, const float*& from) {
        const auto width = static_cast<size_t>(vectors) * kLanes;
        const float* src = b.data + static_cast<ptrdiff_t>(k0) * b.row + static_cast<ptrdiff_t>(n0) * b.col;
        if (b.col == 1 && columns == width && few_rows) {
          from = src;
          return b.row;
        }
        pack_panel({src, b.row, b.col}, depth, columns, width, to);
        from = to;
        return static_cast<ptrdiff_t>(width);
      });
  return Error::Ok;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
