// SPDX-License-Identifier: BSD-3-Clause
// The product that the engine's quantized layers stand on: rows of bytes times packed panels of bytes, summed
// up exactly, and what makes bytes of the sums.
#pragma once

#include <cmath>

#include "torchette/kernels/engine/epilogue.h"
#include "torchette/kernels/engine/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {

constexpr size_t quads_of(size_t inputs) { return (inputs + kQuad - 1) / kQuad; }

/// Writes the first n lanes, at most kLanes, of clamp(round(x) + zero, zero + low, zero + high), ties to
/// even.
TORCHETTE_INLINE void put_bytes(Vec x, Vec low, Vec high, int32_t zero, size_t n, uint8_t* to) {
  // Between this number and its double floats have no fractions: what is added to it is rounded. The clamp
  // stands between that and the product which x is, so no machine makes one rounding of both.
  constexpr float kRounds = 12582912.0f;
  constexpr int32_t kRoundsBits = 0x4B400000;
  TORCHETTE_LANES(Bytes, uint8_t, kLanes);
  const Vec rounded = minimum(maximum(x, low), high) + kRounds;
  VecInt whole;
  memcpy(&whole, &rounded, sizeof(whole));
  whole += zero - kRoundsBits;
#if TORCHETTE_HAS_HELIUM
  return vstrbq_p_s32(reinterpret_cast<int8_t*>(to), reinterpret_cast<int32x4_t>(whole), vctp32q(n));
#endif
#if defined(__ARM_NEON)
  const int16x4_t halves = vmovn_s32(whole);
  const int8x8_t both = vmovn_s16(vcombine_s16(halves, halves));
  Bytes bytes;
  memcpy(&bytes, &both, sizeof(bytes));
#else
  const Bytes bytes = convert_lanes<Bytes>(whole);
#endif
  if (n >= kLanes)
    memcpy(to, &bytes, sizeof(bytes));
  else
    memcpy(to, &bytes, n);
}

#if !TORCHETTE_HAS_VECTORS
/// The nearest whole number, ties to even; beyond 32 bits the last one of them, or any.
TORCHETTE_INLINE int32_t round_even(float x) {
#if defined(__ARM_FP) && (__ARM_FP & 4)
  int32_t whole;
  asm("vcvtr.s32.f32 %1, %1\n\tvmov %0, %1" : "=r"(whole), "+t"(x));
  return whole;
#else
  return static_cast<int32_t>(std::lrint(x));
#endif
}
#endif

/// How the sums of some outputs become whole numbers of 8 bits:
/// clamp(round((sum + bias) * multiplier) + zero, low, high).
struct Requantization {
  const float* sums;        // of each output's weights, whole numbers
  const float* bias;        // in units of a sum
  const float* multiplier;  // of each output
  int32_t zero, low, high;

  Requantization from(size_t output) const {
    return {sums + output, bias + output, multiplier + output, zero, low, high};
  }
};

/// The terms of one vector of outputs.
struct RequantizedVector {
  Vec bias, multiplier, low, high;
  int32_t zero;

  TORCHETTE_INLINE RequantizedVector(const Requantization& how, size_t output)
      : bias(load(how.bias + output)),
        multiplier(load(how.multiplier + output)),
        low(broadcast(static_cast<float>(how.low - how.zero))),
        high(broadcast(static_cast<float>(how.high - how.zero))),
        zero(how.zero) {}
  /// The first n outputs of these sums.
  TORCHETTE_INLINE void put(Vec sums, size_t n, uint8_t* to) const {
#if defined(__ARM_NEON)  // as for fma()
    put_bytes(vmulq_f32(vaddq_f32(sums, bias), multiplier), low, high, zero, n, to);
#else
    put_bytes((sums + bias) * multiplier, low, high, zero, n, to);
#endif
  }
};

// What the file says of the weights' sums may be anything.
constexpr float kMostOfWeights = 16777216.0f;

#if TORCHETTE_HAS_VECTORS
/// The sums of outputs' weights.
TORCHETTE_INLINE VecInt whole_weights(const float* sums) {
  const Vec most = broadcast(kMostOfWeights);
  return to_whole(minimum(maximum(load(sums), -most), most));
}
#else
TORCHETTE_INLINE int32_t whole_weights(const float* sums) {
  const float x = *sums > kMostOfWeights ? kMostOfWeights : *sums;
  return static_cast<int32_t>(x > -kMostOfWeights ? x : -kMostOfWeights);
}
#endif

/// n sums of whole numbers, less those of their weights times `zero`.
TORCHETTE_INLINE void requantize(const Requantization& how, int32_t zero, const int32_t* sums, size_t n,
                                 uint8_t* to) {
#if TORCHETTE_HAS_VECTORS
  for (size_t v = 0; v < n; v += kLanes) {
    const VecInt whole = load(sums + v) - whole_weights(how.sums + v) * zero;
    RequantizedVector(how, v).put(to_floats(whole), n - v, to + v);
  }
#else
  const int32_t low = how.low - how.zero, high = how.high - how.zero;
  for (size_t i = 0; i < n; ++i) {
    const int32_t whole = zero == 0 ? sums[i] : sums[i] - whole_weights(how.sums + i) * zero;
    const int32_t rounded = round_even((static_cast<float>(whole) + how.bias[i]) * how.multiplier[i]);
    to[i] = static_cast<uint8_t>((rounded < low ? low : rounded > high ? high : rounded) + how.zero);
  }
#endif
}

/// C = requantize((A - input_zero) W).
struct IntegerProduct {
  size_t m, n, k;
  const uint8_t* a;  // rows of k numbers of 8 bits
  ptrdiff_t a_row;
  const int8_t* w;  // panels [panels_of(n)][quads_of(k)][kPanelWidth][kQuad]
  uint8_t* c;       // rows of n numbers of 8 bits
  ptrdiff_t c_row;
  bool is_signed;  // what A's bytes are
  int32_t input_zero;
  Requantization how;

  IntegerProduct rows(size_t first, size_t count) const;
};

/// What quantize_rows() knows of a row.
struct RowScale {
  float scale, zero;
};

/// Bytes of scratch memory for a product of so many rows: rows in the form that the machine multiplies.
size_t integer_scratch(size_t rows, size_t k);
/// Computes the columns of panels [first, last).
void integer_gemm(const IntegerProduct& product, size_t first, size_t last, void* scratch);
/// All of it, on the context's threads. Errors: no scratch memory.
Error integer_gemm(Context& context, const char* op, const IntegerProduct& product);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
