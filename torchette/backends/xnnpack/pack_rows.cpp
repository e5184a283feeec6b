// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/xnnpack/pack_rows.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "torchette/runtime/compiler.h"

namespace torchette {
namespace xnnpack {
namespace {

typedef float Four __attribute__((vector_size(16)));

constexpr size_t kLine = 16;     // numbers in a line of the caches
constexpr size_t kMaxTile = 64;  // rows
// A tile's rows stand one behind the other. Where they are short the next tile is fetched in that order, as
// memory likes it; where a tile is too large for the cache to hold two, each row is fetched some lines ahead.
constexpr size_t kShort = size_t{1} << 17;  // bytes of a tile
constexpr size_t kAhead = 4;                // lines
// __builtin_prefetch's word for the cache that has room for a tile: the first has not.
constexpr int kSecond = 2;

Four load(const float* from) {
  Four result;
  memcpy(&result, from, sizeof(result));
  return result;
}

void store(float* to, Four it) { memcpy(to, &it, sizeof(it)); }

/// Not to be read soon: no line is fetched to be overwritten, and none that is in use is driven out.
void stream(float* to, Four it) {
#if defined(__x86_64__)
  _mm_stream_ps(to, it);
#else
  store(to, it);
#endif
}

/// Packs some columns of a tile, `kLine` of them at most, of which `count` rows are there.
using PackColumns = void (*)(const float* rows, size_t count, size_t inputs, size_t columns, size_t tile,
                             float* to);

/// Columns of up to four rows, to every `tile`th number.
void gather(const float* rows, size_t count, size_t inputs, size_t columns, size_t tile, float* to) {
  for (size_t c = 0; c < columns; ++c, to += tile)
    for (size_t i = 0; i < count; ++i) to[i] = rows[i * inputs + c];
}

/// The same of four.
__attribute__((always_inline)) inline void transpose(const float* rows, size_t inputs, size_t columns,
                                                     size_t tile, float* to) {
  const size_t fours = columns / 4 * 4;
  for (size_t c = 0; c < fours; c += 4, to += 4 * tile) {
    const Four a = load(rows + c), b = load(rows + inputs + c);
    const Four d = load(rows + 2 * inputs + c), e = load(rows + 3 * inputs + c);
    const Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), de = __builtin_shufflevector(d, e, 0, 4, 1, 5);
    const Four ab2 = __builtin_shufflevector(a, b, 2, 6, 3, 7),
               de2 = __builtin_shufflevector(d, e, 2, 6, 3, 7);
    store(to, __builtin_shufflevector(ab, de, 0, 1, 4, 5));
    store(to + tile, __builtin_shufflevector(ab, de, 2, 3, 6, 7));
    store(to + 2 * tile, __builtin_shufflevector(ab2, de2, 0, 1, 4, 5));
    store(to + 3 * tile, __builtin_shufflevector(ab2, de2, 2, 3, 6, 7));
  }
  gather(rows + fours, 4, inputs, columns - fours, tile, to);
}

void pack_columns(const float* rows, size_t count, size_t inputs, size_t columns, size_t tile, float* to) {
  alignas(64) float block[kLine * kMaxTile];
  if (count != tile) memset(block, 0, sizeof(block));
  for (size_t i = 0; i < count; i += 4, rows += 4 * inputs) {
    if (count - i < 4)
      gather(rows, count - i, inputs, columns, tile, block + i);
    else if (columns == kLine)
      transpose(rows, inputs, kLine, tile, block + i);
    else
      transpose(rows, inputs, columns, tile, block + i);
  }
  for (size_t i = 0; i < columns * tile; i += 4) stream(to + i, load(block + i));
}

#if defined(__x86_64__)
#define WITH_AVX512 __attribute__((target("avx512f")))

/// 16 columns of 16 rows to every `tile`th line.
WITH_AVX512 void transpose_lines(const float* rows, size_t inputs, size_t tile, float* to) {
  typedef float Line __attribute__((vector_size(64)));
#define PICK __builtin_shufflevector
  Line fours[4][4];  // [rows / 4][columns % 4]: of four columns each
  TORCHETTE_UNROLL(4)
  for (size_t i = 0; i < 4; ++i) {
    Line row[4];
    TORCHETTE_UNROLL(4)
    for (size_t j = 0; j < 4; ++j) row[j] = _mm512_loadu_ps(rows + (4 * i + j) * inputs);
    const Line a = PICK(row[0], row[1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    const Line b = PICK(row[0], row[1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    const Line c = PICK(row[2], row[3], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    const Line d = PICK(row[2], row[3], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    fours[i][0] = PICK(a, c, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    fours[i][1] = PICK(a, c, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    fours[i][2] = PICK(b, d, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    fours[i][3] = PICK(b, d, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  TORCHETTE_UNROLL(4)
  for (size_t j = 0; j < 4; ++j, to += tile) {
    const Line e = fours[0][j], f = fours[1][j], g = fours[2][j], h = fours[3][j];
    const Line a = PICK(e, f, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    const Line b = PICK(e, f, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    const Line c = PICK(g, h, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    const Line d = PICK(g, h, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    _mm512_store_ps(to, PICK(a, c, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27));
    _mm512_store_ps(to + 4 * tile, PICK(a, c, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
    _mm512_store_ps(to + 8 * tile, PICK(b, d, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27));
    _mm512_store_ps(to + 12 * tile, PICK(b, d, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
  }
}

/// The same of tiles of 16 rows, or of several times as many, on processors that have AVX-512F.
WITH_AVX512 void pack_columns_by_line(const float* rows, size_t count, size_t inputs, size_t columns,
                                      size_t tile, float* to) {
  if (columns != kLine || count != tile) return pack_columns(rows, count, inputs, columns, tile, to);
  alignas(64) float block[kLine * kMaxTile];
  for (size_t i = 0; i < tile; i += kLine) transpose_lines(rows + i * inputs, inputs, tile, block + i);
  for (size_t i = 0; i < kLine * tile; i += kLine) _mm512_stream_ps(to + i, _mm512_load_ps(block + i));
}
#endif

PackColumns pack_columns_for(size_t tile) {
#if defined(__x86_64__)
  if (tile % kLine == 0 && TORCHETTE_CPU_HAS("avx512f")) return pack_columns_by_line;
#endif
  return pack_columns;
}

}  // namespace

bool can_pack_rows(size_t tile) { return tile % 4 == 0 && tile <= kMaxTile; }

void pack_rows(const float* rows, const float* bias, size_t count, size_t inputs, size_t tile, float* to) {
  const bool is_short = tile * inputs * sizeof(float) <= kShort;
  const PackColumns pack = pack_columns_for(tile);
  if (is_short)
    for (size_t i = 0; i < std::min(tile, count) * inputs; i += kLine) TORCHETTE_PREFETCH(rows + i);
  for (size_t first = 0; first < count; first += tile, rows += tile * inputs) {
    const size_t in_tile = std::min(tile, count - first);
    for (size_t i = 0; i < tile; ++i) to[i] = bias == nullptr || i >= in_tile ? 0.0f : bias[first + i];
    to += tile;
    const float* next = rows + tile * inputs;
    for (size_t column = 0; column < inputs; column += kLine) {
      const size_t columns = std::min(kLine, inputs - column);
      for (size_t i = 0; i < in_tile; ++i, next += kLine) {
        if (is_short)
          __builtin_prefetch(next, 0, kSecond);
        else
          TORCHETTE_PREFETCH(rows + i * inputs + column + kAhead * kLine);
      }
      pack(rows + column, in_tile, inputs, columns, tile, to);
      to += columns * tile;
    }
  }
#if defined(__x86_64__)
  _mm_sfence();  // before another thread reads it
#endif
}

}  // namespace xnnpack
}  // namespace torchette
