// SPDX-License-Identifier: BSD-3-Clause
// cpu::linear_recurrence: torchette/backends/engine/operators/linear_recurrence.py.
#include <cstring>
#include <utility>

#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Columns of the state that one task updates for all tokens. They stay in the nearest cache.
constexpr size_t kVectors = 4, kColumns = kVectors * kLanes;

struct Recurrence {
  size_t tokens, groups, heads, depth, width, decay_depth;
  const float *query, *key, *value, *decay, *beta, *state;
  float *out, *last;
};

/// Calls apply(i) for each vector, without a loop: compilers then keep arrays of vectors in registers.
template <typename Apply, size_t... kIndices>
TORCHETTE_INLINE void unrolled(const Apply& apply, std::index_sequence<kIndices...>) {
  (apply(kIndices), ...);
}

/// Updates `columns` columns of one head; all of a block if `kFull`. `from` and `to` are the state before and
/// after the token.
template <bool kFull>
void update(const Recurrence& r, const float* from, float* to, const float* q, const float* k, const float* v,
            const float* decay, const float* beta, float* y, size_t columns) {
  const size_t step = r.decay_depth == 1 ? 0 : 1;
  Vec delta[kVectors] = {}, result[kVectors] = {};
  const auto count = [&](size_t i) {
    return kFull || columns - i * kLanes >= kLanes ? size_t{kLanes} : columns - i * kLanes;
  };
  const auto for_each = [&](const auto& apply) {
    if constexpr (kFull) {
      unrolled(apply, std::make_index_sequence<kVectors>());
    } else {
      for (size_t i = 0; i < kVectors && i * kLanes < columns; ++i) apply(i);
    }
  };
  const auto read = [&](const float* p, size_t i) {
    return count(i) == kLanes ? load(p + i * kLanes) : load_partial(p + i * kLanes, count(i));
  };
  const auto write = [&](float* p, size_t i, Vec x) {
    if (count(i) == kLanes)
      store(p + i * kLanes, x);
    else
      store_partial(p + i * kLanes, x, count(i));
  };
  if (beta != nullptr)
    for (size_t row = 0; row < r.depth; ++row) {
      const Vec weight = broadcast(k[row] * decay[row * step]);
      const float* const state = from + row * r.width;
      for_each([&](size_t i) { delta[i] = fma(weight, read(state, i), delta[i]); });
    }
  for_each([&](size_t i) {
    const Vec value = read(v, i);
    delta[i] = beta != nullptr ? (value - delta[i]) * broadcast(*beta) : value;
  });
  for (size_t row = 0; row < r.depth; ++row) {
    const Vec kept = broadcast(decay[row * step]), added = broadcast(k[row]), weight = broadcast(q[row]);
    for_each([&](size_t i) {
      const Vec state = fma(added, delta[i], kept * read(from + row * r.width, i));
      write(to + row * r.width, i, state);
      result[i] = fma(weight, state, result[i]);
    });
  }
  for_each([&](size_t i) { write(y, i, result[i]); });
}

void run_columns(const Recurrence& r, size_t head, size_t first) {
  const size_t columns = r.width - first < kColumns ? r.width - first : kColumns;
  const size_t group = head / (r.heads / r.groups), offset = head * r.depth * r.width + first;
  const float* from = r.state + offset;
  for (size_t t = 0; t < r.tokens; ++t) {
    const size_t row = t * r.heads + head, shared = (t * r.groups + group) * r.depth;
    const float* const beta = r.beta != nullptr ? r.beta + row : nullptr;
    const float* const v = r.value + row * r.width + first;
    float* const y = r.out + row * r.width + first;
    const auto apply = columns == kColumns ? update<true> : update<false>;
    apply(r, from, r.last + offset, r.query + shared, r.key + shared, v, r.decay + row * r.decay_depth, beta,
          y, columns);
    from = r.last + offset;
  }
}

}  // namespace

static Error linear_recurrence_out(Context& context, const Tensor& query, const Tensor& key,
                                   const Tensor& value, const Tensor& decay, const Optional<Tensor>& beta,
                                   const Tensor& state, Tensor& out, Tensor& last) {
  const Tensor* given[] = {&query, &key, &value, &decay, &state};
  const char* const names[] = {"query", "key", "value", "decay", "state"};
  for (size_t i = 0; i < 5; ++i) {
    TORCHETTE_TRY(check_floats("linear_recurrence", *given[i], names[i]));
    TORCHETTE_CHECK(given[i]->dim() == 3, InvalidArgument,
                    "linear_recurrence: %s has %d dimensions, expected 3", names[i],
                    static_cast<int>(given[i]->dim()));
  }
  const SizesType tokens = value.size(0), heads = value.size(1), groups = key.size(1), depth = key.size(2),
                  width = value.size(2);
  TORCHETTE_CHECK(key.size(0) == tokens && groups > 0 && heads % groups == 0, InvalidArgument,
                  "linear_recurrence: key has %d tokens and %d heads, value %d tokens and %d heads",
                  static_cast<int>(key.size(0)), static_cast<int>(groups), static_cast<int>(tokens),
                  static_cast<int>(heads));
  TORCHETTE_CHECK(
      decay.size(0) == tokens && decay.size(1) == heads && (decay.size(2) == 1 || decay.size(2) == depth),
      InvalidArgument,
      "linear_recurrence: decay has %d tokens and %d heads of %d, expected %d, %d and 1 or %d",
      static_cast<int>(decay.size(0)), static_cast<int>(decay.size(1)), static_cast<int>(decay.size(2)),
      static_cast<int>(tokens), static_cast<int>(heads), static_cast<int>(depth));
  const SizesType of_query[] = {tokens, groups, depth}, of_beta[] = {tokens, heads},
                  of_state[] = {heads, depth, width};
  TORCHETTE_TRY(check_operand("linear_recurrence", query, {of_query, 3}, "query"));
  TORCHETTE_TRY(check_operand("linear_recurrence", beta, {of_beta, 2}, "beta"));
  TORCHETTE_TRY(check_operand("linear_recurrence", state, {of_state, 3}, "state"));
  TORCHETTE_TRY(check_result("linear_recurrence", out, value.sizes(), "out0"));
  TORCHETTE_TRY(check_result("linear_recurrence", last, state.sizes(), "out1"));
  const auto size = [](SizesType n) { return static_cast<size_t>(n); };
  const Recurrence r = {size(tokens),
                        size(groups),
                        size(heads),
                        size(depth),
                        size(width),
                        static_cast<size_t>(decay.size(2)),
                        query.const_data_ptr<float>(),
                        key.const_data_ptr<float>(),
                        value.const_data_ptr<float>(),
                        decay.const_data_ptr<float>(),
                        floats_of(beta),
                        state.const_data_ptr<float>(),
                        out.mutable_data_ptr<float>(),
                        last.mutable_data_ptr<float>()};
  if (r.tokens == 0 || r.depth == 0) {
    if (state.nbytes() > 0 && r.last != r.state) memcpy(r.last, r.state, state.nbytes());
    if (out.nbytes() > 0) memset(r.out, 0, out.nbytes());
    return Error::Ok;
  }
  const size_t blocks = (r.width + kColumns - 1) / kColumns;
  context.parallel_for(r.heads * blocks, min_items(r.tokens * r.depth * kColumns),
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t task = begin; task < end; ++task)
                           run_columns(r, task / blocks, task % blocks * kColumns);
                       });
  return Error::Ok;
}

TORCHETTE_KERNELS(linear_recurrence, TORCHETTE_KERNEL("cpu::linear_recurrence.out", linear_recurrence_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
