// SPDX-License-Identifier: BSD-3-Clause
// GEMM with register tiles of vectors and packed panels of B, and matrix-vector multiplication at memory
// speed.
#include "torchette/kernels/gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Initial value of a tile of C.
struct TileStart {
  const float* row_bias;  // one per row of the tile, or null
  const float* col_bias;  // one per column of the tile, or null
  bool accumulate;        // starts at zero and adds the result to C
};

/// C tile (+)= A tile x B panel. The rows of A have stride `a_row` and contiguous depth; the rows of B have
/// stride `b_row`; the last vector of the tile stores `last` lanes.
using MicroKernel = void (*)(size_t depth, const float* a, ptrdiff_t a_row, const float* b, ptrdiff_t b_row,
                             float* c, ptrdiff_t c_row, const TileStart& start, size_t last);

/// Each pointer addresses a group of three rows, so that fourteen rows need five address registers.
template <int kRows, int kVectors>
static void tile(size_t depth, const float* a, ptrdiff_t a_row, const float* b, ptrdiff_t b_row, float* c,
                 ptrdiff_t c_row, const TileStart& start, size_t last) {
  Vec acc[kRows][kVectors];
  const bool full = last == kLanes;
  if (start.accumulate) {
    TORCHETTE_UNROLL(16)
    for (int i = 0; i < kRows; ++i) {
      TORCHETTE_UNROLL(4)
      for (int j = 0; j < kVectors; ++j) acc[i][j] = Vec{};
    }
  } else {
    Vec column[kVectors];
    TORCHETTE_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      const float* p = start.col_bias + j * kLanes;
      column[j] = start.col_bias == nullptr  ? Vec{}
                  : j + 1 < kVectors || full ? load(p)
                                             : load_partial(p, last);
    }
    TORCHETTE_UNROLL(16)
    for (int i = 0; i < kRows; ++i) {
      const Vec row = start.row_bias != nullptr ? broadcast(start.row_bias[i]) : Vec{};
      TORCHETTE_UNROLL(4)
      for (int j = 0; j < kVectors; ++j) acc[i][j] = row + column[j];
    }
  }
  const float* group[(kRows + 2) / 3];
  TORCHETTE_UNROLL(8)
  for (int g = 0; g < (kRows + 2) / 3; ++g) group[g] = a + 3 * g * a_row;
  for (size_t p = 0; p < depth; ++p) {
    Vec bv[kVectors];
    TORCHETTE_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) bv[j] = load(b + j * kLanes);
    TORCHETTE_UNROLL(16)
    for (int i = 0; i < kRows; ++i) {
      const Vec av = broadcast(group[i / 3][(i % 3) * a_row]);
      TORCHETTE_UNROLL(4)
      for (int j = 0; j < kVectors; ++j) acc[i][j] = fma(av, bv[j], acc[i][j]);
    }
    b += b_row;
    TORCHETTE_UNROLL(8)
    for (int g = 0; g < (kRows + 2) / 3; ++g) ++group[g];
  }
  TORCHETTE_UNROLL(16)
  for (int i = 0; i < kRows; ++i) {
    TORCHETTE_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      float* p = c + i * c_row + j * kLanes;
      if (j + 1 < kVectors || full)
        store(p, start.accumulate ? load(p) + acc[i][j] : acc[i][j]);
      else
        store_partial(p, start.accumulate ? load_partial(p, last) + acc[i][j] : acc[i][j], last);
    }
  }
}

template <int kVectors, int... kRow>
static MicroKernel pick(int rows, std::integer_sequence<int, kRow...>) {
  static constexpr MicroKernel kTiles[] = {tile<kRow + 1, kVectors>...};
  return kTiles[rows - 1];
}

/// 1 <= rows <= max_rows(vectors), 1 <= vectors <= kMaxVectors.
static MicroKernel micro_kernel(int rows, int vectors) {
  if (vectors == 1) return pick<1>(rows, std::make_integer_sequence<int, max_rows(1)>{});
  if (vectors == 2) return pick<2>(rows, std::make_integer_sequence<int, max_rows(2)>{});
  return pick<3>(rows, std::make_integer_sequence<int, max_rows(3)>{});
}

/// Transposes kLanes rows of kLanes floats from `src` (row stride `row`) to `dst` (row stride `to`).
static void transpose_square(const float* src, ptrdiff_t row, float* dst, ptrdiff_t to) {
  Vec square[kLanes];
  TORCHETTE_UNROLL(16)
  for (int i = 0; i < kLanes; ++i) square[i] = load(src + i * row);
  transpose(square);
  TORCHETTE_UNROLL(16)
  for (int i = 0; i < kLanes; ++i) store(dst + i * to, square[i]);
}

/// Fills panel[depth][width] with B[k0.., n0..] and zeros after `columns`.
static void pack_panel(Matrix b, size_t depth, size_t columns, size_t width, float* panel) {
  if (b.col == 1) {
    const size_t full = columns / kLanes * kLanes, remaining = columns - full;
    for (size_t p = 0; p < depth; ++p) {
      const float* src = b.data + static_cast<ptrdiff_t>(p) * b.row;
      float* dst = panel + p * width;
      size_t j = 0;
      for (; j < full; j += kLanes) store(dst + j, load(src + j));
      if (remaining != 0) {
        store(dst + j, load_partial(src + j, remaining));
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

/// c[n] = bias + x[k] B[k,n] for contiguous rows of B. Streams eight rows at a time while c stays in the L1
/// cache.
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
      TORCHETTE_UNROLL(8)
      for (int i = 0; i < kAtOnce; i += 2) {
        s = fma(xv[i], load(rows + i * b_row + j), s);
        t = fma(xv[i + 1], load(rows + (i + 1) * b_row + j), t);
      }
      store(c + j, s + t);
    }
    if (j < n) {
      Vec s = load_partial(c + j, n - j);
      TORCHETTE_UNROLL(8)
      for (int i = 0; i < kAtOnce; ++i) s = fma(xv[i], load_partial(rows + i * b_row + j, n - j), s);
      store_partial(c + j, s, n - j);
    }
    p += kAtOnce;
  }
}

/// Computes kRows dot products of k contiguous floats with one vector.
template <int kRows>
static void dots(size_t k, const float* x, const float* rows, ptrdiff_t row, float* out) {
  Vec acc[kRows][2] = {};
  size_t p = 0;
  for (; p + 2 * kLanes <= k; p += 2 * kLanes) {
    const Vec x0 = load(x + p), x1 = load(x + p + kLanes);
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      acc[i][0] = fma(load(rows + i * row + p), x0, acc[i][0]);
      acc[i][1] = fma(load(rows + i * row + p + kLanes), x1, acc[i][1]);
    }
  }
  for (; p < k; p += kLanes) {
    const size_t here = k - p < kLanes ? k - p : kLanes;
    const Vec xv = load_partial(x + p, here);
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kRows; ++i) acc[i][0] = fma(load_partial(rows + i * row + p, here), xv, acc[i][0]);
  }
  TORCHETTE_UNROLL(8)
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

// --- The loops around the tiles ---

/// c[row][j] (+)= a[row] . tail[j] for kColumns columns with contiguous depth and stride `tail_row`.
template <int kColumns>
static void dot_columns(size_t rows, size_t depth, const float* a, ptrdiff_t a_row, const float* tail,
                        size_t tail_row, float* c, ptrdiff_t c_row, const TileStart& start) {
  for (size_t i = 0; i < rows; i += 2) {
    const float* first = a + static_cast<ptrdiff_t>(i) * a_row;
    const float* second = i + 1 < rows ? first + a_row : first;
    Vec acc[2][kColumns] = {};
    size_t p = 0;
    for (; p + kLanes <= depth; p += kLanes) {
      const Vec x = load(first + p), y = load(second + p);
      TORCHETTE_UNROLL(8)
      for (int j = 0; j < kColumns; ++j) {
        const Vec t = load(tail + static_cast<size_t>(j) * tail_row + p);
        acc[0][j] = fma(x, t, acc[0][j]);
        acc[1][j] = fma(y, t, acc[1][j]);
      }
    }
    if (p < depth) {
      const Vec x = load_partial(first + p, depth - p), y = load_partial(second + p, depth - p);
      TORCHETTE_UNROLL(8)
      for (int j = 0; j < kColumns; ++j) {
        const Vec t = load_partial(tail + static_cast<size_t>(j) * tail_row + p, depth - p);
        acc[0][j] = fma(x, t, acc[0][j]);
        acc[1][j] = fma(y, t, acc[1][j]);
      }
    }
    for (size_t r = 0; r < 2 && i + r < rows; ++r) {
      float* to = c + static_cast<ptrdiff_t>(i + r) * c_row;
      const float row = start.row_bias != nullptr ? start.row_bias[i + r] : 0.0f;
      TORCHETTE_UNROLL(8)
      for (int j = 0; j < kColumns; ++j) {
        const float from =
            start.accumulate ? to[j] : row + (start.col_bias != nullptr ? start.col_bias[j] : 0.0f);
        to[j] = from + horizontal_sum(acc[r][j]);
      }
    }
  }
}

template <int... kColumn>
static auto dot_columns_of(size_t columns, std::integer_sequence<int, kColumn...>) {
  static constexpr decltype(&dot_columns<1>) kFunctions[] = {dot_columns<kColumn + 1>...};
  return kFunctions[columns - 1];
}

/// Returns the floats of all panels that are fetched together, if each has depth `depth`.
static size_t room_for_panels(size_t n, size_t depth) {
  constexpr size_t kWidest = kMaxVectors * kLanes, kAll = kMaxPanels * kWidest;
  const size_t columns = round_to_vectors(n), together = depth * (columns < kAll ? columns : kAll);
  const size_t one = depth * (columns < kWidest ? columns : kWidest);
  return together < kShallowFloats ? together : one > kShallowFloats ? one : kShallowFloats;
}

static bool may_have_tail(size_t n, size_t k) { return n > kLanes && k >= 4 * kLanes; }

size_t panel_floats(size_t n, size_t k) {
  const size_t depth = next_part(k, kMaxDepth);
  return room_for_panels(n, depth) + (may_have_tail(n, k) ? kMaxTail * round_to_vectors(depth) : 0);
}

struct PanelShape {
  size_t vectors, at_once;
};

/// Returns the width of the next panels in vectors, and the number of panels to fetch at a time, if `left`
/// vectors of columns remain.
static TORCHETTE_INLINE PanelShape shape_of_panels(size_t left, size_t rows, size_t depth) {
  // An odd vector joins a wider tile, because a one-vector tile is bound by loads. Few rows benefit from wide
  // tiles.
  PanelShape shape = {2, left % 2 == 0 ? left / 2 : (left - 3) / 2};
  if (left == 1) {
    shape = {1, 1};
  } else if (left == 3 || (left > 4 && rows <= static_cast<size_t>(max_rows(3)))) {
    shape = {3, left % 3 == 1 ? left / 3 - 1 : left / 3};
  }
  // Shallow panels are fetched several at a time, so that longer runs of the rows of C are written.
  const size_t fitting = depth == 0 ? kMaxPanels : kShallowFloats / (shape.vectors * kLanes * depth);
  if (shape.at_once > fitting) shape.at_once = fitting > 0 ? fitting : 1;
  if (shape.at_once > kMaxPanels) shape.at_once = kMaxPanels;
  return shape;
}

void gemm_panels(const Product& product, const PanelSource& source, float* panels) {
  const size_t m = product.m, n = product.n, k = product.k;
  const size_t tail_row = round_to_vectors(next_part(k, kMaxDepth));
  float* tail = panels + room_for_panels(n, next_part(k, kMaxDepth));  // [tail columns][tail_row]
  // Columns after the last full vector: a dot product costs depth / kLanes + a sum, a vector costs depth.
  size_t tail_columns = may_have_tail(n, k) ? n % kLanes : 0;
  if (tail_columns > kMaxTail) tail_columns = 0;
  const size_t n_tiles = n - tail_columns;
  // Blocks of rows keep the part of A that all panels share in the L2 cache.
  constexpr size_t kRowBlock = 504;
  for (size_t m0 = 0; m0 < m; m0 += kRowBlock) {
    const size_t m_end = m0 + kRowBlock < m ? m0 + kRowBlock : m;
    size_t k0 = 0;
    do {  // at least once, because the bias is written even if k is 0
      const size_t depth = next_part(k - k0, kMaxDepth);
      const auto tile_start = [&](size_t i, size_t n0) {
        return TileStart{product.row_bias != nullptr ? product.row_bias + i : nullptr,
                         product.col_bias != nullptr ? product.col_bias + n0 : nullptr,
                         product.accumulate || k0 > 0};
      };
      if (tail_columns != 0) {
        const float* b;
        const ptrdiff_t b_row = source.fetch(source, k0, depth, n_tiles, tail_columns, kLanes, panels, b);
        for (size_t p = 0; p < depth; ++p)
          for (size_t j = 0; j < tail_columns; ++j)
            tail[j * tail_row + p] = b[static_cast<ptrdiff_t>(p) * b_row + static_cast<ptrdiff_t>(j)];
      }
      for (size_t n0 = 0; n0 < n_tiles;) {
        const auto [vectors, at_once] =
            shape_of_panels((n_tiles - n0 + kLanes - 1) / kLanes, m_end - m0, depth);
        const size_t width = vectors * kLanes;
        const float* b[kMaxPanels];
        ptrdiff_t b_row[kMaxPanels];
        size_t columns[kMaxPanels];
        size_t end = n0;
        for (size_t q = 0; q < at_once; ++q) {
          columns[q] = n_tiles - end < width ? n_tiles - end : width;
          b_row[q] =
              source.fetch(source, k0, depth, end, columns[q], width, panels + q * depth * width, b[q]);
          end += columns[q];
        }
        for (size_t i = m0; i < m_end;) {
          const size_t rows = next_part(m_end - i, static_cast<size_t>(max_rows(static_cast<int>(vectors))));
          const MicroKernel kernel = micro_kernel(static_cast<int>(rows), static_cast<int>(vectors));
          const float* a = product.a + static_cast<ptrdiff_t>(i) * product.a_row + k0;
          float* c = product.c + static_cast<ptrdiff_t>(i) * product.c_row;
          size_t at = n0;
          for (size_t q = 0; q < at_once; ++q) {
            TileStart start = tile_start(i, at);
            size_t p = 0;
            do {
              const size_t part = next_part(depth - p, kMaxChain);
              kernel(part, a + p, product.a_row, b[q] + static_cast<ptrdiff_t>(p) * b_row[q], b_row[q],
                     c + at, product.c_row, start, columns[q] - (width - kLanes));
              start.accumulate = true;
              p += part;
            } while (p < depth);
            at += columns[q];
          }
          if (end == n_tiles && tail_columns != 0)  // the rows of A are in the L1 cache now
            dot_columns_of(tail_columns, std::make_integer_sequence<int, kMaxTail>{})(
                rows, depth, a, product.a_row, tail, tail_row, c + n_tiles, product.c_row,
                tile_start(i, n_tiles));
          i += rows;
        }
        n0 = end;
      }
      k0 += depth;
    } while (k0 < k);
  }
}

// --- GEMM of two matrices ---

struct MatrixSource : PanelSource {
  Matrix b;
  bool in_place;  // full-width panels of contiguous rows are not copied
};

static ptrdiff_t fetch_matrix(const PanelSource& self, size_t k0, size_t depth, size_t n0, size_t columns,
                              size_t width, float* panel, const float*& from) {
  const auto& source = static_cast<const MatrixSource&>(self);
  const Matrix& b = source.b;
  const float* corner = b.data + static_cast<ptrdiff_t>(k0) * b.row + static_cast<ptrdiff_t>(n0) * b.col;
  if (source.in_place && b.col == 1 && columns == width) {
    from = corner;
    return b.row;
  }
  pack_panel({corner, b.row, b.col}, depth, columns, width, panel);
  from = panel;
  return static_cast<ptrdiff_t>(width);
}

void gemm_of_rows(const Product& product, const float* b, ptrdiff_t b_row, float* panels) {
  const MatrixSource source = {{fetch_matrix}, {b, b_row, 1}, true};
  gemm_panels(product, source, panels);
}

/// Copies a matrix of any strides to contiguous dst[m][k].
static void pack_rows(Matrix a, size_t m, size_t k, float* dst) {
  for (size_t i = 0; i < m; ++i) {
    const float* src = a.data + static_cast<ptrdiff_t>(i) * a.row;
    if (a.col == 1)
      memcpy(dst + i * k, src, k * sizeof(float));
    else
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
  float* panels = scratch.panels(n, k);
  TORCHETTE_CHECK(panels != nullptr, MemoryAllocationFailed, "no scratch memory for a matrix multiplication");
  MatrixSource source = {{fetch_matrix}, b, m <= static_cast<size_t>(kMaxRows)};
  // Rows with a stride that is a multiple of the page size map to the same L1 cache sets.
  const bool same_sets = a.row % 1024 == 0 && m > 8 && n > 4 * kLanes;
  if (a.col == 1 && !same_sets) {
    gemm_panels({m, n, k, a.data, a.row, c, c_row, row_bias, col_bias, false}, source, panels);
    return Error::Ok;
  }
  // The left side is copied block by block; each block is a separate GEMM.
  float* rows = scratch.rows(m, k);
  TORCHETTE_CHECK(rows != nullptr, MemoryAllocationFailed, "no scratch memory for a matrix multiplication");
  size_t k0 = 0;
  do {
    const size_t depth = next_part(k - k0, kMaxDepth);
    source.b.data = b.data + static_cast<ptrdiff_t>(k0) * b.row;
    for (size_t i = 0; i < m; i += GemmScratch::kBlockRows) {
      const size_t count = m - i < GemmScratch::kBlockRows ? m - i : GemmScratch::kBlockRows;
      pack_rows(
          {a.data + static_cast<ptrdiff_t>(i) * a.row + static_cast<ptrdiff_t>(k0) * a.col, a.row, a.col},
          count, depth, rows);
      gemm_panels(
          {count, n, depth, rows, static_cast<ptrdiff_t>(depth), c + static_cast<ptrdiff_t>(i) * c_row, c_row,
           row_bias != nullptr ? row_bias + i : nullptr, col_bias, k0 > 0},
          source, panels);
    }
    k0 += depth;
  } while (k0 < k);
  return Error::Ok;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
