// SPDX-License-Identifier: BSD-3-Clause
// GEMM on pairs of bfloat16: an instruction multiplies two adjacent inputs and accumulates both in float.
// Inputs are rounded to bfloat16 once per tile of rows. Same loops as packed_gemm.cpp. ARM's bfmmla
// multiplies quads, four adjacent inputs of two rows and of two outputs.
#include "torchette/kernels/engine/paired_gemm.h"

#include <cmath>
#include <utility>

#include "torchette/kernels/engine/detected.h"

#if TORCHETTE_GNU && defined(__AVX512F__) && !defined(__clang__)
#define TORCHETTE_MAY_HAVE_PAIRS 1
#elif defined(__aarch64__) && defined(__linux__) && (!defined(__clang__) || __clang_major__ >= 16)
#include <sys/auxv.h>
#define TORCHETTE_MAY_HAVE_PAIRS 1
#else
#define TORCHETTE_MAY_HAVE_PAIRS 0
#endif

namespace torchette {
namespace TORCHETTE_ISA {

#if TORCHETTE_MAY_HAVE_PAIRS
namespace {

#if defined(__AVX512F__)
bool has_pair_products() { return TORCHETTE_CPU_HAS("avx512bf16"); }

/// Multiplies both halves of each word and accumulates.
TORCHETTE_INLINE Vec multiply_pairs(Vec sums, VecInt x, VecInt w) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(x), "v"(w));
  return sums;
}
/// Rounds kLanes floats to bfloat16.
TORCHETTE_INLINE void round_vector(const float* from, uint16_t* to) {
  __m256i halves;
  asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(load(from)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
}
/// Rounds 2 kLanes floats to kLanes words.
TORCHETTE_INLINE Vec round_words(const float* from) {
  __m256i lower, upper;
  asm("vcvtneps2bf16 %1, %0" : "=v"(lower) : "v"(load(from)));
  asm("vcvtneps2bf16 %1, %0" : "=v"(upper) : "v"(load(from + kLanes)));
  return reinterpret_cast<Vec>(_mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1));
}
constexpr int kMaxRows = 14, kTilePanels = 2;
constexpr bool kHasQuads = false;
#else
#if !defined(HWCAP2_BF16)
#define HWCAP2_BF16 (1 << 14)
#endif
bool has_pair_products() { return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0; }

TORCHETTE_INLINE Vec multiply_pairs(Vec sums, VecInt x, VecInt w) {
  asm(".arch armv8.2-a+bf16\n\tbfdot %0.4s, %1.8h, %2.8h" : "+w"(sums) : "w"(x), "w"(w));
  return sums;
}
TORCHETTE_INLINE void round_vector(const float* from, uint16_t* to) {
  uint16x4_t halves;
  asm(".arch armv8.2-a+bf16\n\tbfcvtn %0.4h, %1.4s" : "=w"(halves) : "w"(load(from)));
  vst1_u16(to, halves);
}
TORCHETTE_INLINE Vec round_words(const float* from) {
  uint16_t halves[2 * kLanes];
  round_vector(from, halves);
  round_vector(from + kLanes, halves + kLanes);
  Vec words;
  memcpy(&words, halves, sizeof(words));
  return words;
}
/// Accumulates [two rows][two outputs] of four inputs, with the same bits as multiply_pairs() of the first
/// and then of the second two inputs. Volatile: otherwise GCC loads all weights of a row first, and stores
/// accumulators in memory.
TORCHETTE_INLINE Vec multiply_quads(Vec sums, VecInt x, Vec w) {
  asm volatile(".arch armv8.2-a+bf16\n\tbfmmla %0.4s, %1.8h, %2.8h" : "+w"(sums) : "w"(x), "w"(w));
  return sums;
}
constexpr int kMaxRows = 6, kTilePanels = 1;
constexpr bool kHasQuads = true;
#endif

/// Number of rows that a tile computes. With quads it is even, and the last row may be a copy.
constexpr int tile_rows(int rows) { return kHasQuads && rows > 1 ? (rows + 1) / 2 * 2 : rows; }
/// Returns the number of rows of the next tile: even if several rows with quads are left.
size_t next_rows(size_t left) {
  if (!kHasQuads || left == 1) return next_part(left, kMaxRows);
  const size_t rows = 2 * next_part((left + 1) / 2, kMaxRows / 2);
  return rows < left ? rows : left;
}

// Inputs of a block: a panel of this depth, and a tile of rows, fit into the L1 cache.
constexpr size_t kDepth = 2 * kProductDepth;
// Words in a block of panels, which stays in the L2 cache.
constexpr size_t kBlock = size_t{1} << 16;

struct Tile {
  size_t words;      // pairs of a row
  const int32_t* a;  // rows of `kDepth / 2` words, or [quads][tile_rows(rows)][2] with round_quads()
  const int32_t* w;  // panels [words][kPanelWidth]
  size_t w_panel;    // stride between panels in words
  float* c;
  ptrdiff_t c_row;
  const float* bias;      // or null
  const float* residual;  // or null
  ptrdiff_t residual_row;
  float low, high;
  const char* ahead;  // what is prefetched, one line for each word of a panel
  size_t ahead_step;
  size_t rows;  // of C
};

/// acc += A tile x panels.
template <int kRows, int kVectors>
TORCHETTE_INLINE void accumulate(const Tile& t, Vec (&acc)[kRows][kVectors]) {
  const char* ahead = t.ahead;
  for (size_t j = 0; j < t.words; ++j, ahead += t.ahead_step) {
    if (kRows >= 4) TORCHETTE_PREFETCH_L2(ahead);
    VecInt w[kVectors];
    TORCHETTE_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      const size_t panel = static_cast<size_t>(v) / kPanelVectors,
                   part = static_cast<size_t>(v) % kPanelVectors;
      w[v] = load(t.w + panel * t.w_panel + j * kPanelWidth + part * kLanes);
    }
    TORCHETTE_UNROLL(16)
    for (int i = 0; i < kRows; ++i) {
      const VecInt a = broadcast(t.a[static_cast<size_t>(i) * (kDepth / 2) + j]);
      TORCHETTE_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) acc[i][v] = multiply_pairs(acc[i][v], a, w[v]);
    }
  }
}

#if defined(__aarch64__)
/// The same with quads: two adjacent rows of a panel are interleaved to the quads of its outputs.
template <int kRows, int kVectors>
TORCHETTE_INLINE void accumulate_quads(const Tile& t, Vec (&acc)[kRows][kVectors]) {
  Vec sums[kRows / 2][2 * kVectors] = {};
  const int32_t *a = t.a, *w = t.w;
  const auto add = [&](const auto& second) TORCHETTE_INLINED {
    VecInt x[kRows / 2];
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kRows / 2; ++i) x[i] = load(a + i * kLanes);
    TORCHETTE_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      Vec quads[2];
      interleave(bit_cast<Vec>(load(w + v * kLanes)), second(w + kPanelWidth + v * kLanes), quads[0],
                 quads[1]);
      TORCHETTE_UNROLL(8)
      for (int i = 0; i < kRows; ++i)
        sums[i / 2][2 * v + i % 2] = multiply_quads(sums[i / 2][2 * v + i % 2], x[i / 2], quads[i % 2]);
    }
  };
  const char* ahead = t.ahead;
  const size_t step = t.ahead_step;
  for (size_t j = t.words / 2; j > 0; --j, ahead += 2 * step) {
    if (kRows >= 4) {
      TORCHETTE_PREFETCH_L2(ahead);
      TORCHETTE_PREFETCH_L2(ahead + step);
    }
    add([](const int32_t* from) TORCHETTE_INLINED { return bit_cast<Vec>(load(from)); });
    a += 2 * kRows;
    w += 2 * kPanelWidth;
  }
  if (t.words % 2 != 0) add([](const int32_t*) TORCHETTE_INLINED { return Vec{}; });
  TORCHETTE_UNROLL(8)
  for (int v = 0; v < kVectors; ++v) {
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kRows; i += 2) {
      const Vec low = sums[i / 2][2 * v], high = sums[i / 2][2 * v + 1];
      acc[i][v] = TORCHETTE_SHUFFLE(low, high, 0, 1, 4, 5);
      acc[i + 1][v] = TORCHETTE_SHUFFLE(low, high, 2, 3, 6, 7);
    }
  }
}
#endif

/// C tile = clamp(A tile x panels + bias + residual).
template <int kRows, int kPanels>
void compute(const Tile& t) {
  constexpr int kVectors = kPanels * static_cast<int>(kPanelVectors);
  Vec acc[kRows][kVectors] = {};
  if constexpr (kHasQuads && kRows > 1)
    accumulate_quads(t, acc);
  else
    accumulate(t, acc);
  const Vec low = broadcast(t.low), high = broadcast(t.high);
  TORCHETTE_UNROLL(8)
  for (int v = 0; v < kVectors; ++v) {
    const size_t column = static_cast<size_t>(v) * kLanes;
    const Vec bias = t.bias != nullptr ? load(t.bias + column) : Vec{};
    TORCHETTE_UNROLL(16)
    for (int i = 0; i < kRows; ++i) {
      if (kHasQuads && i + 1 == kRows && t.rows < kRows) break;
      acc[i][v] += bias;
      if (t.residual != nullptr) acc[i][v] += load(t.residual + i * t.residual_row + column);
      store(t.c + i * t.c_row + column, clamp(acc[i][v], low, high));
    }
  }
}

using Compute = void (*)(const Tile&);
template <int kPanels, int... kRow>
Compute pick(size_t rows, std::integer_sequence<int, kRow...>) {
  static constexpr Compute kTiles[] = {compute<tile_rows(kRow + 1), kPanels>...};
  return kTiles[rows - 1];
}
Compute tile_of(size_t rows, size_t panels) {
  using Rows = std::make_integer_sequence<int, kMaxRows>;
  return panels == 1 ? pick<1>(rows, Rows{}) : pick<kTilePanels>(rows, Rows{});
}

/// Rounds `count` floats to bfloat16.
TORCHETTE_INLINE void round_floats(const float* from, size_t count, uint16_t* to) {
  size_t k = 0;
  for (; k + kLanes <= count; k += kLanes) round_vector(from + k, to + k);
  if (k == count) return;
  float last[kLanes] = {};
  uint16_t rounded[kLanes];
  memcpy(last, from + k, (count - k) * sizeof(float));
  round_vector(last, rounded);
  memcpy(to + k, rounded, (count - k) * sizeof(uint16_t));
}

#if defined(__aarch64__)
/// Rounds `depth` inputs of `rows` rows to quads of bfloat16; the last one may end with zeros. A copy of the
/// last row follows an odd number of rows.
void round_quads(const float* from, ptrdiff_t from_row, size_t rows, size_t depth, uint16_t* to) {
  const size_t all = rows + rows % 2;
  for (size_t i = 0; i < all; ++i, to += kLanes) {
    uint16_t* at = to;
    size_t k = 0;
    for (; k + kLanes <= depth; k += kLanes, at += all * kLanes) round_vector(from + k, at);
    if (k < depth) {
      const float last[kLanes] = {from[k], from[k + 1]};
      round_vector(last, at);
    }
    if (i + 1 < rows) from += from_row;
  }
}
#endif

/// Rounds `depth` inputs of `rows` rows to bfloat16, in the layout of a tile.
void round_rows(const float* from, ptrdiff_t from_row, size_t rows, size_t depth, int32_t* to) {
#if defined(__aarch64__)
  if (rows > 1) return round_quads(from, from_row, rows, depth, reinterpret_cast<uint16_t*>(to));
#endif
  for (size_t i = 0; i < rows; ++i, from += from_row, to += kDepth / 2)
    round_floats(from, depth, reinterpret_cast<uint16_t*>(to));
}

void copy_rows(const float* from, ptrdiff_t from_row, float* to, ptrdiff_t to_row, size_t rows,
               size_t columns) {
  for (size_t i = 0; i < rows; ++i, from += from_row, to += to_row) memcpy(to, from, columns * sizeof(float));
}

}  // namespace

bool multiplies_pairs() { return uses<has_pair_products>(); }

void paired_gemm(const PackedProduct& product, size_t first, size_t last) {
  const size_t m = product.m, n = product.n, k = product.k;
  float low, high;
  const Activation left = split_activation(product.activation, low, high);
  alignas(64) int32_t a[kMaxRows * kDepth / 2];
  const auto* const weights = static_cast<const int32_t*>(product.w);
  const PanelRange range = {product.w, k / 2, kDepth / 2, first, last};
  size_t k0 = 0;
  do {  // at least once, because the bias is written even if k is 0
    const size_t depth = 2 * next_part((k - k0) / 2, kDepth / 2), words = depth / 2;
    const bool begins = k0 == 0, ends = k0 + depth >= k;
    size_t block = words == 0 ? last - first : kBlock / (words * kPanelWidth) / kTilePanels * kTilePanels;
    if (block == 0) block = kTilePanels;
    // The first weights are not prefetched, so the first block is small.
    size_t p_end = first;
    for (size_t p0 = first; p0 < last; p0 = p_end) {
      const size_t count = begins && p0 == first && m > kMaxRows ? kTilePanels : block;
      p_end = p0 + count < last ? p0 + count : last;
      const size_t at_once = (p_end - p0 + kTilePanels - 1) / kTilePanels;
      const WeightsAhead ahead =
          range.after(p_end, k0 / 2, words, block, (m + kMaxRows - 1) / kMaxRows * at_once);
      size_t tiles = 0;
      for (size_t i = 0; i < m;) {
        const size_t rows = next_rows(m - i);
        const auto row = static_cast<ptrdiff_t>(i);
        round_rows(product.a + row * product.a_row + k0, product.a_row, rows, depth, a);
        for (size_t p = p0; p < p_end;) {
          const size_t column = p * kPanelWidth;
          const size_t panels =
              p_end - p >= kTilePanels && n - column >= kTilePanels * kPanelWidth ? kTilePanels : 1;
          const size_t width = panels * kPanelWidth, columns = n - column < width ? n - column : width;
          float* const c = product.c + row * product.c_row + column;
          const float* added = begins ? product.residual : product.c;
          const ptrdiff_t added_row = begins ? product.residual_row : product.c_row;
          if (added != nullptr) added += row * added_row + static_cast<ptrdiff_t>(column);
          Tile t = {words,
                    a,
                    weights + (p * (k / 2) + k0 / 2) * kPanelWidth,
                    k / 2 * kPanelWidth,
                    c,
                    product.c_row,
                    begins && product.bias != nullptr ? product.bias + column : nullptr,
                    added,
                    added_row,
                    ends ? low : -INFINITY,
                    ends ? high : INFINITY,
                    nullptr,
                    0,
                    rows};
          t.ahead = ahead.of_tile(tiles++, t.w, t.ahead_step);
          // A separate tile computes the panel that extends beyond the last column.
          float result[kMaxRows * kPanelWidth], bias[kPanelWidth] = {};
          if (columns < width) {
            if (added != nullptr) copy_rows(added, added_row, result, kPanelWidth, rows, columns);
            if (t.bias != nullptr) memcpy(bias, t.bias, columns * sizeof(float));
            t.bias = bias;
            t.residual = added != nullptr ? result : nullptr;
            t.c = result;
            t.residual_row = t.c_row = kPanelWidth;
          }
          tile_of(rows, panels)(t);
          if (ends) activate(left, t.c, t.c_row, rows, columns);
          if (columns < width) copy_rows(result, kPanelWidth, c, product.c_row, rows, columns);
          p += panels;
        }
        i += rows;
      }
    }
    k0 += depth;
  } while (k0 < k);
}

void pack_row_pairs(const float* rows, size_t row, size_t count, size_t depth, int32_t* to) {
  const size_t words = depth / 2;
  for (size_t first = 0; first < count; first += kPanelWidth, to += words * kPanelWidth)
    for (size_t k = 0; k < words; k += kLanes) {
      const size_t here = words - k < kLanes ? words - k : kLanes;
      for (size_t v = 0; v < kPanelWidth; v += kLanes) {
        Vec square[kLanes] = {};
        const float* const from = rows + (first + v) * row + 2 * k;
        const size_t present = count < first + v            ? 0
                               : count - first - v < kLanes ? count - first - v
                                                            : kLanes;
        if (present == kLanes && here == kLanes) {
          TORCHETTE_UNROLL(16)
          for (size_t i = 0; i < kLanes; ++i) square[i] = round_words(from + i * row);
        } else {
          for (size_t i = 0; i < present; ++i) {
            float padded[2 * kLanes] = {};
            memcpy(padded, from + i * row, 2 * here * sizeof(float));
            square[i] = round_words(padded);
          }
        }
        transpose(square);
        TORCHETTE_UNROLL(16)
        for (size_t i = 0; i < kLanes; ++i)
          if (i < here) store(reinterpret_cast<float*>(to + (k + i) * kPanelWidth + v), square[i]);
      }
    }
}

void pack_column_pairs(const float* rows, size_t row, size_t count, size_t width, int32_t* to) {
  for (size_t first = 0; first < width; first += kPanelWidth) {
    const size_t here = width - first < kPanelWidth ? width - first : kPanelWidth;
    for (size_t i = 0; i < count; i += 2, to += kPanelWidth) {
      uint16_t even[kPanelWidth] = {}, odd[kPanelWidth] = {};
      round_floats(rows + i * row + first, here, even);
      if (i + 1 < count) round_floats(rows + (i + 1) * row + first, here, odd);
      for (size_t j = 0; j < kPanelWidth; ++j)
        to[j] = static_cast<int32_t>(even[j] | static_cast<uint32_t>(odd[j]) << 16);
    }
  }
}
#else
bool multiplies_pairs() { return false; }
void paired_gemm(const PackedProduct&, size_t, size_t) {}
void pack_row_pairs(const float*, size_t, size_t, size_t, int32_t*) {}
void pack_column_pairs(const float*, size_t, size_t, size_t, int32_t*) {}
#endif

}  // namespace TORCHETTE_ISA
}  // namespace torchette
