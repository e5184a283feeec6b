// SPDX-License-Identifier: BSD-3-Clause
// Shared parts of the integer GEMMs: how each instruction set multiplies a quad (four consecutive inputs of a
// row) by the quads of several outputs, and the row format that it requires. Accumulation is exact, so all
// instruction sets return the same bytes.
#pragma once

#include <type_traits>

#include "torchette/kernels/engine/detected.h"
#include "torchette/kernels/engine/integer_gemm.h"

#if defined(__wasm_simd128__)
#include <wasm_simd128.h>
#elif TORCHETTE_GNU && defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Whether the processor may have a dot product instruction that the compile flags do not enable; has_dots()
// detects it at run time. Clang's assembler accepts only instructions that the flags enable, except on ARM,
// where an .arch directive enables them.
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

// A machine describes the integer multiplication of an instruction set. Number: element type of its rows,
// 8-bit, or 16-bit with the zero point subtracted. kOutputs: outputs of a panel in one accumulator vector.
// kParts: partial sums per output. A machine without accumulator vectors has column(), which accumulates
// kColumns outputs of kRows rows; its rows are interleaved in units of kUnit elements, as put() writes them,
// and the rows of its accumulators are kPanelWidth apart.

#if defined(__ARM_NEON) && (TORCHETTE_MAY_HAVE_DOTS || defined(__ARM_FEATURE_DOTPROD))
struct Dots {
  typedef int32x4_t Vector;
  typedef uint8_t Element;
  static constexpr size_t kOutputs = 4, kParts = 1;
  static constexpr int kMaxRows = kVectorRegisters >= 32 ? 6 : 2, kMaxPanels = 1;
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
/// i8mm: one instruction multiplies eight elements of two rows by those of two outputs.
struct Pairs : Dots {
  /// Accumulates [two rows][two outputs].
  TORCHETTE_INLINE static Vector product(Vector sums, Vector x, Vector w) {
    asm(".arch armv8.2-a+i8mm\n\tsmmla %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(x), "w"(w));
    return sums;
  }
};
[[maybe_unused]] static bool has_pairs() { return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }
#endif

#if TORCHETTE_MAY_HAVE_DOTS
#if defined(__aarch64__)
[[maybe_unused]] static bool has_dots() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#elif defined(__AVX512F__)
/// VNNI: one instruction multiplies unsigned by signed quads of 16 outputs.
struct Dots {
  typedef __m512i Vector;
  typedef uint8_t Element;
  static constexpr size_t kOutputs = 16, kParts = 1;
  static constexpr int kMaxRows = 12, kMaxPanels = 4;
  static constexpr bool kUnsigned = true;
  TORCHETTE_INLINE static Vector quad(const uint8_t* p) { return _mm512_set1_epi32(four_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) { return _mm512_loadu_si512(p); }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(x), "v"(w));
    return sums;
  }
};
[[maybe_unused]] static bool has_dots() { return TORCHETTE_CPU_HAS("avx512vnni"); }
#else
struct Dots {
  typedef __m256i Vector;
  typedef uint8_t Element;
  static constexpr size_t kOutputs = 8, kParts = 1;
  static constexpr int kMaxRows = 6, kMaxPanels = 1;
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
[[maybe_unused]] static bool has_dots() { return TORCHETTE_CPU_HAS("avxvnni"); }
#endif
#endif

#if defined(__AVX512F__)
struct Machine {
  typedef __m512i Vector;
  typedef int16_t Element;
  static constexpr size_t kOutputs = 8, kParts = 2;
  static constexpr int kMaxRows = 4, kMaxPanels = 1;
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
  typedef int16_t Element;
  static constexpr size_t kOutputs = 4, kParts = 2;
  static constexpr int kMaxRows = 2, kMaxPanels = 1;
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
  typedef int16_t Element;
  static constexpr size_t kOutputs = 2, kParts = 2;
  static constexpr int kMaxRows = 1, kMaxPanels = 1;
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
  typedef int16_t Element;
  static constexpr size_t kOutputs = 2, kParts = 2;
  static constexpr int kMaxRows = 1, kMaxPanels = 1;
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
  typedef uint8_t Element;
  static constexpr size_t kOutputs = 2, kParts = 2;
  static constexpr int kMaxRows = kVectorRegisters >= 32 ? 2 : 1, kMaxPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static Vector quad(const uint8_t* p) { return vdupq_n_s32(four_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) {
    return vcombine_s32(vreinterpret_s32_s8(vld1_s8(p)), vdup_n_s32(0));
  }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x,
                                     Vector w) {  // the product of two 8-bit integers is 16-bit
    return vpadalq_s16(sums,
                       vmull_s8(vreinterpret_s8_s32(vget_low_s32(x)), vreinterpret_s8_s32(vget_low_s32(w))));
  }
};
#elif TORCHETTE_HAS_RVV
/// RVV has no dot product: Sums<Machine> multiplies the inputs one at a time by the weights of a panel.
struct Machine {
  typedef VecInt Vector;
  typedef uint8_t Element;
  static constexpr size_t kOutputs = kLanes, kParts = 1;
  static constexpr int kMaxRows = 6, kMaxPanels = 1;
  static constexpr bool kUnsigned = false;
};
#elif TORCHETTE_HAS_HELIUM
/// Helium: accumulates sixteen 8-bit products at a time; a gather load collects the weights of an output.
struct Machine {
  typedef int8_t Element;
  static constexpr size_t kUnit = 16, kColumns = 1;
  static constexpr int kMaxRows = 4, kMaxPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static void put(const uint8_t* from, int32_t flip, int32_t, size_t count, int8_t* to) {
    const uint8x16_t bytes = vldrbq_z_u8(from, vctp8q(count));
    vst1q_s8(to, vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(static_cast<uint8_t>(flip)))));
  }
  template <int kRows>
  TORCHETTE_NOINLINE static void column(const int8_t* x, const int8_t* w, size_t quads, int32_t* sums) {
    constexpr uint32_t kStep = kPanelWidth * kQuad;
    const uint32x4_t offsets = vmulq_n_u32(vidupq_n_u32(0, 1), kStep);
    int32_t sum[kRows] = {};
    const auto add = [&](int32x4_t weights) TORCHETTE_INLINED {
      TORCHETTE_UNROLL(4)
      for (size_t i = 0; i < kRows; ++i)
        sum[i] = vmladavaq_s8(sum[i], vldrbq_s8(x + i * kUnit), vreinterpretq_s8_s32(weights));
    };
    for (; quads >= 4; quads -= 4, x += kRows * kUnit, w += 4 * kStep)
      add(vldrwq_gather_offset_s32(reinterpret_cast<const int32_t*>(w), offsets));
    if (quads > 0)
      add(vldrwq_gather_offset_z_s32(reinterpret_cast<const int32_t*>(w), offsets, vctp32q(quads)));
    TORCHETTE_UNROLL(4)
    for (size_t i = 0; i < kRows; ++i) sums[i * kPanelWidth] = sum[i];
  }
};
#else
/// 16-bit elements minus the zero point. Within a quad, even elements precede odd elements, the order that
/// SXTB16 produces.
struct Machine {
  typedef int16_t Element;
  static constexpr size_t kUnit = kQuad;
  static constexpr int kMaxRows = 6, kMaxPanels = 1;
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
  // A 64-bit multiplication computes two outputs, with the accumulators in its two halves. The upper half is
  // one too small if the lower half is negative.
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

/// Maximum number of quads before the accumulators of a machine may overflow.
template <typename M>
constexpr size_t kMaxQuads = SIZE_MAX;
/// Returns the number of rows of the next smaller tile, for remaining rows.
constexpr size_t fewer_rows(size_t rows) { return rows == 6 ? 4 : rows / 2; }
/// Returns the number of rows of a tile of `panels` panels, at most 24 accumulators.
template <typename M>
constexpr int tile_rows(int panels) {
  return M::kMaxPanels < 4 ? M::kMaxRows : panels == 4 ? 6 : panels == 3 ? 8 : 12;
}

/// The runs of elements of a window: quads at y * line + x * column of a row.
struct Runs {
  size_t lines, columns;
  ptrdiff_t line, column;  // in elements
  size_t quads;            // of a run
};

// With a single row, each weight is read once from memory; prefetch this many bytes ahead.
constexpr size_t kAhead = 4096;

#if !TORCHETTE_BY_COLUMNS
/// Returns vector v of the accumulators of a row, with the partial sums added.
template <typename M>
TORCHETTE_INLINE VecInt add_parts(const typename M::Vector* sums, int v) {
  static_assert(sizeof(typename M::Vector) == sizeof(VecInt),
                "the vector of a machine must have the size of VecInt");
  VecInt sum;
  if constexpr (M::kParts == 1) {
    memcpy(&sum, &sums[v], sizeof(sum));
  } else {
    const auto low = sums[2 * v], high = sums[2 * v + 1];
#if defined(__ARM_NEON)
    sum = vcombine_s32(vpadd_s32(vget_low_s32(low), vget_high_s32(low)),
                       vpadd_s32(vget_low_s32(high), vget_high_s32(high)));
#else
    Vec even, odd;
    deinterleave(reinterpret_cast<Vec>(low), reinterpret_cast<Vec>(high), even, odd);
    sum = reinterpret_cast<VecInt>(even) + reinterpret_cast<VecInt>(odd);
#endif
  }
  return sum;
}

template <typename M, int kRows, int kPanels>
struct Sums {
  static constexpr int kOfPanel = static_cast<int>(kPanelWidth / M::kOutputs), kVectors = kPanels * kOfPanel;
  typedef typename M::Vector Vector;
  Vector of[kRows][kVectors];

  /// Accumulates `quads` quads. With kOnes, the inputs of the last row are ones, which yields the weight
  /// sums.
  template <bool kOnes>
  TORCHETTE_INLINE void set(const typename M::Element* a, size_t a_row, const int8_t* w, size_t w_panel,
                            size_t quads) {
    const auto row = [&](int i) TORCHETTE_INLINED { return a + static_cast<size_t>(i) * a_row; };
#if defined(__arm__)  // a local array avoids a store to memory in each iteration below
    Vector sums[kRows][kVectors];
    sum<kOnes>(sums, row, w, w_panel, quads);
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) of[i][v] = sums[i][v];
#else
    sum<kOnes>(of, row, w, w_panel, quads);
#endif
  }

  /// Whether set() with `start` begins with these sums; otherwise the caller adds them.
  static constexpr bool kStarts = M::kParts == 1;
  /// Accumulates the runs of the windows that begin at `rows`.
  TORCHETTE_INLINE void set(const typename M::Element* const (&rows)[kRows], const Runs& runs,
                            const int8_t* w, size_t w_panel, const VecInt* start) {
    Vector sums[kRows][kVectors];
    clear(sums);
    if constexpr (kStarts) {
      static_assert(sizeof(Vector) == sizeof(VecInt), "a vector of sums has the lanes of VecInt");
      TORCHETTE_UNROLL(16)
      for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(16)
      for (int v = 0; v < kVectors; ++v) memcpy(&sums[i][v], &start[v], sizeof(Vector));
    }
    for (size_t y = 0; y < runs.lines; ++y)
      for (size_t x = 0; x < runs.columns; ++x, w += runs.quads * (kPanelWidth * kQuad)) {
        const ptrdiff_t at = static_cast<ptrdiff_t>(y) * runs.line + static_cast<ptrdiff_t>(x) * runs.column;
        const auto row = [&](int i) TORCHETTE_INLINED { return rows[i] + at; };
        add<false>(sums, row, w, w_panel, 0, runs.quads);
      }
    TORCHETTE_UNROLL(16)
    for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) of[i][v] = sums[i][v];
  }

 private:
  TORCHETTE_INLINE static void clear(Vector (&sums)[kRows][kVectors]) {
    TORCHETTE_UNROLL(16)
    for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(16)
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Vector{};
  }

  template <bool kOnes, typename Row>
  TORCHETTE_INLINE static void sum(Vector (&sums)[kRows][kVectors], const Row& row, const int8_t* w,
                                   size_t w_panel, size_t quads) {
    clear(sums);
    if constexpr (kMaxQuads<M> == SIZE_MAX) {
      add<kOnes>(sums, row, w, w_panel, 0, quads);
    } else {
      for (size_t q = 0; q < quads; q += kMaxQuads<M>) {
        Vector some[kRows][kVectors];
        clear(some);
        add<kOnes>(some, row, w, w_panel, q, quads - q < kMaxQuads<M> ? quads : q + kMaxQuads<M>);
        TORCHETTE_UNROLL(8)
        for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(16)
        for (int v = 0; v < kVectors; ++v) sums[i][v] = M::widen(sums[i][v], some[i][v]);
      }
    }
  }

  template <bool kOnes, typename Row>
  TORCHETTE_INLINE static void add(Vector (&sums)[kRows][kVectors], const Row& row_of, const int8_t* w,
                                   size_t w_panel, size_t q, size_t end) {
    constexpr size_t kBytes = M::kOutputs * kQuad;
    constexpr int kInputRows = kOnes ? kRows - 1 : kRows;
    Vector ones = {};
    if constexpr (kOnes) {
      const typename M::Element one[kQuad] = {1, 1, 1, 1};
      ones = M::quad(one);
    }
    const auto x = [&](int i, size_t at)
                       TORCHETTE_INLINED { return i < kInputRows ? M::quad(row_of(i) + at * kQuad) : ones; };
    const auto weights = [&](int v, size_t at) TORCHETTE_INLINED {
      return M::weights(w + static_cast<size_t>(v / kOfPanel) * w_panel + at * (kPanelWidth * kQuad) +
                        static_cast<size_t>(v % kOfPanel) * kBytes);
    };
    if constexpr (kOnes && kRows == 2) {  // alternate accumulators shorten the dependency chains
      typedef std::conditional_t<kMaxQuads<M> == SIZE_MAX, int32_t, int16_t> SumElement;
      TORCHETTE_LANES(Sum, SumElement, sizeof(Vector) / sizeof(SumElement));
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
      if constexpr (kInputRows == 1 && kPanels == 1)
        TORCHETTE_PREFETCH(w + q * (kPanelWidth * kQuad) + kAhead);
      if constexpr (kVectors <= 3) {  // the smaller operand stays in registers
        Vector given[kVectors];
        TORCHETTE_UNROLL(4)
        for (int v = 0; v < kVectors; ++v) given[v] = weights(v, q);
        TORCHETTE_UNROLL(16)
        for (int i = 0; i < kRows; ++i) {
          const Vector row = x(i, q);
          TORCHETTE_UNROLL(4)
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

#if TORCHETTE_HAS_RVV
/// The accumulators of a row are a group of four registers, one lane for each output of the panel.
template <int kRows, int kPanels>
struct Sums<Machine, kRows, kPanels> {
  static_assert(kPanels == 1 && kRows <= 7, "the accumulators and the weights fit in the registers");
  VecInt of[kRows][kPanelVectors];

  template <bool kOnes>
  TORCHETTE_INLINE void set(const uint8_t* a, size_t a_row, const int8_t* w, size_t, size_t quads) {
    const uint8_t* rows[kRows];
    TORCHETTE_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) rows[i] = kOnes && i + 1 == kRows ? nullptr : a + i * a_row;
    const VecInt start[kPanelVectors] = {};
    sum<kOnes>(rows, {1, 1, 0, 0, quads}, w, start);
  }
  static constexpr bool kStarts = true;
  TORCHETTE_INLINE void set(const uint8_t* const (&rows)[kRows], const Runs& runs, const int8_t* w, size_t,
                            const VecInt* start) {
    sum<false>(rows, runs, w, start);
  }

 private:
  TORCHETTE_LANES(Accumulators, int32_t, kPanelWidth);
  TORCHETTE_LANES(Weights, int16_t, kPanelWidth);
  TORCHETTE_LANES(TwoWeights, int16_t, 2 * kPanelWidth);

  template <bool kOnes>
  TORCHETTE_INLINE void sum(const uint8_t* const (&rows)[kRows], const Runs& runs, const int8_t* w,
                            const VecInt* start) {
    constexpr int kInputRows = kOnes ? kRows - 1 : kRows;
    Accumulators sums[kRows];
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kRows; ++i) memcpy(&sums[i], start, sizeof(Accumulators));
    for (size_t y = 0; y < runs.lines; ++y)
      for (size_t column = 0; column < runs.columns; ++column) {
        const ptrdiff_t at =
            static_cast<ptrdiff_t>(y) * runs.line + static_cast<ptrdiff_t>(column) * runs.column;
        const int8_t* x[kRows];
        TORCHETTE_UNROLL(8)
        for (int i = 0; i < kInputRows; ++i) x[i] = reinterpret_cast<const int8_t*>(rows[i] + at);
        for (size_t q = 0; q < runs.quads; ++q, w += kPanelWidth * kQuad) {
          TwoWeights both;
          memcpy(&both, w, sizeof(both));
          const Weights low =
              TORCHETTE_SHUFFLE(both, both, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
          const Weights high =
              TORCHETTE_SHUFFLE(both, both, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
          const Weights weights[kQuad] = {Weights(low << 8) >> 8, low >> 8, Weights(high << 8) >> 8,
                                          high >> 8};
          TORCHETTE_UNROLL(4)
          for (size_t t = 0; t < kQuad; ++t) {
            const auto wide = convert_lanes<Accumulators>(weights[t]);
            TORCHETTE_UNROLL(8)
            for (int i = 0; i < kInputRows; ++i) sums[i] += wide * int32_t{x[i][t]};
            if constexpr (kOnes) sums[kInputRows] += wide;
          }
          TORCHETTE_UNROLL(8)
          for (int i = 0; i < kInputRows; ++i) x[i] += kQuad;
        }
      }
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kRows; ++i) memcpy(of[i], &sums[i], sizeof(Accumulators));
  }
};
#endif

#if TORCHETTE_MAY_HAVE_DOTS && defined(__aarch64__)
/// Processes two rows and two quads at a time; a remaining row is processed separately.
template <int kRows, int kPanels>
struct Sums<Pairs, kRows, kPanels> {
  static constexpr size_t kVectors = kPanelWidth / Dots::kOutputs;
  int32x4_t of[kRows][kVectors];

  template <bool kOnes>
  TORCHETTE_INLINE void set(const uint8_t* a, size_t a_row, const int8_t* w, size_t w_panel, size_t quads) {
    const uint8_t* rows[kRows];
    TORCHETTE_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) rows[i] = a + i * a_row;
    sum<kOnes>(rows, {1, 1, 0, 0, quads}, w, w_panel);
  }
  static constexpr bool kStarts = false;
  TORCHETTE_INLINE void set(const uint8_t* const (&rows)[kRows], const Runs& runs, const int8_t* w,
                            size_t w_panel, const VecInt*) {
    sum<false>(rows, runs, w, w_panel);
  }

 private:
  template <bool kOnes>
  TORCHETTE_INLINE void sum(const uint8_t* const (&rows)[kRows], const Runs& runs, const int8_t* w,
                            size_t w_panel) {
    constexpr size_t kInputRows = kOnes ? kRows - 1 : kRows;
    if constexpr (kInputRows % 2 != 0) {
      Sums<Dots, kRows, 1> sums;
      [[maybe_unused]] const VecInt none[kVectors] = {};
      if constexpr (kOnes)
        sums.template set<kOnes>(rows[0], kRows > 1 ? static_cast<size_t>(rows[1] - rows[0]) : 0, w, w_panel,
                                 runs.quads);
      else
        sums.set(rows, runs, w, w_panel, none);
      TORCHETTE_UNROLL(8)
      for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(4)
      for (size_t v = 0; v < kVectors; ++v) of[i][v] = sums.of[i][v];
    } else {
      int32x4_t sums[kInputRows / 2][2 * kVectors] = {}, ones[kVectors] = {};
      const int32x4_t one = vdupq_n_s32(0x01010101);
      ptrdiff_t at = 0;  // of the run
      const auto add = [&](size_t q, const auto& elements, const auto& second) TORCHETTE_INLINED {
        int32x4_t x[kInputRows / 2];
        TORCHETTE_UNROLL(4)
        for (size_t i = 0; i < kInputRows / 2; ++i)
          x[i] = vcombine_s32(elements(rows[2 * i] + at + q * kQuad),
                              elements(rows[2 * i + 1] + at + q * kQuad));
        TORCHETTE_UNROLL(4)
        for (size_t v = 0; v < kVectors; ++v) {
          const int8_t* const from = w + (q * kPanelWidth + v * Dots::kOutputs) * kQuad;
          const int32x4_t low = Dots::weights(from), high = second(from + kPanelWidth * kQuad);
          const int32x4_t first = vzip1q_s32(low, high), last = vzip2q_s32(low, high);
          if constexpr (kOnes) ones[v] = Dots::dot(Dots::dot(ones[v], one, low), one, high);
          TORCHETTE_UNROLL(4)
          for (size_t i = 0; i < kInputRows / 2; ++i) {
            sums[i][2 * v] = Pairs::product(sums[i][2 * v], x[i], first);
            sums[i][2 * v + 1] = Pairs::product(sums[i][2 * v + 1], x[i], last);
          }
        }
      };
      for (size_t y = 0; y < runs.lines; ++y)
        for (size_t column = 0; column < runs.columns; ++column, w += runs.quads * (kPanelWidth * kQuad)) {
          at = static_cast<ptrdiff_t>(y) * runs.line + static_cast<ptrdiff_t>(column) * runs.column;
          size_t q = 0;
          for (; q + 2 <= runs.quads; q += 2)
            add(
                q, [](const uint8_t* from) { return vreinterpret_s32_u8(vld1_u8(from)); },
                [](const int8_t* from) { return Dots::weights(from); });
          if (q < runs.quads)
            add(
                q, [](const uint8_t* from) { return vset_lane_s32(four_bytes(from), vdup_n_s32(0), 0); },
                [](const int8_t*) { return vdupq_n_s32(0); });
        }
      TORCHETTE_UNROLL(4)
      for (size_t v = 0; v < kVectors; ++v) {
        TORCHETTE_UNROLL(4)
        for (size_t i = 0; i < kInputRows; i += 2) {
          const int32x4_t low = sums[i / 2][2 * v], high = sums[i / 2][2 * v + 1];
          of[i][v] = vcombine_s32(vget_low_s32(low), vget_low_s32(high));
          of[i + 1][v] = vcombine_s32(vget_high_s32(low), vget_high_s32(high));
        }
        if constexpr (kOnes) of[kInputRows][v] = ones[v];
      }
    }
  }
};
#endif
#endif

#if TORCHETTE_BY_COLUMNS
/// Number of elements of a row of k, padded to the unit of column().
template <typename M>
constexpr size_t padded_row(size_t k) {
  return (k + M::kUnit - 1) / M::kUnit * M::kUnit;
}
/// Arranges rows for column(): tiles of [quads][rows][kUnit], with each row padded to `padded` elements.
/// zero(i) is the zero point of row i. The remaining rows form tiles of fewer_rows() rows, or of one row
/// each.
template <typename M, bool kFewer, typename Zero>
void arrange(const uint8_t* a, ptrdiff_t a_row, size_t m, size_t k, size_t padded, int most_rows,
             int32_t flip, Zero zero, typename M::Element* to) {
  for (size_t i = 0, rows; i < m; i += rows, to += rows * padded) {
    for (rows = static_cast<size_t>(most_rows); rows > m - i;) rows = kFewer ? fewer_rows(rows) : 1;
    for (size_t r = 0; r < rows; ++r) {
      const uint8_t* const from = a + static_cast<ptrdiff_t>(i + r) * a_row;
      typename M::Element* at = to + r * M::kUnit;
      for (size_t j = 0; j < padded; j += M::kUnit, at += rows * M::kUnit) {
        const size_t left = j < k ? k - j : 0;
        M::put(from + j, flip, zero(i + r), left < M::kUnit ? left : M::kUnit, at);
      }
    }
  }
}
#else
/// Converts `count` bytes to elements of a row. `flip` is XORed with each group of four bytes; `zero` is
/// subtracted.
template <typename Element>
TORCHETTE_INLINE void convert_run(const uint8_t* from, size_t count, int32_t flip, int32_t zero,
                                  Element* to) {
  // Explicit vectors, because the compiler does not vectorize these byte loops.
  constexpr size_t kAtOnce = sizeof(Element) == 2 ? 16 : sizeof(Vec);
  TORCHETTE_LANES(Bytes, int8_t, kAtOnce);
  TORCHETTE_LANES(Elements, Element, kAtOnce);
  const auto mask = static_cast<int8_t>(flip);
  const auto zero_point = static_cast<Element>(zero);
  const auto convert = [&](size_t j) TORCHETTE_INLINED {
    Bytes bytes;
    memcpy(&bytes, from + j, sizeof(bytes));
    const Elements elements = convert_lanes<Elements>(bytes ^ mask) - zero_point;
    memcpy(to + j, &elements, sizeof(elements));
  };
  size_t j = 0;
  for (; j + kAtOnce <= count; j += kAtOnce) convert(j);
  if (j < count && count >= kAtOnce) return convert(count - kAtOnce);  // overlaps the previous vector
  for (; j < count; ++j) to[j] = static_cast<Element>(static_cast<int8_t>(from[j] ^ mask) - zero_point);
}
/// Converts rows to the format that the machine multiplies, zero-padded to `padded`. Returns `a` unchanged if
/// it already has this format. `flip` is XORed with each group of four bytes; zero(i) is the zero point of
/// row i after the XOR.
template <typename M, typename Zero>
const typename M::Element* machine_rows(const uint8_t* a, ptrdiff_t& a_row, size_t m, size_t k, size_t padded,
                                        int32_t flip, Zero zero, void* scratch) {
  typedef typename M::Element Element;
  constexpr bool kWide = sizeof(Element) == 2;
  if (!kWide && padded == k && flip == 0) return reinterpret_cast<const Element*>(a);
  auto* to = static_cast<Element*>(scratch);
  if (!kWide && padded == k && a_row == static_cast<ptrdiff_t>(k)) {  // the rows are contiguous
    convert_run(a, m * k, flip, 0, to);
    return to;
  }
  for (size_t i = 0; i < m; ++i, to += padded) {
    convert_run(a + static_cast<ptrdiff_t>(i) * a_row, k, flip, kWide ? zero(i) : 0, to);
    memset(to + k, 0, (padded - k) * sizeof(Element));  // the value is arbitrary: the weights are zero
  }
  a_row = static_cast<ptrdiff_t>(padded);
  return static_cast<const Element*>(scratch);
}
#endif

/// Whether the sign bits of the row bytes must be flipped (XOR) for the machine; shift_of() adjusts the zero
/// point.
template <typename M>
constexpr bool flips(bool is_signed) {
  return is_signed == M::kUnsigned;
}
constexpr int32_t mask_of(bool flips) { return flips ? static_cast<int32_t>(0x80808080u) : 0; }
template <typename M>
constexpr int32_t shift_of(bool flips) {
  return !flips ? 0 : M::kUnsigned ? 128 : -128;
}

// Number of rows that are converted at a time, a multiple of the rows of all tiles where these are large.
constexpr size_t kRowsAtOnce = kLanes >= 8 ? 96 : 64;

/// Calls body(first row, rows, first panel, last panel, worker's scratch) for parts of a GEMM on the
/// context's threads. A part has at most `at_once` rows and a multiple of `unit` panels.
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
    context.parallel_for(blocks, min_items(rows * n * work), [&](size_t begin, size_t end, size_t worker) {
      for (size_t b = begin; b < end; ++b) block(b, 0, panels, worker);
    });
    return Error::Ok;
  }
  context.parallel_for(units, min_items(m * unit * kPanelWidth * work),
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
