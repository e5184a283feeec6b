// SPDX-License-Identifier: BSD-3-Clause
// What the products of bytes share: how each machine multiplies a quad, four neighbours of a row, by the
// quads of some outputs, and rows in the form that it takes. The sums are exact, so every machine gives the
// same bytes.
#pragma once

#include <atomic>
#include <cstdlib>
#include <type_traits>

#include "torchette/kernels/engine/integer_gemm.h"

#if defined(__wasm_simd128__)
#include <wasm_simd128.h>
#elif TORCHETTE_GNU && defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

// Whether one output is summed up at a time, in numbers.
#define TORCHETTE_BY_COLUMNS (!TORCHETTE_HAS_VECTORS || TORCHETTE_HAS_HELIUM)

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Whether the processor may have an instruction that the compiler was not told of: it multiplies and adds up
// the quads of a whole vector. clang's assembler knows in a function only what its flags allow; of ARM it
// lets itself be told.
#if (defined(__AVX2__) && !defined(__clang__)) || \
    (defined(__aarch64__) && defined(__linux__) && !defined(__ARM_FEATURE_DOTPROD))
#define TORCHETTE_MAY_HAVE_DOTS 1
#else
#define TORCHETTE_MAY_HAVE_DOTS 0
#endif

TORCHETTE_INLINE int32_t four_bytes(const uint8_t* p) {
  int32_t quad;
  memcpy(&quad, p, sizeof(quad));
  return quad;
}
TORCHETTE_INLINE int64_t eight_bytes(const int16_t* p) {
  int64_t quad;
  memcpy(&quad, p, sizeof(quad));
  return quad;
}

// A machine: Number is what its rows are made of, bytes, or 16 bits from which the zero point is taken
// already; kOutputs how many of a panel a vector of sums is for, kParts in how many parts the sum of each is.
// One without vectors of sums has column(), the sums of kColumns outputs and kRows rows; kUnit numbers of
// these rows are side by side, as put() writes them, and the sums are kPanelWidth apart.

#if defined(__ARM_NEON) && (TORCHETTE_MAY_HAVE_DOTS || defined(__ARM_FEATURE_DOTPROD))
struct Dots {
  typedef int32x4_t Vector;
  typedef uint8_t Number;
  static constexpr size_t kOutputs = 4, kParts = 1;
  static constexpr int kMostRows = kVectorRegisters >= 32 ? 6 : 2, kMostPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static Vector quad(const uint8_t* p) { return vdupq_n_s32(four_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) { return vreinterpretq_s32_s8(vld1q_s8(p)); }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
#if TORCHETTE_MAY_HAVE_DOTS
    asm(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(x), "w"(w));
    return sums;
#else
    return vdotq_s32(sums, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(w));
#endif
  }
};
#endif

#if TORCHETTE_MAY_HAVE_DOTS && defined(__aarch64__)
/// One instruction more multiplies eight numbers of two rows by those of two outputs.
struct Pairs : Dots {
  /// Adds to the sums [two rows][two outputs].
  TORCHETTE_INLINE static Vector product(Vector sums, Vector x, Vector w) {
    asm(".arch armv8.2-a+i8mm\n\tsmmla %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(x), "w"(w));
    return sums;
  }
};
static bool has_pairs() { return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }
#endif

#if TORCHETTE_MAY_HAVE_DOTS
#if defined(__aarch64__)
static bool has_dots() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#elif defined(__AVX512F__)
/// One instruction multiplies unsigned by signed quads of 16 outputs.
struct Dots {
  typedef __m512i Vector;
  typedef uint8_t Number;
  static constexpr size_t kOutputs = 16, kParts = 1;
  static constexpr int kMostRows = 6, kMostPanels = 4;
  static constexpr bool kUnsigned = true;
  TORCHETTE_INLINE static Vector quad(const uint8_t* p) { return _mm512_set1_epi32(four_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) { return _mm512_loadu_si512(p); }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(x), "v"(w));
    return sums;
  }
};
static bool has_dots() { return TORCHETTE_CPU_HAS("avx512vnni"); }
#else
struct Dots {
  typedef __m256i Vector;
  typedef uint8_t Number;
  static constexpr size_t kOutputs = 8, kParts = 1;
  static constexpr int kMostRows = 6, kMostPanels = 1;
  static constexpr bool kUnsigned = true;
  TORCHETTE_INLINE static Vector quad(const uint8_t* p) { return _mm256_set1_epi32(four_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(x), "x"(w));
    return sums;
  }
};
static bool has_dots() { return TORCHETTE_CPU_HAS("avxvnni"); }
#endif
/// Whether the processor has something, found out once. The level that TORCHETTE_ISA names is that level,
/// without what the processor has besides.
template <bool (*kHas)()>
static bool uses() {
  static std::atomic<int8_t> known{-1};  // threads that race find the same
  int8_t found = known.load(std::memory_order_relaxed);
  if (found < 0) {
    found = getenv("TORCHETTE_ISA") == nullptr && kHas() ? 1 : 0;
    known.store(found, std::memory_order_relaxed);
  }
  return found != 0;
}
#endif

#if defined(__AVX512F__)
struct Machine {
  typedef __m512i Vector;
  typedef int16_t Number;
  static constexpr size_t kOutputs = 8, kParts = 2;
  static constexpr int kMostRows = 4, kMostPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static Vector quad(const int16_t* p) { return _mm512_set1_epi64(eight_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(x, w));
  }
};
#elif defined(__AVX2__)
struct Machine {
  typedef __m256i Vector;
  typedef int16_t Number;
  static constexpr size_t kOutputs = 4, kParts = 2;
  static constexpr int kMostRows = 2, kMostPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static Vector quad(const int16_t* p) { return _mm256_set1_epi64x(eight_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    Vector pairs;
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sums), "=&x"(pairs) : "x"(x), "x"(w));
    return sums;
  }
};
#elif TORCHETTE_GNU && defined(__SSE2__)
struct Machine {
  typedef __m128i Vector;
  typedef int16_t Number;
  static constexpr size_t kOutputs = 2, kParts = 2;
  static constexpr int kMostRows = 1, kMostPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static Vector quad(const int16_t* p) { return _mm_set1_epi64x(eight_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
  }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    return _mm_add_epi32(sums, _mm_madd_epi16(x, w));
  }
};
#elif defined(__wasm_simd128__)
struct Machine {
  typedef v128_t Vector;
  typedef int16_t Number;
  static constexpr size_t kOutputs = 2, kParts = 2;
  static constexpr int kMostRows = 1, kMostPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static Vector quad(const int16_t* p) { return wasm_i64x2_splat(eight_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) { return wasm_i16x8_load8x8(p); }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    return wasm_i32x4_add(sums, wasm_i32x4_dot_i16x8(x, w));
  }
};
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
typedef Dots Machine;
#elif defined(__ARM_NEON)
struct Machine {
  typedef int32x4_t Vector;
  typedef uint8_t Number;
  static constexpr size_t kOutputs = 2, kParts = 2;
  static constexpr int kMostRows = kVectorRegisters >= 32 ? 2 : 1, kMostPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static Vector quad(const uint8_t* p) { return vdupq_n_s32(four_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) {
    return vcombine_s32(vreinterpret_s32_s8(vld1_s8(p)), vdup_n_s32(0));
  }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {  // a product of two bytes has 16 bits
    return vpadalq_s16(sums,
                       vmull_s8(vreinterpret_s8_s32(vget_low_s32(x)), vreinterpret_s8_s32(vget_low_s32(w))));
  }
};
#elif TORCHETTE_HAS_HELIUM
/// Sixteen products of bytes are added up in one number; a gather takes an output's weights together.
struct Machine {
  typedef int8_t Number;
  static constexpr size_t kUnit = 16, kColumns = 1;
  static constexpr int kMostRows = 4, kMostPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static void put(const uint8_t* from, int32_t flip, int32_t, size_t count, int8_t* to) {
    const uint8x16_t bytes = vldrbq_z_u8(from, vctp8q(count));
    vst1q_s8(to, vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(static_cast<uint8_t>(flip)))));
  }
  template <int kRows>
  TORCHETTE_NOINLINE static void column(const int8_t* x, const int8_t* w, size_t quads, int32_t* sums) {
    constexpr uint32_t kStep = kPanelWidth * kQuad;
    const uint32x4_t places = vmulq_n_u32(vidupq_n_u32(0, 1), kStep);
    int32_t sum[kRows] = {};
    const auto add = [&](int32x4_t weights) TORCHETTE_INLINED {
      TORCHETTE_UNROLL(4)
      for (size_t i = 0; i < kRows; ++i)
        sum[i] = vmladavaq_s8(sum[i], vldrbq_s8(x + i * kUnit), vreinterpretq_s8_s32(weights));
    };
    for (; quads >= 4; quads -= 4, x += kRows * kUnit, w += 4 * kStep)
      add(vldrwq_gather_offset_s32(reinterpret_cast<const int32_t*>(w), places));
    if (quads > 0)
      add(vldrwq_gather_offset_z_s32(reinterpret_cast<const int32_t*>(w), places, vctp32q(quads)));
    TORCHETTE_UNROLL(4)
    for (size_t i = 0; i < kRows; ++i) sums[i * kPanelWidth] = sum[i];
  }
};
#else
/// Numbers of 16 bits less the zero point; of a quad the even ones before the odd ones, as SXTB16 leaves
/// them.
struct Machine {
  typedef int16_t Number;
  static constexpr size_t kUnit = kQuad;
  static constexpr int kMostRows = 6, kMostPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static void put(const uint8_t* from, int32_t flip, int32_t zero, size_t count,
                                   int16_t* to) {
    int32_t bytes = 0;
    if (count == kUnit)
      bytes = four_bytes(from);
    else
      for (size_t t = count; t > 0; --t)
        bytes = static_cast<int32_t>(static_cast<uint32_t>(bytes) << 8 | from[t - 1]);
    bytes ^= flip;
    TORCHETTE_UNROLL(4)
    for (int t = 0; t < 4; ++t)
      to[t % 2 * 2 + t / 2] = static_cast<int16_t>(static_cast<int8_t>(bytes >> 8 * t) - zero);
  }
#if defined(__ARM_FEATURE_DSP)
  static constexpr size_t kColumns = 1;
  template <int kRows>
  TORCHETTE_NOINLINE static void column(const int16_t* x, const int8_t* w, size_t quads, int32_t* sums) {
    int32_t sum[kRows];
    TORCHETTE_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) sum[i] = 0;
    if (quads > 0) do {
        const int32_t bytes = four_bytes(reinterpret_cast<const uint8_t*>(w));
        int32_t even, odd, first, second;
        asm("sxtb16 %0, %1" : "=r"(even) : "r"(bytes));
        asm("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(bytes));
        TORCHETTE_UNROLL(8)
        for (size_t i = 0; i < kRows; ++i)
          asm("ldrd %[first], %[second], [%[x]], #8\n\t"
              "smlad %[sum], %[first], %[even], %[sum]\n\t"
              "smlad %[sum], %[second], %[odd], %[sum]"
              : [sum] "+r"(sum[i]), [x] "+r"(x), [first] "=&r"(first), [second] "=&r"(second)
              : [even] "r"(even), [odd] "r"(odd)
              : "memory");
        w += kPanelWidth * kQuad;
      } while (--quads > 0);
    TORCHETTE_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) sums[i * kPanelWidth] = sum[i];
  }
#else
  // A product of 64 bits is of two outputs: their sums are in its halves, the upper one too small by one
  // where the lower one is negative.
  typedef ptrdiff_t Sum;
  static constexpr size_t kColumns = sizeof(Sum) / sizeof(int32_t), kHalf = 4 * sizeof(Sum);
  template <int kRows>
  TORCHETTE_NOINLINE static void column(const int16_t* x, const int8_t* w, size_t quads, int32_t* sums) {
    Sum sum[kRows];
    TORCHETTE_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) sum[i] = 0;
    for (; quads > 0; --quads, w += kPanelWidth * kQuad, x += kRows * kUnit) {
      TORCHETTE_UNROLL(4)
      for (size_t t = 0; t < kQuad; ++t) {
        const Sum weights = kColumns == 1 ? w[t] : w[t] + (static_cast<Sum>(w[kQuad + t]) << kHalf);
        TORCHETTE_UNROLL(8)
        for (size_t i = 0; i < kRows; ++i) sum[i] += x[i * kUnit + t % 2 * 2 + t / 2] * weights;
      }
    }
    TORCHETTE_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) {
      const auto low = static_cast<int32_t>(sum[i]);
      sums[i * kPanelWidth] = low;
      if (kColumns == 2) sums[i * kPanelWidth + 1] = static_cast<int32_t>((sum[i] - low) >> kHalf);
    }
  }
#endif
};
#endif

/// How many quads a machine's sums have room for.
template <typename M>
constexpr size_t kMostQuads = SIZE_MAX;
/// The tile that follows one of so many rows where fewer are left.
constexpr size_t fewer_rows(size_t rows) { return rows == 6 ? 4 : rows / 2; }

// One row reads each weight once. It comes from memory, as far ahead as this many bytes.
constexpr size_t kAhead = 4096;

#if !TORCHETTE_BY_COLUMNS
/// Vector v of the whole sums of a row.
template <typename M>
TORCHETTE_INLINE VecInt whole_sums(const typename M::Vector* sums, int v) {
  static_assert(sizeof(typename M::Vector) == sizeof(VecInt), "a machine's vector is one of the level's");
  VecInt whole;
  if constexpr (M::kParts == 1) {
    memcpy(&whole, &sums[v], sizeof(whole));
  } else {
    const auto low = sums[2 * v], high = sums[2 * v + 1];
#if defined(__ARM_NEON)
    whole = vcombine_s32(vpadd_s32(vget_low_s32(low), vget_high_s32(low)),
                         vpadd_s32(vget_low_s32(high), vget_high_s32(high)));
#else
    Vec even, odd;
    deinterleave(reinterpret_cast<Vec>(low), reinterpret_cast<Vec>(high), even, odd);
    whole = reinterpret_cast<VecInt>(even) + reinterpret_cast<VecInt>(odd);
#endif
  }
  return whole;
}

template <typename M, int kRows, int kPanels>
struct Sums {
  static constexpr int kOfPanel = static_cast<int>(kPanelWidth / M::kOutputs), kVectors = kPanels * kOfPanel;
  typedef typename M::Vector Vector;
  Vector of[kRows][kVectors];

  /// The sums of some quads. With kOnes the last row's inputs are ones, so that its sums are the weights'.
  template <bool kOnes>
  TORCHETTE_INLINE void set(const typename M::Number* a, size_t a_row, const int8_t* w, size_t w_panel,
                            size_t quads) {
#if defined(__arm__)  // what is read in a loop below would be written to memory in each round of this one
    Vector sums[kRows][kVectors];
    sum<kOnes>(sums, a, a_row, w, w_panel, quads);
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) of[i][v] = sums[i][v];
#else
    sum<kOnes>(of, a, a_row, w, w_panel, quads);
#endif
  }

 private:
  TORCHETTE_INLINE static void clear(Vector (&sums)[kRows][kVectors]) {
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Vector{};
  }

  template <bool kOnes>
  TORCHETTE_INLINE static void sum(Vector (&sums)[kRows][kVectors], const typename M::Number* a, size_t a_row,
                                   const int8_t* w, size_t w_panel, size_t quads) {
    clear(sums);
    if constexpr (kMostQuads<M> == SIZE_MAX) {
      add<kOnes>(sums, a, a_row, w, w_panel, 0, quads);
    } else {
      for (size_t q = 0; q < quads; q += kMostQuads<M>) {
        Vector some[kRows][kVectors];
        clear(some);
        add<kOnes>(some, a, a_row, w, w_panel, q, quads - q < kMostQuads<M> ? quads : q + kMostQuads<M>);
        TORCHETTE_UNROLL(8)
        for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(16)
        for (int v = 0; v < kVectors; ++v) sums[i][v] = M::widen(sums[i][v], some[i][v]);
      }
    }
  }

  template <bool kOnes>
  TORCHETTE_INLINE static void add(Vector (&sums)[kRows][kVectors], const typename M::Number* a, size_t a_row,
                                   const int8_t* w, size_t w_panel, size_t q, size_t end) {
    constexpr size_t kBytes = M::kOutputs * kQuad;
    constexpr int kGiven = kOnes ? kRows - 1 : kRows;
    Vector ones = {};
    if constexpr (kOnes) {
      const typename M::Number one[kQuad] = {1, 1, 1, 1};
      ones = M::quad(one);
    }
    const auto x = [&](int i, size_t at) TORCHETTE_INLINED {
      return i < kGiven ? M::quad(a + static_cast<size_t>(i) * a_row + at * kQuad) : ones;
    };
    const auto weights = [&](int v, size_t at) TORCHETTE_INLINED {
      return M::weights(w + static_cast<size_t>(v / kOfPanel) * w_panel + at * (kPanelWidth * kQuad) +
                        static_cast<size_t>(v % kOfPanel) * kBytes);
    };
    if constexpr (kOnes && kRows == 2) {  // every other quad has a sum of its own: additions need not wait
      typedef std::conditional_t<kMostQuads<M> == SIZE_MAX, int32_t, int16_t> Whole;
      TORCHETTE_LANES(Sum, Whole, sizeof(Vector) / sizeof(Whole));
      Vector others[kRows][kVectors];
      clear(others);
      for (; end - q >= 2; q += 2) {
        TORCHETTE_PREFETCH(w + q * (kPanelWidth * kQuad) + kAhead);
        TORCHETTE_PREFETCH(w + (q + 1) * (kPanelWidth * kQuad) + kAhead);
        const Vector even = x(0, q), odd = x(0, q + 1);
        TORCHETTE_UNROLL(16)
        for (int v = 0; v < kVectors; ++v) {
          const Vector given = weights(v, q), next = weights(v, q + 1);
          sums[0][v] = M::dot(sums[0][v], even, given);
          sums[1][v] = M::dot(sums[1][v], ones, given);
          others[0][v] = M::dot(others[0][v], odd, next);
          others[1][v] = M::dot(others[1][v], ones, next);
        }
      }
      TORCHETTE_UNROLL(2)
      for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(16)
      for (int v = 0; v < kVectors; ++v)
        sums[i][v] =
            reinterpret_cast<Vector>(reinterpret_cast<Sum>(sums[i][v]) + reinterpret_cast<Sum>(others[i][v]));
    }
    for (; q < end; ++q) {
      if constexpr (kGiven == 1 && kPanels == 1) TORCHETTE_PREFETCH(w + q * (kPanelWidth * kQuad) + kAhead);
      if constexpr (kVectors <= 2) {  // of two operands the fewer ones stay in registers
        Vector given[kVectors];
        TORCHETTE_UNROLL(2)
        for (int v = 0; v < kVectors; ++v) given[v] = weights(v, q);
        TORCHETTE_UNROLL(8)
        for (int i = 0; i < kRows; ++i) {
          const Vector row = x(i, q);
          TORCHETTE_UNROLL(2)
          for (int v = 0; v < kVectors; ++v) sums[i][v] = M::dot(sums[i][v], row, given[v]);
        }
      } else {
        Vector rows[kRows];
        TORCHETTE_UNROLL(8)
        for (int i = 0; i < kRows; ++i) rows[i] = x(i, q);
        TORCHETTE_UNROLL(16)
        for (int v = 0; v < kVectors; ++v) {
          const Vector given = weights(v, q);
          TORCHETTE_UNROLL(8)
          for (int i = 0; i < kRows; ++i) sums[i][v] = M::dot(sums[i][v], rows[i], given);
        }
      }
    }
  }
};

#if TORCHETTE_MAY_HAVE_DOTS && defined(__aarch64__)
/// Two rows and two quads at a time; a row that is left goes alone.
template <int kRows, int kPanels>
struct Sums<Pairs, kRows, kPanels> {
  static constexpr size_t kVectors = kPanelWidth / Dots::kOutputs;
  int32x4_t of[kRows][kVectors];

  template <bool kOnes>
  TORCHETTE_INLINE void set(const uint8_t* a, size_t a_row, const int8_t* w, size_t w_panel, size_t quads) {
    constexpr size_t kGiven = kOnes ? kRows - 1 : kRows;
    if constexpr (kGiven % 2 != 0) {
      Sums<Dots, kRows, 1> sums;
      sums.template set<kOnes>(a, a_row, w, w_panel, quads);
      TORCHETTE_UNROLL(8)
      for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(4)
      for (size_t v = 0; v < kVectors; ++v) of[i][v] = sums.of[i][v];
    } else {
      int32x4_t sums[kGiven / 2][2 * kVectors] = {}, ones[kVectors] = {};
      const int32x4_t one = vdupq_n_s32(0x01010101);
      const auto add = [&](size_t q, const auto& numbers, const auto& second) TORCHETTE_INLINED {
        int32x4_t x[kGiven / 2];
        TORCHETTE_UNROLL(4)
        for (size_t i = 0; i < kGiven / 2; ++i) {
          const uint8_t* const from = a + 2 * i * a_row + q * kQuad;
          x[i] = vcombine_s32(numbers(from), numbers(from + a_row));
        }
        TORCHETTE_UNROLL(4)
        for (size_t v = 0; v < kVectors; ++v) {
          const int8_t* const from = w + (q * kPanelWidth + v * Dots::kOutputs) * kQuad;
          const int32x4_t low = Dots::weights(from), high = second(from + kPanelWidth * kQuad);
          const int32x4_t first = vzip1q_s32(low, high), last = vzip2q_s32(low, high);
          if constexpr (kOnes) ones[v] = Dots::dot(Dots::dot(ones[v], one, low), one, high);
          TORCHETTE_UNROLL(4)
          for (size_t i = 0; i < kGiven / 2; ++i) {
            sums[i][2 * v] = Pairs::product(sums[i][2 * v], x[i], first);
            sums[i][2 * v + 1] = Pairs::product(sums[i][2 * v + 1], x[i], last);
          }
        }
      };
      size_t q = 0;
      for (; q + 2 <= quads; q += 2)
        add(
            q, [](const uint8_t* from) { return vreinterpret_s32_u8(vld1_u8(from)); },
            [](const int8_t* from) { return Dots::weights(from); });
      if (q < quads)
        add(
            q, [](const uint8_t* from) { return vset_lane_s32(four_bytes(from), vdup_n_s32(0), 0); },
            [](const int8_t*) { return vdupq_n_s32(0); });
      TORCHETTE_UNROLL(4)
      for (size_t v = 0; v < kVectors; ++v) {
        TORCHETTE_UNROLL(4)
        for (size_t i = 0; i < kGiven; i += 2) {
          const int32x4_t low = sums[i / 2][2 * v], high = sums[i / 2][2 * v + 1];
          of[i][v] = vcombine_s32(vget_low_s32(low), vget_low_s32(high));
          of[i + 1][v] = vcombine_s32(vget_high_s32(low), vget_high_s32(high));
        }
        if constexpr (kOnes) of[kGiven][v] = ones[v];
      }
    }
  }
};
#endif
#endif

#if TORCHETTE_BY_COLUMNS
/// Numbers of a row of k as column() reads it.
template <typename M>
constexpr size_t padded_row(size_t k) {
  return (k + M::kUnit - 1) / M::kUnit * M::kUnit;
}
/// Rows as column() reads them: of each tile [quads][rows][kUnit], up to `padded` numbers of a row. zero(i)
/// is what row i stands above. What is left of the rows are tiles of fewer_rows(), or of one each.
template <typename M, bool kFewer, typename Zero>
void arrange(const uint8_t* a, ptrdiff_t a_row, size_t m, size_t k, size_t padded, int most_rows,
             int32_t flip, Zero zero, typename M::Number* to) {
  for (size_t i = 0, rows; i < m; i += rows, to += rows * padded) {
    for (rows = static_cast<size_t>(most_rows); rows > m - i;) rows = kFewer ? fewer_rows(rows) : 1;
    for (size_t r = 0; r < rows; ++r) {
      const uint8_t* const from = a + static_cast<ptrdiff_t>(i + r) * a_row;
      typename M::Number* at = to + r * M::kUnit;
      for (size_t j = 0; j < padded; j += M::kUnit, at += rows * M::kUnit) {
        const size_t left = j < k ? k - j : 0;
        M::put(from + j, flip, zero(i + r), left < M::kUnit ? left : M::kUnit, at);
      }
    }
  }
}
#else
/// Rows in the form that the machine multiplies, with zeros behind them up to `padded`; as they are if they
/// have it. `flip` is what four bytes are XORed with, zero(i) what row i then stands above.
template <typename M, typename Zero>
const typename M::Number* machine_rows(const uint8_t* a, ptrdiff_t& a_row, size_t m, size_t k, size_t padded,
                                       int32_t flip, Zero zero, void* scratch) {
  typedef typename M::Number Number;
  constexpr bool kWide = sizeof(Number) == 2;
  if (!kWide && padded == k && flip == 0) return reinterpret_cast<const Number*>(a);
  const auto mask = static_cast<int8_t>(flip);
  auto* to = static_cast<Number*>(scratch);
  for (size_t i = 0; i < m; ++i, to += padded) {
    const uint8_t* const from = a + static_cast<ptrdiff_t>(i) * a_row;
    // of loops over bytes the compiler makes no vectors here
    TORCHETTE_LANES(Bytes, int8_t, 16);
    TORCHETTE_LANES(Numbers, Number, 16);
    const auto above = static_cast<Number>(kWide ? zero(i) : 0);
    size_t j = 0;
    for (; j + sizeof(Bytes) <= k; j += sizeof(Bytes)) {
      Bytes bytes;
      memcpy(&bytes, from + j, sizeof(bytes));
      const Numbers numbers = convert_lanes<Numbers>(bytes ^ mask) - above;
      memcpy(to + j, &numbers, sizeof(numbers));
    }
    for (; j < k; ++j) to[j] = static_cast<Number>(static_cast<int8_t>(from[j] ^ mask) - above);
    memset(to + k, 0, (padded - k) * sizeof(Number));  // any would do: their weights are zero
  }
  a_row = static_cast<ptrdiff_t>(padded);
  return static_cast<const Number*>(scratch);
}
#endif

/// Whether the bytes of rows are turned into those that a machine multiplies by XOR, and what zero then is.
template <typename M>
constexpr bool flips(bool is_signed) {
  return is_signed == M::kUnsigned;
}
constexpr int32_t mask_of(bool flips) { return flips ? static_cast<int32_t>(0x80808080u) : 0; }
template <typename M>
constexpr int32_t shift_of(bool flips) {
  return !flips ? 0 : M::kUnsigned ? 128 : -128;
}

// Rows that are brought into another form at a time.
constexpr size_t kRowsAtOnce = 64;

/// Calls body(first row, rows, first panel, last, worker's scratch) for parts of a product, on the context's
/// threads: of `at_once` rows at most, and of panels in such units.
template <typename Body>
Error for_parts(Context& context, const char* op, size_t m, size_t n, size_t k, size_t each, const Body& body,
                size_t at_once = kRowsAtOnce, size_t unit = 1) {
  const size_t panels = panels_of(n), rows = m < at_once ? m : at_once;
  const size_t blocks = (m + at_once - 1) / at_once, units = (panels + unit - 1) / unit, work = k + 1;
  auto* const scratch = static_cast<uint8_t*>(context.allocate_temp(context.workers() * each));
  TORCHETTE_CHECK(scratch != nullptr || each == 0, MemoryAllocationFailed,
                  "%s: no scratch memory for %d rows of %d", op, static_cast<int>(rows), static_cast<int>(k));
  const auto block = [&](size_t b, size_t begin, size_t end, size_t worker) {
    const size_t at = b * at_once, left = m - at;
    body(at, left < at_once ? left : at_once, begin, end, scratch + worker * each);
  };
  if (blocks >= 2 * context.workers() || blocks >= units) {
    context.parallel_for(blocks, least_items(rows * n * work), [&](size_t begin, size_t end, size_t worker) {
      for (size_t b = begin; b < end; ++b) block(b, 0, panels, worker);
    });
    return Error::Ok;
  }
  context.parallel_for(units, least_items(m * unit * kPanelWidth * work),
                       [&](size_t begin, size_t end, size_t worker) {
                         const size_t last = end * unit;
                         for (size_t b = 0; b < blocks; ++b)
                           block(b, begin * unit, last < panels ? last : panels, worker);
                       });
  return Error::Ok;
}

}  // namespace
}  // namespace TORCHETTE_ISA
}  // namespace torchette
