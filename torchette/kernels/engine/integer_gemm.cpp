// SPDX-License-Identifier: BSD-3-Clause
// Integer GEMM: register tiles of rows by 8-bit panels, with requantized results.
#include "torchette/kernels/engine/integer_machines.h"
#include "torchette/kernels/engine/quantized_sum.h"

// Whether the processor may support AMX: tile registers of 16 rows of 64 bytes.
#if defined(__AVX512F__) && defined(__linux__) && !defined(__clang__)
#define TORCHETTE_MAY_HAVE_TILES 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define TORCHETTE_MAY_HAVE_TILES 0
#endif

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

constexpr size_t kMaxTileRows = 12;

struct Tile {
  size_t columns;  // of all panels of the tile
#if TORCHETTE_BY_COLUMNS
  const void* a;  // arranged rows
  size_t quads;
#else
  const void* rows[kMaxTileRows];
  Runs runs;
#endif
  const int8_t* w;
  size_t w_panel;  // stride between panels in bytes
  uint8_t* c;
  ptrdiff_t c_row;
  Requantization how;
  int32_t zero;  // zero point of the inputs in the multiplied format
};

#if !TORCHETTE_BY_COLUMNS
template <typename M, int kRows, int kPanels>
void compute(const Tile& t) {
  constexpr int kVectors = kPanels * static_cast<int>(kPanelVectors);
  Sums<M, kRows, kPanels> sums;
  VecInt start[kVectors];
  TORCHETTE_UNROLL(8)
  for (size_t v = 0; v < kVectors; ++v) start[v] = weight_sums(t.how.sums + v * kLanes) * -t.zero;
  {
    const typename M::Element* rows[kRows];
    TORCHETTE_UNROLL(16)
    for (int i = 0; i < kRows; ++i) rows[i] = static_cast<const typename M::Element*>(t.rows[i]);
    sums.set(rows, t.runs, t.w, t.w_panel, start);
  }
#if TORCHETTE_HAS_RVV
  static_assert(kPanels == 1 && sums.kStarts, "the sums of a row are those of a panel");
  for (int i = 0; i < kRows; ++i)
    requantize(t.how, 0, reinterpret_cast<const int32_t*>(sums.of[i]),
               t.columns < kPanelWidth ? t.columns : kPanelWidth, t.c + i * t.c_row);
#else
  const ToBytes bytes(t.how.zero, t.how.low, t.how.high);
  TORCHETTE_UNROLL(16)
  for (int i = 0; i < kRows; ++i) {
    Vec scaled[kVectors];
    TORCHETTE_UNROLL(8)
    for (size_t v = 0; v < kVectors; ++v) {
      VecInt sum = add_parts<M>(sums.of[i], static_cast<int>(v));
      if constexpr (!sums.kStarts) sum += start[v];
      scaled[v] = RequantizedVector(t.how, v * kLanes).scale(to_floats(sum));
    }
    bytes.put(scaled, t.columns, t.c + i * t.c_row);
  }
#endif
}

#else
/// Computes the panel kColumns columns at a time.
template <typename M, int kRows, int kPanels>
void compute(const Tile& t) {
  const auto* const a = static_cast<const typename M::Element*>(t.a);
  const size_t columns = t.columns < kPanelWidth ? t.columns : kPanelWidth;
  int32_t sums[kRows * kPanelWidth];
  for (size_t j = 0; j < columns; j += M::kColumns)
    M::template column<kRows>(a, t.w + j * kQuad, t.quads, sums + j);
  for (int i = 0; i < kRows; ++i)
    requantize(t.how, t.zero, sums + static_cast<size_t>(i) * kPanelWidth, columns, t.c + i * t.c_row);
}
#endif

/// Computes the largest tile of at most `rows` rows and returns its number of rows.
template <typename M, int kPanels, int kRows = tile_rows<M>(kPanels)>
size_t run(const Tile& t, size_t rows) {
  if constexpr (kRows > 1)
    if (rows < kRows) return run<M, kPanels, static_cast<int>(fewer_rows(kRows))>(t, rows);
  compute<M, kRows, kPanels>(t);
  return kRows;
}

/// Adds the residual to `rows` rows of the product's results. `c` is the address of the first row.
TORCHETTE_NOINLINE void add_residual(const IntegerProduct& product, uint8_t* c, size_t rows, size_t columns) {
  const QuantizedSum sum = *product.sum;
  const ToBytes bytes(sum.zero, sum.low, sum.high);
  const uint8_t* residual = product.residual + (c - product.c);
  if (columns == static_cast<size_t>(product.c_row)) {  // the rows are contiguous
    columns *= rows;
    rows = rows > 0 ? 1 : 0;
  }
  for (; rows > 0; --rows, c += product.c_row, residual += product.c_row)
    sum.add(bytes, c, residual, columns, c);
}

/// Computes the tiles of kPanels panels. place(tile, i, count) sets the addresses of `count` rows from row i.
template <typename M, int kPanels, typename Place>
void run_rows(Tile& t, size_t m, uint8_t* c, const Place& place) {
  constexpr auto kRows = static_cast<size_t>(tile_rows<M>(kPanels));
  for (size_t i = 0; i < m;) {
    place(t, i, m - i < kRows ? m - i : kRows);
    t.c = c + static_cast<ptrdiff_t>(i) * t.c_row;
    i += run<M, kPanels>(t, m - i);
  }
}

/// Computes panels [first, last). The weights of a tile's panels stay in the cache while the rows change.
template <typename M, typename Place>
void multiply_rows(const IntegerProduct& product, Tile& t, size_t first, size_t last, const Place& place) {
  t.w_panel = quads_of(product.k) * kPanelWidth * kQuad;
  t.c_row = product.c_row;
  for (size_t p = first, panels; p < last; p += panels) {
    // Tiles of similar widths: 6 panels are 3 and 3.
    const size_t tiles = (last - p + 3) / 4;
    panels = M::kMaxPanels < 4 ? 1 : (last - p + tiles - 1) / tiles;
    const size_t column = p * kPanelWidth, columns = panels * kPanelWidth;
    t.w = product.w + p * t.w_panel;
    t.columns = product.n - column < columns ? product.n - column : columns;
    t.how = product.how.from(column);
    uint8_t* const c = product.c + column;
    if constexpr (M::kMaxPanels >= 4) {
      if (panels == 4) run_rows<M, 4>(t, product.m, c, place);
      if (panels == 3) run_rows<M, 3>(t, product.m, c, place);
      if (panels == 2) run_rows<M, 2>(t, product.m, c, place);
    }
    if (panels == 1) run_rows<M, 1>(t, product.m, c, place);
  }
  if (product.sum != nullptr && first < last) {
    const size_t column = first * kPanelWidth, end = last * kPanelWidth;
    add_residual(product, product.c + column, product.m, (product.n < end ? product.n : end) - column);
  }
}

template <typename M>
void multiply(const IntegerProduct& product, size_t first, size_t last, void* scratch) {
  typedef typename M::Element Element;
  const size_t padded = quads_of(product.k) * kQuad;
  const bool flip = flips<M>(product.is_signed);
  const int32_t mask = mask_of(flip), zero = product.input_zero + shift_of<M>(flip);
  Tile t = {};
  t.zero = sizeof(Element) == 2 ? 0 : zero;
  const auto same = [&](size_t) { return zero; };
#if TORCHETTE_BY_COLUMNS
  const size_t row = padded_row<M>(padded);
  t.quads = padded / kQuad;
  arrange<M, true>(product.a, product.a_row, product.m, product.k, row, M::kMaxRows, mask, same,
                   static_cast<Element*>(scratch));
  multiply_rows<M>(product, t, first, last, [&](Tile& tile, size_t i, size_t) {
    tile.a = static_cast<const Element*>(scratch) + i * row;
  });
#else
  t.runs = {1, 1, 0, 0, padded / kQuad};
  ptrdiff_t a_row = product.a_row;
  const Element* const rows =
      machine_rows<M>(product.a, a_row, product.m, product.k, padded, mask, same, scratch);
  multiply_rows<M>(product, t, first, last, [&](Tile& tile, size_t i, size_t count) TORCHETTE_INLINED {
    for (size_t r = 0; r < count; ++r) tile.rows[r] = rows + static_cast<ptrdiff_t>(i + r) * a_row;
  });
#endif
}

#if TORCHETTE_CONVOLVES_LINES
/// Copies the lines of the image in the format of the machine, with padding.
template <typename M>
void copy_lines(const ConvolvedLines& lines, int32_t mask, int32_t zero, uint8_t outside,
                typename M::Element* to) {
  const Window& w = *lines.window;
  const size_t channels = lines.channels, line = lines.line();
  const ptrdiff_t first = static_cast<ptrdiff_t>(lines.first) * w.stride[1] - w.padding[1];
  const auto width = static_cast<ptrdiff_t>(line / channels);
  // Columns [begin, end) of the padded line are in the image.
  const ptrdiff_t begin = w.padding[2] < width ? w.padding[2] : width;
  const ptrdiff_t end = w.in[2] + begin < width ? w.in[2] + begin : width;
  const auto fill = [&](typename M::Element* from, ptrdiff_t pixels) {
    typename M::Element element;
    convert_run(&outside, 1, mask, zero, &element);
    const size_t count = static_cast<size_t>(pixels) * channels;
    if constexpr (sizeof(element) == 1)
      memset(from, static_cast<uint8_t>(element), count);
    else
      for (size_t i = 0; i < count; ++i) from[i] = element;
  };
  for (size_t i = 0; i < lines.lines(); ++i, to += line) {
    const ptrdiff_t y = first + static_cast<ptrdiff_t>(i);
    if (y < 0 || y >= w.in[1]) {
      fill(to, width);
      continue;
    }
    fill(to, begin);
    fill(to + static_cast<size_t>(end) * channels, width - end);
    const uint8_t* const from = lines.image + static_cast<size_t>(y * w.in[2]) * w.channels + lines.channel;
    if (channels == w.channels)
      convert_run(from, static_cast<size_t>(end - begin) * channels, mask, zero,
                  to + static_cast<size_t>(begin) * channels);
    else
      for (ptrdiff_t x = begin; x < end; ++x)
        convert_run(from + static_cast<size_t>(x - begin) * w.channels, channels, mask, zero,
                    to + static_cast<size_t>(x) * channels);
  }
}

template <typename M>
void multiply_lines(const IntegerProduct& product, const ConvolvedLines& lines, size_t first, size_t last,
                    void* scratch) {
  typedef typename M::Element Element;
  const Window& w = *lines.window;
  const bool flip = flips<M>(product.is_signed);
  const int32_t zero = product.input_zero + shift_of<M>(flip);
  auto* const copy = static_cast<Element*>(scratch);
  copy_lines<M>(lines, mask_of(flip), sizeof(Element) == 2 ? zero : 0,
                static_cast<uint8_t>(product.input_zero), copy);
  Tile t = {};
  t.zero = sizeof(Element) == 2 ? 0 : zero;
  const size_t line = lines.line(), width = static_cast<size_t>(w.out[2]);
  const bool joined = w.dilation[2] == 1;
  t.runs = {static_cast<size_t>(w.kernel[1]), joined ? 1 : static_cast<size_t>(w.kernel[2]),
            w.dilation[1] * static_cast<ptrdiff_t>(line),
            w.dilation[2] * static_cast<ptrdiff_t>(lines.channels),
            quads_of(ConvolvedLines::run(w, lines.channels))};
  const size_t step = static_cast<size_t>(w.stride[2]) * lines.channels;
  multiply_rows<M>(product, t, first, last, [&](Tile& tile, size_t i, size_t count) TORCHETTE_INLINED {
    size_t x = i % width;
    const Element* from = copy + i / width * static_cast<size_t>(w.stride[1]) * line + x * step;
    for (size_t r = 0; r < count; ++r, from += step) {
      tile.rows[r] = from;
      if (++x < width) continue;
      x = 0;
      from += static_cast<size_t>(w.stride[1]) * line - width * step;
    }
  });
}
#endif

#if TORCHETTE_MAY_HAVE_TILES
// AMX tile numbers: accumulators of [rows][panels] (0 to 3); rows of A and quads of a panel, for full steps
// of 64 elements and for the tail.
constexpr size_t kTileRows = 16, kTileBytes = 64;
#define TORCHETTE_TILE_LOAD(tile, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(stride) : "memory")
#define TORCHETTE_TILE_PRODUCT(sums, rows, quads, is_signed)           \
  if (is_signed)                                                       \
    asm volatile("tdpbssd %tmm" #quads ", %tmm" #rows ", %tmm" #sums); \
  else                                                                 \
    asm volatile("tdpbusd %tmm" #quads ", %tmm" #rows ", %tmm" #sums)

/// Whether the processor has AMX and the operating system permits this process to use it.
static bool has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr long kAskFor = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, see arch_prctl(2)
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTile) != 0 && (edx & kInt8) != 0 &&
         syscall(SYS_arch_prctl, kAskFor, kTileData) == 0;
}

struct TileProduct {
  size_t full, tail;  // full steps of 64 elements, remaining elements
  const uint8_t* a;
  size_t a_row;
  const int8_t* w;
  size_t w_panel;
};

/// Accumulates kTiles x 16 rows by kPanels panels, each [16][16].
template <int kTiles, int kPanels, bool kSigned>
TORCHETTE_INLINE void tile_sums(const TileProduct& t, int32_t* sums) {
  asm volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3");
  constexpr size_t kRow = kPanelWidth * kQuad;
  const uint8_t *a = t.a, *below = t.a + kTileRows * t.a_row;
  const int8_t *w = t.w, *w_next = t.w + t.w_panel;
#define TORCHETTE_TILE_STEP(rows, quads)               \
  TORCHETTE_TILE_LOAD(rows, a, t.a_row);               \
  TORCHETTE_TILE_LOAD(quads, w, kRow);                 \
  TORCHETTE_TILE_PRODUCT(0, rows, quads, kSigned);     \
  if (kTiles == 2) {                                   \
    TORCHETTE_TILE_LOAD(rows, below, t.a_row);         \
    TORCHETTE_TILE_PRODUCT(2, rows, quads, kSigned);   \
  }                                                    \
  if (kPanels == 2) {                                  \
    TORCHETTE_TILE_LOAD(quads, w_next, kRow);          \
    if (kTiles == 2) {                                 \
      TORCHETTE_TILE_PRODUCT(3, rows, quads, kSigned); \
      TORCHETTE_TILE_LOAD(rows, a, t.a_row);           \
    }                                                  \
    TORCHETTE_TILE_PRODUCT(1, rows, quads, kSigned);   \
  }
  for (size_t i = 0; i < t.full; ++i) {
    TORCHETTE_TILE_STEP(4, 5)
    a += kTileBytes, below += kTileBytes, w += kTileBytes / kQuad * kRow, w_next += kTileBytes / kQuad * kRow;
  }
  if (t.tail > 0) {
    TORCHETTE_TILE_STEP(6, 7)
  }
#undef TORCHETTE_TILE_STEP
#define TORCHETTE_TILE_STORE(tile)                                                                \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                                             \
               :                                                                                  \
               : "r"(sums + (tile) * (kTileRows * kPanelWidth)), "r"(kPanelWidth * sizeof(*sums)) \
               : "memory")
  TORCHETTE_TILE_STORE(0);
  if (kPanels == 2) TORCHETTE_TILE_STORE(1);
  if (kTiles == 2) TORCHETTE_TILE_STORE(2);
  if (kTiles == 2 && kPanels == 2) TORCHETTE_TILE_STORE(3);
#undef TORCHETTE_TILE_STORE
}

template <int kTiles, int kPanels>
void tile_block(const IntegerProduct& product, const TileProduct& t, size_t row, size_t panel) {
  alignas(64) int32_t sums[4 * kTileRows * kPanelWidth];
  product.is_signed ? tile_sums<kTiles, kPanels, true>(t, sums) : tile_sums<kTiles, kPanels, false>(t, sums);
  for (size_t p = 0; p < kPanels; ++p) {
    const size_t column = (panel + p) * kPanelWidth;
    const RequantizedVector terms(product.how, column);
    const ToBytes bytes(product.how.zero, product.how.low, product.how.high);
    const VecInt zero_term = weight_sums(product.how.sums + column) * product.input_zero;
    uint8_t* to = product.c + static_cast<ptrdiff_t>(row) * product.c_row + column;
    for (size_t i = 0; i < kTiles * kTileRows; ++i, to += product.c_row) {
      const VecInt row_sum =
          load(sums + (i / kTileRows * 2 + p) * (kTileRows * kPanelWidth) + i % kTileRows * kPanelWidth);
      const Vec scaled[1] = {terms.scale(to_floats(row_sum - zero_term))};
      bytes.put(scaled, product.n - column, to);
    }
  }
  if (product.sum == nullptr) return;
  const size_t first = panel * kPanelWidth, columns = kPanels * kPanelWidth;
  add_residual(product, product.c + static_cast<ptrdiff_t>(row) * product.c_row + first, kTiles * kTileRows,
               product.n - first < columns ? product.n - first : columns);
}

/// multiply() with AMX. Requires at least kTileRows rows: the last tiles overlap and recompute some rows.
void multiply_tiles(const IntegerProduct& product, size_t first, size_t last, void* scratch) {
  const size_t padded = quads_of(product.k) * kQuad;
  TileProduct t = {padded / kTileBytes, padded % kTileBytes, nullptr, padded, nullptr, padded * kPanelWidth};
  struct {
    uint8_t palette = 1, reserved[15] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    const size_t bytes = i < 6 ? kTileBytes : t.tail;
    config.bytes[i] = static_cast<uint16_t>(i == 7 ? kTileBytes : bytes);
    config.rows[i] = static_cast<uint8_t>(i == 7 ? t.tail / kQuad : kTileRows);
  }
  if (t.tail == 0) config.bytes[6] = config.bytes[7] = config.rows[6] = config.rows[7] = 0;
  asm volatile("ldtilecfg %0" : : "m"(config));
  const uint8_t* rows = product.a;
  if (padded == product.k) {
    t.a_row = static_cast<size_t>(product.a_row);
  } else {
    auto* to = static_cast<uint8_t*>(scratch);
    rows = to;
    for (size_t i = 0; i < product.m; ++i, to += padded) {
      memcpy(to, product.a + static_cast<ptrdiff_t>(i) * product.a_row, product.k);
      memset(to + product.k, 0, padded - product.k);
    }
  }
  for (size_t p = first; p < last;) {
    const size_t panels = last - p >= 2 ? 2 : 1;
    t.w = product.w + p * t.w_panel;
    for (size_t i = 0; i < product.m;) {
      const size_t left = product.m - i;
      const size_t tiles = left > kTileRows && product.m >= 2 * kTileRows ? 2 : 1, count = tiles * kTileRows;
      const size_t row = left >= count ? i : product.m - count;
      t.a = rows + row * t.a_row;
      if (panels == 2)
        tiles == 2 ? tile_block<2, 2>(product, t, row, p) : tile_block<1, 2>(product, t, row, p);
      else
        tiles == 2 ? tile_block<2, 1>(product, t, row, p) : tile_block<1, 1>(product, t, row, p);
      i = row + count;
    }
    p += panels;
  }
  asm volatile("tilerelease");
}
#endif

}  // namespace

IntegerProduct IntegerProduct::rows(size_t first, size_t count) const {
  IntegerProduct part = *this;
  part.m = count;
  part.a += static_cast<ptrdiff_t>(first) * a_row;
  part.c += static_cast<ptrdiff_t>(first) * c_row;
  if (sum != nullptr) part.residual += static_cast<ptrdiff_t>(first) * c_row;
  return part;
}

size_t integer_scratch(size_t rows, size_t k) {  // rounded up to 16 bytes
  return rows * ((quads_of(k) * kQuad * sizeof(int16_t) + 15) / 16 * 16);
}

void integer_gemm(const IntegerProduct& product, size_t first, size_t last, void* scratch) {
#if TORCHETTE_MAY_HAVE_TILES
  if (product.m >= kTileRows && uses<has_tiles>()) return multiply_tiles(product, first, last, scratch);
#endif
#if TORCHETTE_MAY_HAVE_DOTS
#if defined(__aarch64__)
  if (uses<has_pairs>()) return multiply<Pairs>(product, first, last, scratch);
#endif
  if (uses<has_dots>()) return multiply<Dots>(product, first, last, scratch);
#endif
  multiply<Machine>(product, first, last, scratch);
}

#if TORCHETTE_CONVOLVES_LINES
bool convolves_lines() {
#if TORCHETTE_MAY_HAVE_TILES
  return !uses<has_tiles>();  // a tile loads rows at equal distances
#else
  return true;
#endif
}

void convolve_lines(const IntegerProduct& product, const ConvolvedLines& lines, size_t first, size_t last,
                    void* scratch) {
#if TORCHETTE_MAY_HAVE_DOTS
  if (uses<has_dots>()) return multiply_lines<Dots>(product, lines, first, last, scratch);
#endif
  multiply_lines<Machine>(product, lines, first, last, scratch);
}
#endif

Error integer_gemm(Context& context, const char* op, const IntegerProduct& product) {
  // Threads have equal shares of the rows, each converted once. If there are few rows or many outputs,
  // threads divide the panels instead, each read by one thread.
  size_t at_once = (product.m + 2 * context.workers() - 1) / (2 * context.workers());
  if (context.workers() == 1 || product.n > 2 * product.m || at_once < kRowsAtOnce / 2 ||
      at_once > kRowsAtOnce)
    at_once = kRowsAtOnce;
  const size_t rows = product.m < at_once ? product.m : at_once;
  return for_parts(
      context, op, product.m, product.n, product.k, integer_scratch(rows, product.k),
      [&](size_t at, size_t count, size_t first, size_t last, uint8_t* scratch) {
        integer_gemm(product.rows(at, count), first, last, scratch);
      },
      at_once);
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
