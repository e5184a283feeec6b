// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/xnnpack/pack_rows.h"

#include <algorithm>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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
#if defined(__SSE2__)
  _mm_stream_ps(to, it);
#else
  store(to, it);
#endif
}

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

}  // namespace

bool can_pack_rows(size_t tile) { return tile % 4 == 0 && tile <= kMaxTile; }

void pack_rows(const float* rows, const float* bias, size_t count, size_t inputs, size_t tile, float* to) {
  const bool is_short = tile * inputs * sizeof(float) <= kShort;
  alignas(64) float block[kLine * kMaxTile];
  if (is_short)
    for (size_t i = 0; i < std::min(tile, count) * inputs; i += kLine) __builtin_prefetch(rows + i);
  for (size_t first = 0; first < count; first += tile, rows += tile * inputs) {
    const size_t in_tile = std::min(tile, count - first);
    for (size_t i = 0; i < tile; ++i) to[i] = bias == nullptr || i >= in_tile ? 0.0f : bias[first + i];
    to += tile;
    if (in_tile != tile) memset(block, 0, sizeof(block));
    const float* next = rows + tile * inputs;
    for (size_t column = 0; column < inputs; column += kLine) {
      const size_t columns = std::min(kLine, inputs - column);
      for (size_t i = 0; i < in_tile; i += 4) {
        const float* four = rows + i * inputs + column;
        for (size_t j = 0; j < 4; ++j, next += kLine) {
          if (is_short)
            __builtin_prefetch(next, 0, kSecond);
          else
            __builtin_prefetch(four + j * inputs + kAhead * kLine);
        }
        if (in_tile - i < 4)
          gather(four, in_tile - i, inputs, columns, tile, block + i);
        else if (columns == kLine)
          transpose(four, inputs, kLine, tile, block + i);
        else
          transpose(four, inputs, columns, tile, block + i);
      }
      for (size_t i = 0; i < columns * tile; i += 4, to += 4) stream(to, load(block + i));
    }
  }
#if defined(__SSE2__)
  _mm_sfence();  // before another thread reads it
#endif
}

}  // namespace xnnpack
}  // namespace torchette
