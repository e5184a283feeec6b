// SPDX-License-Identifier: BSD-3-Clause
// The sum of two 8-bit tensors: of cpu::quantized_add, and of a convolution's result and a residual.
#pragma once

#include "torchette/kernels/engine/integer_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Converts kLanes bytes to floats: int8 values if flip is 0, uint8 values minus 128 if flip is -128.
TORCHETTE_INLINE Vec floats_of(const uint8_t* p, int8_t flip) {
#if TORCHETTE_HAS_HELIUM
  return vcvtq_f32_s32(veorq_s32(vldrbq_s32(reinterpret_cast<const int8_t*>(p)), vdupq_n_s32(flip)));
#elif defined(__ARM_NEON)
  int32_t bytes;
  memcpy(&bytes, p, sizeof(bytes));
  const int8x8_t four = veor_s8(vreinterpret_s8_s32(vdup_n_s32(bytes)), vdup_n_s8(flip));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))));
#else
  TORCHETTE_LANES(Bytes, int8_t, kLanes);
  Bytes bytes;
  memcpy(&bytes, p, sizeof(bytes));
  return convert_lanes<Vec>(convert_lanes<VecInt>(bytes ^ flip));
#endif
}

/// Converts the first n bytes and reads no memory after them.
TORCHETTE_INLINE Vec floats_of(const uint8_t* p, int8_t flip, size_t n) {
  if (n >= kLanes) return floats_of(p, flip);
  uint8_t bytes[kLanes] = {};
  memcpy(bytes, p, n);
  return floats_of(bytes, flip);
}

/// Returns floats_of(p, flip, n) - zero, which is exact.
TORCHETTE_INLINE Vec centred(const uint8_t* p, int8_t flip, float zero, size_t n = kLanes) {
#if defined(__AVX2__)
  if (n >= kLanes) {
    // The lowest bits of floats from 2^23 are integers. This needs no conversion, which would compete with
    // additions for execution units.
    constexpr float kIntegers = 8388608.0f;
    constexpr int32_t kIntegersBits = 0x4B000000;
#if defined(__AVX512F__)  // GCC warns about the intrinsic without a mask
    const auto bytes = reinterpret_cast<VecInt>(
        _mm512_maskz_cvtepu8_epi32(0xffffu, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
    const auto bytes =
        reinterpret_cast<VecInt>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
    const VecInt bits = bytes ^ (flip == 0 ? kIntegersBits | 0x80 : kIntegersBits);
    return reinterpret_cast<Vec>(bits) - (kIntegers + 128.0f + zero);
  }
#endif
  return floats_of(p, flip, n) - zero;
}

/// Returns x. Prevents a fused multiply-add of the multiplication that computed x, so that all targets round
/// each multiplication and addition separately.
TORCHETTE_INLINE Vec rounded(Vec x) {
#if TORCHETTE_GNU && defined(__AVX512F__)
  asm("" : "+v"(x));
  return x;
#elif TORCHETTE_GNU && defined(__SSE2__)
  asm("" : "+x"(x));
  return x;
#else
  return maximum(broadcast(-3.0e38f), x);
#endif
}

/// Returns a + b. With AVX-512, uses the units for multiplications, because the units for additions also
/// convert and clamp.
TORCHETTE_INLINE Vec add_in_multiplier(Vec a, Vec b) {
#if defined(__AVX512F__)
  return fma(a, broadcast(1.0f), b);
#else
  return a + b;
#endif
}

/// clamp(round((a_scale (a - a_zero) + b_scale (b - b_zero)) inverse) + zero, low, high)
struct QuantizedSum {
  float a_scale, a_zero, b_scale, b_zero, inverse;  // zero points of floats_of()
  int8_t flip;                                      // of both tensors
  int32_t zero, low, high;

  QuantizedSum(bool is_signed, double scale_a, int64_t zero_a, double scale_b, int64_t zero_b, double scale,
               int64_t zero_point, int64_t low_bound, int64_t high_bound)
      : a_scale(static_cast<float>(scale_a)),
        a_zero(static_cast<float>(is_signed ? zero_a : zero_a - 128)),
        b_scale(static_cast<float>(scale_b)),
        b_zero(static_cast<float>(is_signed ? zero_b : zero_b - 128)),
        inverse(static_cast<float>(1.0 / scale)),
        flip(static_cast<int8_t>(is_signed ? 0 : INT8_MIN)),
        zero(static_cast<int32_t>(zero_point)),
        low(static_cast<int32_t>(low_bound)),
        high(static_cast<int32_t>(high_bound)) {}

  /// Adds `count` elements. `to` may be `a` or `b`.
  TORCHETTE_INLINE void add(const ToBytes& bytes, const uint8_t* a, const uint8_t* b, size_t count,
                            uint8_t* to) const {
    put_all(bytes, count, to, [&](size_t i, size_t n) TORCHETTE_INLINED {
      const Vec x = rounded(centred(a + i, flip, a_zero, n) * a_scale);
      const Vec y = rounded(centred(b + i, flip, b_zero, n) * b_scale);
      return add_in_multiplier(x, y) * inverse;
    });
  }
};

}  // namespace TORCHETTE_ISA
}  // namespace torchette
