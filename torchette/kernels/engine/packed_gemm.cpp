// SPDX-License-Identifier: BSD-3-Clause
// Float GEMM in register tiles of rows by panels. A block of panels stays in the L2 cache while all rows are
// processed; the rows of a tile stay in the L1 cache while the panels of the block are processed.
#include "torchette/kernels/engine/packed_gemm.h"

#include <cmath>
#include <utility>

#include "torchette/kernels/engine/paired_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Floats in a block of panels, and in a block with widened weights, which needs scratch memory.
constexpr size_t kBlock = size_t{1} << 16, kWideBlock = 2 * (kProductDepth + 1) * kPanelWidth;

/// Maximum rows of a tile: the accumulators, a row of the panels and a broadcast value fit in the registers.
constexpr int max_rows(int panels) {
  if (kLanes == 16) return panels <= 2 ? 14 : panels == 4 ? 6 : 3;
  if (kLanes == 8) return panels == 1 ? 6 : panels == 2 ? 2 : 1;
  if (kVectorRegisters == 32) return panels == 1 ? 5 : 2;
  return panels > 1 ? 1 : TORCHETTE_HAS_VECTORS && kVectorRegisters == 8 ? 2 : 4;
}
/// Maximum panels of a one-row tile: this many accumulators hide the latency of an addition.
constexpr int kMaxPanels = kLanes == 16                                    ? 8
                           : kLanes == 8                                   ? 4
                           : TORCHETTE_HAS_VECTORS && kVectorRegisters > 8 ? 2
                                                                           : 1;

// Rows of a tile that converts 16-bit weights while it reads them. With at most kFewRows rows all tiles do
// so, because converting a panel in advance pays off only if more rows share it.
constexpr int kNarrowRows = kLanes == 16 ? 6 : max_rows(1);
constexpr size_t kFewRows = (kLanes == 16 ? 3 : kLanes == 8 ? 4 : 2) * static_cast<size_t>(kNarrowRows);

constexpr bool kHasNarrow = has_dtype(ScalarType::BFloat16) || has_dtype(ScalarType::Half);

struct Tile {
  size_t depth;
  const float* a;
  ptrdiff_t a_row;
  const void* w;
  Stored stored;
  size_t w_panel;  // stride between panels in elements
  size_t w_row;    // row stride of a single panel; several panels are never cut
  float* c;
  ptrdiff_t c_row;
  const float* bias;      // a vector for each vector of a row, or null
  const float* residual;  // or null
  ptrdiff_t residual_row;
  float low, high;
  size_t piece;                 // contiguous floats of a row of A
  ptrdiff_t skip;               // from the end of a piece to the next one
  const char* ahead = nullptr;  // what is prefetched, one line for each row of the panels
  size_t ahead_step = 0;
};

constexpr int kOfPanel = static_cast<int>(kPanelVectors);

/// C tile = clamp(A tile x panels + bias + residual) for kVectors vectors of columns. Each pointer addresses
/// a group of three rows, which saves address registers.
template <typename W, int kRows, int kVectors>
void compute(const Tile& t) {
  constexpr int kPanels = (kVectors + kOfPanel - 1) / kOfPanel;
  constexpr size_t kColumns = kVectors < kOfPanel ? kVectors * kLanes : kPanelWidth;  // per panel
  constexpr int kPass = parts_of_pass(kRows, kColumns / kPartLanes), kParts = kPanels * kPass;
  constexpr bool kPrefetches = kLanes >= 8 && kRows >= 4;
  const Part low = part_of(t.low), high = part_of(t.high);
  const char* ahead = t.ahead;
  for (size_t at = 0; at < kColumns; at += kPass * kPartLanes) {
    Part acc[kRows][kParts] = {};
    const float* group[(kRows + 2) / 3];
    TORCHETTE_UNROLL(8)
    for (int g = 0; g < (kRows + 2) / 3; ++g) group[g] = t.a + 3 * g * t.a_row;
    const W* panel[kPanels];
    const size_t row = kPanels == 1 ? t.w_row : kPanelWidth;
    TORCHETTE_UNROLL(8)
    for (int p = 0; p < kPanels; ++p)
      panel[p] = static_cast<const W*>(t.w) + static_cast<size_t>(p) * t.w_panel + at;
    for (size_t left = t.depth;;) {
      const size_t depth = left < t.piece ? left : t.piece;
      for (size_t k = 0; k < depth; ++k) {
        // A single row reads each weight once, from more streams than some hardware prefetchers track.
        if (kRows == 1 && kPanels > 1) {
          TORCHETTE_UNROLL(8)
          for (int p = 0; p < kPanels; ++p) TORCHETTE_PREFETCH(panel[p] + (k + 8) * row);
        }
        if (kPrefetches) {
          TORCHETTE_PREFETCH_L2(ahead);
          ahead += t.ahead_step;
        }
        Part w[kParts];
        TORCHETTE_UNROLL(8)
        for (int v = 0; v < kParts; ++v)
          w[v] = load_weights(panel[v / kPass] + k * row + v % kPass * kPartLanes, t.stored);
        TORCHETTE_UNROLL(16)
        for (int i = 0; i < kRows; ++i) {
          const Part a = part_of(group[i / 3][(i % 3) * t.a_row]);
          TORCHETTE_UNROLL(8)
          for (int v = 0; v < kParts; ++v) acc[i][v] = fma(a, w[v], acc[i][v]);
        }
        TORCHETTE_UNROLL(8)
        for (int g = 0; g < (kRows + 2) / 3; ++g) ++group[g];
      }
      left -= depth;
      if (left == 0) break;
      TORCHETTE_UNROLL(8)
      for (int g = 0; g < (kRows + 2) / 3; ++g) group[g] += t.skip;
      TORCHETTE_UNROLL(8)
      for (int p = 0; p < kPanels; ++p) panel[p] += depth * row;
    }
    TORCHETTE_UNROLL(8)
    for (int v = 0; v < kParts; ++v) {
      const size_t column = at + v / kPass * kPanelWidth + v % kPass * kPartLanes;
      const Part bias = t.bias != nullptr ? load_part(t.bias + column) : Part{};
      if (t.residual != nullptr) {
        TORCHETTE_UNROLL(16)
        for (int i = 0; i < kRows; ++i)
          acc[i][v] += bias + load_part(t.residual + i * t.residual_row + column);
      } else {
        TORCHETTE_UNROLL(16)
        for (int i = 0; i < kRows; ++i) acc[i][v] += bias;
      }
      TORCHETTE_UNROLL(16)
      for (int i = 0; i < kRows; ++i) store_part(t.c + i * t.c_row + column, clamp(acc[i][v], low, high));
    }
  }
}

using Compute = void (*)(const Tile&);

template <typename W, int kVectors, int... kRow>
Compute pick(size_t rows, std::integer_sequence<int, kRow...>) {
  static constexpr Compute kTiles[] = {compute<W, kRow + 1, kVectors>...};
  return kTiles[rows - 1];
}
/// Maximum rows of a tile with weights of type W.
template <typename W>
constexpr int rows_of(int panels) {
  return sizeof(W) == sizeof(float) || max_rows(panels) < kNarrowRows ? max_rows(panels) : kNarrowRows;
}
template <typename W, int kPanels>
Compute of_panels(size_t rows) {
  return pick<W, kPanels * kOfPanel>(rows, std::make_integer_sequence<int, rows_of<W>(kPanels)>{});
}
/// Returns the function for the first half of a panel.
template <typename W>
Compute of_half(size_t rows) {
  return pick<W, kOfPanel / 2>(rows, std::make_integer_sequence < int, kOfPanel<2 ? 0 : rows_of<W>(1)>{});
}

/// Returns the maximum number of panels of a tile of `rows` rows.
size_t panels_at_once(size_t rows) {
  const auto fits = [&](int panels) {
    return panels <= kMaxPanels && rows <= static_cast<size_t>(max_rows(panels));
  };
  return fits(8) ? 8 : fits(4) ? 4 : fits(2) ? 2 : 1;
}

template <typename W>
Compute tile_of(size_t rows, size_t panels) {
  if constexpr (kMaxPanels >= 8)
    if (panels == 8) return of_panels<W, 8>(rows);
  if constexpr (kMaxPanels >= 4)
    if (panels == 4) return of_panels<W, 4>(rows);
  if constexpr (kMaxPanels >= 2)
    if (panels == 2) return of_panels<W, 2>(rows);
  return of_panels<W, 1>(rows);
}

// Rows of a tile if there are many rows. AVX-512 uses two panels: a single panel would use half of the
// registers.
constexpr size_t kTileRows = static_cast<size_t>(max_rows(kLanes == 16 ? 2 : 1));

/// A panel that is cut to `columns` columns. Its rows are read at full panel width, and the extra columns are
/// discarded. The last rows would be read beyond the end of the panel, so they are read from a copy; a panel
/// with few rows is copied completely.
struct CutPanel {
  size_t columns;
  size_t copied = 0;  // number of rows, from the end
  float rows[kPanelWidth * kPanelWidth];

  /// Copies the last rows of `depth` rows at `w`, if the panel continues for `below` rows.
  void copy(const float* w, size_t depth, size_t below) {
    const size_t last =
        (kPanelWidth - 1) / columns;  // number of rows that begin within kPanelWidth of the end
    const size_t needed = below >= last ? 0 : last - below;
    copied = depth <= kPanelWidth ? depth : needed;
    memset(rows, 0, copied * kPanelWidth * sizeof(float));
    for (size_t i = 0; i < copied; ++i)
      memcpy(rows + i * kPanelWidth, w + (depth - copied + i) * columns, columns * sizeof(float));
  }

  void compute(Tile t, Compute tile) const {
    t.w_row = columns;
    if (copied == 0) return tile(t);
    Tile tail_rows = t;
    if (copied < t.depth) {
      t.depth -= copied;
      t.low = -INFINITY;
      t.high = INFINITY;
      tile(t);
      tail_rows.depth = copied;
      tail_rows.a += t.depth;
      tail_rows.bias = nullptr;
      tail_rows.residual = t.c;
      tail_rows.residual_row = t.c_row;
    }
    tail_rows.w = rows;
    tail_rows.w_row = kPanelWidth;
    tile(tail_rows);
  }
};

/// Converts panels [first, last) of 16-bit weights in rows [k0, k0 + depth) to full float panels.
template <typename W>
void widen(const PackedProduct& product, const W* weights, size_t first, size_t last, size_t k0, size_t depth,
           float* to) {
  for (size_t p = first; p < last; ++p, to += depth * kPanelWidth) {
    const bool cut = product.cut && (p + 1) * kPanelWidth > product.n;
    const size_t row = cut ? cut_columns(product.n) : kPanelWidth;
    const W* const from = weights + p * product.k * kPanelWidth + k0 * row;
    const size_t left = (product.k - k0) * row;  // elements until the end of a cut panel
    for (size_t i = 0; i < depth; ++i) {
      if (cut && i * row + kPanelWidth > left)
        for (size_t j = 0; j < kPanelWidth; ++j)
          to[i * kPanelWidth + j] = j < row ? float(from[i * row + j]) : 0.0f;
      else
        for (size_t v = 0; v < kPanelWidth; v += kPartLanes)
          store_part(to + i * kPanelWidth + v, load_part(from + i * row + v));
    }
  }
}

/// The same for pairs. The panels are not cut.
void widen_pairs(const PackedProduct& product, size_t first, size_t last, size_t k0, size_t depth,
                 float* to) {
  const auto* const words = static_cast<const int32_t*>(product.w);
  for (size_t p = first; p < last; ++p)
    for (size_t k = k0; k < k0 + depth; ++k, to += kPanelWidth)
      widen_half(words + (p * product.k + k) / 2 * kPanelWidth, k % 2 != 0, to);
}

/// Returns the number of panels of this depth in a block of widened weights.
size_t wide_panels(size_t depth) {
  const size_t fitting = kWideBlock / ((depth + 1) * kPanelWidth);
  return fitting > 8 ? fitting / 8 * 8 : fitting / 2 * 2;
}

/// Copies `columns` columns (fewer than kPanelWidth) of `rows` rows.
void copy_columns(const float* from, ptrdiff_t from_row, float* to, ptrdiff_t to_row, size_t rows,
                  size_t columns) {
  for (size_t at = 0; at < columns; at += kLanes) {
    const size_t count = columns - at < kLanes ? columns - at : kLanes;
    for (size_t r = 0; r < rows; ++r)
      store_partial(to + static_cast<ptrdiff_t>(r) * to_row + at,
                    load_partial(from + static_cast<ptrdiff_t>(r) * from_row + at, count), count);
  }
}

}  // namespace

size_t PackedProduct::widened() const {
  const size_t depth = next_part(k, kProductDepth), panels = panels_of(n), max_panels = wide_panels(depth);
  const bool is_pairs = stored == Stored::pairs;
  if (stored == Stored::float32 || (is_pairs ? multiplies_pairs() : m <= kFewRows && !cut)) return 0;
  return (m <= kFewRows && !is_pairs ? 1 : panels < max_panels ? panels : max_panels) * depth * kPanelWidth;
}

PackedProduct PackedProduct::rows(size_t first, size_t count) const {
  PackedProduct part = *this;
  part.m = count;
  part.a += static_cast<ptrdiff_t>(first) * a_row;
  part.c += static_cast<ptrdiff_t>(first) * c_row;
  if (residual != nullptr) part.residual += static_cast<ptrdiff_t>(first) * residual_row;
  return part;
}

/// State of a block of panels that may end with a cut panel.
struct Block {
  bool has_cut;
  CutPanel cut;
  const float* cut_panel = nullptr;   // for float32 weights
  float last_bias[kPanelWidth] = {};  // bias of the last panel, padded to its full width
};

/// Prepares panels [begin, end) in rows [k0, k0 + depth): converts their weights if `wide`, and the weights
/// of a cut 16-bit panel.
static TORCHETTE_INLINE void prepare_block(const PackedProduct& product, size_t begin, size_t end, size_t k0,
                                           size_t depth, bool narrow, bool wide, Block& block) {
  const size_t n = product.n, k = product.k;
  block.cut.columns = cut_columns(n);
  block.has_cut = product.cut && end * kPanelWidth > n;
  if (block.has_cut && !narrow) {
    block.cut_panel =
        static_cast<const float*>(product.w) + (end - 1) * k * kPanelWidth + k0 * block.cut.columns;
    block.cut.copy(block.cut_panel, depth, k - k0 - depth);
  } else if (product.stored == Stored::pairs) {
    widen_pairs(product, begin, end, k0, depth, product.wide);
  } else if (wide || block.has_cut) {
    with_stored(product.stored, product.w, [&](const auto* w) {
      widen(product, w, wide ? begin : end - 1, end, k0, depth, product.wide);
    });
  }
  if (product.bias != nullptr && end * kPanelWidth > n)
    memcpy(block.last_bias, product.bias + (end - 1) * kPanelWidth, block.cut.columns * sizeof(float));
}

/// Returns the number of panels of the next tile, at most `panels`, if `left` panels of the block and
/// `columns` columns remain.
static TORCHETTE_INLINE size_t panels_of_tile(size_t panels, size_t left, size_t columns) {
  while (panels > left) panels /= 2;
  while (panels > 1 && columns < panels * kPanelWidth) panels /= 2;
  return panels;
}

/// Returns the function of a tile of panels, or of the first half of a panel. `converts`: the weights are
/// 16-bit.
static TORCHETTE_INLINE Compute choose_tile(bool converts, bool half, size_t rows, size_t panels) {
  if constexpr (kHasNarrow)
    if (converts) return half ? of_half<uint16_t>(rows) : tile_of<uint16_t>(rows, panels);
  return half ? of_half<float>(rows) : tile_of<float>(rows, panels);
}

/// Returns the number of panels of this depth in a block, at most `all` if they are empty.
static size_t panels_of_block(size_t depth, size_t all) {
  const size_t fitting = depth == 0 ? all : kBlock / (depth * kPanelWidth);
  return fitting > 8 ? fitting / 8 * 8 : 8;
}

/// Returns the number of tiles of a block of panels.
static size_t tiles_of_block(size_t m, size_t panels) {
  const size_t rows = next_part(m, kTileRows);
  return rows == 0 ? 0 : (m + rows - 1) / rows * (kLanes == 16 ? (panels + 1) / 2 : panels);
}

void packed_gemm(const PackedProduct& product, size_t first, size_t last) {
  const bool is_pairs = product.stored == Stored::pairs;
  if (is_pairs && multiplies_pairs()) return paired_gemm(product, first, last);
  const size_t m = product.m, n = product.n, k = product.k;
  const bool narrow = (kHasNarrow || is_pairs) && product.stored != Stored::float32;
  const bool wide = narrow && (is_pairs || m > kFewRows);
  float low, high;
  const Activation left = split_activation(product.activation, low, high);
  const PanelRange range = {narrow ? nullptr : product.w, k, kProductDepth, first, last};
  size_t k0 = 0;
  do {  // at least once, because the bias is written even if k is 0
    const size_t depth = next_part(k - k0, kProductDepth);
    const bool begins = k0 == 0, ends = k0 + depth >= k;
    const size_t at_most = wide ? wide_panels(depth) : panels_of_block(depth, last - first);
    // The first weights are not prefetched, so the first block is small.
    for (size_t p0 = first, p_end = first; p0 < last; p0 = p_end) {
      const size_t count = begins && p0 == first && !wide && m > kTileRows ? 2 : at_most;
      p_end = p0 + count < last ? p0 + count : last;
      const WeightsAhead ahead = range.after(p_end, k0, depth, at_most, tiles_of_block(m, p_end - p0));
      size_t tiles = 0;
      Block block;
      prepare_block(product, p0, p_end, k0, depth, narrow, wide, block);
      for (size_t i = 0; i < m;) {
        const size_t rows = next_part(m - i, narrow && !wide ? kNarrowRows : kTileRows),
                     at_once = panels_at_once(rows);
        for (size_t p = p0; p < p_end;) {
          const size_t panels = panels_of_tile(at_once, p_end - p, n - p * kPanelWidth);
          const size_t column = p * kPanelWidth, width = panels * kPanelWidth;
          const size_t columns = n - column < width ? n - column : width;
          float* const c = product.c + static_cast<ptrdiff_t>(i) * product.c_row + column;
          const float* added = begins ? product.residual : product.c;
          const ptrdiff_t added_row = begins ? product.residual_row : product.c_row;
          if (added != nullptr)
            added += static_cast<ptrdiff_t>(i) * added_row + static_cast<ptrdiff_t>(column);
          const bool is_cut = block.has_cut && columns < width, is_wide = wide || (narrow && is_cut);
          const void* const w =
              is_wide ? product.wide + (wide ? (p - p0) * depth * kPanelWidth : 0) : product.weights(p, k0);
          Tile t = {depth,
                    product.a + static_cast<ptrdiff_t>(i) * product.a_row + k0,
                    product.a_row,
                    w,
                    product.stored,
                    (is_wide ? depth : k) * kPanelWidth,
                    kPanelWidth,
                    c,
                    product.c_row,
                    begins && product.bias != nullptr ? product.bias + column : nullptr,
                    added,
                    added_row,
                    ends ? low : -INFINITY,
                    ends ? high : INFINITY,
                    product.piece != 0 ? product.piece : depth,
                    product.piece != 0 ? product.a_piece - static_cast<ptrdiff_t>(product.piece) : 0};
          t.ahead = ahead.of_tile(tiles++, w, t.ahead_step);
          const bool half = kOfPanel > 1 && panels == 1 && columns <= kPanelWidth / 2;
          // A tile of one vector may store beyond the last column into the next row, which is computed later.
          const bool spills = columns < width && product.c_row == static_cast<ptrdiff_t>(n) &&
                              (half ? kPanelWidth / 2 : kPanelWidth) == kPartLanes && added == nullptr &&
                              left == Activation::none && n <= kPanelWidth &&
                              (m - i - rows) * n >= kPanelWidth;
          // Otherwise a separate tile computes the panel that extends beyond the last column.
          const bool is_separate = columns < width && !spills;
          float result[kTileRows * kPanelWidth];
          if (is_cut && !narrow) t.w = block.cut_panel;
          if (columns < width && t.bias != nullptr) t.bias = block.last_bias;
          if (is_separate) {
            if (added != nullptr) copy_columns(added, added_row, result, kPanelWidth, rows, columns);
            t.residual = added != nullptr ? result : nullptr;
            t.c = result;
            t.residual_row = t.c_row = kPanelWidth;
          }
          const Compute tile = choose_tile(narrow && !is_wide, half, rows, panels);
          is_cut && !narrow ? block.cut.compute(t, tile) : tile(t);
          if (ends) activate(left, t.c, t.c_row, rows, columns);
          if (is_separate) copy_columns(result, kPanelWidth, c, product.c_row, rows, columns);
          p += panels;
        }
        i += rows;
      }
    }
    k0 += depth;
  } while (k0 < k);
}

void packed_gemm(Context& context, const PackedProduct& product) {
  const size_t panels = panels_of(product.n), work = product.k + 1, widened = product.widened();
  const size_t tiles = (product.m + kTileRows - 1) / kTileRows;
  // Splits rows if there are enough for all workers, otherwise panels. The order of accumulation is the same.
  if (tiles >= 4 * context.workers() || tiles >= panels) {
    context.parallel_for(tiles, min_items(kTileRows * product.n * work),
                         [&](size_t begin, size_t end, size_t worker) {
                           const size_t first = begin * kTileRows,
                                        rows = end * kTileRows < product.m ? end * kTileRows : product.m;
                           PackedProduct part = product.rows(first, rows - first);
                           part.wide += worker * widened;
                           packed_gemm(part, 0, panels);
                         });
    return;
  }
  context.parallel_for(panels, min_items(product.m * kPanelWidth * work),
                       [&](size_t begin, size_t end, size_t worker) {
                         PackedProduct part = product;
                         part.wide += worker * widened;
                         packed_gemm(part, begin, end);
                       });
}

Error allocate_wide(Context& context, const char* op, PackedProduct& product) {
  const size_t floats = product.widened() * context.workers();
  if (floats == 0) return Error::Ok;
  product.wide = static_cast<float*>(context.allocate_temp(floats * sizeof(float)));
  TORCHETTE_CHECK(product.wide != nullptr, MemoryAllocationFailed,
                  "%s: no scratch memory for %d floats of widened weights", op, static_cast<int>(floats));
  return Error::Ok;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
