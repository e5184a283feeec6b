// SPDX-License-Identifier: BSD-3-Clause
// Keys and values are packed one block at a time and multiplied with the queries. The weighted sum of a query
// is rescaled when a block raises its maximum, so that no matrix of scores exists. A few queries read keys
// and values in place. Stored keys and values of 16 or 8 bits are converted to floats a few rows at a time.
#include "torchette/kernels/engine/attend.h"

#include <type_traits>

#include "torchette/kernels/engine/paired_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Keys of a block, queries that share a packed block, and queries of a matrix of scores.
constexpr size_t kKeys = kLanes >= 8 ? 256 : 64;
constexpr size_t kQueries = kLanes >= 8 ? 112 : 32;
constexpr size_t kRows = kLanes >= 8 ? 28 : 6;
constexpr float kHidden = -INFINITY;
// Products of shorter rows are as fast in float32, because the pairs have to be packed.
constexpr size_t kFewestPaired = 32;

/// Rows of floats, `step` elements apart, and the stored rows that are needed next.
struct Rows {
  const float* data;
  size_t step;
  const uint8_t* ahead;
  size_t ahead_step, ahead_bytes;

  TORCHETTE_INLINE void prefetch(size_t i) const {
    for (size_t j = 0; j < ahead_bytes; j += 64) TORCHETTE_PREFETCH(ahead + i * ahead_step + j);
  }
};

/// Loads kLanes bytes. The compiler does not vectorize the conversion.
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

/// Converts stored rows to floats, each row with a separate scale.
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

/// `count` rows from token `first` on: in place, or converted to floats in `scratch`.
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

/// Rows [count][k contiguous] into panels [count / kPanelWidth][k][kPanelWidth].
void pack_rows(const float* rows, size_t row, size_t count, size_t depth, float* to) {
  for (size_t first = 0; first < count; first += kPanelWidth, to += depth * kPanelWidth) {
    const size_t here = count - first < kPanelWidth ? count - first : kPanelWidth;
    size_t k = 0;
    if (here == kPanelWidth)
      for (; k + kLanes <= depth; k += kLanes)
        for (size_t v = 0; v < kPanelVectors; ++v) {
          Vec square[kLanes];
          TORCHETTE_UNROLL(16)
          for (int i = 0; i < kLanes; ++i)
            square[i] = load(rows + (first + v * kLanes + static_cast<size_t>(i)) * row + k);
          transpose(square);
          TORCHETTE_UNROLL(16)
          for (int i = 0; i < kLanes; ++i)
            store(to + (k + static_cast<size_t>(i)) * kPanelWidth + v * kLanes, square[i]);
        }
    for (; k < depth; ++k)
      for (size_t i = 0; i < kPanelWidth; ++i)
        to[k * kPanelWidth + i] = i < here ? rows[(first + i) * row + k] : 0.0f;
  }
}

/// Rows [count][width contiguous] into panels [width / kPanelWidth][count][kPanelWidth].
void pack_columns(const float* rows, size_t row, size_t count, size_t width, float* to) {
  for (size_t first = 0; first < width; first += kPanelWidth)
    for (size_t i = 0; i < count; ++i, to += kPanelWidth) {
      const float* from = rows + i * row + first;
      for (size_t j = 0; j < kPanelWidth; j += kLanes) {
        if (first + j + kLanes <= width)
          store(to + j, load(from + j));
        else
          store(to + j, first + j < width ? load_partial(from + j, width - first - j) : Vec{});
      }
    }
}

/// Returns the first `count` lanes of x, and kHidden in the others.
TORCHETTE_INLINE Vec hide_others(Vec x, size_t count) {
#if defined(__AVX512F__)
  return _mm512_mask_blend_ps(static_cast<__mmask16>((1u << count) - 1u), broadcast(kHidden), x);
#else
  float lanes[kLanes];
  store(lanes, x);
  for (size_t i = count; i < kLanes; ++i) lanes[i] = kHidden;
  return load(lanes);
#endif
}

/// Adds the mask to `count` scores, or hides those that a boolean mask hides, also if they are NaN.
TORCHETTE_INLINE Vec masked(const Attention& a, Vec scores, size_t at, size_t count) {
  const size_t step = a.mask_step[3];
  if (a.additive) {
    const auto* added = static_cast<const float*>(a.mask) + at;
    if (step == 1) return scores + (count == kLanes ? load(added) : load_partial(added, count));
    float values[kLanes] = {};
    for (size_t i = 0; i < count; ++i) values[i] = added[i * step];
    return scores + load(values);
  }
  const auto* visible = static_cast<const int8_t*>(a.mask) + at;
  int8_t bytes[kLanes] = {};
  if (step != 1 || count < kLanes)
    for (size_t i = 0; i < count; ++i) bytes[i] = visible[i * step];
  const Vec shown = load_stored(step == 1 && count == kLanes ? visible : bytes);
  return TORCHETTE_SELECT(shown == 0.0f, broadcast(kHidden), scores);
}

/// Scales and masks the first `seen` scores in place, and those before the window; hides the others of the
/// last vector. Returns their maximum without the NaN among them.
float mask_scores(const Attention& a, size_t b, size_t h, size_t t, size_t first, float* scores,
                  size_t seen) {
  const size_t at = b * a.mask_step[0] + h * a.mask_step[1] + t * a.mask_step[2] + first * a.mask_step[3];
  Vec max_score = broadcast(kHidden);
  const Vec scale = broadcast(a.scale);
  const size_t hidden = a.begin(t) > first ? a.begin(t) - first : 0;
  for (size_t j = 0; j < seen; j += kLanes) {
    const size_t here = seen - j < kLanes ? seen - j : kLanes;
    Vec s = load(scores + j) * scale;
    if (a.cap != 0.0f) s = a.cap * tanh_f(s / a.cap);
    if (a.mask != nullptr) s = masked(a, s, at + j * a.mask_step[3], here);
    if (j < hidden) {
      float lanes[kLanes];
      store(lanes, s);
      for (size_t i = 0; i < kLanes && j + i < hidden; ++i) lanes[i] = kHidden;
      s = load(lanes);
    }
    if (here < kLanes) s = hide_others(s, here);
    store(scores + j, s);
    max_score = maximum(s, max_score);
  }
  return horizontal_max(max_score);
}

/// Computes scores = exp(scores - max_score), with zeros from index `seen` on: the others of the last vector
/// are hidden. Returns their sum.
float exponentials(float* scores, float max_score, size_t seen, size_t count) {
  Vec sum = {};
  const Vec shift = broadcast(max_score);
  size_t j = 0;
  for (; j < seen; j += kLanes) {
    const Vec e = exp_of_negative(load(scores + j) - shift);
    store(scores + j, e);
    sum += e;
  }
  if (j < count) memset(scores + j, 0, (count - j) * sizeof(float));
  return horizontal_sum(sum);
}

void scale_row(float* row, size_t width, float factor) {
  const Vec f = broadcast(factor);
  size_t j = 0;
  for (; j + kLanes <= width; j += kLanes) store(row + j, load(row + j) * f);
  for (; j < width; ++j) row[j] *= factor;
}

/// Adds the scores of a block to the maximum and the sum of exponentials of a query. Returns the factor for
/// its weighted sum.
float fold(float* scores, float block_max, size_t seen, size_t count, float& max_score, float& total) {
  if (block_max == kHidden) {
    for (size_t j = 0; j < seen; ++j)
      if (scores[j] != scores[j]) block_max = scores[j];  // then the result is NaN
    if (block_max == kHidden) seen = 0;                   // all are masked
  }
  if (seen == 0) {
    for (size_t j = 0; j < count; ++j) scores[j] = 0.0f;
    return 1.0f;
  }
  const float before = max_score;
  if (block_max > max_score || block_max != block_max) max_score = block_max;  // NaN stays NaN
  const float factor = before == kHidden ? 0.0f : exp_f(before - max_score);
  total = total * factor + exponentials(scores, max_score, seen, count);
  return factor;
}

/// Queries [begin, end) of the heads that share the keys and values of `group`.
void attend_block(const Attention& a, size_t b, size_t group, size_t begin, size_t end, float* scratch) {
  const size_t each = a.heads / a.groups, block = a.keys < kKeys ? a.keys : kKeys;
  float* const keys = scratch;
  float* const values = keys + panels_of(block) * kPanelWidth * a.depth;
  float* const scores = values + panels_of(a.width) * kPanelWidth * block;
  float* const max_score = scores + kRows * (block + kLanes);
  float* const total = max_score + kQueries * each;
  float* const widened = total + kQueries * each;
  const size_t queries = end - begin;
  for (size_t i = 0; i < queries * each; ++i) {
    max_score[i] = kHidden;
    total[i] = 0.0f;
  }
  const bool is_paired = a.rounds && a.depth % 2 == 0 && a.depth >= kFewestPaired && multiplies_pairs();
  const size_t lowest = a.begin(begin) / block * block;
  for (size_t first = lowest; first < a.keys; first += block) {
    const size_t left = a.keys - first < block ? a.keys - first : block;
    const size_t count = a.seen(end - 1, first, left);
    if (count == 0) break;
    const Rows k = rows_of(a.k, b, first, group, count, a.depth, widened);
    if (is_paired)
      pack_row_pairs(k.data, k.step, count, a.depth, reinterpret_cast<int32_t*>(keys));
    else
      pack_rows(k.data, k.step, count, a.depth, keys);
    const Rows v = rows_of(a.v, b, first, group, count, a.width, widened);
    if (is_paired)
      pack_column_pairs(v.data, v.step, count, a.width, reinterpret_cast<int32_t*>(values));
    else
      pack_columns(v.data, v.step, count, a.width, values);
    const size_t inputs = is_paired ? (count + 1) / 2 * 2 : count;  // with a zero after the last score
    for (size_t h = 0; h < each; ++h) {
      const size_t head = group * each + h;
      for (size_t i = 0, rows; i < queries; i += rows) {
        rows = next_part(queries - i, kRows);
        const size_t visible = a.seen(begin + i + rows - 1, first, count);
        if (visible == 0 && first > lowest) continue;
        PackedProduct product = {};
        product.m = rows;
        product.n = visible;
        product.k = a.depth;
        product.a = a.q.at(b, begin + i, head);
        product.a_row = static_cast<ptrdiff_t>(a.q.token);
        product.w = keys;
        product.stored = is_paired ? Stored::pairs : Stored::float32;
        product.c = scores;
        product.c_row = static_cast<ptrdiff_t>(block + kLanes);
        packed_gemm(product, 0, panels_of(visible));
        for (size_t r = 0; r < rows; ++r) {
          const size_t t = begin + i + r, seen = a.seen(t, first, count), state = h * queries + i + r;
          float* const line = scores + r * (block + kLanes);
          const float highest = mask_scores(a, b, head, t, first, line, seen);
          const float factor = fold(line, highest, seen, inputs, max_score[state], total[state]);
          if (first > lowest && factor != 1.0f) scale_row(a.row(b, t, head), a.width, factor);
        }
        product.n = a.width;
        product.k = inputs;
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
      const float share = a.share(head, max_score[state], total[state]);
      if (share == 0.0f)
        for (size_t j = 0; j < a.width; ++j) row[j] = 0.0f;
      else
        scale_row(row, a.width, share);
    }
}

// Queries that read keys and values in place: this many share one load of them.
constexpr size_t kFewQueries = 4;
// Keys that all heads read before the next ones, in the order of memory; a multiple of kLanes.
constexpr size_t kChunk = 32;
// Minimum number of keys per worker, and maximum number of parts into which the keys are divided.
constexpr size_t kSpan = 128, kSpans = 16;

size_t widest(const Attention& a) { return a.depth > a.width ? a.depth : a.width; }

TORCHETTE_INLINE Vec load_up_to(const float* from, size_t count) {
  return count >= kLanes ? load(from) : load_partial(from, count);
}

/// scores[r][j] = rows[r] . key j, for `count` keys. The accumulators of a vector of keys are transposed
/// together.
template <size_t kCount>
void dot_rows(const float* const* rows, const Rows& given, size_t count, size_t depth, float* scores) {
  const size_t step = given.step;
  const float* keys = given.data;
  const size_t full = depth / kLanes * kLanes, remaining = depth - full;
  for (size_t j = 0; j < count; j += kLanes, keys += kLanes * step) {
    const size_t here = count - j < kLanes ? count - j : kLanes;
    for (size_t n = 0; n < here; ++n) given.prefetch(j + n);
    for (size_t r = 0; r < kCount; ++r) {
      Vec sum[kLanes] = {};
      if (here == kLanes) {
        for (size_t i = 0; i < full; i += kLanes) {
          const Vec q = load(rows[r] + i);
          TORCHETTE_UNROLL(16)
          for (size_t n = 0; n < kLanes; ++n) sum[n] = fma(q, load(keys + n * step + i), sum[n]);
        }
        if (remaining != 0) {
          const Vec q = load_partial(rows[r] + full, remaining);
          TORCHETTE_UNROLL(16)
          for (size_t n = 0; n < kLanes; ++n)
            sum[n] = fma(q, load_partial(keys + n * step + full, remaining), sum[n]);
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

/// The state of each row over some keys: the maximum score, the sum of exponentials, and the sum of values
/// weighted with them. Row r of group g is at [g * rows + r].
struct Sums {
  float *max_score, *total, *values;
};

/// body(count as a constant, stored rows, group, first row, first key, keys) for kFewQueries rows at a time
/// of each group, and kChunk of `keys` keys from `first` on.
template <typename Body>
TORCHETTE_INLINE void for_chunks(const Attention& a, const Layout& layout, size_t b, size_t first,
                                 size_t keys, size_t width, float* widened, const Body& body) {
  const size_t rows = a.queries * (a.heads / a.groups);
  for (size_t g = 0; g < a.groups; ++g)
    for (size_t j = 0; j < keys; j += kChunk) {
      const size_t here = keys - j < kChunk ? keys - j : kChunk;
      const Rows given = rows_of(layout, b, first + j, g, here, width, widened);
      for (size_t r = 0; r < rows; r += kFewQueries) switch (rows - r) {
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
            body(std::integral_constant<size_t, kFewQueries>{}, given, g, r, j, here);
        }
    }
}

/// Computes the state of all rows of a batch over keys [begin, end).
void attend_few(const Attention& a, size_t b, size_t begin, size_t end, const Sums& sums, float* scratch) {
  const size_t each = a.heads / a.groups, rows = a.queries * each, all = a.groups * rows;
  float *const scores = scratch, *const factor = scores + all * kKeys, *const widened = factor + all;
  for (size_t i = 0; i < all; ++i) {
    sums.max_score[i] = kHidden;
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
      const float max_score = mask_scores(a, b, i / rows * each + i % each, t, first, line, own);
      factor[i] = fold(line, max_score, own, seen, sums.max_score[i], sums.total[i]);
    }
    for_chunks(a, a.v, b, first, seen, a.width, widened,
               [&](auto few, const Rows& values, size_t g, size_t r, size_t j, size_t here) {
                 float* out[few];
                 const float ones[kFewQueries] = {1.0f, 1.0f, 1.0f, 1.0f};
                 const size_t at = g * rows + r;
                 for (size_t i = 0; i < few; ++i) out[i] = sums.values + (at + i) * a.width;
                 add_values<few>(out, j == 0 ? factor + at : ones, values, here, a.width,
                                 scores + at * kKeys + j);
               });
  }
}

/// Computes the results of a batch from the states of the parts of its keys.
void join(const Attention& a, size_t b, const Sums& sums, size_t parts) {
  const size_t each = a.heads / a.groups, rows = a.queries * each, all = a.groups * rows;
  for (size_t i = 0; i < all; ++i) {
    float max_score = kHidden, total = 0.0f;
    for (size_t p = 0; p < parts; ++p) {
      const float of_part = sums.max_score[p * all + i];
      if (of_part > max_score || of_part != of_part) max_score = of_part;  // NaN stays NaN
    }
    const size_t head = i / rows * each + i % each;
    float* const row = a.row(b, i % rows / each, head);
    for (size_t j = 0; j < a.width; ++j) row[j] = 0.0f;
    if (max_score == kHidden) continue;
    for (size_t p = 0; p < parts; ++p) {
      const size_t at = p * all + i;
      if (sums.max_score[at] == kHidden) continue;
      const float factor = exp_f(sums.max_score[at] - max_score);
      total += factor * sums.total[at];
      for (size_t j = 0; j < a.width; ++j) row[j] += factor * sums.values[at * a.width + j];
    }
    scale_row(row, a.width, a.share(head, max_score, total));
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
  context.parallel_for(
      a.batch * parts, min_items(all * span * (a.depth + a.width + 8)),
      [&](size_t begin, size_t end, size_t worker) {
        for (size_t i = begin; i < end; ++i) {
          const Sums sums = sums_of(i / parts);
          const size_t p = i % parts, first = lowest + p * span;
          const size_t last = a.keys - first < span ? a.keys : first + span;
          attend_few(a, i / parts, first, last,
                     {sums.max_score + p * all, sums.total + p * all, sums.values + p * all * a.width},
                     scratch + worker * each);
        }
      });
  for (size_t b = 0; b < a.batch; ++b) join(a, b, sums_of(b), parts);
  return Error::Ok;
}

}  // namespace

Error attend(Context& context, const Attention& a, const char* op) {
  const size_t work = a.keys * (a.depth + a.width + 8), each = a.heads / a.groups, rows = a.queries * each;
  if (rows <= 2 * kFewQueries) return run_few(context, a, op);
  const size_t block = a.keys < kKeys ? a.keys : kKeys;
  const size_t floats = panels_of(block) * kPanelWidth * a.depth + panels_of(a.width) * kPanelWidth * block +
                        kRows * (block + kLanes) + 2 * kQueries * each +
                        (a.k.size == sizeof(float) ? 0 : block * widest(a));
  float* const scratch =
      static_cast<float*>(context.allocate_temp(context.workers() * floats * sizeof(float)));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %d keys of %d", op,
                  static_cast<int>(block), static_cast<int>(a.depth));
  const size_t part_size = next_part(a.queries, kQueries), parts = (a.queries + part_size - 1) / part_size;
  context.parallel_for(a.batch * a.groups * parts, min_items(kQueries * each * work),
                       [&](size_t begin, size_t end, size_t worker) {
                         for (size_t i = begin; i < end; ++i) {
                           // The last queries, which see the most keys, come first, so that the threads end
                           // together.
                           const size_t part = parts - 1 - i / a.groups % parts, group = i % a.groups;
                           const size_t first = part * part_size;
                           const size_t last = first + part_size < a.queries ? first + part_size : a.queries;
                           attend_block(a, i / parts / a.groups, group, first, last,
                                        scratch + worker * floats);
                         }
                       });
  return Error::Ok;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
