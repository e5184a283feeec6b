// SPDX-License-Identifier: BSD-3-Clause
// A vector of floats as wide as the instruction set that this file is compiled for (16, 8 or 4 lanes), made
// of the compiler's vector extensions: kernels are written once and compiled per level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "torchette/kernels/lanes.h"
#include "torchette/runtime/dtype.h"
#include "torchette/runtime/span.h"

// Vectors of floats and integers of Cortex-M.
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#define TORCHETTE_HAS_HELIUM 1
#else
#define TORCHETTE_HAS_HELIUM 0
#endif

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#elif TORCHETTE_HAS_HELIUM
#include <arm_mve.h>
#endif

namespace torchette {
namespace TORCHETTE_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kVectorRegisters = 32;
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kVectorRegisters = 16;
#else
constexpr int kLanes = 4;
#if defined(__aarch64__)
constexpr int kVectorRegisters = 32;
#elif defined(__ARM_FEATURE_MVE)
constexpr int kVectorRegisters = 8;
#else
constexpr int kVectorRegisters = 16;
#endif
#endif

// Whether the machine has vectors of floats. Elsewhere compilers make them of numbers, and keep arrays of
// them in memory: what should stay in registers is written with numbers there.
#if TORCHETTE_GNU && (defined(__SSE__) || defined(__ARM_NEON) || defined(__wasm_simd128__) || \
                      defined(__riscv_vector) || TORCHETTE_HAS_HELIUM)
#define TORCHETTE_HAS_VECTORS 1
#else
#define TORCHETTE_HAS_VECTORS 0
#endif

/// kLanes floats; vi: as many int32, also what comparisons of Vec give (-1 or 0 per lane).
TORCHETTE_LANES(Vec, float, kLanes);
TORCHETTE_LANES(VecInt, int32_t, kLanes);
TORCHETTE_LANES_IN_MEMORY(UnalignedVec, float, kLanes);
TORCHETTE_LANES_IN_MEMORY(UnalignedVecInt, int32_t, kLanes);

TORCHETTE_INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
TORCHETTE_INLINE void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
TORCHETTE_INLINE VecInt load(const int32_t* p) { return *reinterpret_cast<const UnalignedVecInt*>(p); }
TORCHETTE_INLINE void store(int32_t* p, VecInt v) { *reinterpret_cast<UnalignedVecInt*>(p) = v; }
/// kLanes numbers of 16 bits as floats, which hold each of them exactly.
TORCHETTE_INLINE Vec load(const BFloat16* p) {
#if defined(__AVX512BW__)
  const __m512i bits = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const VecInt upper = VecInt{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} << 16;
  return reinterpret_cast<Vec>(
      _mm512_maskz_permutexvar_epi16(0xaaaaaaaau, reinterpret_cast<__m512i>(upper), bits));
#elif defined(__AVX2__)
  const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i upper = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9,
                                         -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
  return _mm256_castsi256_ps(_mm256_shuffle_epi8(twice, upper));
#else
  TORCHETTE_LANES_IN_MEMORY(Bits, uint16_t, kLanes);
  const VecInt wide = convert_lanes<VecInt>(*reinterpret_cast<const Bits*>(p)) << 16;
  return bit_cast<Vec>(wide);
#endif
}
TORCHETTE_INLINE Vec load(const Half* p) {
#if defined(__AVX512F__)
  // GCC warns of the form without a mask.
  return _mm512_maskz_cvtph_ps(0xffffu, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
#else  // as Half::to_float
  TORCHETTE_LANES_IN_MEMORY(Bits, uint16_t, kLanes);
  const VecInt bits = convert_lanes<VecInt>(*reinterpret_cast<const Bits*>(p));
  const VecInt magnitude = (bits & 0x7fff) << 13;
  const Vec rebased = bit_cast<Vec>(magnitude) * 0x1p112f;
  return bit_cast<Vec>(bit_cast<VecInt>(rebased) | ((magnitude >= 0x0f800000) & 0x7f800000) |
                       (bits & 0x8000) << 16);
#endif
}
TORCHETTE_INLINE Vec broadcast(float x) { return x - Vec{}; }
TORCHETTE_INLINE VecInt broadcast(int32_t x) { return x - VecInt{}; }
#if defined(__ARM_NEON) && !defined(__aarch64__)
TORCHETTE_INLINE uint32x4_t is_greater(Vec a, Vec b) {  // GCC would compare lane by lane
  uint32x4_t mask;
  asm("vcgt.f32 %q0, %q1, %q2" : "=w"(mask) : "w"(a), "w"(b));
  return mask;
}
#endif
/// The greater lane; `b` where either is NaN (as the machine instruction does).
TORCHETTE_INLINE Vec maximum(Vec a, Vec b) {
#if defined(__ARM_NEON) && !defined(__aarch64__)
  return vbslq_f32(is_greater(a, b), a, b);
#elif TORCHETTE_HAS_HELIUM
  return vpselq_f32(a, b, vcmpgtq_f32(a, b));
#else
  return TORCHETTE_SELECT(a > b, a, b);
#endif
}
TORCHETTE_INLINE Vec minimum(Vec a, Vec b) {
#if defined(__ARM_NEON) && !defined(__aarch64__)
  return vbslq_f32(is_greater(b, a), a, b);
#elif TORCHETTE_HAS_HELIUM
  return vpselq_f32(a, b, vcmpgtq_f32(b, a));
#else
  return TORCHETTE_SELECT(a < b, a, b);
#endif
}

/// Each lane in the other type; floats are cut to whole numbers.
TORCHETTE_INLINE Vec to_floats(VecInt x) {
#if TORCHETTE_HAS_HELIUM  // of the general form GCC makes numbers
  return vcvtq_f32_s32(reinterpret_cast<int32x4_t>(x));
#else
  return convert_lanes<Vec>(x);
#endif
}
TORCHETTE_INLINE VecInt to_whole(Vec x) {
#if TORCHETTE_HAS_HELIUM
  return reinterpret_cast<VecInt>(vcvtq_s32_f32(x));
#else
  return convert_lanes<VecInt>(x);
#endif
}

/// a * b + c, in one rounding where the machine can.
TORCHETTE_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
  return vfmaq_f32(c, a, b);
#elif defined(__ARM_NEON)  // on 32 bits GCC makes numbers of a * b + c, for the sake of subnormal ones
  return vmlaq_f32(c, a, b);
#elif TORCHETTE_HAS_HELIUM
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

/// The first `n` floats at `p` (0 < n <= kLanes), zeros after them; touches no memory beyond.
TORCHETTE_INLINE Vec load_partial(const float* p, size_t n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p);
#elif defined(__AVX2__)
  const VecInt lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return _mm256_maskload_ps(p, reinterpret_cast<__m256i>(lane < broadcast(static_cast<int32_t>(n))));
#else
  float lanes[kLanes] = {};
  for (size_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
#endif
}

/// Bits [0, n), n clamped to [0, 32].
TORCHETTE_INLINE uint32_t low_bits(ptrdiff_t n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1u; }
/// The bits i of 32 for which `from + i` is a place of a row of `width`.
TORCHETTE_INLINE uint32_t inside_bits(ptrdiff_t from, ptrdiff_t width) {
  return low_bits(width - from) & ~low_bits(-from);
}

/// Which lanes a masked load touches, in the form that the machine wants. Bit i of `bits` is lane i.
#if defined(__AVX512F__)
typedef __mmask16 LaneMask;
TORCHETTE_INLINE LaneMask lane_mask(uint32_t bits) { return static_cast<__mmask16>(bits); }
#elif defined(__AVX2__)
typedef VecInt LaneMask;
TORCHETTE_INLINE LaneMask lane_mask(uint32_t bits) {
  const VecInt bit = {1, 2, 4, 8, 16, 32, 64, 128};
  return (broadcast(static_cast<int32_t>(bits)) & bit) == bit;
}
#else
typedef uint32_t LaneMask;
TORCHETTE_INLINE LaneMask lane_mask(uint32_t bits) { return bits & ((1u << kLanes) - 1u); }
#endif

/// Lane i is p[i] where the mask is set, else 0; memory behind unset lanes is not touched.
TORCHETTE_INLINE Vec load_masked(const float* p, LaneMask mask) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(mask, p);
#elif defined(__AVX2__)
  return _mm256_maskload_ps(p, reinterpret_cast<__m256i>(mask));
#else
  if (mask == (1u << kLanes) - 1u) return load(p);
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = (mask >> i & 1u) != 0 ? p[i] : 0.0f;
  return load(lanes);
#endif
}

/// Writes the first `n` lanes (0 < n <= kLanes) and nothing else.
TORCHETTE_INLINE void store_partial(float* p, Vec v, size_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), v);
#elif defined(__AVX2__)
  // AMD's processors take some 20 times as long for a masked store as for a plain one.
  if (n >= kLanes) return store(p, v);
  __m128 part = _mm256_castps256_ps128(v);
  if ((n & 4) != 0) {
    _mm_storeu_ps(p, part);
    part = _mm256_extractf128_ps(v, 1);
    p += 4;
  }
  if ((n & 2) != 0) {
    _mm_storel_pi(reinterpret_cast<__m64*>(p), part);
    part = _mm_movehl_ps(part, part);
    p += 2;
  }
  if ((n & 1) != 0) _mm_store_ss(p, part);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (size_t i = 0; i < n; ++i) p[i] = lanes[i];
#endif
}

#if defined(__AVX512F__)
#define TORCHETTE_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define TORCHETTE_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define TORCHETTE_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define TORCHETTE_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
#define TORCHETTE_EVEN 0, 2, 4, 6, 8, 10, 12, 14
#define TORCHETTE_ODD 1, 3, 5, 7, 9, 11, 13, 15
#define TORCHETTE_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define TORCHETTE_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define TORCHETTE_EVEN 0, 2, 4, 6
#define TORCHETTE_ODD 1, 3, 5, 7
#define TORCHETTE_LOW 0, 4, 1, 5
#define TORCHETTE_HIGH 2, 6, 3, 7
#endif
/// Splits the 2 * kLanes floats (a, b): `even` gets those at even places, `odd` the others.
TORCHETTE_INLINE void deinterleave(Vec a, Vec b, Vec& even, Vec& odd) {
  even = TORCHETTE_SHUFFLE(a, b, TORCHETTE_EVEN);
  odd = TORCHETTE_SHUFFLE(a, b, TORCHETTE_ODD);
}
/// The inverse: low gets a0 b0 a1 b1 ..., high goes on.
TORCHETTE_INLINE void interleave(Vec a, Vec b, Vec& low, Vec& high) {
  low = TORCHETTE_SHUFFLE(a, b, TORCHETTE_LOW);
  high = TORCHETTE_SHUFFLE(a, b, TORCHETTE_HIGH);
}
#undef TORCHETTE_EVEN
#undef TORCHETTE_ODD
#undef TORCHETTE_LOW
#undef TORCHETTE_HIGH

/// Transposes the square of kLanes x kLanes floats, by as many perfect shuffles as the width has bits.
TORCHETTE_INLINE void transpose(Vec (&rows)[kLanes]) {
  TORCHETTE_UNROLL(4)
  for (int width = kLanes; width > 1; width /= 2) {
    Vec shuffled[kLanes];
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kLanes / 2; ++i)
      interleave(rows[i], rows[i + kLanes / 2], shuffled[2 * i], shuffled[2 * i + 1]);
    TORCHETTE_UNROLL(16)
    for (int i = 0; i < kLanes; ++i) rows[i] = shuffled[i];
  }
}

/// Folds the lanes of `v` with `op` in halves.
template <typename Op>
TORCHETTE_INLINE float reduce_lanes(Vec v, Op op) {
  TORCHETTE_LANES(Quarter, float, 4);
#if defined(__AVX__)
  TORCHETTE_LANES(Half, float, 8);
#if defined(__AVX512F__)
  const Half h = op(TORCHETTE_SHUFFLE(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                    TORCHETTE_SHUFFLE(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#else
  const Half h = v;
#endif
  const Quarter q = op(TORCHETTE_SHUFFLE(h, h, 0, 1, 2, 3), TORCHETTE_SHUFFLE(h, h, 4, 5, 6, 7));
#else
  const Quarter q = v;
#endif
  const Quarter two = op(q, TORCHETTE_SHUFFLE(q, q, 2, 3, 2, 3));
  return op(two, TORCHETTE_SHUFFLE(two, two, 1, 1, 1, 1))[0];
}
TORCHETTE_INLINE float horizontal_sum(Vec v) {
  return reduce_lanes(v, [](auto a, auto b) TORCHETTE_INLINED { return a + b; });
}
/// As maximum(): which of NaN and a number is kept is not said.
TORCHETTE_INLINE float horizontal_max(Vec v) {
  return reduce_lanes(v, [](auto a, auto b) TORCHETTE_INLINED { return TORCHETTE_SELECT(a > b, a, b); });
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
