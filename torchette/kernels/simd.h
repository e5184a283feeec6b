// SPDX-License-Identifier: BSD-3-Clause
// Vec: a float vector of the register width of the instruction set for which this file is compiled (16, 8 or
// 4 lanes). Kernels are written once with it and compiled once per instruction set level.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "torchette/kernels/lanes.h"
#include "torchette/runtime/dtype.h"
#include "torchette/runtime/span.h"

// Helium: the M-profile Vector Extension of Cortex-M, with float and integer vectors.
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#define TORCHETTE_HAS_HELIUM 1
#else
#define TORCHETTE_HAS_HELIUM 0
#endif

// RVV: the vector extension of RISC-V, with registers of at least 128 bits. GCC before version 14 scalarizes
// vector types for it.
#if TORCHETTE_GNU && defined(__riscv_v_min_vlen) && (defined(__clang__) || __GNUC__ >= 14)
#define TORCHETTE_HAS_RVV 1
#else
#define TORCHETTE_HAS_RVV 0
#endif

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif TORCHETTE_HAS_RVV
#include <riscv_vector.h>
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
#elif defined(__AVX__) || TORCHETTE_HAS_RVV  // RVV: groups of two registers
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

// Whether the processor has float vectors. Without them, compilers scalarize vector code and keep arrays of
// vectors in memory. Code that must stay in registers uses scalars in that case.
#if TORCHETTE_GNU && (defined(__SSE__) || defined(__ARM_NEON) || defined(__wasm_simd128__) || \
                      TORCHETTE_HAS_RVV || TORCHETTE_HAS_HELIUM)
#define TORCHETTE_HAS_VECTORS 1
#else
#define TORCHETTE_HAS_VECTORS 0
#endif

/// Vec: kLanes floats. VecInt: kLanes int32 values, also the result type of Vec comparisons (-1 or 0 per
/// lane).
TORCHETTE_LANES(Vec, float, kLanes);
TORCHETTE_LANES(VecInt, int32_t, kLanes);
TORCHETTE_LANES_IN_MEMORY(UnalignedVec, float, kLanes);
TORCHETTE_LANES_IN_MEMORY(UnalignedVecInt, int32_t, kLanes);

TORCHETTE_INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
TORCHETTE_INLINE void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
TORCHETTE_INLINE VecInt load(const int32_t* p) { return *reinterpret_cast<const UnalignedVecInt*>(p); }
TORCHETTE_INLINE void store(int32_t* p, VecInt v) { *reinterpret_cast<UnalignedVecInt*>(p) = v; }
/// Loads kLanes 16-bit floats and converts them to float, which is exact.
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
  // GCC warns about the intrinsic without a mask.
  return _mm512_maskz_cvtph_ps(0xffffu, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
#else  // the algorithm of Half::to_float
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
TORCHETTE_INLINE uint32x4_t is_greater(Vec a, Vec b) {  // GCC compares lane by lane otherwise
  uint32x4_t mask;
  asm("vcgt.f32 %q0, %q1, %q2" : "=w"(mask) : "w"(a), "w"(b));
  return mask;
}
#endif
/// Lane-wise maximum. Returns the lane of `b` if either lane is NaN, like the x86 instruction.
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

/// Converts int32 lanes to float, and float lanes that contain integers to int32.
TORCHETTE_INLINE Vec to_floats(VecInt x) {
#if TORCHETTE_HAS_HELIUM  // GCC scalarizes convert_lanes here
  return vcvtq_f32_s32(reinterpret_cast<int32x4_t>(x));
#else
  return convert_lanes<Vec>(x);
#endif
}
TORCHETTE_INLINE VecInt to_ints(Vec x) {
#if TORCHETTE_HAS_HELIUM
  return reinterpret_cast<VecInt>(vcvtq_s32_f32(x));
#elif TORCHETTE_HAS_RVV && defined(__clang__)  // qemu 7.2 crashes in the conversion with truncation
  return convert_lanes<VecInt>(TORCHETTE_RINT(x));
#else
  return convert_lanes<VecInt>(x);
#endif
}

/// a * b + c, with a single rounding if the target has FMA.
TORCHETTE_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
  return vfmaq_f32(c, a, b);
#elif defined(__ARM_NEON)  // 32-bit GCC scalarizes a * b + c to preserve subnormals
  return vmlaq_f32(c, a, b);
#elif TORCHETTE_HAS_HELIUM
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

/// Loads the first `n` floats at `p` (0 < n <= kLanes) and sets the other lanes to zero. Reads only n floats.
TORCHETTE_INLINE Vec load_partial(const float* p, size_t n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p);
#elif defined(__AVX2__)
  const VecInt lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return _mm256_maskload_ps(p, reinterpret_cast<__m256i>(lane < broadcast(static_cast<int32_t>(n))));
#elif TORCHETTE_HAS_RVV  // the type of intrinsics has no size and converts to Vec only through memory
  Vec v = {};
  __riscv_vse32_v_f32m2(reinterpret_cast<float*>(&v), __riscv_vle32_v_f32m2(p, n), n);
  return v;
#else
  float lanes[kLanes] = {};
  for (size_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
#endif
}

/// Returns a mask with bits [0, n) set. n is clamped to [0, 32].
TORCHETTE_INLINE uint32_t low_bits(ptrdiff_t n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1u; }
/// Returns a 32-bit mask with bit i set if 0 <= from + i < width.
TORCHETTE_INLINE uint32_t inside_bits(ptrdiff_t from, ptrdiff_t width) {
  return low_bits(width - from) & ~low_bits(-from);
}

/// Lane mask of a masked load, in the representation of the instruction set. Bit i of `bits` selects lane i.
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

/// Lane i is p[i] if its mask bit is set, otherwise 0. Memory of unselected lanes is not read.
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

/// Stores the first `n` lanes (0 < n <= kLanes) and writes no other memory.
TORCHETTE_INLINE void store_partial(float* p, Vec v, size_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), v);
#elif defined(__AVX2__)
  // On AMD processors, a masked store takes about 20 times as long as a plain store.
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
#elif TORCHETTE_HAS_RVV
  __riscv_vse32_v_f32m2(p, __riscv_vle32_v_f32m2(reinterpret_cast<const float*>(&v), n), n);
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
#elif defined(__AVX__) || TORCHETTE_HAS_RVV
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
/// Splits the 2 * kLanes floats (a, b): `even` receives the floats at even indices, `odd` those at odd
/// indices.
TORCHETTE_INLINE void deinterleave(Vec a, Vec b, Vec& even, Vec& odd) {
  even = TORCHETTE_SHUFFLE(a, b, TORCHETTE_EVEN);
  odd = TORCHETTE_SHUFFLE(a, b, TORCHETTE_ODD);
}
/// Inverse of deinterleave(): low and high contain a0 b0 a1 b1 ...
TORCHETTE_INLINE void interleave(Vec a, Vec b, Vec& low, Vec& high) {
  low = TORCHETTE_SHUFFLE(a, b, TORCHETTE_LOW);
  high = TORCHETTE_SHUFFLE(a, b, TORCHETTE_HIGH);
}
#undef TORCHETTE_EVEN
#undef TORCHETTE_ODD
#undef TORCHETTE_LOW
#undef TORCHETTE_HIGH

/// Transposes a kLanes x kLanes matrix with log2(kLanes) perfect shuffles.
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

/// Reduces the lanes of `v` with `op`, a binary tree of halves.
template <typename Op>
TORCHETTE_INLINE float reduce_lanes(Vec v, Op op) {
  TORCHETTE_LANES(Quarter, float, 4);
#if defined(__AVX__) || TORCHETTE_HAS_RVV
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
/// Reduces with maximum. If a lane is NaN, the result is unspecified.
TORCHETTE_INLINE float horizontal_max(Vec v) {
  return reduce_lanes(v, [](auto a, auto b) TORCHETTE_INLINED { return TORCHETTE_SELECT(a > b, a, b); });
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
