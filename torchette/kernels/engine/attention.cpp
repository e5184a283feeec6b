// SPDX-License-Identifier: BSD-3-Clause
// cpu::attention, cpu::cached_attention and cpu::int8_cached_attention, see attention.py and
// cached_attention.py in torchette/backends/engine/operators, and the attention of ExecuTorch's language
// models.
#include <cmath>

#include "torchette/kernels/engine/attend.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

const uint8_t* bytes_of(const Tensor& t) { return static_cast<const uint8_t*>(t.const_data_ptr()); }

Error describe(const Tensor& query, const Tensor& key, const Tensor& value, bool heads_first, Attention& a) {
  const Tensor* given[] = {&query, &key, &value};
  const char* const names[] = {"query", "key", "value"};
  for (size_t i = 0; i < 3; ++i) {
    TORCHETTE_TRY(check_floats("attention", *given[i], names[i]));
    TORCHETTE_CHECK(given[i]->dim() == 4, InvalidArgument, "attention: %s has %d dimensions, expected 4",
                    names[i], static_cast<int>(given[i]->dim()));
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
  const size_t expected[] = {a.batch, a.heads, a.queries, a.keys};
  size_t step = 1;
  for (int d = 3; d >= 0; --d) {
    const ptrdiff_t own = d - (4 - mask->dim());
    const size_t size = own < 0 ? 1 : static_cast<size_t>(mask->size(own));
    TORCHETTE_CHECK(size == 1 || size == expected[d], InvalidArgument,
                    "attention: mask has %d elements, expected %d or 1", static_cast<int>(size),
                    static_cast<int>(expected[d]));
    a.mask_step[d] = size == 1 ? 0 : step;
    step *= size;
  }
  a.mask = mask->const_data_ptr();
  return Error::Ok;
}

}  // namespace

template <bool kRounds>
static Error attention_out(Context& context, const Tensor& query, const Tensor& key, const Tensor& value,
                           const Optional<Tensor>& mask, double scale, bool causal, bool heads_first,
                           Tensor& out) {
  Attention a = {};
  a.rounds = kRounds;
  TORCHETTE_TRY(describe(query, key, value, heads_first, a));
  TORCHETTE_TRY(describe_mask(mask, a));
  const SizesType sizes[] = {static_cast<SizesType>(a.batch), static_cast<SizesType>(a.queries),
                             static_cast<SizesType>(a.heads), static_cast<SizesType>(a.width)};
  TORCHETTE_TRY(check_result("attention", out, {sizes, 4}));
  a.out = out.mutable_data_ptr<float>();
  a.scale = static_cast<float>(scale);
  a.causal = causal;
  if (out.numel() == 0) return Error::Ok;
  return attend(context, a, "attention");
}

/// Attention over a cache; `scales` of int8 keys and values, or null.
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
                    "%s: %s is of type %d, expected contiguous elements of type %d", op, names[i],
                    static_cast<int>(given[i]->scalar_type()), static_cast<int>(stored));
    TORCHETTE_CHECK(given[i]->dim() == (i == 0 ? 4 : 3), InvalidArgument,
                    "%s: %s has %d dimensions, expected %d", op, names[i], static_cast<int>(given[i]->dim()),
                    i == 0 ? 4 : 3);
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
                  "%s: start has %d elements of type %d, expected one int64", op,
                  static_cast<int>(start.numel()), static_cast<int>(start.scalar_type()));
  const int64_t first = *start.const_data_ptr<int64_t>();
  TORCHETTE_CHECK(first >= 0 && first <= key.size(0) - query.size(1), InvalidArgument,
                  "%s: %d tokens from position %lld do not fit into %d positions", op,
                  static_cast<int>(a.queries), static_cast<long long>(first), static_cast<int>(key.size(0)));
  TORCHETTE_CHECK(window > INT64_MIN, InvalidArgument, "%s: the window has no absolute value", op);
  TORCHETTE_CHECK(cap >= 0, InvalidArgument, "%s: the cap is %f, it must be at least 0", op, cap);
  const SizesType heads[] = {static_cast<SizesType>(a.heads)};
  TORCHETTE_TRY(check_operand(op, sinks, {heads, 1}, "sinks"));
  const SizesType sizes[] = {1, static_cast<SizesType>(a.queries), static_cast<SizesType>(a.heads),
                             static_cast<SizesType>(a.width)};
  TORCHETTE_TRY(check_result(op, out, {sizes, 4}));
  a.start = static_cast<size_t>(first);
  a.keys = a.start + a.queries;  // later positions are not written yet
  const size_t bytes = stored == ScalarType::Char ? 1 : stored == ScalarType::Half ? 2 : sizeof(float);
  a.q = {bytes_of(query), sizeof(float), 0, a.heads * a.depth, a.depth, nullptr, 0};
  a.k = {bytes_of(key), bytes, 0, a.groups * a.depth, a.depth, nullptr, 0};
  a.v = {bytes_of(value), bytes, 0, a.groups * a.width, a.width, nullptr, 0};
  for (size_t i = 0; scales != nullptr && i < 2; ++i) {
    const SizesType expected[] = {static_cast<SizesType>(key.size(0)), static_cast<SizesType>(a.groups), 2};
    TORCHETTE_TRY(check_operand(op, *scales[i], {expected, 3}, i == 0 ? "key_scales" : "value_scales"));
    Layout& layout = i == 0 ? a.k : a.v;
    layout.scales = scales[i]->const_data_ptr<float>();
    layout.scales_token = 2 * a.groups;
  }
  a.out = out.mutable_data_ptr<float>();
  a.scale = static_cast<float>(scale);
  a.causal = true;
  a.window = static_cast<size_t>(window > 0 ? window : 0);
  a.chunk = static_cast<size_t>(window < 0 ? -window : 0);
  a.cap = static_cast<float>(cap);
  a.sinks = floats_of(sinks);
  return out.numel() == 0 ? Error::Ok : attend(context, a, op);
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

// --- Operators of ExecuTorch's language models, with caches of [batch, positions, heads, depth]

/// Writes rows [batch, tokens] of `value` to the cache, from position start_pos on or at the positions in
/// `indices`.
static Error store_rows(const char* op, const Tensor& value, Tensor& cache, int64_t start_pos,
                        const Tensor* indices) {
  TORCHETTE_CHECK(value.scalar_type() == cache.scalar_type() && is_contiguous(value) && is_contiguous(cache),
                  InvalidType, "%s: value and cache are of types %d and %d, or not contiguous", op,
                  static_cast<int>(value.scalar_type()), static_cast<int>(cache.scalar_type()));
  bool fits = value.dim() == 4 && cache.dim() == 4;
  for (const int d : {0, 2, 3}) fits = fits && value.size(d) == cache.size(d);
  TORCHETTE_CHECK(
      fits, InvalidArgument,
      "%s: value and cache differ in batch, heads or depth, or have %d and %d dimensions, expected 4", op,
      static_cast<int>(value.dim()), static_cast<int>(cache.dim()));
  const int64_t tokens = value.size(1), positions = cache.size(1);
  TORCHETTE_CHECK(indices != nullptr || (start_pos >= 0 && start_pos <= positions - tokens), InvalidArgument,
                  "%s: %d tokens from position %lld do not fit into %d positions", op,
                  static_cast<int>(tokens), static_cast<long long>(start_pos), static_cast<int>(positions));
  if (value.numel() == 0) return Error::Ok;
  if (indices != nullptr)
    TORCHETTE_CHECK(
        indices->scalar_type() == ScalarType::Long && is_contiguous(*indices) && indices->dim() == 2 &&
            indices->size(0) == value.size(0) && indices->size(1) == tokens,
        InvalidArgument, "%s: indices are of type %d or have other sizes, expected int64 [batch, tokens]", op,
        static_cast<int>(indices->scalar_type()));
  const auto row = static_cast<size_t>(value.size(2) * value.size(3)) * element_size(value.scalar_type());
  const int64_t* const targets = indices != nullptr ? indices->const_data_ptr<int64_t>() : nullptr;
  const int64_t rows = value.size(0) * tokens;
  for (int64_t i = 0; targets != nullptr && i < rows; ++i)
    TORCHETTE_CHECK(targets[i] >= 0 && targets[i] < positions, InvalidArgument,
                    "%s: position %lld is out of range for a cache of %d positions", op,
                    static_cast<long long>(targets[i]), static_cast<int>(positions));
  auto* const to = static_cast<uint8_t*>(cache.mutable_data_ptr());
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t position = targets != nullptr ? targets[i] : start_pos + i % tokens;
    memcpy(to + static_cast<size_t>(i / tokens * positions + position) * row,
           bytes_of(value) + static_cast<size_t>(i) * row, row);
  }
  return Error::Ok;
}

/// Returns a tensor without content. The graph uses it to order writes before reads.
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

/// With a mask, only the mask determines which keys a query sees. Without a mask, a query sees all written
/// keys or, with `is_causal`, the keys up to its position.
static Error custom_sdpa_out(Context& context, const Tensor& query, const Tensor& key, const Tensor& value,
                             int64_t start_pos, const Optional<Tensor>& mask, double dropout, bool is_causal,
                             const Optional<double>& scale, Tensor& out) {
  Attention a = {};
  TORCHETTE_TRY(describe(query, key, value, false, a));
  TORCHETTE_CHECK(dropout == 0 && !(is_causal && mask.has_value()), NotSupported,
                  "custom_sdpa: drpout_p is %f, expected 0, or both attn_mask and is_causal are set",
                  dropout);
  const auto written = static_cast<size_t>(start_pos) + a.queries;
  TORCHETTE_CHECK(start_pos >= 0 && start_pos <= key.size(1) && (mask.has_value() || written <= a.keys),
                  InvalidArgument, "custom_sdpa: %d tokens from position %lld do not fit into %d positions",
                  static_cast<int>(a.queries), static_cast<long long>(start_pos), static_cast<int>(a.keys));
  TORCHETTE_TRY(describe_mask(mask, a));
  const SizesType sizes[] = {query.sizes()[0], query.sizes()[1], query.sizes()[2], value.sizes()[3]};
  TORCHETTE_TRY(check_result("custom_sdpa", out, {sizes, 4}));
  a.out = out.mutable_data_ptr<float>();
  a.scale = scale.has_value() ? static_cast<float>(*scale) : 1.0f / std::sqrt(static_cast<float>(a.depth));
  a.causal = is_causal;
  a.start = static_cast<size_t>(start_pos);
  if (!mask.has_value()) a.keys = written;
  return out.numel() == 0 ? Error::Ok : attend(context, a, "custom_sdpa");
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

TORCHETTE_KERNELS(attention, TORCHETTE_KERNEL("cpu::attention.out", attention_out<false>),
                  TORCHETTE_KERNEL("cpu::bfloat16_attention.out", attention_out<true>),
                  TORCHETTE_KERNEL("cpu::cached_attention.out", cached_attention_out),
                  TORCHETTE_KERNEL("cpu::int8_cached_attention.out", int8_cached_attention_out),
                  TORCHETTE_KERNEL("llama::custom_sdpa.out", custom_sdpa_out),
                  TORCHETTE_KERNEL("llama::sdpa_with_kv_cache.out", sdpa_with_kv_cache_out),
                  TORCHETTE_KERNEL("llama::update_cache.out", update_cache_out),
                  TORCHETTE_KERNEL("llama::update_cache_with_indices.out", update_cache_with_indices_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
