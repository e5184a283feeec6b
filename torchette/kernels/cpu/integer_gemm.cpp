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
  TORCHETTE_INLINE static Vector quad(const uint8_t* p, int32_t flip) {
    return vdupq_n_s32(four_bytes(p)) ^ vdupq_n_s32(flip);
  }
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
  TORCHETTE_INLINE static Vector quad(const uint8_t* p, int32_t flip) {
    return _mm512_set1_epi32(four_bytes(p) ^ flip);
  }
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
  TORCHETTE_INLINE static Vector quad(const uint8_t* p, int32_t flip) {
    return _mm256_set1_epi32(four_bytes(p) ^ flip);
  }
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

#if defined(__AVX2__)
struct Machine {
  typedef __m256i Vector;
  typedef int16_t Number;
  static constexpr size_t kOutputs = 4, kParts = 2;
  static constexpr int kMostRows = 2, kMostPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static Vector quad(const int16_t* p, int32_t) {
    return _mm256_set1_epi64x(eight_bytes(p));
  }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(x, w));
  }
};
#elif defined(__SSE2__)
struct Machine {
  typedef __m128i Vector;
  typedef int16_t Number;
  static constexpr size_t kOutputs = 2, kParts = 2;
  static constexpr int kMostRows = 1, kMostPanels = 1;
  static constexpr bool kUnsigned = false;
  TORCHETTE_INLINE static Vector quad(const int16_t* p, int32_t) { return _mm_set1_epi64x(eight_bytes(p)); }
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
  TORCHETTE_INLINE static Vector quad(const int16_t* p, int32_t) { return wasm_i64x2_splat(eight_bytes(p)); }
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
  TORCHETTE_INLINE static Vector quad(const uint8_t* p, int32_t flip) {
    return vdupq_n_s32(four_bytes(p) ^ flip);
  }
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
  int32_t flip;  // of four bytes
  int32_t zero;  // what each input stands above, as multiplied
};

#if !TORCHETTE_BY_COLUMNS
/// Vector v of the whole sums of a row.
template <typename M>
TORCHETTE_INLINE VecInt whole_sums(const typename M::Vector* sums, int v) {
  VecInt whole;
  if constexpr (sizeof(typename M::Vector) == sizeof(whole) && M::kParts == 1) {
    memcpy(&whole, &sums[v], sizeof(whole));
  } else {
#if defined(__ARM_NEON)
    const auto low = sums[2 * v], high = sums[2 * v + 1];
    whole = vcombine_s32(vpadd_s32(vget_low_s32(low), vget_high_s32(low)),
                         vpadd_s32(vget_low_s32(high), vget_high_s32(high)));
#elif defined(__wasm_simd128__)
    const v128_t low = sums[2 * v], high = sums[2 * v + 1];
    whole =
        wasm_i32x4_add(wasm_i32x4_shuffle(low, high, 0, 2, 4, 6), wasm_i32x4_shuffle(low, high, 1, 3, 5, 7));
#else
    int32_t parts[kLanes * M::kParts], added[kLanes];
    constexpr size_t kVectors = kLanes / M::kOutputs;
    memcpy(parts, sums + static_cast<size_t>(v) * kVectors, sizeof(parts));
    for (size_t j = 0; j < kLanes; ++j)
      added[j] = M::kParts == 2 ? parts[M::kParts * j] + parts[M::kParts * j + 1] : parts[j];
    whole = load(added);
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
  const int32x4_t flip = vdupq_n_s32(t.flip);
  const auto add = [&](size_t q, const auto& numbers, const auto& second) __attribute__((always_inline)) {
    int32x4_t x[kRows / 2];
#pragma GCC unroll 4
    for (size_t i = 0; i < kRows / 2; ++i) {
      const uint8_t* const from = a + 2 * i * t.a_row + q * kQuad;
      x[i] = vcombine_s32(numbers(from), numbers(from + t.a_row)) ^ flip;
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
void compute(const Tile& t) {
#if TORCHETTE_MAY_HAVE_DOTS && defined(__aarch64__)
  if constexpr (std::is_same_v<M, Pairs> && kRows % 2 == 0) return compute_pairs<kRows>(t);
#endif
  constexpr int kOfPanel = static_cast<int>(kPanel / M::kOutputs), kVectors = kPanels * kOfPanel;
  constexpr size_t kBytes = M::kOutputs * kQuad;
  typename M::Vector sums[kRows][kVectors];
#if defined(__arm__)  // what is read in a loop below would be written to memory in each round of this one
  typename M::Vector stored[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sums[i][v] = typename M::Vector{};
#else
  auto& stored = sums;
  memset(sums, 0, sizeof(sums));
#endif
  const auto* const a = static_cast<const typename M::Number*>(t.a);
  for (size_t q = 0; q < t.quads; ++q) {
    typename M::Vector x[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) x[i] = M::quad(a + static_cast<size_t>(i) * t.a_row + q * kQuad, t.flip);
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const auto w = M::weights(t.w + static_cast<size_t>(v / kOfPanel) * t.w_panel + q * (kPanel * kQuad) +
                                static_cast<size_t>(v % kOfPanel) * kBytes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sums[i][v] = M::dot(sums[i][v], x[i], w);
    }
  }
#if defined(__arm__)
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) stored[i][v] = sums[i][v];
#endif
  put_sums<kRows, kPanels* static_cast<int>(kPanelVectors)>(
      t, [&](int i, int v) __attribute__((always_inline)) { return whole_sums<M>(stored[i], v); });
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
/// The rows as column() reads them: of each tile [quads][rows][kUnit].
template <typename M>
void arrange(const IntegerProduct& product, int32_t flip, int32_t zero, size_t padded,
             typename M::Number* to) {
  for (size_t i = 0, rows; i < product.m; i += rows, to += rows * padded) {
    for (rows = M::kMostRows; rows > product.m - i;) rows = fewer_rows(rows);
    for (size_t r = 0; r < rows; ++r) {
      const uint8_t* const from = product.a + static_cast<ptrdiff_t>(i + r) * product.a_row;
      typename M::Number* at = to + r * M::kUnit;
      for (size_t j = 0; j < product.k; j += M::kUnit, at += rows * M::kUnit)
        M::put(from + j, flip, zero, product.k - j < M::kUnit ? product.k - j : M::kUnit, at);
    }
  }
}
#endif

template <typename M>
void multiply(const IntegerProduct& product, size_t first, size_t last, void* scratch) {
  typedef typename M::Number Number;
  constexpr bool kWide = sizeof(Number) == 2;
  const size_t quads = quads_of(product.k);
  // What a byte of a row is XORed with, and what a zero then is.
  const bool flips = product.is_signed == M::kUnsigned;
  const int32_t shift = !flips ? 0 : M::kUnsigned ? 128 : -128;
  Tile t = {};
  t.quads = quads;
  t.w_panel = quads * kPanel * kQuad;
  t.c_row = product.c_row;
  t.flip = flips ? static_cast<int32_t>(0x80808080u) : 0;
  const int32_t zero = product.input_zero + shift;
  t.zero = kWide ? 0 : zero;
#if TORCHETTE_BY_COLUMNS
  const size_t padded = (quads * kQuad + M::kUnit - 1) / M::kUnit * M::kUnit;
  arrange<M>(product, t.flip, zero, padded, static_cast<Number*>(scratch));
#else
  const size_t padded = quads * kQuad;
#endif
  t.a_row = padded;
  const auto* rows = static_cast<const Number*>(scratch);
#if !TORCHETTE_BY_COLUMNS
  if constexpr (kWide) {
    auto* to = static_cast<Number*>(scratch);
    for (size_t i = 0; i < product.m; ++i, to += padded) {
      const uint8_t* const from = product.a + static_cast<ptrdiff_t>(i) * product.a_row;
      for (size_t j = 0; j < product.k; ++j)
        to[j] = static_cast<Number>(static_cast<int8_t>(from[j] ^ t.flip) - zero);
      for (size_t j = product.k; j < padded; ++j) to[j] = 0;
    }
  } else if (padded == product.k) {
    rows = product.a;
    t.a_row = static_cast<size_t>(product.a_row);
  } else {
    auto* to = static_cast<Number*>(scratch);
    for (size_t i = 0; i < product.m; ++i, to += padded) {
      memcpy(to, product.a + static_cast<ptrdiff_t>(i) * product.a_row, product.k);
      memset(to + product.k, 0, padded - product.k);  // any would do: their weights are zero
    }
  }
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

// Rows that are brought into another form at a time.
constexpr size_t kRowsAtOnce = 64;

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
  const size_t panels = panels_of(product.n), rows = product.m < kRowsAtOnce ? product.m : kRowsAtOnce;
  const size_t blocks = (product.m + kRowsAtOnce - 1) / kRowsAtOnce, work = product.k + 1;
  const size_t each = integer_scratch(rows, product.k);
  auto* const scratch = static_cast<uint8_t*>(context.allocate_temp(context.workers() * each));
  TORCHETTE_CHECK(scratch != nullptr || each == 0, MemoryAllocationFailed,
                  "%s: no scratch memory for %d rows of %d", op, static_cast<int>(rows),
                  static_cast<int>(product.k));
  if (blocks >= 2 * context.workers() || blocks >= panels) {
    context.parallel_for(blocks, least_items(rows * product.n * work),
                         [&](size_t begin, size_t end, size_t worker) {
                           for (size_t b = begin; b < end; ++b) {
                             const size_t at = b * kRowsAtOnce, left = product.m - at;
                             integer_gemm(product.rows(at, left < kRowsAtOnce ? left : kRowsAtOnce), 0,
                                          panels, scratch + worker * each);
                           }
                         });
    return Error::Ok;
  }
  context.parallel_for(panels, least_items(product.m * kPanel * work),
                       [&](size_t begin, size_t end, size_t worker) {
                         for (size_t b = 0; b < blocks; ++b) {
                           const size_t at = b * kRowsAtOnce, left = product.m - at;
                           integer_gemm(product.rows(at, left < kRowsAtOnce ? left : kRowsAtOnce), begin, end,
                                        scratch + worker * each);
                         }
                       });
  return Error::Ok;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
