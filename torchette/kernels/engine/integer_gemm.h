// SPDX-License-Identifier: BSD-3-Clause
// The integer GEMM of the engine's quantized layers: 8-bit rows times packed 8-bit panels with exact int32
// accumulators, and the requantization of the accumulators to 8 bits.
#pragma once

#include <cmath>

#include "torchette/kernels/engine/epilogue.h"
#include "torchette/kernels/engine/image.h"
#include "torchette/kernels/engine/panels.h"

#if TORCHETTE_GNU && defined(__SSE2__)
#include <immintrin.h>
#endif

// Whether convolutions may read windows from lines: targets with the same number of lanes need the same
// scratch memory, which torchette/devtools/device_memory.py measures on x86-64.
#if (TORCHETTE_GNU && defined(__AVX__)) || TORCHETTE_HAS_RVV
#define TORCHETTE_CONVOLVES_LINES 1
#else
#define TORCHETTE_CONVOLVES_LINES 0
#endif

// Whether outputs are computed a few at a time in scalar accumulators.
#define TORCHETTE_BY_COLUMNS (!TORCHETTE_HAS_VECTORS || TORCHETTE_HAS_HELIUM)

namespace torchette {
namespace TORCHETTE_ISA {

constexpr size_t quads_of(size_t inputs) { return (inputs + kQuad - 1) / kQuad; }

// Whether saturating instructions of x86 narrow integers to bytes.
#if TORCHETTE_GNU && (defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__)) || \
                      (defined(__SSE2__) && !defined(__AVX__)))
#define TORCHETTE_HAS_SATURATION 1
#if defined(__AVX512BW__)
#define TORCHETTE_X86(name) _mm512_##name
#elif defined(__AVX2__)
#define TORCHETTE_X86(name) _mm256_##name
#else
#define TORCHETTE_X86(name) _mm_##name
#endif
#else
#define TORCHETTE_HAS_SATURATION 0
#endif

/// Rounds floats to 8-bit integers: clamp(round(x) + zero, low, high), ties to even.
class ToBytes {
 public:
#if TORCHETTE_HAS_SATURATION
  TORCHETTE_INLINE ToBytes(int32_t zero, int32_t low, int32_t high)
      : high_(broadcast(static_cast<float>(high - zero))) {
    // Unsigned results are packed as signed integers, 128 less.
    const int32_t shift = high > INT8_MAX ? 128 : 0;
    zero_ = TORCHETTE_X86(set1_epi16)(static_cast<int16_t>(zero - shift));
    low_ = TORCHETTE_X86(set1_epi16)(static_cast<int16_t>(low - shift));
    flip_ = TORCHETTE_X86(set1_epi8)(static_cast<char>(shift));
#if defined(__AVX512BW__)
    least_ = broadcast(static_cast<float>(low - zero));
    zero_point_ = zero;
#endif
  }
  typedef decltype(TORCHETTE_X86(set1_epi16)(0)) Words;
  /// Returns the bytes of kVectors vectors. Group g of four bytes contains values 4 (g / 4) to 4 (g / 4) + 3
  /// of vector g % 4.
  template <int kVectors>
  TORCHETTE_INLINE Words pack(const Vec (&x)[kVectors]) const {
    static_assert(kVectors <= 4, "the results of at most four vectors fit one register");
    return TORCHETTE_X86(packs_epi16)(words(x[0], x[kVectors > 1 ? 1 : 0]),
                                      words(x[kVectors > 2 ? 2 : 0], x[kVectors > 3 ? 3 : 0])) ^
           flip_;
  }
  /// Stores the first n of kVectors * kLanes values.
  template <int kVectors>
  TORCHETTE_INLINE void put(const Vec (&x)[kVectors], size_t n, uint8_t* to) const {
#if defined(__AVX512BW__)
    if constexpr (kVectors == 1) {  // fewer instructions than packing a quarter of a register
      const VecInt rounded = reinterpret_cast<VecInt>(round(maximum(minimum(high_, x[0]), least_)));
      const __m128i some =
          _mm512_maskz_cvtepi32_epi8(0xffffu, reinterpret_cast<Words>(rounded + zero_point_));
      if (n >= kLanes)
        memcpy(to, &some, kLanes);
      else
        _mm_mask_storeu_epi8(to, static_cast<__mmask16>((1u << n) - 1), some);
      return;
    }
#endif
    Words bytes = pack(x);
#if defined(__AVX512BW__)
    const VecInt quads = reinterpret_cast<VecInt>(bytes);
    bytes = reinterpret_cast<Words>(
        TORCHETTE_SHUFFLE(quads, quads, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
#elif defined(__AVX2__)
    const VecInt quads = reinterpret_cast<VecInt>(bytes);
    bytes = reinterpret_cast<Words>(TORCHETTE_SHUFFLE(quads, quads, 0, 4, 1, 5, 2, 6, 3, 7));
#endif
    if (n >= size_t{kVectors} * kLanes) {
      memcpy(to, &bytes, size_t{kVectors} * kLanes);
    } else {
#if defined(__AVX512BW__)
      _mm512_mask_storeu_epi8(to, (uint64_t{1} << n) - 1, bytes);
#else
      memcpy(to, &bytes, n);
#endif
    }
  }

 private:
  typedef decltype(TORCHETTE_X86(setzero_ps)()) Floats;
  /// Rounds. Returns INT32_MIN for NaN and values below it.
  TORCHETTE_INLINE static Words round(Vec x) {
#if defined(__AVX512BW__)  // GCC warns about the intrinsic without a mask
    return _mm512_maskz_cvtps_epi32(0xffffu, reinterpret_cast<Floats>(x));
#else
    return TORCHETTE_X86(cvtps_epi32)(reinterpret_cast<Floats>(x));
#endif
  }
  /// Converts two vectors to 16-bit integers that are not below the minimum. Saturates.
  TORCHETTE_INLINE Words words(Vec a, Vec b) const {
    const Words both = TORCHETTE_X86(packs_epi32)(round(minimum(high_, a)), round(minimum(high_, b)));
    return TORCHETTE_X86(max_epi16)(TORCHETTE_X86(adds_epi16)(both, zero_), low_);
  }

  Vec high_;
  Words zero_, low_, flip_;
#if defined(__AVX512BW__)
  Vec least_;
  int32_t zero_point_;
#endif
#else
  TORCHETTE_INLINE ToBytes(int32_t zero, int32_t low, int32_t high)
      : low_(broadcast(static_cast<float>(low - zero))),
        high_(broadcast(static_cast<float>(high - zero))),
        zero_(zero) {}
  /// Stores the first n of kVectors * kLanes values.
  template <int kVectors>
  TORCHETTE_INLINE void put(const Vec (&x)[kVectors], size_t n, uint8_t* to) const {
    TORCHETTE_UNROLL(4)
    for (size_t v = 0; v < kVectors; ++v)
      if (v * kLanes < n) put(x[v], n - v * kLanes, to + v * kLanes);
  }

 private:
  TORCHETTE_INLINE void put(Vec x, size_t n, uint8_t* to) const {
    // Floats between this constant and twice its value have no fraction bits, so adding it rounds to an
    // integer. The clamp separates the addition from the multiplication that computed x, which prevents a
    // fused multiply-add.
    constexpr float kRoundMagic = 12582912.0f;
    constexpr int32_t kRoundMagicBits = 0x4B400000;
    TORCHETTE_LANES(Bytes, uint8_t, kLanes);
    const Vec rounded = minimum(maximum(x, low_), high_) + kRoundMagic;
    VecInt integer;
    memcpy(&integer, &rounded, sizeof(integer));
    integer += zero_ - kRoundMagicBits;
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

  Vec low_, high_;
  int32_t zero_;
#endif
};
#undef TORCHETTE_X86

/// Stores `count` bytes of value(i, n): the floats from index i, of which n lanes exist.
template <typename Value>
TORCHETTE_INLINE void put_all(const ToBytes& bytes, size_t count, uint8_t* to, const Value& value) {
  constexpr size_t kAtOnce = size_t{4} * kLanes;
  size_t i = 0;
  for (; i + kAtOnce <= count; i += kAtOnce) {
    const Vec four[4] = {value(i, kLanes), value(i + kLanes, kLanes), value(i + 2 * kLanes, kLanes),
                         value(i + 3 * kLanes, kLanes)};
    bytes.put(four, kAtOnce, to + i);
  }
  for (; i < count; i += kLanes) {
    const size_t n = count - i < kLanes ? count - i : kLanes;
    const Vec one[1] = {value(i, n)};
    bytes.put(one, n, to + i);
  }
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
  Vec bias, multiplier;

  TORCHETTE_INLINE RequantizedVector(const Requantization& how, size_t output)
      : bias(load(how.bias + output)), multiplier(load(how.multiplier + output)) {}
  /// Returns (sums + bias) * multiplier.
  TORCHETTE_INLINE Vec scale(Vec sums) const {
#if defined(__ARM_NEON)  // see fma()
    return vmulq_f32(vaddq_f32(sums, bias), multiplier);
#else
    return (sums + bias) * multiplier;
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
#if TORCHETTE_HAS_RVV  // a panel at a time; NaN becomes the lower bound, as in ToBytes
  const auto low = static_cast<float>(how.low - how.zero), high = static_cast<float>(how.high - how.zero);
  for (size_t i = 0; i < n; i += kPanelWidth) {
    const size_t lanes = n - i < kPanelWidth ? n - i : kPanelWidth;
    vint32m4_t integer = __riscv_vle32_v_i32m4(sums + i, lanes);
    if (zero != 0) {
      const vfloat32m4_t of_weights = __riscv_vle32_v_f32m4(how.sums + i, lanes);
      const vfloat32m4_t some = __riscv_vfmax_vf_f32m4(of_weights, -kMaxWeightSum, lanes);
      const vfloat32m4_t bounded = __riscv_vfmin_vf_f32m4(some, kMaxWeightSum, lanes);
      integer = __riscv_vnmsac_vx_i32m4(integer, zero, __riscv_vfcvt_x_f_v_i32m4(bounded, lanes), lanes);
    }
    vfloat32m4_t x = __riscv_vfcvt_f_x_v_f32m4(integer, lanes);
    x = __riscv_vfadd_vv_f32m4(x, __riscv_vle32_v_f32m4(how.bias + i, lanes), lanes);
    x = __riscv_vfmul_vv_f32m4(x, __riscv_vle32_v_f32m4(how.multiplier + i, lanes), lanes);
    x = __riscv_vfmin_vf_f32m4(__riscv_vfmax_vf_f32m4(x, low, lanes), high, lanes);
    integer = __riscv_vadd_vx_i32m4(__riscv_vfcvt_x_f_v_i32m4(x, lanes), how.zero, lanes);
    const vint8m1_t bytes = __riscv_vncvt_x_x_w_i8m1(__riscv_vncvt_x_x_w_i16m2(integer, lanes), lanes);
    __riscv_vse8_v_i8m1(reinterpret_cast<int8_t*>(to + i), bytes, lanes);
  }
#elif TORCHETTE_HAS_VECTORS
  const ToBytes bytes(how.zero, how.low, how.high);
  for (size_t v = 0; v < n; v += kLanes) {
    const VecInt integer = load(sums + v) - weight_sums(how.sums + v) * zero;
    const Vec scaled[1] = {RequantizedVector(how, v).scale(to_floats(integer))};
    bytes.put(scaled, n - v, to + v);
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

struct QuantizedSum;

/// C = requantize((A - input_zero) W), plus a residual.
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
  const QuantizedSum* sum;  // how the residual is added, or null
  const uint8_t* residual;  // rows like those of C, if there is a sum

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

#if TORCHETTE_CONVOLVES_LINES
/// Lines of the result of a two-dimensional convolution. The multiplication reads windows from padded lines
/// of the image, instead of gathered rows.
struct ConvolvedLines {
  const Window* window;
  const uint8_t* image;
  size_t channel, channels;  // of the group
  size_t first, count;       // lines of the result

  /// Whether the image is two-dimensional and its padded lines are not much larger. In a malicious file, a
  /// distance between taps or windows may be any number, so that the size of the lines would overflow.
  static bool fits(const Window& w) {
    const auto is_close = [&](int d) {
      return (w.out[d] - 1) * w.stride[d] + (w.kernel[d] - 1) * w.dilation[d] < 4 * w.in[d] + 64;
    };
    return w.in[0] == 1 && w.kernel[0] == 1 && w.padding[0] == 0 && is_close(1) && is_close(2);
  }
  /// Number of adjacent elements of a window in a padded line.
  static size_t run(const Window& w, size_t channels) {
    return w.dilation[2] == 1 ? static_cast<size_t>(w.kernel[2]) * channels : channels;
  }
  /// Number of elements of a padded line.
  size_t line() const {
    const Window& w = *window;
    return static_cast<size_t>((w.out[2] - 1) * w.stride[2] + (w.kernel[2] - 1) * w.dilation[2] + 1) *
           channels;
  }
  /// Number of padded lines.
  size_t lines() const {
    const Window& w = *window;
    return (count - 1) * static_cast<size_t>(w.stride[1]) +
           static_cast<size_t>((w.kernel[1] - 1) * w.dilation[1]) + 1;
  }
};

/// Whether convolve_lines() is the faster form on this processor.
bool convolves_lines();
/// Computes the columns of panels [first, last). The rows of the product are the pixels of the lines. The
/// weights of each run of a window fill quads. `scratch` has room for the padded lines and a quad, two bytes
/// per element.
void convolve_lines(const IntegerProduct& product, const ConvolvedLines& lines, size_t first, size_t last,
                    void* scratch);
#endif

}  // namespace TORCHETTE_ISA
}  // namespace torchette
