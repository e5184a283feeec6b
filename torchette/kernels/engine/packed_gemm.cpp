// SPDX-License-Identifier: BSD-3-Clause
// Register tiles of rows by panels. The panels of a block stay in the L2 cache while all rows pass by; the
// rows of a tile stay in the L1 cache while the panels of the block pass by.
#include "torchette/kernels/engine/packed_gemm.h"

#include <cmath>
#include <utility>

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Floats of the panels of a block; and of one whose weights are widened, which takes memory.
constexpr size_t kBlock = size_t{1} << 16, kWideBlock = 2 * (kProductDepth + 1) * kPanelWidth;

/// Most rows of a tile of so many panels: the sums, a row of the panels and a number are in registers.
constexpr int max_rows(int panels) {
  if (kLanes == 16) return panels <= 2 ? 14 : panels == 4 ? 6 : 3;
  if (kLanes == 8) return panels == 1 ? 6 : panels == 2 ? 2 : 1;
  if (kVectorRegisters == 32) return panels == 1 ? 5 : 2;
  return panels > 1 ? 1 : TORCHETTE_HAS_VECTORS && kVectorRegisters == 8 ? 2 : 4;
}
/// Most panels of a tile of one row: so many sums hide the latency of an addition.
constexpr int kWidest = kLanes == 16                                    ? 8
                        : kLanes == 8                                   ? 4
                        : TORCHETTE_HAS_VECTORS && kVectorRegisters > 8 ? 2
                                                                        : 1;

// Rows of a tile that widens weights of 16 bits while it reads them; so many rows are left to such tiles, as
// to widen a panel apart pays where more rows share it.
constexpr int kNarrowRows = kLanes == 16 ? 6 : max_rows(1);
constexpr size_t kFewRows = (kLanes == 16 ? 3 : kLanes == 8 ? 4 : 2) * static_cast<size_t>(kNarrowRows);

constexpr bool kHasNarrow = has_dtype(ScalarType::BFloat16) || has_dtype(ScalarType::Half);

struct Tile {
  size_t depth;
  const float* a;
  ptrdiff_t a_row;
  const void* w;
  Stored stored;
  size_t w_panel;  // elements from panel to panel
  size_t w_row;    // of one panel; several are whole
  float* c;
  ptrdiff_t c_row;
  const float* bias;      // a vector for each vector of a row, or null
  const float* residual;  // or null
  ptrdiff_t residual_row;
  float low, high;
  size_t piece;    // of a row of A: floats that follow each other
  ptrdiff_t skip;  // from the end of a piece to the next one
};

constexpr int kOfPanel = static_cast<int>(kPanelVectors);

/// C tile = clamp(A tile x panels + bias + residual), for so many vectors of columns. Rows go in groups of
/// three off one pointer, which spares address registers.
template <typename W, int kRows, int kVectors>
void compute(const Tile& t) {
  constexpr int kPanels = (kVectors + kOfPanel - 1) / kOfPanel;
  constexpr size_t kColumns = kVectors < kOfPanel ? kVectors * kLanes : kPanelWidth;  // of each panel
  constexpr int kPass = parts_of_pass(kRows, kColumns / kPartLanes), kParts = kPanels * kPass;
  const Part low = part_of(t.low), high = part_of(t.high);
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
        // One row reads each weight once, from streams too many for some processors to foresee.
        if (kRows == 1 && kPanels > 1) {
          TORCHETTE_UNROLL(8)
          for (int p = 0; p < kPanels; ++p) TORCHETTE_PREFETCH(panel[p] + (k + 8) * row);
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
/// The most rows of a tile that reads such weights.
template <typename W>
constexpr int rows_of(int panels) {
  return sizeof(W) == sizeof(float) || max_rows(panels) < kNarrowRows ? max_rows(panels) : kNarrowRows;
}
template <typename W, int kPanels>
Compute of_panels(size_t rows) {
  return pick<W, kPanels * kOfPanel>(rows, std::make_integer_sequence<int, rows_of<W>(kPanels)>{});
}
/// Of the first half of a panel.
template <typename W>
Compute of_half(size_t rows) {
  return pick<W, kOfPanel / 2>(rows, std::make_integer_sequence < int, kOfPanel<2 ? 0 : rows_of<W>(1)>{});
}

/// How many panels a tile of so many rows has at most.
size_t panels_at_once(size_t rows) {
  const auto fits = [&](int panels) {
    return panels <= kWidest && rows <= static_cast<size_t>(max_rows(panels));
  };
  return fits(8) ? 8 : fits(4) ? 4 : fits(2) ? 2 : 1;
}

template <typename W>
Compute tile_of(size_t rows, size_t panels) {
  if constexpr (kWidest >= 8)
    if (panels == 8) return of_panels<W, 8>(rows);
  if constexpr (kWidest >= 4)
    if (panels == 4) return of_panels<W, 4>(rows);
  if constexpr (kWidest >= 2)
    if (panels == 2) return of_panels<W, 2>(rows);
  return of_panels<W, 1>(rows);
}

// Rows of a tile where there are many: two panels on AVX-512, where one would leave half of the registers.
constexpr size_t kTileRows = static_cast<size_t>(max_rows(kLanes == 16 ? 2 : 1));

/// Splits `total` into as few nearly equal parts of at most `most` as possible; gives the size of the next
/// one.
size_t next_part(size_t total, size_t most) {
  if (total <= most) return total;
  const size_t parts = (total + most - 1) / most;
  return (total + parts - 1) / parts;
}

/// A panel that is cut to so many columns. A row of it is read as if it were whole, with what follows it in
/// the columns that are thrown away; the rows behind whose columns the panel ends are read from a copy, and
/// so is a panel of few rows.
struct CutPanel {
  size_t columns;
  size_t copied = 0;  // rows, the last ones
  float rows[kPanelWidth * kPanelWidth];

  /// Of `depth` rows at `w`, with `below` rows of the panel below them.
  void copy(const float* w, size_t depth, size_t below) {
    const size_t last =
        (kPanelWidth - 1) / columns;  // so many rows of the panel begin within kPanelWidth of its end
    const size_t needed = below >= last ? 0 : last - below;
    copied = depth <= kPanelWidth ? depth : needed;
    memset(rows, 0, copied * kPanelWidth * sizeof(float));
    for (size_t i = 0; i < copied; ++i)
      memcpy(rows + i * kPanelWidth, w + (depth - copied + i) * columns, columns * sizeof(float));
  }

  void compute(Tile t, Compute tile) const {
    t.w_row = columns;
    if (copied == 0) return tile(t);
    Tile rest = t;
    if (copied < t.depth) {
      t.depth -= copied;
      t.low = -INFINITY;
      t.high = INFINITY;
      tile(t);
      rest.depth = copied;
      rest.a += t.depth;
      rest.bias = nullptr;
      rest.residual = t.c;
      rest.residual_row = t.c_row;
    }
    rest.w = rows;
    rest.w_row = kPanelWidth;
    tile(rest);
  }
};

/// Panels [first, last) of weights of 16 bits in rows [k0, k0 + depth), as whole panels of floats.
template <typename W>
void widen(const PackedProduct& product, const W* weights, size_t first, size_t last, size_t k0, size_t depth,
           float* to) {
  for (size_t p = first; p < last; ++p, to += depth * kPanelWidth) {
    const bool cut = product.cut && (p + 1) * kPanelWidth > product.n;
    const size_t row = cut ? cut_columns(product.n) : kPanelWidth;
    const W* const from = weights + p * product.k * kPanelWidth + k0 * row;
    const size_t left = (product.k - k0) * row;  // until the weights end, where the panel is cut
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

/// Panels of a block of such a depth that is widened.
size_t wide_panels(size_t depth) {
  const size_t fitting = kWideBlock / ((depth + 1) * kPanelWidth);
  return fitting > 8 ? fitting / 8 * 8 : fitting / 2 * 2;
}

/// Copies fewer than kPanelWidth columns of so many rows.
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
  const size_t depth = next_part(k, kProductDepth), panels = panels_of(n), most = wide_panels(depth);
  if (stored == Stored::float32 || (m <= kFewRows && !cut)) return 0;
  return (m <= kFewRows ? 1 : panels < most ? panels : most) * depth * kPanelWidth;
}

PackedProduct PackedProduct::rows(size_t first, size_t count) const {
  PackedProduct part = *this;
  part.m = count;
  part.a += static_cast<ptrdiff_t>(first) * a_row;
  part.c += static_cast<ptrdiff_t>(first) * c_row;
  if (residual != nullptr) part.residual += static_cast<ptrdiff_t>(first) * residual_row;
  return part;
}

/// Rows of a block of panels, which may end with a cut panel.
struct Block {
  bool has_cut;
  CutPanel cut;
  const float* cut_panel = nullptr;   // of float32 weights
  float last_bias[kPanelWidth] = {};  // of the last panel, so that a tile reads a whole one
};

/// Panels [begin, end) in rows [k0, k0 + depth): widens their weights if `wide`, and those of a cut panel of
/// 16 bits.
static TORCHETTE_INLINE void prepare_block(const PackedProduct& product, size_t begin, size_t end, size_t k0,
                                           size_t depth, bool narrow, bool wide, Block& block) {
  const size_t n = product.n, k = product.k;
  block.cut.columns = cut_columns(n);
  block.has_cut = product.cut && end * kPanelWidth > n;
  if (block.has_cut && !narrow) {
    block.cut_panel =
        static_cast<const float*>(product.w) + (end - 1) * k * kPanelWidth + k0 * block.cut.columns;
    block.cut.copy(block.cut_panel, depth, k - k0 - depth);
  } else if (wide || block.has_cut) {
    with_stored(product.stored, product.w, [&](const auto* w) {
      widen(product, w, wide ? begin : end - 1, end, k0, depth, product.wide);
    });
  }
  if (product.bias != nullptr && end * kPanelWidth > n)
    memcpy(block.last_bias, product.bias + (end - 1) * kPanelWidth, block.cut.columns * sizeof(float));
}

/// How many panels a tile has, of at most `panels`, if `left` panels of the block and `columns` columns
/// remain.
static TORCHETTE_INLINE size_t panels_of_tile(size_t panels, size_t left, size_t columns) {
  while (panels > left) panels /= 2;
  while (panels > 1 && columns < panels * kPanelWidth) panels /= 2;
  return panels;
}

void packed_gemm(const PackedProduct& product, size_t first, size_t last) {
  const size_t m = product.m, n = product.n, k = product.k;
  const bool narrow = kHasNarrow && product.stored != Stored::float32, wide = narrow && m > kFewRows;
  float low, high;
  const Activation left = split_activation(product.activation, low, high);
  size_t k0 = 0;
  do {  // once even if k is 0: the bias must be written
    const size_t depth = next_part(k - k0, kProductDepth);
    const bool begins = k0 == 0, ends = k0 + depth >= k;
    const size_t fitting = depth == 0 ? last - first : kBlock / (depth * kPanelWidth);
    const size_t at_most = wide ? wide_panels(depth) : fitting > 8 ? fitting / 8 * 8 : 8;
    for (size_t p0 = first; p0 < last; p0 += at_most) {
      const size_t p_end = p0 + at_most < last ? p0 + at_most : last;
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
          const void* w = product.wide + (wide ? (p - p0) * depth * kPanelWidth : 0);
          if (!is_wide)
            w = static_cast<const char*>(product.w) + (p * k + k0) * kPanelWidth * size_of(product.stored);
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
          const bool half = kOfPanel > 1 && panels == 1 && columns <= kPanelWidth / 2;
          // A tile of one vector may store behind the last column, into the next row, which is computed
          // later.
          const bool spills = columns < width && product.c_row == static_cast<ptrdiff_t>(n) &&
                              (half ? kPanelWidth / 2 : kPanelWidth) == kPartLanes && added == nullptr &&
                              left == Activation::none && n <= kPanelWidth &&
                              (m - i - rows) * n >= kPanelWidth;
          // Otherwise a separate tile computes the panel that ends behind the last column.
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
          Compute tile = half ? of_half<float>(rows) : tile_of<float>(rows, panels);
          if constexpr (kHasNarrow)
            if (narrow && !is_wide) tile = half ? of_half<uint16_t>(rows) : tile_of<uint16_t>(rows, panels);
          if (is_cut && !narrow)
            block.cut.compute(t, tile);
          else
            tile(t);
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
  // Rows where there are enough of them for all workers, else panels: both leave every sum as it is.
  if (tiles >= 4 * context.workers() || tiles >= panels) {
    context.parallel_for(tiles, least_items(kTileRows * product.n * work),
                         [&](size_t begin, size_t end, size_t worker) {
                           const size_t first = begin * kTileRows,
                                        rows = end * kTileRows < product.m ? end * kTileRows : product.m;
                           PackedProduct part = product.rows(first, rows - first);
                           part.wide += worker * widened;
                           packed_gemm(part, 0, panels);
                         });
    return;
  }
  context.parallel_for(panels, least_items(product.m * kPanelWidth * work),
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
                  "%s: no scratch memory for %d floats of weights", op, static_cast<int>(floats));
  return Error::Ok;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
