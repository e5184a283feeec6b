// SPDX-License-Identifier: BSD-3-Clause
// The integer GEMM of the engine's quantized layers: 8-bit rows times packed 8-bit panels with exact int32
// accumulators, and the requantization of the accumulators to 8 bits.
#pragma once

#include <cmath>

#include "torchette/kernels/engine/epilogue.h"
#include "torchette/kernels/engine/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {

constexpr size_t quads_of(size_t inputs) { return (inputs + kQuad - 1) / kQuad; }

/// Stores the first n lanes (at most kLanes) of clamp(round(x) + zero, zero + low, zero + high), rounding
/// ties to even.
TORCHETTE_INLINE void put_bytes(Vec x, Vec low, Vec high, int32_t zero, size_t n, uint8_t* to) {
  // Floats between this constant and twice its value have no fraction bits, so adding it rounds to an
  // integer. The clamp separates the addition from the multiplication that computed x, which prevents a fused
  // multiply-add.
  constexpr float kRoundMagic = 12582912.0f;
  constexpr int32_t kRoundMagicBits = 0x4B400000;
  TORCHETTE_LANES(Bytes, uint8_t, kLanes);
  const Vec rounded = minimum(maximum(x, low), high) + kRoundMagic;
  VecInt integer;
  memcpy(&integer, &rounded, sizeof(integer));
  integer += zero - kRoundMagicBits;
#if TORCHETTE_HAS_HELIUM
  return vstrbq_p_s32(reinterpret_cast<int8_t*>(to), reinterpret_cast<int32x4_t>(integer), vctp32q(n));
#endif
#if defined(__ARM_NEON)
  const int16x4_t halves = vmovn_s32(integer);
  const int8x8_t both = vmovn_s16(vcombine_s16(halves, halves));
  Bytes bytes;
  memcpy(&bytes, &both, sizeof(bytes));
#else
  const Bytes bytes = convert_lanes<Bytes>(integer);
#endif
  if (n >= kLanes)
    memcpy(to, &bytes, sizeof(bytes));
  else
    memcpy(to, &bytes, n);
}

#if !TORCHETTE_HAS_VECTORS
/// Rounds to the nearest integer, ties to even. Saturates outside of int32, or returns an unspecified value.
TORCHETTE_INLINE int32_t round_even(float x) {
#if defined(__ARM_FP) && (__ARM_FP & 4)
  int32_t integer;
  asm("vcvtr.s32.f32 %1, %1\n\tvmov %0, %1" : "=r"(integer), "+t"(x));
  return integer;
#else
  return static_cast<int32_t>(std::lrint(x));
#endif
}
#endif

/// Requantization of the accumulators of some outputs to 8-bit integers:
/// clamp(round((accumulator + bias) * multiplier) + zero, low, high).
struct Requantization {
  const float* sums;        // sum of the weights of each output, integers
  const float* bias;        // in units of an accumulator
  const float* multiplier;  // per output
  int32_t zero, low, high;

  Requantization from(size_t output) const {
    return {sums + output, bias + output, multiplier + output, zero, low, high};
  }
};

/// Requantization parameters of one vector of outputs.
struct RequantizedVector {
  Vec bias, multiplier, low, high;
  int32_t zero;

  TORCHETTE_INLINE RequantizedVector(const Requantization& how, size_t output)
      : bias(load(how.bias + output)),
        multiplier(load(how.multiplier + output)),
        low(broadcast(static_cast<float>(how.low - how.zero))),
        high(broadcast(static_cast<float>(how.high - how.zero))),
        zero(how.zero) {}
  /// Requantizes and stores the first n lanes.
  TORCHETTE_INLINE void put(Vec sums, size_t n, uint8_t* to) const {
#if defined(__ARM_NEON)  // see fma()
    put_bytes(vmulq_f32(vaddq_f32(sums, bias), multiplier), low, high, zero, n, to);
#else
    put_bytes((sums + bias) * multiplier, low, high, zero, n, to);
#endif
  }
};

// Bound for weight sums: the file may contain any value.
constexpr float kMaxWeightSum = 16777216.0f;

#if TORCHETTE_HAS_VECTORS
/// Loads the weight sums of a vector of outputs as integers.
TORCHETTE_INLINE VecInt weight_sums(const float* sums) {
  const Vec max_sum = broadcast(kMaxWeightSum);
  return to_ints(minimum(maximum(load(sums), -max_sum), max_sum));
}
#else
TORCHETTE_INLINE int32_t weight_sums(const float* sums) {
  const float x = *sums > kMaxWeightSum ? kMaxWeightSum : *sums;
  return static_cast<int32_t>(x > -kMaxWeightSum ? x : -kMaxWeightSum);
}
#endif

/// Requantizes n integer accumulators after subtracting `zero` times the weight sum of each output.
TORCHETTE_INLINE void requantize(const Requantization& how, int32_t zero, const int32_t* sums, size_t n,
                                 uint8_t* to) {
#if TORCHETTE_HAS_VECTORS
  for (size_t v = 0; v < n; v += kLanes) {
    const VecInt integer = load(sums + v) - weight_sums(how.sums + v) * zero;
    RequantizedVector(how, v).put(to_floats(integer), n - v, to + v);
  }
#else
  const int32_t low = how.low - how.zero, high = how.high - how.zero;
  for (size_t i = 0; i < n; ++i) {
    const int32_t integer = zero == 0 ? sums[i] : sums[i] - weight_sums(how.sums + i) * zero;
    const int32_t rounded = round_even((static_cast<float>(integer) + how.bias[i]) * how.multiplier[i]);
    to[i] = static_cast<uint8_t>((rounded < low ? low : rounded > high ? high : rounded) + how.zero);
  }
#endif
}

/// C = requantize((A - input_zero) W).
struct IntegerProduct {
  size_t m, n, k;
  const uint8_t* a;  // rows of k 8-bit integers
  ptrdiff_t a_row;
  const int8_t* w;  // panels [panels_of(n)][quads_of(k)][kPanelWidth][kQuad]
  uint8_t* c;       // rows of n 8-bit integers
  ptrdiff_t c_row;
  bool is_signed;  // A contains int8 instead of uint8
  int32_t input_zero;
  Requantization how;

  IntegerProduct rows(size_t first, size_t count) const;
};

/// Scale and zero point of a row, computed by quantize_rows().
struct RowScale {
  float scale, zero;
};

/// Returns the scratch bytes that `rows` rows need for conversion to the multiplication format.
size_t integer_scratch(size_t rows, size_t k);
/// Computes the columns of panels [first, last).
void integer_gemm(const IntegerProduct& product, size_t first, size_t last, void* scratch);
/// Computes all panels on the context's threads. Errors: MemoryAllocationFailed without scratch memory.
Error integer_gemm(Context& context, const char* op, const IntegerProduct& product);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
