// SPDX-License-Identifier: BSD-3-Clause
// cpu::attention: torchette/backends/cpu/operators/attention.py. Keys and values are packed a block at a
// time; queries pass by, and the sums of each are rescaled when a block raises its maximum, so that no matrix
// of scores exists.
#include "torchette/kernels/cpu/operands.h"
#include "torchette/kernels/cpu/packed_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Keys of a block, and queries that share the packing of one; queries of a matrix of scores.
constexpr size_t kKeys = kLanes >= 8 ? 256 : 64;
constexpr size_t kQueries = kLanes >= 8 ? 128 : 32;
constexpr size_t kRows = kLanes >= 8 ? 28 : 6;
constexpr float kNothing = -__builtin_inff();

/// Where element [batch, token, head, 0] of a tensor is.
struct Layout {
  const float* data;
  size_t batch, token, head;
  const float* at(size_t b, size_t t, size_t h) const { return data + b * batch + t * token + h * head; }
};

struct Attention {
  size_t batch, queries, heads, depth, keys, groups,
      width;  // groups: heads of keys and values; width: of a value
  Layout q, k, v;
  float* out;  // [batch, queries, heads, width]
  float scale;
  bool causal;
  const void* mask;  // or null
  bool additive;
  size_t mask_step[4];  // elements from one batch, head, query and key to the next; 0 where it is one for all

  float* row(size_t b, size_t t, size_t h) const { return out + ((b * queries + t) * heads + h) * width; }
  /// How many of `count` keys from `first` on a query may see.
  size_t seen(size_t t, size_t first, size_t count) const {
    if (!causal) return count;
    return t < first ? 0 : t - first + 1 < count ? t - first + 1 : count;
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
#pragma GCC unroll 16
          for (int i = 0; i < kLanes; ++i)
            square[i] = load(rows + (first + v * kLanes + static_cast<size_t>(i)) * row + k);
          transpose(square);
#pragma GCC unroll 16
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

/// Scales and masks scores in place and returns their maximum; those behind `seen` do not count.
float mask_scores(const Attention& a, size_t b, size_t h, size_t t, size_t first, float* scores,
                  size_t seen) {
  const size_t at = b * a.mask_step[0] + h * a.mask_step[1] + t * a.mask_step[2] + first * a.mask_step[3];
  Vec most = broadcast(kNothing);
  const Vec scale = broadcast(a.scale);
  const auto* added = static_cast<const float*>(a.mask) + at;
  const auto* visible = static_cast<const bool*>(a.mask) + at;
  for (size_t j = 0; j < seen; j += kLanes) {
    const size_t here = seen - j < kLanes ? seen - j : kLanes;
    Vec s = load_partial(scores + j, here) * scale;
    if (a.mask != nullptr) {
      float number[kLanes] = {};
      for (size_t i = 0; i < here; ++i) {
        const size_t place = (j + i) * a.mask_step[3];
        number[i] = a.additive ? added[place] : visible[place] ? 0.0f : kNothing;
      }
      s += load(number);
    }
    store_partial(scores + j, s, here);
    if (here < kLanes) {
      float lanes[kLanes];
      store(lanes, s);
      for (size_t i = here; i < kLanes; ++i) lanes[i] = kNothing;
      s = load(lanes);
    }
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
  float total = horizontal_sum(sum);
  for (; j < count; ++j) {
    scores[j] = j < seen ? exp_of_negative(scores[j] - most) : 0.0f;
    total += scores[j];
  }
  return total;
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
  const size_t queries = end - begin;
  for (size_t i = 0; i < queries * each; ++i) {
    most[i] = kNothing;
    total[i] = 0.0f;
  }
  for (size_t first = 0; first < a.keys; first += block) {
    const size_t count = a.keys - first < block ? a.keys - first : block;
    if (a.seen(end - 1, first, count) == 0) break;
    pack_rows(a.k.at(b, first, group), a.k.token, count, a.depth, keys);
    pack_columns(a.v.at(b, first, group), a.v.token, count, a.width, values);
    for (size_t h = 0; h < each; ++h) {
      const size_t head = group * each + h;
      for (size_t i = 0; i < queries; i += kRows) {
        const size_t rows = queries - i < kRows ? queries - i : kRows;
        PackedProduct product = {};
        product.m = rows;
        product.n = count;
        product.k = a.depth;
        product.a = a.q.at(b, begin + i, head);
        product.a_row = static_cast<ptrdiff_t>(a.q.token);
        product.w = keys;
        product.c = scores;
        product.c_row = static_cast<ptrdiff_t>(block + kLanes);
        packed_gemm(product, 0, panels_of(count));
        for (size_t r = 0; r < rows; ++r) {
          const size_t t = begin + i + r, seen = a.seen(t, first, count), state = h * queries + i + r;
          float* const line = scores + r * (block + kLanes);
          const float highest = mask_scores(a, b, head, t, first, line, seen);
          const float factor = fold(line, highest, seen, count, most[state], total[state]);
          if (first > 0 && factor != 1.0f) scale_row(a.row(b, t, head), a.width, factor);
        }
        product.n = a.width;
        product.k = count;
        product.a = scores;
        product.a_row = product.c_row;
        product.w = values;
        product.c = a.row(b, begin + i, head);
        product.c_row = product.residual_row = static_cast<ptrdiff_t>(a.heads * a.width);
        product.residual = first > 0 ? product.c : nullptr;
        packed_gemm(product, 0, panels_of(a.width));
      }
    }
  }
  for (size_t h = 0; h < each; ++h)
    for (size_t i = 0; i < queries; ++i) {
      const float sum = total[h * queries + i];
      float* const row = a.row(b, begin + i, group * each + h);
      if (sum == 0.0f)
        for (size_t j = 0; j < a.width; ++j) row[j] = 0.0f;
      else
        scale_row(row, a.width, 1.0f / sum);
    }
}

TORCHETTE_INLINE float dot(const float* x, const float* y, size_t count) {
  Vec sum[2] = {};
  size_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    sum[0] = fma(load(x + i), load(y + i), sum[0]);
    sum[1] = fma(load(x + i + kLanes), load(y + i + kLanes), sum[1]);
  }
  for (; i < count; i += kLanes) {
    const size_t here = count - i < kLanes ? count - i : kLanes;
    sum[0] = fma(load_partial(x + i, here), load_partial(y + i, here), sum[0]);
  }
  return horizontal_sum(sum[0] + sum[1]);
}

/// One query of one head: keys and values are read where they are.
void attend_one(const Attention& a, size_t b, size_t head, size_t t, float* scores) {
  const size_t group = head / (a.heads / a.groups);
  float* const row = a.row(b, t, head);
  for (size_t j = 0; j < a.width; ++j) row[j] = 0.0f;
  float most = kNothing, total = 0.0f;
  for (size_t first = 0; first < a.keys; first += kKeys) {
    const size_t count = a.keys - first < kKeys ? a.keys - first : kKeys, seen = a.seen(t, first, count);
    if (seen == 0) break;
    const float* const query = a.q.at(b, t, head);
    for (size_t j = 0; j < seen; ++j) scores[j] = dot(query, a.k.at(b, first + j, group), a.depth);
    const float highest = mask_scores(a, b, head, t, first, scores, seen);
    const float factor = fold(scores, highest, seen, count, most, total);
    if (first > 0 && factor != 1.0f) scale_row(row, a.width, factor);
    for (size_t j = 0; j < seen; ++j) {
      const float* const value = a.v.at(b, first + j, group);
      const Vec p = broadcast(scores[j]);
      size_t i = 0;
      for (; i + kLanes <= a.width; i += kLanes) store(row + i, fma(p, load(value + i), load(row + i)));
      for (; i < a.width; ++i) row[i] += scores[j] * value[i];
    }
  }
  if (total != 0.0f) scale_row(row, a.width, 1.0f / total);
}

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
  a.q = {query.const_data_ptr<float>(), a.queries * a.heads * a.depth, a.heads * a.depth, a.depth};
  const auto laid = [&](const Tensor& t, size_t width) {
    const size_t tokens = heads_first ? width : a.groups * width,
                 heads = heads_first ? a.keys * width : width;
    return Layout{t.const_data_ptr<float>(), a.keys * a.groups * width, tokens, heads};
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
  const size_t work = a.keys * (a.depth + a.width + 8), each = a.heads / a.groups;
  if (a.queries * each <= 4) {
    float* const scores =
        static_cast<float*>(context.allocate_temp(context.workers() * kKeys * sizeof(float)));
    TORCHETTE_CHECK(scores != nullptr, MemoryAllocationFailed, "attention: no scratch memory");
    context.parallel_for(a.batch * a.queries * a.heads, least_items(work),
                         [&](size_t begin, size_t end, size_t worker) {
                           for (size_t i = begin; i < end; ++i)
                             attend_one(a, i / a.heads / a.queries, i % a.heads, i / a.heads % a.queries,
                                        scores + worker * kKeys);
                         });
    return Error::Ok;
  }
  const size_t block = a.keys < kKeys ? a.keys : kKeys;
  const size_t floats = panels_of(block) * kPanel * a.depth + panels_of(a.width) * kPanel * block +
                        kRows * (block + kLanes) + 2 * kQueries * each;
  float* const scratch =
      static_cast<float*>(context.allocate_temp(context.workers() * floats * sizeof(float)));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed,
                  "attention: no scratch memory for %d keys of %d", static_cast<int>(block),
                  static_cast<int>(a.depth));
  const size_t parts = (a.queries + kQueries - 1) / kQueries;
  context.parallel_for(a.batch * a.groups * parts, least_items(kQueries * each * work),
                       [&](size_t begin, size_t end, size_t worker) {
                         for (size_t i = begin; i < end; ++i) {
                           const size_t part = i % parts, group = i / parts % a.groups,
                                        first = part * kQueries;
                           const size_t last = first + kQueries < a.queries ? first + kQueries : a.queries;
                           attend(a, i / parts / a.groups, group, first, last, scratch + worker * floats);
                         }
                       });
  return Error::Ok;
}

TORCHETTE_KERNELS(attention, TORCHETTE_KERNEL("cpu::attention.out", attention_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
