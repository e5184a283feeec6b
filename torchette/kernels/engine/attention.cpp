// SPDX-License-Identifier: BSD-3-Clause
// cpu::attention, cpu::cached_attention and cpu::int8_cached_attention:
// torchette/backends/engine/operators/attention.py and cached_attention.py. Keys and values are packed a
// block at a time; queries pass by, and the sums of each are rescaled when a block raises its maximum, so
// that no matrix of scores exists. A few queries read keys and values where they are. Those of a cache may be
// stored in 16 or 8 bits: they become floats a few rows at a time.
#include <cmath>
#include <type_traits>

#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/packed_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Keys of a block, and queries that share the packing of one; queries of a matrix of scores.
constexpr size_t kKeys = kLanes >= 8 ? 256 : 64;
constexpr size_t kQueries = kLanes >= 8 ? 112 : 32;
constexpr size_t kRows = kLanes >= 8 ? 28 : 6;
constexpr float kNothing = -INFINITY;

/// Where element [batch, token, head, 0] of a tensor is.
struct Layout {
  const uint8_t* data;
  size_t size;  // bytes of an element: 4 float32, 2 float16, 1 int8
  size_t batch, token, head;
  const float* scales;  // of int8, for [token, head] a scale and a zero
  size_t scales_token;

  template <typename T = float>
  const T* at(size_t b, size_t t, size_t h) const {
    return reinterpret_cast<const T*>(data + (b * batch + t * token + h * head) * size);
  }
};

/// Rows of floats, so many elements from one to the next; and the stored rows that are needed next.
struct Rows {
  const float* data;
  size_t step;
  const uint8_t* ahead;
  size_t ahead_step, ahead_bytes;

  TORCHETTE_INLINE void prefetch(size_t i) const {
    for (size_t j = 0; j < ahead_bytes; j += 64) TORCHETTE_PREFETCH(ahead + i * ahead_step + j);
  }
};

/// kLanes bytes; of conversions the compiler makes one number after the other.
TORCHETTE_INLINE VecInt load_bytes(const int8_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecInt>(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return reinterpret_cast<VecInt>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  TORCHETTE_LANES(Bytes, int8_t, kLanes);
  Bytes bytes;
  memcpy(&bytes, p, sizeof(bytes));
  return convert_lanes<VecInt>(bytes);
#endif
}

TORCHETTE_INLINE Vec load_stored(const int8_t* p) { return to_floats(load_bytes(p)); }
TORCHETTE_INLINE Vec load_stored(const Half* p) { return load(p); }

/// Rows of stored numbers as floats, each times a scale of its own.
template <typename T>
void widen(const T* from, size_t step, size_t count, size_t width, const float* scale, size_t scale_step,
           float* to) {
  for (; count > 0; --count, from += step, to += width, scale += scale_step) {
    const float factor = *scale;
    size_t j = 0;
    for (; j + 4 * kLanes <= width; j += 4 * kLanes) TORCHETTE_UNROLL(4)
    for (size_t v = 0; v < 4 * kLanes; v += kLanes) store(to + j + v, load_stored(from + j + v) * factor);
    for (; j + kLanes <= width; j += kLanes) store(to + j, load_stored(from + j) * factor);
    for (; j < width; ++j) to[j] = static_cast<float>(from[j]) * factor;
  }
}

/// `count` rows from token `first` on: where they are, or as floats in `scratch`.
Rows rows_of(const Layout& from, size_t b, size_t first, size_t h, size_t count, size_t width,
             float* scratch) {
  Rows rows = {from.at(b, first, h), from.token, from.at<uint8_t>(b, first + count, h),
               from.token * from.size, width * from.size};
  if (from.size == sizeof(float)) return rows;
  const float one = 1.0f;
  if (from.size == sizeof(int8_t))
    widen(from.at<int8_t>(b, first, h), from.token, count, width,
          from.scales + first * from.scales_token + 2 * h, from.scales_token, scratch);
  else if constexpr (has_dtype(ScalarType::Half))
    widen(from.at<Half>(b, first, h), from.token, count, width, &one, 0, scratch);
  rows.data = scratch;
  rows.step = width;
  return rows;
}

struct Attention {
  size_t batch, queries, heads, depth, keys, groups,
      width;  // groups: heads of keys and values; width: of a value
  Layout q, k, v;
  float* out;  // [batch, queries, heads, width]
  float scale;
  bool causal;
  size_t start, window;  // the first query's position; how many keys a query sees, 0 for all before it
  float cap;             // scores are cap tanh(score / cap); 0: they are not
  const float* sinks;    // for each head a score that takes its share and gives nothing; or null
  const void* mask;      // or null
  bool additive;
  size_t mask_step[4];  // elements from one batch, head, query and key to the next; 0 where it is one for all

  float* row(size_t b, size_t t, size_t h) const { return out + ((b * queries + t) * heads + h) * width; }
  /// The end of what a query may see of `count` keys from `first` on.
  size_t seen(size_t t, size_t first, size_t count) const {
    if (!causal) return count;
    t += start;
    return t < first ? 0 : t - first + 1 < count ? t - first + 1 : count;
  }
  /// The first key that a query may see.
  size_t begin(size_t t) const { return window == 0 || start + t + 1 <= window ? 0 : start + t + 1 - window; }
  /// What becomes of a query's sums when all keys are through.
  float share(size_t head, float most, float total) const {
    if (sinks == nullptr) return total == 0.0f ? 0.0f : 1.0f / total;
    if (total == 0.0f) return 0.0f;
    const float sink = sinks[head], top = sink > most ? sink : most, factor = exp_f(most - top);
    return factor / (total * factor + exp_f(sink - top));
  }
};

/// Rows [count][k contiguous] into panels [count / kPanel][k][kPanel].
void pack_rows(const float* rows, size_t row, size_t count, size_t depth, float* to) {
  for (size_t first = 0; first < count; first += kPanel, to += depth * kPanel) {
    const size_t here = count - first < kPanel ? count - first : kPanel;
    size_t k = 0;
    if (here == kPanel)
      for (; k + kLanes <= depth; k += kLanes)
        for (size_t v = 0; v < kPanelVectors; ++v) {
          Vec square[kLanes];
          TORCHETTE_UNROLL(16)
          for (int i = 0; i < kLanes; ++i)
            square[i] = load(rows + (first + v * kLanes + static_cast<size_t>(i)) * row + k);
          transpose(square);
          TORCHETTE_UNROLL(16)
          for (int i = 0; i < kLanes; ++i)
            store(to + (k + static_cast<size_t>(i)) * kPanel + v * kLanes, square[i]);
        }
    for (; k < depth; ++k)
      for (size_t i = 0; i < kPanel; ++i) to[k * kPanel + i] = i < here ? rows[(first + i) * row + k] : 0.0f;
  }
}

/// Rows [count][width contiguous] into panels [width / kPanel][count][kPanel].
void pack_columns(const float* rows, size_t row, size_t count, size_t width, float* to) {
  for (size_t first = 0; first < width; first += kPanel)
    for (size_t i = 0; i < count; ++i, to += kPanel) {
      const float* from = rows + i * row + first;
      for (size_t j = 0; j < kPanel; j += kLanes) {
        if (first + j + kLanes <= width)
          store(to + j, load(from + j));
        else
          store(to + j, first + j < width ? load_partial(from + j, width - first - j) : Vec{});
      }
    }
}

/// Scales and masks scores in place and returns their maximum; those behind `seen` do not count, nor do those
/// that the window has left behind.
float mask_scores(const Attention& a, size_t b, size_t h, size_t t, size_t first, float* scores,
                  size_t seen) {
  const size_t at = b * a.mask_step[0] + h * a.mask_step[1] + t * a.mask_step[2] + first * a.mask_step[3];
  Vec most = broadcast(kNothing);
  const Vec scale = broadcast(a.scale);
  const auto* added = static_cast<const float*>(a.mask) + at;
  const auto* visible = static_cast<const bool*>(a.mask) + at;
  const size_t hidden = a.begin(t) > first ? a.begin(t) - first : 0;
  for (size_t j = 0; j < seen; j += kLanes) {
    const size_t here = seen - j < kLanes ? seen - j : kLanes;
    Vec s = load_partial(scores + j, here) * scale;
    if (a.cap != 0.0f) s = a.cap * tanh_f(s / a.cap);
    if (a.mask != nullptr) {
      float number[kLanes] = {};
      for (size_t i = 0; i < here; ++i) {
        const size_t place = (j + i) * a.mask_step[3];
        number[i] = a.additive ? added[place] : visible[place] ? 0.0f : kNothing;
      }
      s += load(number);
    }
    if (here < kLanes || j < hidden) {
      float lanes[kLanes];
      store(lanes, s);
      for (size_t i = here; i < kLanes; ++i) lanes[i] = kNothing;
      for (size_t i = 0; i < kLanes && j + i < hidden; ++i) lanes[i] = kNothing;
      s = load(lanes);
    }
    store_partial(scores + j, s, here);
    most = maximum(s, most);
  }
  return horizontal_max(most);
}

/// scores = exp(scores - most), zeros behind `seen`; returns their sum.
float exponentials(float* scores, float most, size_t seen, size_t count) {
  Vec sum = {};
  const Vec shift = broadcast(most);
  size_t j = 0;
  for (; j + kLanes <= seen; j += kLanes) {
    const Vec e = exp_of_negative(load(scores + j) - shift);
    store(scores + j, e);
    sum += e;
  }
  if (j < seen) {
    float last[kLanes] = {};
    store_partial(last, exp_of_negative(load_partial(scores + j, seen - j) - shift), seen - j);
    sum += load(last);
    memcpy(scores + j, last, (seen - j) * sizeof(float));
  }
  if (seen < count) memset(scores + seen, 0, (count - seen) * sizeof(float));
  return horizontal_sum(sum);
}

void scale_row(float* row, size_t width, float factor) {
  const Vec f = broadcast(factor);
  size_t j = 0;
  for (; j + kLanes <= width; j += kLanes) store(row + j, load(row + j) * f);
  for (; j < width; ++j) row[j] *= factor;
}

/// Folds the scores of a block into what a query has so far: returns the factor for its sums.
float fold(float* scores, float block_most, size_t seen, size_t count, float& most, float& total) {
  if (block_most == kNothing && seen > 0) seen = 0;  // all are masked
  if (seen == 0) {
    for (size_t j = 0; j < count; ++j) scores[j] = 0.0f;
    return 1.0f;
  }
  const float before = most;
  if (!(block_most <= most)) most = block_most;
  const float factor = before == kNothing ? 0.0f : exp_f(before - most);
  total = total * factor + exponentials(scores, most, seen, count);
  return factor;
}

/// Queries [begin, end) of the heads that share keys and values `group`.
void attend(const Attention& a, size_t b, size_t group, size_t begin, size_t end, float* scratch) {
  const size_t each = a.heads / a.groups, block = a.keys < kKeys ? a.keys : kKeys;
  float* const keys = scratch;
  float* const values = keys + panels_of(block) * kPanel * a.depth;
  float* const scores = values + panels_of(a.width) * kPanel * block;
  float* const most = scores + kRows * (block + kLanes);
  float* const total = most + kQueries * each;
  float* const widened = total + kQueries * each;
  const size_t queries = end - begin;
  for (size_t i = 0; i < queries * each; ++i) {
    most[i] = kNothing;
    total[i] = 0.0f;
  }
  const size_t lowest = a.begin(begin) / block * block;
  for (size_t first = lowest; first < a.keys; first += block) {
    const size_t left = a.keys - first < block ? a.keys - first : block;
    const size_t count = a.seen(end - 1, first, left);
    if (count == 0) break;
    const Rows k = rows_of(a.k, b, first, group, count, a.depth, widened);
    pack_rows(k.data, k.step, count, a.depth, keys);
    const Rows v = rows_of(a.v, b, first, group, count, a.width, widened);
    pack_columns(v.data, v.step, count, a.width, values);
    for (size_t h = 0; h < each; ++h) {
      const size_t head = group * each + h;
      for (size_t i = 0; i < queries; i += kRows) {
        const size_t rows = queries - i < kRows ? queries - i : kRows;
        const size_t visible = a.seen(begin + i + rows - 1, first, count);
        if (visible == 0 && first > lowest) continue;
        PackedProduct product = {};
        product.m = rows;
        product.n = visible;
        product.k = a.depth;
        product.a = a.q.at(b, begin + i, head);
        product.a_row = static_cast<ptrdiff_t>(a.q.token);
        product.w = keys;
        product.c = scores;
        product.c_row = static_cast<ptrdiff_t>(block + kLanes);
        packed_gemm(product, 0, panels_of(visible));
        for (size_t r = 0; r < rows; ++r) {
          const size_t t = begin + i + r, seen = a.seen(t, first, count), state = h * queries + i + r;
          float* const line = scores + r * (block + kLanes);
          const float highest = mask_scores(a, b, head, t, first, line, seen);
          const float factor = fold(line, highest, seen, count, most[state], total[state]);
          if (first > lowest && factor != 1.0f) scale_row(a.row(b, t, head), a.width, factor);
        }
        product.n = a.width;
        product.k = count;
        product.a = scores;
        product.a_row = product.c_row;
        product.w = values;
        product.c = a.row(b, begin + i, head);
        product.c_row = product.residual_row = static_cast<ptrdiff_t>(a.heads * a.width);
        product.residual = first > lowest ? product.c : nullptr;
        packed_gemm(product, 0, panels_of(a.width));
      }
    }
  }
  for (size_t h = 0; h < each; ++h)
    for (size_t i = 0; i < queries; ++i) {
      const size_t head = group * each + h, state = h * queries + i;
      float* const row = a.row(b, begin + i, head);
      const float share = a.share(head, most[state], total[state]);
      if (share == 0.0f)
        for (size_t j = 0; j < a.width; ++j) row[j] = 0.0f;
      else
        scale_row(row, a.width, share);
    }
}

// Rows that read keys and values where they are, a few at a time so that each is loaded once for all of them.
constexpr size_t kFew = 4;
// Keys that all heads pass by before the next ones, in the order of memory; of a multiple of kLanes.
constexpr size_t kChunk = 32;
// Keys that a worker takes at least, and into how many parts they are divided at most.
constexpr size_t kSpan = 128, kSpans = 16;

size_t widest(const Attention& a) { return a.depth > a.width ? a.depth : a.width; }

TORCHETTE_INLINE Vec load_up_to(const float* from, size_t count) {
  return count >= kLanes ? load(from) : load_partial(from, count);
}

/// scores[r][j] = rows[r] . key j, for `count` keys: the sums of a vector of keys are turned together.
template <size_t kCount>
void dot_rows(const float* const* rows, const Rows& given, size_t count, size_t depth, float* scores) {
  const size_t step = given.step;
  const float* keys = given.data;
  const size_t whole = depth / kLanes * kLanes, rest = depth - whole;
  for (size_t j = 0; j < count; j += kLanes, keys += kLanes * step) {
    const size_t here = count - j < kLanes ? count - j : kLanes;
    for (size_t n = 0; n < here; ++n) given.prefetch(j + n);
    for (size_t r = 0; r < kCount; ++r) {
      Vec sum[kLanes] = {};
      if (here == kLanes) {
        for (size_t i = 0; i < whole; i += kLanes) {
          const Vec q = load(rows[r] + i);
          TORCHETTE_UNROLL(16)
          for (size_t n = 0; n < kLanes; ++n) sum[n] = fma(q, load(keys + n * step + i), sum[n]);
        }
        if (rest != 0) {
          const Vec q = load_partial(rows[r] + whole, rest);
          TORCHETTE_UNROLL(16)
          for (size_t n = 0; n < kLanes; ++n)
            sum[n] = fma(q, load_partial(keys + n * step + whole, rest), sum[n]);
        }
      } else {
        for (size_t n = 0; n < here; ++n)
          for (size_t i = 0; i < depth; i += kLanes)
            sum[n] =
                fma(load_up_to(rows[r] + i, depth - i), load_up_to(keys + n * step + i, depth - i), sum[n]);
      }
      transpose(sum);
      TORCHETTE_UNROLL(4)
      for (size_t width = kLanes / 2; width > 0; width /= 2) TORCHETTE_UNROLL(8)
      for (size_t n = 0; n < width; ++n) sum[n] += sum[n + width];
      store_partial(scores + r * kKeys + j, sum[0], here);
    }
  }
}

/// out[r] = factor[r] out[r] + sum of scores[r][j] value j, over `count` keys.
template <size_t kCount, size_t kColumns>
void add_columns(float* const* out, const float* factor, const Rows& given, size_t column, size_t count,
                 size_t width, const float* scores) {
  const float* values = given.data + column;
  Vec sum[kCount][kColumns];
  TORCHETTE_UNROLL(4)
  for (size_t r = 0; r < kCount; ++r) TORCHETTE_UNROLL(4)
  for (size_t c = 0; c < kColumns; ++c)
    sum[r][c] = load_up_to(out[r] + c * kLanes, width - c * kLanes) * factor[r];
  for (size_t j = 0; j < count; ++j, values += given.step) {
    if (column == 0) given.prefetch(j);
    TORCHETTE_UNROLL(4)
    for (size_t c = 0; c < kColumns; ++c) {
      const Vec v = kColumns > 1 ? load(values + c * kLanes) : load_up_to(values, width);
      TORCHETTE_UNROLL(4)
      for (size_t r = 0; r < kCount; ++r) sum[r][c] = fma(broadcast(scores[r * kKeys + j]), v, sum[r][c]);
    }
  }
  TORCHETTE_UNROLL(4)
  for (size_t r = 0; r < kCount; ++r) TORCHETTE_UNROLL(4)
  for (size_t c = 0; c < kColumns; ++c)
    store_partial(out[r] + c * kLanes, sum[r][c], width - c * kLanes < kLanes ? width - c * kLanes : kLanes);
}

template <size_t kCount>
void add_values(float* const* out, const float* factor, const Rows& values, size_t count, size_t width,
                const float* scores) {
  constexpr size_t kColumns = kLanes >= 16 ? 4 : 2;
  for (size_t i = 0; i < width;) {
    float* row[kCount];
    for (size_t r = 0; r < kCount; ++r) row[r] = out[r] + i;
    if (width - i >= kColumns * kLanes) {
      add_columns<kCount, kColumns>(row, factor, values, i, count, width - i, scores);
      i += kColumns * kLanes;
    } else {
      add_columns<kCount, 1>(row, factor, values, i, count, width - i, scores);
      i += kLanes;
    }
  }
}

/// What a few rows have of some keys: their largest score, the sum of their exponentials, and with these the
/// sum of values; of row r of group g at [g * rows + r].
struct Sums {
  float *most, *total, *values;
};

/// body(count as a constant, stored rows, group, first row, first key, keys) for kFew rows at a time of each
/// group, and kChunk of `keys` keys from `first` on.
template <typename Body>
TORCHETTE_INLINE void for_chunks(const Attention& a, const Layout& layout, size_t b, size_t first,
                                 size_t keys, size_t width, float* widened, const Body& body) {
  const size_t rows = a.queries * (a.heads / a.groups);
  for (size_t g = 0; g < a.groups; ++g)
    for (size_t j = 0; j < keys; j += kChunk) {
      const size_t here = keys - j < kChunk ? keys - j : kChunk;
      const Rows given = rows_of(layout, b, first + j, g, here, width, widened);
      for (size_t r = 0; r < rows; r += kFew) switch (rows - r) {
          case 1:
            body(std::integral_constant<size_t, 1>{}, given, g, r, j, here);
            break;
          case 2:
            body(std::integral_constant<size_t, 2>{}, given, g, r, j, here);
            break;
          case 3:
            body(std::integral_constant<size_t, 3>{}, given, g, r, j, here);
            break;
          default:
            body(std::integral_constant<size_t, kFew>{}, given, g, r, j, here);
        }
    }
}

/// All rows of a batch, of keys [begin, end).
void attend_few(const Attention& a, size_t b, size_t begin, size_t end, const Sums& sums, float* scratch) {
  const size_t each = a.heads / a.groups, rows = a.queries * each, all = a.groups * rows;
  float *const scores = scratch, *const factor = scores + all * kKeys, *const widened = factor + all;
  for (size_t i = 0; i < all; ++i) {
    sums.most[i] = kNothing;
    sums.total[i] = 0.0f;
  }
  memset(sums.values, 0, all * a.width * sizeof(float));
  for (size_t first = begin; first < end; first += kKeys) {
    const size_t count = end - first < kKeys ? end - first : kKeys;
    const size_t seen = a.seen(a.queries - 1, first, count);
    if (seen == 0) break;
    for_chunks(a, a.k, b, first, seen, a.depth, widened,
               [&](auto few, const Rows& keys, size_t g, size_t r, size_t j, size_t here) {
                 const float* query[few];
                 for (size_t i = 0; i < few; ++i)
                   query[i] = a.q.at(b, (r + i) / each, g * each + (r + i) % each);
                 dot_rows<few>(query, keys, here, a.depth, scores + (g * rows + r) * kKeys + j);
               });
    for (size_t i = 0; i < all; ++i) {
      const size_t t = i % rows / each, own = a.seen(t, first, count);
      float* const line = scores + i * kKeys;
      const float most = mask_scores(a, b, i / rows * each + i % each, t, first, line, own);
      factor[i] = fold(line, most, own, seen, sums.most[i], sums.total[i]);
    }
    for_chunks(a, a.v, b, first, seen, a.width, widened,
               [&](auto few, const Rows& values, size_t g, size_t r, size_t j, size_t here) {
                 float* out[few];
                 const float ones[kFew] = {1.0f, 1.0f, 1.0f, 1.0f};
                 const size_t at = g * rows + r;
                 for (size_t i = 0; i < few; ++i) out[i] = sums.values + (at + i) * a.width;
                 add_values<few>(out, j == 0 ? factor + at : ones, values, here, a.width,
                                 scores + at * kKeys + j);
               });
  }
}

/// The rows of a batch, of parts of its keys.
void join(const Attention& a, size_t b, const Sums& sums, size_t parts) {
  const size_t each = a.heads / a.groups, rows = a.queries * each, all = a.groups * rows;
  for (size_t i = 0; i < all; ++i) {
    float most = kNothing, total = 0.0f;
    for (size_t p = 0; p < parts; ++p)
      if (!(sums.most[p * all + i] <= most)) most = sums.most[p * all + i];
    const size_t head = i / rows * each + i % each;
    float* const row = a.row(b, i % rows / each, head);
    for (size_t j = 0; j < a.width; ++j) row[j] = 0.0f;
    if (most == kNothing) continue;
    for (size_t p = 0; p < parts; ++p) {
      const size_t at = p * all + i;
      if (sums.most[at] == kNothing) continue;
      const float factor = exp_f(sums.most[at] - most);
      total += factor * sums.total[at];
      for (size_t j = 0; j < a.width; ++j) row[j] += factor * sums.values[at * a.width + j];
    }
    scale_row(row, a.width, a.share(head, most, total));
  }
}

Error run_few(Context& context, const Attention& a, const char* op) {
  const size_t all = a.queries * a.heads, lowest = a.begin(0) / kLanes * kLanes, keys = a.keys - lowest;
  size_t span = (keys + kSpans - 1) / kSpans;
  span = span < kSpan ? kSpan : (span + kKeys - 1) / kKeys * kKeys;
  const size_t parts = keys == 0 ? 1 : (keys + span - 1) / span;
  const size_t each = all * (kKeys + 1) + kChunk * widest(a), of_part = all * (a.width + 2);
  float* const scratch = static_cast<float*>(
      context.allocate_temp((context.workers() * each + a.batch * parts * of_part) * sizeof(float)));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %d rows", op,
                  static_cast<int>(all));
  float* const found = scratch + context.workers() * each;
  const auto sums_of = [&](size_t b) {
    float* const from = found + b * parts * of_part;
    return Sums{from, from + parts * all, from + 2 * parts * all};
  };
  context.parallel_for(a.batch * parts, least_items(all * span * (a.depth + a.width + 8)),
                       [&](size_t begin, size_t end, size_t worker) {
                         for (size_t i = begin; i < end; ++i) {
                           const Sums sums = sums_of(i / parts);
                           const size_t p = i % parts, first = lowest + p * span;
                           const size_t last = a.keys - first < span ? a.keys : first + span;
                           attend_few(
                               a, i / parts, first, last,
                               {sums.most + p * all, sums.total + p * all, sums.values + p * all * a.width},
                               scratch + worker * each);
                         }
                       });
  for (size_t b = 0; b < a.batch; ++b) join(a, b, sums_of(b), parts);
  return Error::Ok;
}

const uint8_t* bytes_of(const Tensor& t) { return static_cast<const uint8_t*>(t.const_data_ptr()); }

Error describe(const Tensor& query, const Tensor& key, const Tensor& value, bool heads_first, Attention& a) {
  const Tensor* given[] = {&query, &key, &value};
  const char* const names[] = {"query", "key", "value"};
  for (size_t i = 0; i < 3; ++i) {
    TORCHETTE_TRY(check_floats("attention", *given[i], names[i]));
    TORCHETTE_CHECK(given[i]->dim() == 4, InvalidArgument, "attention: %s has %d dimensions, not 4", names[i],
                    static_cast<int>(given[i]->dim()));
  }
  const int token = heads_first ? 2 : 1, head = 3 - token;
  const auto size = [](const Tensor& t, int d) { return static_cast<size_t>(t.size(d)); };
  a.batch = size(query, 0);
  a.queries = size(query, 1);
  a.heads = size(query, 2);
  a.depth = size(query, 3);
  a.keys = size(key, token);
  a.groups = size(key, head);
  a.width = size(value, 3);
  TORCHETTE_CHECK(
      size(key, 0) == a.batch && size(value, 0) == a.batch && size(key, 3) == a.depth &&
          size(value, token) == a.keys && size(value, head) == a.groups &&
          (a.heads == 0 || (a.groups > 0 && a.heads % a.groups == 0)),
      InvalidArgument,
      "attention: query has %d heads of %d, key %d heads of %d; key and value have batch %d and %d, tokens "
      "%d and %d",
      static_cast<int>(a.heads), static_cast<int>(a.depth), static_cast<int>(a.groups),
      static_cast<int>(key.size(3)), static_cast<int>(key.size(0)), static_cast<int>(value.size(0)),
      static_cast<int>(a.keys), static_cast<int>(value.size(token)));
  a.q = {
      bytes_of(query), sizeof(float), a.queries * a.heads * a.depth, a.heads * a.depth, a.depth, nullptr, 0};
  const auto laid = [&](const Tensor& t, size_t width) {
    const size_t tokens = heads_first ? width : a.groups * width,
                 heads = heads_first ? a.keys * width : width;
    return Layout{bytes_of(t), sizeof(float), a.keys * a.groups * width, tokens, heads, nullptr, 0};
  };
  a.k = laid(key, a.depth);
  a.v = laid(value, a.width);
  return Error::Ok;
}

Error describe_mask(const Optional<Tensor>& mask, Attention& a) {
  a.mask = nullptr;
  if (!mask.has_value()) return Error::Ok;
  a.additive = mask->scalar_type() == ScalarType::Float;
  TORCHETTE_CHECK(a.additive || mask->scalar_type() == ScalarType::Bool, InvalidType,
                  "attention: mask is of type %d, not of float32 or bool",
                  static_cast<int>(mask->scalar_type()));
  TORCHETTE_CHECK(is_contiguous(*mask) && mask->dim() >= 1 && mask->dim() <= 4, InvalidArgument,
                  "attention: mask has %d dimensions or is not contiguous", static_cast<int>(mask->dim()));
  const size_t wanted[] = {a.batch, a.heads, a.queries, a.keys};
  size_t step = 1;
  for (int d = 3; d >= 0; --d) {
    const ptrdiff_t own = d - (4 - mask->dim());
    const size_t size = own < 0 ? 1 : static_cast<size_t>(mask->size(own));
    TORCHETTE_CHECK(size == 1 || size == wanted[d], InvalidArgument,
                    "attention: mask has %d elements where %d or 1 are needed", static_cast<int>(size),
                    static_cast<int>(wanted[d]));
    a.mask_step[d] = size == 1 ? 0 : step;
    step *= size;
  }
  a.mask = mask->const_data_ptr();
  return Error::Ok;
}

Error run(Context& context, const Attention& a, const char* op) {
  const size_t work = a.keys * (a.depth + a.width + 8), each = a.heads / a.groups, rows = a.queries * each;
  if (rows <= 2 * kFew) return run_few(context, a, op);
  const size_t block = a.keys < kKeys ? a.keys : kKeys;
  const size_t floats = panels_of(block) * kPanel * a.depth + panels_of(a.width) * kPanel * block +
                        kRows * (block + kLanes) + 2 * kQueries * each +
                        (a.k.size == sizeof(float) ? 0 : block * widest(a));
  float* const scratch =
      static_cast<float*>(context.allocate_temp(context.workers() * floats * sizeof(float)));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %d keys of %d", op,
                  static_cast<int>(block), static_cast<int>(a.depth));
  const size_t parts = (a.queries + kQueries - 1) / kQueries;
  context.parallel_for(a.batch * a.groups * parts, least_items(kQueries * each * work),
                       [&](size_t begin, size_t end, size_t worker) {
                         for (size_t i = begin; i < end; ++i) {
                           // the last queries first: they see most keys, and threads end at one time
                           const size_t part = parts - 1 - i / a.groups % parts, group = i % a.groups,
                                        first = part * kQueries;
                           const size_t last = first + kQueries < a.queries ? first + kQueries : a.queries;
                           attend(a, i / parts / a.groups, group, first, last, scratch + worker * floats);
                         }
                       });
  return Error::Ok;
}

}  // namespace

static Error attention_out(Context& context, const Tensor& query, const Tensor& key, const Tensor& value,
                           const Optional<Tensor>& mask, double scale, bool causal, bool heads_first,
                           Tensor& out) {
  Attention a = {};
  TORCHETTE_TRY(describe(query, key, value, heads_first, a));
  TORCHETTE_TRY(describe_mask(mask, a));
  const SizesType sizes[] = {static_cast<SizesType>(a.batch), static_cast<SizesType>(a.queries),
                             static_cast<SizesType>(a.heads), static_cast<SizesType>(a.width)};
  TORCHETTE_TRY(check_result("attention", out, {sizes, 4}));
  a.out = out.mutable_data_ptr<float>();
  a.scale = static_cast<float>(scale);
  a.causal = causal;
  if (out.numel() == 0) return Error::Ok;
  return run(context, a, "attention");
}

/// The scales of an int8 cache, if it has some, are checked by its sizes.
static Error attend_cached(Context& context, const char* op, const Tensor& query, const Tensor& key,
                           const Tensor& value, const Tensor* const* scales, const Tensor& start,
                           const Optional<Tensor>& sinks, double scale, int64_t window, double cap,
                           Tensor& out) {
  Attention a = {};
  const Tensor* given[] = {&query, &key, &value};
  const char* const names[] = {"query", "key", "value"};
  const ScalarType stored = scales != nullptr ? ScalarType::Char
                            : has_dtype(ScalarType::Half) && key.scalar_type() == ScalarType::Half
                                ? ScalarType::Half
                                : ScalarType::Float;
  for (size_t i = 0; i < 3; ++i) {
    if (i == 0 || stored == ScalarType::Float) TORCHETTE_TRY(check_floats(op, *given[i], names[i]));
    TORCHETTE_CHECK((i == 0 || given[i]->scalar_type() == stored) && is_contiguous(*given[i]), InvalidType,
                    "%s: %s is of type %d, not %d, or not contiguous", op, names[i],
                    static_cast<int>(given[i]->scalar_type()), static_cast<int>(stored));
    TORCHETTE_CHECK(given[i]->dim() == (i == 0 ? 4 : 3), InvalidArgument, "%s: %s has %d dimensions, not %d",
                    op, names[i], static_cast<int>(given[i]->dim()), i == 0 ? 4 : 3);
  }
  const auto size = [](const Tensor& t, int d) { return static_cast<size_t>(t.size(d)); };
  a.batch = 1;
  a.queries = size(query, 1);
  a.heads = size(query, 2);
  a.depth = size(query, 3);
  a.groups = size(key, 1);
  a.width = size(value, 2);
  TORCHETTE_CHECK(size(query, 0) == 1 && size(key, 2) == a.depth && size(value, 0) == size(key, 0) &&
                      size(value, 1) == a.groups && a.groups > 0 && a.heads % a.groups == 0,
                  InvalidArgument,
                  "%s: query has batch %d and %d heads of %d; key and value have %d and %d positions, %d and "
                  "%d heads, key of %d",
                  op, static_cast<int>(query.size(0)), static_cast<int>(a.heads), static_cast<int>(a.depth),
                  static_cast<int>(key.size(0)), static_cast<int>(value.size(0)), static_cast<int>(a.groups),
                  static_cast<int>(value.size(1)), static_cast<int>(key.size(2)));
  TORCHETTE_CHECK(start.scalar_type() == ScalarType::Long && start.numel() == 1, InvalidArgument,
                  "%s: start is %d elements of type %d, not one of int64", op,
                  static_cast<int>(start.numel()), static_cast<int>(start.scalar_type()));
  const int64_t first = *start.const_data_ptr<int64_t>();
  TORCHETTE_CHECK(first >= 0 && first <= key.size(0) - query.size(1), InvalidArgument,
                  "%s: %d tokens from position %lld on do not fit into %d positions", op,
                  static_cast<int>(a.queries), static_cast<long long>(first), static_cast<int>(key.size(0)));
  TORCHETTE_CHECK(window >= 0 && cap >= 0, InvalidArgument, "%s: window %lld and cap %f are not positive", op,
                  static_cast<long long>(window), cap);
  const SizesType heads[] = {static_cast<SizesType>(a.heads)};
  TORCHETTE_TRY(check_operand(op, sinks, {heads, 1}, "sinks"));
  const SizesType sizes[] = {1, static_cast<SizesType>(a.queries), static_cast<SizesType>(a.heads),
                             static_cast<SizesType>(a.width)};
  TORCHETTE_TRY(check_result(op, out, {sizes, 4}));
  a.start = static_cast<size_t>(first);
  a.keys = a.start + a.queries;  // what lies behind is of no time yet
  const size_t bytes = stored == ScalarType::Char ? 1 : stored == ScalarType::Half ? 2 : sizeof(float);
  a.q = {bytes_of(query), sizeof(float), 0, a.heads * a.depth, a.depth, nullptr, 0};
  a.k = {bytes_of(key), bytes, 0, a.groups * a.depth, a.depth, nullptr, 0};
  a.v = {bytes_of(value), bytes, 0, a.groups * a.width, a.width, nullptr, 0};
  for (size_t i = 0; scales != nullptr && i < 2; ++i) {
    const SizesType wanted[] = {static_cast<SizesType>(key.size(0)), static_cast<SizesType>(a.groups), 2};
    TORCHETTE_TRY(check_operand(op, *scales[i], {wanted, 3}, i == 0 ? "key_scales" : "value_scales"));
    Layout& layout = i == 0 ? a.k : a.v;
    layout.scales = scales[i]->const_data_ptr<float>();
    layout.scales_token = 2 * a.groups;
  }
  a.out = out.mutable_data_ptr<float>();
  a.scale = static_cast<float>(scale);
  a.causal = true;
  a.window = static_cast<size_t>(window);
  a.cap = static_cast<float>(cap);
  a.sinks = floats_of(sinks);
  return out.numel() == 0 ? Error::Ok : run(context, a, op);
}

static Error cached_attention_out(Context& context, const Tensor& query, const Tensor& key,
                                  const Tensor& value, const Tensor& start, const Optional<Tensor>& sinks,
                                  double scale, int64_t window, double cap, Tensor& out) {
  return attend_cached(context, "cached_attention", query, key, value, nullptr, start, sinks, scale, window,
                       cap, out);
}

static Error int8_cached_attention_out(Context& context, const Tensor& query, const Tensor& key,
                                       const Tensor& value, const Tensor& key_scales,
                                       const Tensor& value_scales, const Tensor& start,
                                       const Optional<Tensor>& sinks, double scale, int64_t window,
                                       double cap, Tensor& out) {
  const Tensor* const scales[] = {&key_scales, &value_scales};
  return attend_cached(context, "int8_cached_attention", query, key, value, scales, start, sinks, scale,
                       window, cap, out);
}

// --- What ExecuTorch's exports of language models call: caches are [batch, positions, heads, depth].

/// Rows [batch, tokens] of `value` into the cache: at start_pos and behind, or where the indices say.
static Error store_rows(const char* op, const Tensor& value, Tensor& cache, int64_t start_pos,
                        const Tensor* indices) {
  TORCHETTE_CHECK(value.scalar_type() == cache.scalar_type() && is_contiguous(value) && is_contiguous(cache),
                  InvalidType, "%s: value and cache are of types %d and %d, or not contiguous", op,
                  static_cast<int>(value.scalar_type()), static_cast<int>(cache.scalar_type()));
  bool fits = value.dim() == 4 && cache.dim() == 4;
  for (const int d : {0, 2, 3}) fits = fits && value.size(d) == cache.size(d);
  TORCHETTE_CHECK(fits, InvalidArgument,
                  "%s: value and cache differ in batch, heads or depth, or have %d and %d dimensions, not 4",
                  op, static_cast<int>(value.dim()), static_cast<int>(cache.dim()));
  const int64_t tokens = value.size(1), positions = cache.size(1);
  TORCHETTE_CHECK(indices != nullptr || (start_pos >= 0 && start_pos <= positions - tokens), InvalidArgument,
                  "%s: %d tokens from position %lld on do not fit into %d positions", op,
                  static_cast<int>(tokens), static_cast<long long>(start_pos), static_cast<int>(positions));
  if (value.numel() == 0) return Error::Ok;
  if (indices != nullptr)
    TORCHETTE_CHECK(indices->scalar_type() == ScalarType::Long && is_contiguous(*indices) &&
                        indices->dim() == 2 && indices->size(0) == value.size(0) &&
                        indices->size(1) == tokens,
                    InvalidArgument, "%s: indices are of type %d, not int64 of [batch, tokens]", op,
                    static_cast<int>(indices->scalar_type()));
  const auto row = static_cast<size_t>(value.size(2) * value.size(3)) * element_size(value.scalar_type());
  const int64_t* const places = indices != nullptr ? indices->const_data_ptr<int64_t>() : nullptr;
  const int64_t rows = value.size(0) * tokens;
  for (int64_t i = 0; places != nullptr && i < rows; ++i)
    TORCHETTE_CHECK(places[i] >= 0 && places[i] < positions, InvalidArgument,
                    "%s: position %lld is not among the %d of the cache", op,
                    static_cast<long long>(places[i]), static_cast<int>(positions));
  auto* const to = static_cast<uint8_t*>(cache.mutable_data_ptr());
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t place = places != nullptr ? places[i] : start_pos + i % tokens;
    memcpy(to + static_cast<size_t>(i / tokens * positions + place) * row,
           bytes_of(value) + static_cast<size_t>(i) * row, row);
  }
  return Error::Ok;
}

/// The result is for the graph alone, which orders writing before reading by it.
static Error one_element(Tensor& out) {
  const SizesType one[] = {1};
  TORCHETTE_TRY(resize_result(out, {one, 1}));
  memset(out.mutable_data_ptr(), 0, element_size(out.scalar_type()));
  return Error::Ok;
}

static Error update_cache_out(Context&, const Tensor& value, Tensor& cache, int64_t start_pos, Tensor& out) {
  TORCHETTE_TRY(store_rows("update_cache", value, cache, start_pos, nullptr));
  return one_element(out);
}

static Error update_cache_with_indices_out(Context&, const Tensor& value, Tensor& cache, int64_t,
                                           const Tensor& indices, Tensor& out) {
  TORCHETTE_TRY(store_rows("update_cache_with_indices", value, cache, 0, &indices));
  return one_element(out);
}

/// A mask decides alone; without one a query sees what is written, of that with `is_causal` what is not
/// behind it.
static Error custom_sdpa_out(Context& context, const Tensor& query, const Tensor& key, const Tensor& value,
                             int64_t start_pos, const Optional<Tensor>& mask, double dropout, bool is_causal,
                             const Optional<double>& scale, Tensor& out) {
  Attention a = {};
  TORCHETTE_TRY(describe(query, key, value, false, a));
  TORCHETTE_CHECK(dropout == 0 && !(is_causal && mask.has_value()), NotSupported,
                  "custom_sdpa: drpout_p is %f, not 0, or there is a mask beside is_causal", dropout);
  const auto written = static_cast<size_t>(start_pos) + a.queries;
  TORCHETTE_CHECK(start_pos >= 0 && start_pos <= key.size(1) && (mask.has_value() || written <= a.keys),
                  InvalidArgument,
                  "custom_sdpa: %d tokens from position %lld on do not fit into %d positions",
                  static_cast<int>(a.queries), static_cast<long long>(start_pos), static_cast<int>(a.keys));
  TORCHETTE_TRY(describe_mask(mask, a));
  const SizesType sizes[] = {query.sizes()[0], query.sizes()[1], query.sizes()[2], value.sizes()[3]};
  TORCHETTE_TRY(check_result("custom_sdpa", out, {sizes, 4}));
  a.out = out.mutable_data_ptr<float>();
  a.scale = scale.has_value() ? static_cast<float>(*scale) : 1.0f / std::sqrt(static_cast<float>(a.depth));
  a.causal = is_causal;
  a.start = static_cast<size_t>(start_pos);
  if (!mask.has_value()) a.keys = written;
  return out.numel() == 0 ? Error::Ok : run(context, a, "custom_sdpa");
}

static Error sdpa_with_kv_cache_out(Context& context, const Tensor& query, const Tensor& key,
                                    const Tensor& value, Tensor& key_cache, Tensor& value_cache,
                                    int64_t start_pos, int64_t, const Optional<Tensor>& mask, double dropout,
                                    bool is_causal, const Optional<double>& scale, Tensor& out) {
  TORCHETTE_TRY(store_rows("sdpa_with_kv_cache", key, key_cache, start_pos, nullptr));
  TORCHETTE_TRY(store_rows("sdpa_with_kv_cache", value, value_cache, start_pos, nullptr));
  return custom_sdpa_out(context, query, key_cache, value_cache, start_pos, mask, dropout, is_causal, scale,
                         out);
}

TORCHETTE_KERNELS(attention, TORCHETTE_KERNEL("cpu::attention.out", attention_out),
                  TORCHETTE_KERNEL("cpu::cached_attention.out", cached_attention_out),
                  TORCHETTE_KERNEL("cpu::int8_cached_attention.out", int8_cached_attention_out),
                  TORCHETTE_KERNEL("llama::custom_sdpa.out", custom_sdpa_out),
                  TORCHETTE_KERNEL("llama::sdpa_with_kv_cache.out", sdpa_with_kv_cache_out),
                  TORCHETTE_KERNEL("llama::update_cache.out", update_cache_out),
                  TORCHETTE_KERNEL("llama::update_cache_with_indices.out", update_cache_with_indices_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
