// SPDX-License-Identifier: BSD-3-Clause
// Register tiles of rows by panels of bytes. What differs from machine to machine is how it multiplies a
// quad, four neighbours of a row, by the quads of some outputs; the sums are exact, so every machine gives
// the same bytes.
#include "torchette/kernels/cpu/integer_gemm.h"

#include <atomic>
#include <cstdlib>
#include <type_traits>

#if defined(__wasm_simd128__)
#include <wasm_simd128.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#if defined(__AVX512F__) && defined(__linux__) && !defined(__clang__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
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

// And whether it may have AMX: registers of 16 rows of 64 bytes.
#if defined(__AVX512F__) && defined(__linux__) && !defined(__clang__)
#define TORCHETTE_MAY_HAVE_TILES 1
#else
#define TORCHETTE_MAY_HAVE_TILES 0
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
// these rows are side by side, as put() writes them, and the sums are kPanel apart.

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
static bool has_dots() { return __builtin_cpu_supports("avx512vnni"); }
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
static bool has_dots() { return __builtin_cpu_supports("avxvnni"); }
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
#elif defined(__SSE2__)
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
  __attribute__((noinline)) static void column(const int8_t* x, const int8_t* w, size_t quads,
                                               int32_t* sums) {
    constexpr uint32_t kStep = kPanel * kQuad;
    const uint32x4_t places = vmulq_n_u32(vidupq_n_u32(0, 1), kStep);
    int32_t sum[kRows] = {};
    const auto add = [&](int32x4_t weights) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (size_t i = 0; i < kRows; ++i)
        sum[i] = vmladavaq_s8(sum[i], vldrbq_s8(x + i * kUnit), vreinterpretq_s8_s32(weights));
    };
    for (; quads >= 4; quads -= 4, x += kRows * kUnit, w += 4 * kStep)
      add(vldrwq_gather_offset_s32(reinterpret_cast<const int32_t*>(w), places));
    if (quads > 0)
      add(vldrwq_gather_offset_z_s32(reinterpret_cast<const int32_t*>(w), places, vctp32q(quads)));
#pragma GCC unroll 4
    for (size_t i = 0; i < kRows; ++i) sums[i * kPanel] = sum[i];
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
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t)
      to[t % 2 * 2 + t / 2] = static_cast<int16_t>(static_cast<int8_t>(bytes >> 8 * t) - zero);
  }
#if defined(__ARM_FEATURE_DSP)
  static constexpr size_t kColumns = 1;
  template <int kRows>
  __attribute__((noinline)) static void column(const int16_t* x, const int8_t* w, size_t quads,
                                               int32_t* sums) {
    int32_t sum[kRows];
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) sum[i] = 0;
    if (quads > 0) do {
        const int32_t bytes = four_bytes(reinterpret_cast<const uint8_t*>(w));
        int32_t even, odd, first, second;
        asm("sxtb16 %0, %1" : "=r"(even) : "r"(bytes));
        asm("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(bytes));
#pragma GCC unroll 8
        for (size_t i = 0; i < kRows; ++i)
          asm("ldrd %[first], %[second], [%[x]], #8\n\t"
              "smlad %[sum], %[first], %[even], %[sum]\n\t"
              "smlad %[sum], %[second], %[odd], %[sum]"
              : [sum] "+r"(sum[i]), [x] "+r"(x), [first] "=&r"(first), [second] "=&r"(second)
              : [even] "r"(even), [odd] "r"(odd)
              : "memory");
        w += kPanel * kQuad;
      } while (--quads > 0);
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) sums[i * kPanel] = sum[i];
  }
#else
  // A product of 64 bits is of two outputs: their sums are in its halves, the upper one too small by one
  // where the lower one is negative.
  typedef ptrdiff_t Sum;
  static constexpr size_t kColumns = sizeof(Sum) / sizeof(int32_t), kHalf = 4 * sizeof(Sum);
  template <int kRows>
  __attribute__((noinline)) static void column(const int16_t* x, const int8_t* w, size_t quads,
                                               int32_t* sums) {
    Sum sum[kRows];
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) sum[i] = 0;
    for (; quads > 0; --quads, w += kPanel * kQuad, x += kRows * kUnit) {
#pragma GCC unroll 4
      for (size_t t = 0; t < kQuad; ++t) {
        const Sum weights = kColumns == 1 ? w[t] : w[t] + (static_cast<Sum>(w[kQuad + t]) << kHalf);
#pragma GCC unroll 8
        for (size_t i = 0; i < kRows; ++i) sum[i] += x[i * kUnit + t % 2 * 2 + t / 2] * weights;
      }
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < kRows; ++i) {
      const auto low = static_cast<int32_t>(sum[i]);
      sums[i * kPanel] = low;
      if (kColumns == 2) sums[i * kPanel + 1] = static_cast<int32_t>((sum[i] - low) >> kHalf);
    }
  }
#endif
};
#endif

/// How many quads a machine's sums have room for.
template <typename M>
constexpr size_t kMostQuads = SIZE_MAX;
/// What a nibble is multiplied as: the upper half of a byte where that does no harm.
template <typename M>
constexpr int kNibbleUnit = 16;

#if defined(__AVX2__)
/// Of numbers of 4 bits: pairs of products are summed up in 16 bits, which hold those of eight quads. A
/// compiler that is given the two instructions multiplies first, and has no registers then for the sums.
struct Nibbles {
  typedef uint8_t Number;
  static constexpr size_t kParts = 1;
  static constexpr int kMostRows = 4;
  static constexpr bool kUnsigned = true;
#if defined(__AVX512F__)
  typedef __m512i Vector;
  static constexpr size_t kOutputs = 16;
  static constexpr int kMostPanels = 2;
  TORCHETTE_INLINE static Vector quad(const uint8_t* p) { return _mm512_set1_epi32(four_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) { return _mm512_loadu_si512(p); }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    Vector pairs;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+v"(sums), "=&v"(pairs) : "v"(x), "v"(w));
    return sums;
  }
  TORCHETTE_INLINE static Vector widen(Vector sums, Vector pairs) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
#else
  typedef __m256i Vector;
  static constexpr size_t kOutputs = 8;
  static constexpr int kMostPanels = 1;
  TORCHETTE_INLINE static Vector quad(const uint8_t* p) { return _mm256_set1_epi32(four_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    Vector pairs;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sums), "=&x"(pairs) : "x"(x), "x"(w));
    return sums;
  }
  TORCHETTE_INLINE static Vector widen(Vector sums, Vector pairs) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
#endif
};
template <>
constexpr size_t kMostQuads<Nibbles> = 8;
template <>
constexpr int kNibbleUnit<Nibbles> = 1;
#endif

/// The tile that follows one of so many rows where fewer are left.
constexpr size_t fewer_rows(size_t rows) { return rows == 6 ? 4 : rows / 2; }

struct Tile {
  size_t quads, columns;  // columns: of all panels of the tile
  const void* a;          // rows of Machine::Number
  size_t a_row;           // numbers
  const int8_t* w;
  size_t w_panel;  // bytes from panel to panel
  uint8_t* c;
  ptrdiff_t c_row;
  Requantization how;
  int32_t zero;  // what each input stands above, as multiplied
};

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

/// Makes bytes of the sums of so many rows and vectors; whole(i, v) gives those of a row.
template <int kRows, int kVectors, typename Whole>
TORCHETTE_INLINE void put_sums(const Tile& t, const Whole& whole) {
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const size_t first = static_cast<size_t>(v) * kLanes;
    if (first >= t.columns) break;
    const RequantizedVector terms(t.how, first);
    const VecInt above = whole_weights(t.how.sums + first) * t.zero;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
      terms.put(to_floats(whole(i, v) - above), t.columns - first, t.c + i * t.c_row + first);
  }
}

#if TORCHETTE_MAY_HAVE_DOTS && defined(__aarch64__)
template <int kRows>
void compute_pairs(const Tile& t) {
  constexpr size_t kOutputs = Dots::kOutputs, kVectors = kPanel / kOutputs;
  int32x4_t sums[kRows / 2][2 * kVectors] = {};
  const auto* const a = static_cast<const uint8_t*>(t.a);
  const auto add = [&](size_t q, const auto& numbers, const auto& second) __attribute__((always_inline)) {
    int32x4_t x[kRows / 2];
#pragma GCC unroll 4
    for (size_t i = 0; i < kRows / 2; ++i) {
      const uint8_t* const from = a + 2 * i * t.a_row + q * kQuad;
      x[i] = vcombine_s32(numbers(from), numbers(from + t.a_row));
    }
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      const int8_t* const w = t.w + (q * kPanel + v * kOutputs) * kQuad;
      const int32x4_t low = Dots::weights(w), high = second(w + kPanel * kQuad);
      const int32x4_t first = vzip1q_s32(low, high), last = vzip2q_s32(low, high);
#pragma GCC unroll 4
      for (size_t i = 0; i < kRows / 2; ++i) {
        sums[i][2 * v] = Pairs::product(sums[i][2 * v], x[i], first);
        sums[i][2 * v + 1] = Pairs::product(sums[i][2 * v + 1], x[i], last);
      }
    }
  };
  size_t q = 0;
  for (; q + 2 <= t.quads; q += 2)
    add(
        q, [](const uint8_t* from) { return vreinterpret_s32_u8(vld1_u8(from)); },
        [](const int8_t* w) { return Dots::weights(w); });
  if (q < t.quads)
    add(
        q, [](const uint8_t* from) { return vset_lane_s32(four_bytes(from), vdup_n_s32(0), 0); },
        [](const int8_t*) { return vdupq_n_s32(0); });
  put_sums<kRows, kPanelVectors>(t, [&](int i, int v) __attribute__((always_inline)) {
    const int32x4_t low = sums[i / 2][2 * v], high = sums[i / 2][2 * v + 1];
    return i % 2 == 0 ? vcombine_s32(vget_low_s32(low), vget_low_s32(high))
                      : vcombine_s32(vget_high_s32(low), vget_high_s32(high));
  });
}
#endif

template <typename M, int kRows, int kPanels>
struct Sums {
  static constexpr int kOfPanel = static_cast<int>(kPanel / M::kOutputs), kVectors = kPanels * kOfPanel;
  typedef typename M::Vector Vector;
  Vector of[kRows][kVectors];

  /// The sums of some quads. With kOnes the last row's inputs are ones, so that its sums are the weights'.
  template <bool kOnes>
  TORCHETTE_INLINE void set(const typename M::Number* a, size_t a_row, const int8_t* w, size_t w_panel,
                            size_t quads) {
#if defined(__arm__)  // what is read in a loop below would be written to memory in each round of this one
    Vector sums[kRows][kVectors];
    sum<kOnes>(sums, a, a_row, w, w_panel, quads);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) of[i][v] = sums[i][v];
#else
    sum<kOnes>(of, a, a_row, w, w_panel, quads);
#endif
  }

 private:
  TORCHETTE_INLINE static void clear(Vector (&sums)[kRows][kVectors]) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
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
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
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
    const auto x = [&](int i, size_t q) __attribute__((always_inline)) {
      return i < kGiven ? M::quad(a + static_cast<size_t>(i) * a_row + q * kQuad) : ones;
    };
    const auto weights = [&](int v, size_t q) __attribute__((always_inline)) {
      return M::weights(w + static_cast<size_t>(v / kOfPanel) * w_panel + q * (kPanel * kQuad) +
                        static_cast<size_t>(v % kOfPanel) * kBytes);
    };
    if constexpr (kOnes && kRows == 2) {  // every other quad has a sum of its own: additions need not wait
      typedef std::conditional_t<kMostQuads<M> == SIZE_MAX, int32_t, int16_t> Whole;
      typedef Whole Sum __attribute__((vector_size(sizeof(Vector))));
      Vector others[kRows][kVectors];
      clear(others);
      for (; end - q >= 2; q += 2) {
        __builtin_prefetch(w + q * (kPanel * kQuad) + kAhead);
        __builtin_prefetch(w + (q + 1) * (kPanel * kQuad) + kAhead);
        const Vector even = x(0, q), odd = x(0, q + 1);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const Vector given = weights(v, q), next = weights(v, q + 1);
          sums[0][v] = M::dot(sums[0][v], even, given);
          sums[1][v] = M::dot(sums[1][v], ones, given);
          others[0][v] = M::dot(others[0][v], odd, next);
          others[1][v] = M::dot(others[1][v], ones, next);
        }
      }
#pragma GCC unroll 2
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v)
          sums[i][v] = reinterpret_cast<Vector>(reinterpret_cast<Sum>(sums[i][v]) +
                                                reinterpret_cast<Sum>(others[i][v]));
    }
    for (; q < end; ++q) {
      if constexpr (kGiven == 1 && kPanels == 1) __builtin_prefetch(w + q * (kPanel * kQuad) + kAhead);
      if constexpr (kVectors <= 2) {  // of two operands the fewer ones stay in registers
        Vector given[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) given[v] = weights(v, q);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
          const Vector row = x(i, q);
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) sums[i][v] = M::dot(sums[i][v], row, given[v]);
        }
      } else {
        Vector rows[kRows];
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) rows[i] = x(i, q);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          const Vector given = weights(v, q);
#pragma GCC unroll 8
          for (int i = 0; i < kRows; ++i) sums[i][v] = M::dot(sums[i][v], rows[i], given);
        }
      }
    }
  }
};

template <typename M, int kRows, int kPanels>
void compute(const Tile& t) {
#if TORCHETTE_MAY_HAVE_DOTS && defined(__aarch64__)
  if constexpr (std::is_same_v<M, Pairs> && kRows % 2 == 0) return compute_pairs<kRows>(t);
#endif
  Sums<M, kRows, kPanels> sums;
  sums.template set<false>(static_cast<const typename M::Number*>(t.a), t.a_row, t.w, t.w_panel, t.quads);
  put_sums<kRows, kPanels* static_cast<int>(kPanelVectors)>(
      t, [&](int i, int v) __attribute__((always_inline)) { return whole_sums<M>(sums.of[i], v); });
}

#else
/// One column of the panel after the other.
template <typename M, int kRows, int kPanels>
void compute(const Tile& t) {
  const auto* const a = static_cast<const typename M::Number*>(t.a);
  const size_t columns = t.columns < kPanel ? t.columns : kPanel;
  int32_t sums[kRows * kPanel];
  for (size_t j = 0; j < columns; j += M::kColumns)
    M::template column<kRows>(a, t.w + j * kQuad, t.quads, sums + j);
  for (int i = 0; i < kRows; ++i)
    requantize(t.how, t.zero, sums + static_cast<size_t>(i) * kPanel, columns, t.c + i * t.c_row);
}
#endif

/// The largest tile of at most so many rows; gives how many it has.
template <typename M, int kPanels, int kRows>
int run(const Tile& t, size_t rows) {
  if constexpr (kRows > 1)
    if (rows < kRows) return run<M, kPanels, static_cast<int>(fewer_rows(kRows))>(t, rows);
  compute<M, kRows, kPanels>(t);
  return kRows;
}

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
    typedef int8_t Bytes __attribute__((vector_size(16)));
    typedef Number Numbers __attribute__((vector_size(16 * sizeof(Number))));
    const auto above = static_cast<Number>(kWide ? zero(i) : 0);
    size_t j = 0;
    for (; j + sizeof(Bytes) <= k; j += sizeof(Bytes)) {
      Bytes bytes;
      memcpy(&bytes, from + j, sizeof(bytes));
      const Numbers numbers = __builtin_convertvector(bytes ^ mask, Numbers) - above;
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

template <typename M>
void multiply(const IntegerProduct& product, size_t first, size_t last, void* scratch) {
  typedef typename M::Number Number;
  const size_t quads = quads_of(product.k);
  const bool flip = flips<M>(product.is_signed);
  Tile t = {};
  t.quads = quads;
  t.w_panel = quads * kPanel * kQuad;
  t.c_row = product.c_row;
  const int32_t mask = mask_of(flip), zero = product.input_zero + shift_of<M>(flip);
  t.zero = sizeof(Number) == 2 ? 0 : zero;
  const auto same = [&](size_t) { return zero; };
#if TORCHETTE_BY_COLUMNS
  t.a_row = padded_row<M>(quads * kQuad);
  arrange<M, true>(product.a, product.a_row, product.m, product.k, t.a_row, M::kMostRows, mask, same,
                   static_cast<Number*>(scratch));
  const auto* const rows = static_cast<const Number*>(scratch);
#else
  ptrdiff_t a_row = product.a_row;
  const Number* const rows =
      machine_rows<M>(product.a, a_row, product.m, product.k, quads * kQuad, mask, same, scratch);
  t.a_row = static_cast<size_t>(a_row);
#endif
  for (size_t i = 0; i < product.m;) {
    int done = 0;
    for (size_t p = first; p < last;) {
      const size_t column = p * kPanel, panels = last - p >= 4 ? 4 : 1;
      t.a = rows + i * t.a_row;
      t.w = product.w + p * t.w_panel;
      t.c = product.c + static_cast<ptrdiff_t>(i) * product.c_row + column;
      t.columns = product.n - column;
      t.how = product.how.from(column);
      if (M::kMostPanels == 4 && panels == 4) {
        done = run<M, M::kMostPanels, M::kMostRows>(t, product.m - i);
        p += 4;
      } else {
        done = run<M, 1, M::kMostRows>(t, product.m - i);
        p += 1;
      }
    }
    i += static_cast<size_t>(done > 0 ? done : M::kMostRows);
  }
}

#if TORCHETTE_MAY_HAVE_TILES
// Tiles, by number: sums of [rows][panels]; rows of A and quads of a panel, whole ones of 64 numbers and
// those behind the last whole one.
constexpr size_t kTileRows = 16, kTileBytes = 64;
#define TORCHETTE_TILE_LOAD(tile, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(stride) : "memory")
#define TORCHETTE_TILE_PRODUCT(sums, rows, quads, is_signed)           \
  if (is_signed)                                                       \
    asm volatile("tdpbssd %tmm" #quads ", %tmm" #rows ", %tmm" #sums); \
  else                                                                 \
    asm volatile("tdpbusd %tmm" #quads ", %tmm" #rows ", %tmm" #sums)

/// Whether there are tiles, and the system lets this process use them.
static bool has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr long kAskFor = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, of arch_prctl(2)
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTile) != 0 && (edx & kInt8) != 0 &&
         syscall(SYS_arch_prctl, kAskFor, kTileData) == 0;
}

struct TileProduct {
  size_t whole, tail;  // tiles of 64 numbers, numbers that are left
  const uint8_t* a;
  size_t a_row;
  const int8_t* w;
  size_t w_panel;
};

/// Sums of kTiles times 16 rows and kPanels panels, each [16][16].
template <int kTiles, int kPanels, bool kSigned>
TORCHETTE_INLINE void tile_sums(const TileProduct& t, int32_t* sums) {
  asm volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3");
  constexpr size_t kRow = kPanel * kQuad;
  const uint8_t *a = t.a, *below = t.a + kTileRows * t.a_row;
  const int8_t *w = t.w, *beside = t.w + t.w_panel;
#define TORCHETTE_TILE_STEP(rows, quads)               \
  TORCHETTE_TILE_LOAD(rows, a, t.a_row);               \
  TORCHETTE_TILE_LOAD(quads, w, kRow);                 \
  TORCHETTE_TILE_PRODUCT(0, rows, quads, kSigned);     \
  if (kTiles == 2) {                                   \
    TORCHETTE_TILE_LOAD(rows, below, t.a_row);         \
    TORCHETTE_TILE_PRODUCT(2, rows, quads, kSigned);   \
  }                                                    \
  if (kPanels == 2) {                                  \
    TORCHETTE_TILE_LOAD(quads, beside, kRow);          \
    if (kTiles == 2) {                                 \
      TORCHETTE_TILE_PRODUCT(3, rows, quads, kSigned); \
      TORCHETTE_TILE_LOAD(rows, a, t.a_row);           \
    }                                                  \
    TORCHETTE_TILE_PRODUCT(1, rows, quads, kSigned);   \
  }
  for (size_t i = 0; i < t.whole; ++i) {
    TORCHETTE_TILE_STEP(4, 5)
    a += kTileBytes, below += kTileBytes, w += kTileBytes / kQuad * kRow, beside += kTileBytes / kQuad * kRow;
  }
  if (t.tail > 0) {
    TORCHETTE_TILE_STEP(6, 7)
  }
#undef TORCHETTE_TILE_STEP
#define TORCHETTE_TILE_STORE(tile)                                                      \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                                   \
               :                                                                        \
               : "r"(sums + (tile) * (kTileRows * kPanel)), "r"(kPanel * sizeof(*sums)) \
               : "memory")
  TORCHETTE_TILE_STORE(0);
  if (kPanels == 2) TORCHETTE_TILE_STORE(1);
  if (kTiles == 2) TORCHETTE_TILE_STORE(2);
  if (kTiles == 2 && kPanels == 2) TORCHETTE_TILE_STORE(3);
#undef TORCHETTE_TILE_STORE
}

template <int kTiles, int kPanels>
void tile_block(const IntegerProduct& product, const TileProduct& t, size_t row, size_t panel) {
  alignas(64) int32_t sums[4 * kTileRows * kPanel];
  product.is_signed ? tile_sums<kTiles, kPanels, true>(t, sums) : tile_sums<kTiles, kPanels, false>(t, sums);
  for (size_t p = 0; p < kPanels; ++p) {
    const size_t column = (panel + p) * kPanel;
    const RequantizedVector terms(product.how, column);
    const VecInt above = whole_weights(product.how.sums + column) * product.input_zero;
    uint8_t* to = product.c + static_cast<ptrdiff_t>(row) * product.c_row + column;
    for (size_t i = 0; i < kTiles * kTileRows; ++i, to += product.c_row) {
      const VecInt whole =
          load(sums + (i / kTileRows * 2 + p) * (kTileRows * kPanel) + i % kTileRows * kPanel);
      terms.put(to_floats(whole - above), product.n - column, to);
    }
  }
}

/// As multiply(), for at least kTileRows rows: the last tiles compute some rows once more.
void multiply_tiles(const IntegerProduct& product, size_t first, size_t last, void* scratch) {
  const size_t padded = quads_of(product.k) * kQuad;
  TileProduct t = {padded / kTileBytes, padded % kTileBytes, nullptr, padded, nullptr, padded * kPanel};
  struct {
    uint8_t palette = 1, reserved[15] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    const size_t bytes = i < 6 ? kTileBytes : t.tail;
    config.bytes[i] = static_cast<uint16_t>(i == 7 ? kTileBytes : bytes);
    config.rows[i] = static_cast<uint8_t>(i == 7 ? t.tail / kQuad : kTileRows);
  }
  if (t.tail == 0) config.bytes[6] = config.bytes[7] = config.rows[6] = config.rows[7] = 0;
  asm volatile("ldtilecfg %0" : : "m"(config));
  const uint8_t* rows = product.a;
  if (padded == product.k) {
    t.a_row = static_cast<size_t>(product.a_row);
  } else {
    auto* to = static_cast<uint8_t*>(scratch);
    rows = to;
    for (size_t i = 0; i < product.m; ++i, to += padded) {
      memcpy(to, product.a + static_cast<ptrdiff_t>(i) * product.a_row, product.k);
      memset(to + product.k, 0, padded - product.k);
    }
  }
  for (size_t p = first; p < last;) {
    const size_t panels = last - p >= 2 ? 2 : 1;
    t.w = product.w + p * t.w_panel;
    for (size_t i = 0; i < product.m;) {
      const size_t left = product.m - i;
      const size_t tiles = left > kTileRows && product.m >= 2 * kTileRows ? 2 : 1, count = tiles * kTileRows;
      const size_t row = left >= count ? i : product.m - count;
      t.a = rows + row * t.a_row;
      if (panels == 2)
        tiles == 2 ? tile_block<2, 2>(product, t, row, p) : tile_block<1, 2>(product, t, row, p);
      else
        tiles == 2 ? tile_block<2, 1>(product, t, row, p) : tile_block<1, 1>(product, t, row, p);
      i = row + count;
    }
    p += panels;
  }
  asm volatile("tilerelease");
}
#endif

// ---- sums that are scaled ----

/// The compiler makes no one rounding of this and what follows.
TORCHETTE_INLINE Vec rounded(Vec x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif defined(__SSE__)
  asm("" : "+x"(x));
#elif defined(__ARM_NEON)
  asm("" : "+w"(x));
#elif !defined(__wasm__)  // which has no such instruction
  asm("" : "+m"(x));
#endif
  return x;
}

// Inputs of nibbles that become bytes at a time, at least.
constexpr size_t kUnpacked = 256;

/// Quads of bytes of a panel's nibbles, `kUnit` times as large: the lower halves are a quad, and the upper
/// ones the next.
template <int kUnit>
void unpack(const uint8_t* from, size_t octets, int8_t* to) {
  typedef uint8_t Bytes __attribute__((vector_size(sizeof(VecInt))));
  constexpr size_t kBytes = kPanel * kQuad;
  for (size_t o = 0; o < octets; ++o, from += kBytes, to += 2 * kBytes) {
    for (size_t v = 0; v < kBytes; v += sizeof(Bytes)) {
      VecInt both;
      memcpy(&both, from + v, sizeof(both));
      if (v % 64 == 0) __builtin_prefetch(from + kAhead);
      Bytes low, high;
      if (kUnit == 1) {
        const Bytes nibble = Bytes{} + 0x0F, sign = Bytes{} + 0x08;
        low = ((reinterpret_cast<Bytes>(both) & nibble) ^ sign) - sign;
        high = ((reinterpret_cast<Bytes>(both >> 4) & nibble) ^ sign) - sign;
      } else {
        const Bytes nibble = Bytes{} + 0xF0;
        low = reinterpret_cast<Bytes>(both << 4) & nibble;
        high = reinterpret_cast<Bytes>(both) & nibble;
      }
      memcpy(to + v, &low, sizeof(low));
      memcpy(to + kBytes + v, &high, sizeof(high));
    }
  }
}

/// Some groups of some rows and panels.
struct ScaledTile {
  size_t groups, quads;  // of each group
  const void* a;         // Machine::Number
  size_t a_row, a_group;
  const int8_t* w;
  size_t w_panel;
  const float* scales;
  size_t scales_panel;
  float* totals;  // what is added to: rows of the panels' outputs
  size_t totals_row;
  const RowScale* rows;
  int32_t shift;  // what zero is above its number
  float unit;     // what one is of the sums' ones
};

// What a file says of zero may be anything.
TORCHETTE_INLINE int32_t whole_zero(const RowScale& row) {
  return row.zero > -256.0f && row.zero < 256.0f ? static_cast<int32_t>(row.zero) : 0;
}

// Floats have the sums of so many quads exactly: 255 * 128 * 4 * 128 < 2^24.
constexpr size_t kExact = 128;

#if !TORCHETTE_BY_COLUMNS
template <typename M, int kRows, int kPanels>
__attribute__((noinline)) void add_groups(const ScaledTile& t) {
  constexpr bool kOnes = sizeof(typename M::Number) == 1;  // else the zeros are taken from the rows already
  constexpr int kVectors = kPanels * static_cast<int>(kPanelVectors);
  const auto* a = static_cast<const typename M::Number*>(t.a);
  const int8_t* w = t.w;
  const float* scales = t.scales;
  int32_t zeros[kRows];
  for (int i = 0; i < kRows; ++i) zeros[i] = whole_zero(t.rows[i]) + t.shift;
  for (size_t g = 0; g < t.groups; ++g) {
    Sums<M, kRows + kOnes, kPanels> sums;
    sums.template set<kOnes>(a, t.a_row, w, t.w_panel, t.quads);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      constexpr int kOf = static_cast<int>(kPanelVectors);
      const float* const scale = scales + static_cast<size_t>(v / kOf) * t.scales_panel;
      const Vec factor = load(scale + static_cast<size_t>(v % kOf) * kLanes) * t.unit;
      float* const totals = t.totals + static_cast<size_t>(v) * kLanes;
      const auto put = [&](int i, Vec sum) __attribute__((always_inline)) {
        float* const total = totals + static_cast<size_t>(i) * t.totals_row;
        store(total, load(total) + rounded(sum * factor));
      };
      if constexpr (!kOnes) {
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) put(i, to_floats(whole_sums<M>(sums.of[i], v)));
      } else {
        const VecInt weights = whole_sums<M>(sums.of[kRows], v);
        if (t.quads <= kExact) {
          const Vec above = to_floats(weights);
#pragma GCC unroll 8
          for (int i = 0; i < kRows; ++i)
            put(i, to_floats(whole_sums<M>(sums.of[i], v)) - above * static_cast<float>(zeros[i]));
        } else {
#pragma GCC unroll 8
          for (int i = 0; i < kRows; ++i)
            put(i, to_floats(whole_sums<M>(sums.of[i], v) - weights * zeros[i]));
        }
      }
    }
    a += t.a_group;
    w += t.quads * kPanel * kQuad;
    scales += kPanel;
  }
}
#else
template <typename M, int kRows, int kPanels>
__attribute__((noinline)) void add_groups(const ScaledTile& t) {
  constexpr bool kOnes = sizeof(typename M::Number) == 1;
  const auto* a = static_cast<const typename M::Number*>(t.a);
  const int8_t* w = t.w;
  for (size_t g = 0; g < t.groups; ++g, a += t.a_group, w += t.quads * kPanel * kQuad) {
    int32_t sums[kRows * kPanel], weights[kPanel] = {};
    for (size_t j = 0; j < kPanel; j += M::kColumns)
      M::template column<kRows>(a, w + j * kQuad, t.quads, sums + j);
    if (kOnes)
      for (size_t q = 0; q < t.quads * kPanel * kQuad; ++q) weights[q / kQuad % kPanel] += w[q];
    for (size_t i = 0; i < kRows; ++i) {
      const int32_t zero = kOnes ? whole_zero(t.rows[i]) + t.shift : 0;
      for (size_t v = 0; v < kPanel; v += kLanes) {
        float* const total = t.totals + i * t.totals_row + v;
        const VecInt whole = load(sums + i * kPanel + v) - load(weights + v) * zero;
        const Vec factor = load(t.scales + g * kPanel + v) * t.unit;
        store(total, load(total) + rounded(to_floats(whole) * factor));
      }
    }
  }
}
#endif

/// What the sums become: rows of `columns` numbers, from rows of `width`.
void finish(const ScaledProduct& product, size_t column, size_t columns, const float* totals, size_t width) {
  float low, high;
  const Activation left = split_activation(product.activation, low, high);
  for (size_t i = 0; i < product.m; ++i, totals += width) {
    const size_t at = i * product.n + column;
    for (size_t v = 0; v < columns; v += kLanes) {
      const size_t n = columns - v < kLanes ? columns - v : kLanes;
      Vec y = rounded(load(totals + v) * product.rows[i].scale);
      if (product.bias != nullptr) y += load_partial(product.bias + column + v, n);
      if (product.residual != nullptr) y += load_partial(product.residual + at + v, n);
      store_partial(product.c + at + v, clamp(y, broadcast(low), broadcast(high)), n);
    }
  }
  activate(left, product.c + column, static_cast<ptrdiff_t>(product.n), product.m, columns);
}

// Rows that are brought into another form at a time.
constexpr size_t kRowsAtOnce = 64;

/// What a worker has for its part of a scaled product, and where it stands in its scratch memory.
template <typename M>
struct ScaledScratch {
  static constexpr int kRows = M::kMostRows < 4 ? M::kMostRows : 4, kPanels = M::kMostPanels;
  size_t quads, groups, chunk, padded, unpacked, totals, bytes;

  explicit ScaledScratch(const ScaledProduct& product) {
    const size_t unit = product.nibbles ? 2 * kQuad : kQuad;
    const size_t whole = (product.k + unit - 1) / unit * unit;  // inputs of the packed weight
    groups = product.groups;
    quads = groups == 1 ? whole / kQuad : whole / groups / kQuad;
    chunk = !product.nibbles || quads == 0 ? groups : (kUnpacked + quads * kQuad - 1) / (quads * kQuad);
    chunk = chunk < groups ? chunk : groups;
#if TORCHETTE_BY_COLUMNS
    padded = groups * padded_row<M>(quads * kQuad);
#else
    padded = groups * quads * kQuad;
#endif
    const size_t rows = product.m < kRowsAtOnce ? product.m : kRowsAtOnce;
    totals = (rows * padded * sizeof(typename M::Number) + 63) / 64 * 64;
    unpacked = totals + rows * kPanels * kPanel * sizeof(float);
    bytes = unpacked + (product.nibbles ? kPanels * chunk * quads * kPanel * kQuad : 0);
  }
};

template <typename M>
void multiply_scaled(const ScaledProduct& product, size_t first, size_t last, uint8_t* scratch) {
  typedef typename M::Number Number;
  const ScaledScratch<M> parts(product);
  const size_t of_panel = parts.groups * parts.quads * kPanel * kQuad >> product.nibbles;
  const bool flip = flips<M>(true);
  ScaledTile t = {};
  t.quads = parts.quads;
  t.scales_panel = parts.groups * kPanel;
  const int32_t mask = mask_of(flip);
  t.shift = shift_of<M>(flip);
  t.unit = product.nibbles ? 1.0f / kNibbleUnit<M> : 1.0f;
  const auto zero = [&](size_t i) { return whole_zero(product.rows[i]) + t.shift; };
  const auto* const bytes = reinterpret_cast<const uint8_t*>(product.a);
  ptrdiff_t a_row = static_cast<ptrdiff_t>(product.k);
#if TORCHETTE_BY_COLUMNS
  auto* const rows = reinterpret_cast<Number*>(scratch);
  const size_t of_group = parts.quads * kQuad;
  t.a_row = padded_row<M>(of_group);
  t.a_group = product.m * t.a_row;
  for (size_t g = 0; g < parts.groups; ++g)
    arrange<M, false>(bytes + g * of_group, a_row, product.m, parts.groups == 1 ? product.k : of_group,
                      t.a_row, parts.kRows, mask, zero, rows + g * t.a_group);
#else
  const Number* const rows =
      machine_rows<M>(bytes, a_row, product.m, product.k, parts.padded, mask, zero, scratch);
  t.a_row = static_cast<size_t>(a_row);
  t.a_group = parts.quads * kQuad;
#endif
  auto* const totals = reinterpret_cast<float*>(scratch + parts.totals);
  auto* const unpacked = reinterpret_cast<int8_t*>(scratch + parts.unpacked);
  for (size_t p = first, panels; p < last; p += panels) {
    // few rows read the weights as they stand in memory
    panels = product.m > 2 && last - p >= parts.kPanels ? parts.kPanels : 1;
    const size_t width = panels * kPanel, column = p * kPanel;
    memset(totals, 0, product.m * width * sizeof(float));
    t.totals_row = width;
    for (size_t g = 0; g < parts.groups; g += t.groups) {
      t.groups = parts.groups - g < parts.chunk ? parts.groups - g : parts.chunk;
      const uint8_t* const from =
          product.w + p * of_panel + (g * parts.quads * kPanel * kQuad >> product.nibbles);
      t.w = reinterpret_cast<const int8_t*>(from);
      t.w_panel = of_panel;
      if (product.nibbles) {
        t.w = unpacked;
        t.w_panel = t.groups * parts.quads * kPanel * kQuad;
        for (size_t i = 0; i < panels; ++i)
          unpack<kNibbleUnit<M>>(from + i * of_panel, t.groups * parts.quads / 2, unpacked + i * t.w_panel);
      }
      t.scales = product.scales + (p * parts.groups + g) * kPanel;
      for (size_t i = 0; i < product.m;) {
        t.a = rows + g * t.a_group + i * t.a_row;
        t.totals = totals + i * width;
        t.rows = product.rows + i;
        const bool many = product.m - i >= parts.kRows;
        if (many && parts.kPanels > 1 && panels > 1) {
          add_groups<M, parts.kRows, parts.kPanels>(t);
        } else {
          ScaledTile one = t;
          for (size_t each = 0; each < panels; ++each) {
            many ? add_groups<M, parts.kRows, 1>(one) : add_groups<M, 1, 1>(one);
            one.w += t.w_panel;
            one.scales += t.scales_panel;
            one.totals += kPanel;
          }
        }
        i += many ? parts.kRows : 1;
      }
    }
    finish(product, column, product.n - column < width ? product.n - column : width, totals, width);
  }
}

/// Calls body(first row, rows, first panel, last, worker's scratch) for parts of a product, on the context's
/// threads.
template <typename Body>
Error for_parts(Context& context, const char* op, size_t m, size_t n, size_t k, size_t each,
                const Body& body) {
  const size_t panels = panels_of(n), rows = m < kRowsAtOnce ? m : kRowsAtOnce;
  const size_t blocks = (m + kRowsAtOnce - 1) / kRowsAtOnce, work = k + 1;
  auto* const scratch = static_cast<uint8_t*>(context.allocate_temp(context.workers() * each));
  TORCHETTE_CHECK(scratch != nullptr || each == 0, MemoryAllocationFailed,
                  "%s: no scratch memory for %d rows of %d", op, static_cast<int>(rows), static_cast<int>(k));
  const auto block = [&](size_t b, size_t begin, size_t end, size_t worker) {
    const size_t at = b * kRowsAtOnce, left = m - at;
    body(at, left < kRowsAtOnce ? left : kRowsAtOnce, begin, end, scratch + worker * each);
  };
  if (blocks >= 2 * context.workers() || blocks >= panels) {
    context.parallel_for(blocks, least_items(rows * n * work), [&](size_t begin, size_t end, size_t worker) {
      for (size_t b = begin; b < end; ++b) block(b, 0, panels, worker);
    });
    return Error::Ok;
  }
  context.parallel_for(panels, least_items(m * kPanel * work), [&](size_t begin, size_t end, size_t worker) {
    for (size_t b = 0; b < blocks; ++b) block(b, begin, end, worker);
  });
  return Error::Ok;
}

template <typename M>
Error scale_sums(Context& context, const char* op, const ScaledProduct& product) {
  return for_parts(context, op, product.m, product.n, product.k, ScaledScratch<M>(product).bytes,
                   [&](size_t at, size_t count, size_t first, size_t last, uint8_t* scratch) {
                     ScaledProduct part = product;
                     part.m = count;
                     part.a += at * product.k;
                     part.rows += at;
                     part.c += at * product.n;
                     if (part.residual != nullptr) part.residual += at * product.n;
                     multiply_scaled<M>(part, first, last, scratch);
                   });
}

}  // namespace

IntegerProduct IntegerProduct::rows(size_t first, size_t count) const {
  IntegerProduct part = *this;
  part.m = count;
  part.a += static_cast<ptrdiff_t>(first) * a_row;
  part.c += static_cast<ptrdiff_t>(first) * c_row;
  return part;
}

size_t integer_scratch(size_t rows, size_t k) {  // in whole vectors
  return rows * ((quads_of(k) * kQuad * sizeof(int16_t) + 15) / 16 * 16);
}

void integer_gemm(const IntegerProduct& product, size_t first, size_t last, void* scratch) {
#if TORCHETTE_MAY_HAVE_TILES
  if (product.m >= kTileRows && uses<has_tiles>()) return multiply_tiles(product, first, last, scratch);
#endif
#if TORCHETTE_MAY_HAVE_DOTS
#if defined(__aarch64__)
  if (uses<has_pairs>()) return multiply<Pairs>(product, first, last, scratch);
#endif
  if (uses<has_dots>()) return multiply<Dots>(product, first, last, scratch);
#endif
  multiply<Machine>(product, first, last, scratch);
}

Error integer_gemm(Context& context, const char* op, const IntegerProduct& product) {
  const size_t rows = product.m < kRowsAtOnce ? product.m : kRowsAtOnce;
  return for_parts(context, op, product.m, product.n, product.k, integer_scratch(rows, product.k),
                   [&](size_t at, size_t count, size_t first, size_t last, uint8_t* scratch) {
                     integer_gemm(product.rows(at, count), first, last, scratch);
                   });
}

Error scaled_gemm(Context& context, const char* op, const ScaledProduct& product) {
#if TORCHETTE_MAY_HAVE_DOTS
  if (uses<has_dots>()) return scale_sums<Dots>(context, op, product);
#endif
#if defined(__AVX2__)
  if (product.nibbles) return scale_sums<Nibbles>(context, op, product);
#endif
  return scale_sums<Machine>(context, op, product);
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
