// SPDX-License-Identifier: BSD-3-Clause
// Scaled dot product attention of float32 queries, without a matrix of scores.
#pragma once

#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/vecmath.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// The elements of a tensor [batch, token, head, element]; the elements of a head are contiguous.
struct Layout {
  const uint8_t* data;
  size_t size;  // bytes of an element: 4 float32, 2 float16, 1 int8
  size_t batch, token, head;
  const float* scales;  // of int8: a scale and a zero for each [token, head]
  size_t scales_token;

  template <typename T = float>
  const T* at(size_t b, size_t t, size_t h) const {
    return reinterpret_cast<const T*>(data + (b * batch + t * token + h * head) * size);
  }
};

struct Attention {
  size_t batch, queries, heads, keys;
  size_t depth, width;  // elements of a query or key, and of a value
  size_t groups;        // heads of keys and values
  Layout q, k, v;
  float* out;  // [batch, queries, heads, width]
  float scale;
  bool causal;
  size_t start;        // position of the first query
  size_t window;       // number of keys that a query sees; 0: all keys up to its position
  size_t chunk;        // if not 0, a query sees no key of an earlier chunk of this length
  float cap;           // if not 0, a score becomes cap tanh(score / cap)
  const float* sinks;  // or null; per head, a score that only affects the normalization
  const void* mask;    // or null; float32, which is added to the scores, or bool
  bool additive;
  size_t mask_step[4];  // strides of [batch, head, query, key]; 0 if the mask is broadcast
  bool rounds;          // matrix products of more than a few queries may round their inputs to bfloat16

  float* row(size_t b, size_t t, size_t h) const { return out + ((b * queries + t) * heads + h) * width; }
  /// Returns how many of the keys [first, first + count) query `t` sees.
  size_t seen(size_t t, size_t first, size_t count) const {
    if (!causal) return count;
    t += start;
    return t < first ? 0 : t - first + 1 < count ? t - first + 1 : count;
  }
  /// Returns the index of the first key that query `t` sees.
  size_t begin(size_t t) const {
    t += start;
    if (chunk != 0) return t / chunk * chunk;
    return window == 0 || t < window ? 0 : t + 1 - window;
  }
  /// The factor that normalizes the weighted sum of values, from the maximum score and the sum of
  /// exponentials.
  float share(size_t head, float highest, float total) const {
    if (sinks == nullptr) return total == 0.0f ? 0.0f : 1.0f / total;
    if (total == 0.0f) return 0.0f;
    const float sink = sinks[head], top = sink > highest ? sink : highest, factor = exp_f(highest - top);
    return factor / (total * factor + exp_f(sink - top));
  }
};

/// Computes `a.out`. Errors: MemoryAllocationFailed, reported for `op`.
Error attend(Context& context, const Attention& a, const char* op);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
