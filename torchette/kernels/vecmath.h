// SPDX-License-Identifier: BSD-3-Clause
// Single-precision transcendental functions without branches or tables, for `float` (vectorized by the
// compiler in loops) and for float vectors (lanes.h). The error is 2 to 3 ulp. NaN, infinities, signed zeros
// and subnormals behave as in the C library. The coefficients are minimax fits for these ranges.
#pragma once

#include <cmath>
#include <cstdint>

#include "torchette/kernels/lanes.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Integer type of the same shape: int32_t for float, otherwise the comparison result of the vector type.
template <typename V>
struct IntegersOf {
  using type = decltype(V{} < V{});
};
template <>
struct IntegersOf<float> {
  using type = int32_t;
};
template <typename V>
using Integers = typename IntegersOf<V>::type;

template <typename V>
TORCHETTE_INLINE Integers<V> to_bits(V x) {
  return bit_cast<Integers<V>>(x);
}
template <typename V>
TORCHETTE_INLINE V from_bits(Integers<V> i) {
  return bit_cast<V>(i);
}
template <typename V>
TORCHETTE_INLINE V splat(float c) {
  return V{} + c;
}
TORCHETTE_INLINE float to_float(float, int32_t i) { return static_cast<float>(i); }
template <typename V>
TORCHETTE_INLINE V to_float(V, Integers<V> i) {
  return convert_lanes<V>(i);
}
template <typename V>
TORCHETTE_INLINE V abs_f(V x) {
  return from_bits<V>(to_bits(x) & 0x7fffffff);
}
/// Returns the non-negative `magnitude` with the sign of `x`.
template <typename V>
TORCHETTE_INLINE V with_sign_of(V magnitude, V x) {
  return from_bits<V>(to_bits(magnitude) | (to_bits(x) & static_cast<int32_t>(0x80000000)));
}
/// c0 + c1 x + c2 x^2 + ...
template <typename V>
TORCHETTE_INLINE V polynomial(V, float c) {
  return splat<V>(c);
}
template <typename V, typename... C>
TORCHETTE_INLINE V polynomial(V x, float c, C... more) {
  return polynomial(x, more...) * x + c;
}

/// Splits x = n ln 2 + r with integer n and |r| <= ln 2 / 2, for |x| < 1000.
template <typename V>
TORCHETTE_INLINE V reduce_by_ln2(V x, Integers<V>& n) {
  // Adding 1.5 * 2^23 rounds to an integer and leaves n in the low bits of the mantissa.
  const float magic = 12582912.0f;
  const V shifted = x * 1.442695041f + magic;
  n = to_bits(shifted) - 0x4b400000;
  const V integral = shifted - magic;
  return (x - integral * 0.693359375f) - integral * -2.12194440e-4f;
}
/// Shifts `n` to the exponent bits of a float. n is arbitrary if the value is NaN, so scalars shift as
/// unsigned.
TORCHETTE_INLINE int32_t as_exponent(float, int32_t n) {
  return static_cast<int32_t>(static_cast<uint32_t>(n) << 23);
}
template <typename V>
TORCHETTE_INLINE Integers<V> as_exponent(V, Integers<V> n) {
  return n << 23;
}
/// 2^n for -126 <= n <= 127; 0 for -127, infinity for 128.
template <typename V>
TORCHETTE_INLINE V power_of_two(Integers<V> n) {
  return from_bits<V>(as_exponent(V{}, n + 127));
}

/// exp(r) for |r| <= ln 2 / 2.
template <typename V>
TORCHETTE_INLINE V exp_reduced(V r) {
  const V p =
      polynomial(r, 4.999999404e-01f, 1.666651517e-01f, 4.166845605e-02f, 8.369418792e-03f, 1.381314476e-03f);
  return (p * r) * r + r + 1.0f;
}
/// exp(x) / 2^halvings, for 0 or 1 halvings: half of a value out of range may be in range.
template <typename V>
TORCHETTE_INLINE V exp_halved(V x, int32_t halvings) {
  // The bounds are beyond overflow and beyond the smallest subnormal. NaN passes both.
  x = TORCHETTE_SELECT(x > 90.0f, splat<V>(90.0f), x);
  x = TORCHETTE_SELECT(x < -104.0f, splat<V>(-104.0f), x);
  Integers<V> n;
  const V r = reduce_by_ln2(x, n);
  n = n - halvings;
  const V e = exp_reduced(r);
  // 2^n may be out of range although e * 2^n is not.
  const Integers<V> half = n >> 1;
  return e * power_of_two<V>(half) * power_of_two<V>(n - half);
}
template <typename V>
TORCHETTE_INLINE V exp_f(V x) {
  return exp_halved(x, 0);
}
/// exp(x) for x <= 0. Returns 0 instead of subnormals, which saves a third of the operations.
template <typename V>
TORCHETTE_INLINE V exp_of_negative(V x) {
  x = TORCHETTE_SELECT(x < -88.0f, splat<V>(-88.0f), x);  // 2^n is 0 there
  Integers<V> n;
  const V r = reduce_by_ln2(x, n);
  return exp_reduced(r) * power_of_two<V>(n);
}
/// exp(x) / 2 for the sigmoid functions: returns 0 instead of subnormals, and infinity from 89.1 on.
template <typename V>
TORCHETTE_INLINE V half_exp(V x) {
  x = TORCHETTE_SELECT(x > 89.5f, splat<V>(89.5f), x);
  x = TORCHETTE_SELECT(x < -87.0f, splat<V>(-87.0f), x);
  Integers<V> n;
  const V r = reduce_by_ln2(x, n);
  return exp_reduced(r) * power_of_two<V>(n - 1);
}
template <typename V>
TORCHETTE_INLINE V cosh_f(V x) {
  const V half = exp_halved(abs_f(x), 1);
  return half + 0.25f / half;
}
template <typename V>
TORCHETTE_INLINE V sinh_f(V x) {
  const V a = abs_f(x), square = x * x;
  const V small = polynomial(square, 1.666666650e-01f, 8.333350108e-03f, 1.983614957e-04f, 2.817012625e-06f) *
                      square * a +
                  a;
  const V half = exp_halved(a, 1);
  return with_sign_of(TORCHETTE_SELECT(a < 1.0f, small, half - 0.25f / half), x);
}

template <typename V>
TORCHETTE_INLINE V expm1_f(V x) {
  const V zero_or_x = x;
  x = TORCHETTE_SELECT(x > 89.0f, splat<V>(89.0f), x);
  x = TORCHETTE_SELECT(x < -18.0f, splat<V>(-18.0f), x);
  Integers<V> n;
  const V r = reduce_by_ln2(x, n);
  const V p = polynomial(r, 5.000000000e-01f, 1.666666716e-01f, 4.166634381e-02f, 8.333270438e-03f,
                         1.394204563e-03f, 1.991562167e-04f);
  const V half = power_of_two<V>(n - 1);  // 2^128 would overflow
  const V y = (half * ((p * r) * r + r) + (half - 0.5f)) * 2.0f;
  return TORCHETTE_SELECT(zero_or_x == 0.0f, zero_or_x, y);
}

/// Splits x = m 2^e with m in [sqrt(1/2), sqrt(2)) for 0 < x < infinity. Returns log(m).
template <typename V>
TORCHETTE_INLINE V log_of_mantissa(V x, V& e) {
  const V scaled = TORCHETTE_SELECT(x < 1.17549435e-38f, x * 8388608.0f, x);  // subnormals
  const V bias = TORCHETTE_SELECT(x < 1.17549435e-38f, splat<V>(-23.0f), splat<V>(0.0f));
  const Integers<V> i = to_bits(scaled) - 0x3f3504f3;
  e = to_float(x, i >> 23) + bias;
  const V f = from_bits<V>((i & 0x7fffff) + 0x3f3504f3) - 1.0f;
  const V p =
      polynomial(f, -4.999998808e-01f, 3.333332539e-01f, -2.500158250e-01f, 2.000197321e-01f,
                 -1.660908163e-01f, 1.418182701e-01f, -1.324299276e-01f, 1.290442050e-01f, -7.621750236e-02f);
  return (p * f) * f + f;
}
/// Returns the logarithm for special values of x (zero, negative, infinite, NaN), otherwise `y`.
template <typename V>
TORCHETTE_INLINE V at_ends_of_log(V x, V y) {
  y = TORCHETTE_SELECT(x < INFINITY, y, x);  // infinity and NaN
  y = TORCHETTE_SELECT(
      x > 0.0f, y,
      TORCHETTE_SELECT(x == 0.0f, splat<V>(-INFINITY), TORCHETTE_SELECT(x < 0.0f, splat<V>(NAN), x)));
  return y;
}
template <typename V>
TORCHETTE_INLINE V log_f(V x) {
  V e;
  const V y = log_of_mantissa(x, e);
  return at_ends_of_log(x, e * 0.693359375f + (e * -2.12194440e-4f + y));
}
template <typename V>
TORCHETTE_INLINE V log2_f(V x) {
  V e;
  const V y = log_of_mantissa(x, e);
  return at_ends_of_log(x, y * 1.442695041f + e);
}
template <typename V>
TORCHETTE_INLINE V log10_f(V x) {
  V e;
  const V y = log_of_mantissa(x, e);
  return at_ends_of_log(x, e * 0.301025391f + (e * 4.60503907e-06f + y * 0.4342944819f));
}
template <typename V>
TORCHETTE_INLINE V log1p_f(V x) {
  const V u = x + 1.0f;
  const V lost = (x - (u - 1.0f)) / u;
  const V y = log_f(u);
  const V integral = TORCHETTE_SELECT(u > 0.0f, TORCHETTE_SELECT(u < INFINITY, y + lost, y), y);
  return TORCHETTE_SELECT(abs_f(x) < 1e-7f, x, integral);
}

template <typename V>
TORCHETTE_INLINE V sigmoid_f(V x) {
  return 0.5f / (half_exp(-x) + 0.5f);
}
/// x sigmoid(y)
template <typename V>
TORCHETTE_INLINE V gated(V x, V y) {
  return x * 0.5f / (half_exp(-y) + 0.5f);
}

template <typename V>
TORCHETTE_INLINE V tanh_f(V x) {
  const V a = abs_f(x);
  const V square = x * x;
  const V p = polynomial(square, -3.333327770e-01f, 1.333132833e-01f, -5.372922868e-02f, 2.060200460e-02f,
                         -5.660786293e-03f);
  const V small = (p * square) * a + a;
  const V large = 1.0f - 2.0f / (exp_f(a + a) + 1.0f);
  return with_sign_of(TORCHETTE_SELECT(a < 0.625f, small, large), x);
}

template <typename V>
TORCHETTE_INLINE V erf_f(V x) {
  V a = abs_f(x);
  const V square = x * x;
  const V small = x * polynomial(square, 1.128379226e+00f, -3.761263192e-01f, 1.128368452e-01f,
                                 -2.685878240e-02f, 5.199518055e-03f, -8.125680033e-04f, 8.298783359e-05f);
  // 1 - erfc, with a nearly parabolic logarithm. erf is 1 from 4 on.
  const V b = TORCHETTE_SELECT(a > 4.0f, splat<V>(4.0f), a);
  const V large =
      1.0f - exp_f(polynomial(b, -1.664568117e-04f, -1.127797246e+00f, -6.369761825e-01f, -1.041136160e-01f,
                              2.231517993e-02f, -3.065481549e-03f, 1.982187241e-04f));
  return TORCHETTE_SELECT(a < 0.92f, small, with_sign_of(large, x));
}

/// x / 2 (1 + erf(x / sqrt(2))), computed from erfc(|x| / sqrt(2)) / 2, which has a nearly parabolic
/// logarithm. The error is within 7e-8 |x|.
template <typename V>
TORCHETTE_INLINE V gelu_f(V x) {
  const V a = abs_f(x) * 0.70710678f;
  const V b = TORCHETTE_SELECT(a > 4.2f, splat<V>(4.2f), a);
  const V tail = 0.5f * exp_of_negative(polynomial(b, 1.501671186e-08f, -1.128380758e+00f, -6.365931849e-01f,
                                                   -1.029369181e-01f, 1.961727855e-02f, -5.718542957e-04f,
                                                   -1.012325759e-03f, 3.028878775e-04f, -3.074575969e-05f));
  const V outside = TORCHETTE_SELECT(a > 4.2f, splat<V>(0.0f), tail);
  return x * TORCHETTE_SELECT(x < 0.0f, outside, 1.0f - outside);
}
/// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); tanh(y) = 2 sigmoid(2 y) - 1
template <typename V>
TORCHETTE_INLINE V gelu_tanh_f(V x) {
  return gated(x, 1.59576912f * (x * x * x * 0.044715f + x));
}
template <typename V>
TORCHETTE_INLINE V silu_f(V x) {
  return gated(x, x);
}

/// sin and cos for |x| <= kMaxAngle; other arguments yield unspecified values. The reduction by pi / 2 uses
/// double precision.
constexpr float kMaxAngle = 1e6f;
TORCHETTE_INLINE float reduce_angle(float x, int32_t& quadrant) {
  const double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double wide = static_cast<double>(x);
  const double shifted = wide * 0.63661977236758134 + magic;
  quadrant = static_cast<int32_t>(bit_cast<int64_t>(shifted));
  const double integral = shifted - magic;
  return static_cast<float>((wide - integral * 1.5707963267341256) - integral * 6.0771005065061922e-11);
}
TORCHETTE_INLINE float sin_of_quadrant(float r, int32_t quadrant) {
  const float u = r * r;
  const float sum =
      polynomial(u, -1.666666716e-01f, 8.333329111e-03f, -1.983931579e-04f, 2.718121777e-06f) * u * r + r;
  const float s = u > 0.0f ? sum : r;  // preserves -0
  const float c =
      polynomial(u, 4.166664556e-02f, -1.388735254e-03f, 2.443661106e-05f) * u * u - 0.5f * u + 1.0f;
  const float y = (quadrant & 1) != 0 ? c : s;
  return from_bits<float>(to_bits(y) ^ static_cast<int32_t>(static_cast<uint32_t>(quadrant & 2) << 30));
}
TORCHETTE_INLINE float sin_f(float x) {
  int32_t quadrant;
  const float r = reduce_angle(x, quadrant);
  return sin_of_quadrant(r, quadrant);
}
TORCHETTE_INLINE float cos_f(float x) {
  int32_t quadrant;
  const float r = reduce_angle(x, quadrant);
  return sin_of_quadrant(r, quadrant + 1);
}

TORCHETTE_INLINE float tan_f(float x) {
  int32_t quadrant;
  const float r = reduce_angle(x, quadrant);
  const float s = sin_of_quadrant(r, 0), c = sin_of_quadrant(r, 1);
  return (quadrant & 1) != 0 ? -c / s : s / c;
}

TORCHETTE_INLINE float atan_f(float x) {
  // Reduces to the distance from 0, pi / 4 or pi / 2.
  const float a = abs_f(x);
  const bool middle = a > 0.414213562f, far = a > 2.41421356f;
  const float t = (far ? -1.0f : middle ? a - 1.0f : a) / (far ? a : middle ? a + 1.0f : 1.0f), u = t * t;
  const float y = polynomial(u, -3.333331511e-01f, 1.999846600e-01f, -1.424342227e-01f, 1.059294636e-01f,
                             -6.075915892e-02f) *
                      u * t +
                  t;
  return with_sign_of((far ? 1.57079633f : middle ? 0.785398163f : 0.0f) + y, x);
}

/// asin for |x| <= 1/2; for a larger |x|, half of the distance of asin to pi / 2.
TORCHETTE_INLINE float asin_part(float x) {
  const float a = abs_f(x), u = a < 0.5f ? x * x : (1.0f - a) * 0.5f, s = a < 0.5f ? a : std::sqrt(u);
  return polynomial(u, 1.666675268e-01f, 7.495288672e-02f, 4.547160703e-02f, 2.417295244e-02f,
                    4.217822840e-02f) *
             u * s +
         s;
}
TORCHETTE_INLINE float asin_f(float x) {
  const float y = asin_part(x);
  return with_sign_of(abs_f(x) < 0.5f ? y : 1.57079633f - 2.0f * y, x);
}
TORCHETTE_INLINE float acos_f(float x) {
  const float y = asin_part(x);
  const float reflected = x < 0.0f ? 3.14159265f - 2.0f * y : 2.0f * y;
  return abs_f(x) < 0.5f ? 1.57079633f - with_sign_of(y, x) : reflected;
}

TORCHETTE_INLINE float atanh_f(float x) {
  const float a = abs_f(x);
  return with_sign_of(0.5f * log1p_f(2.0f * a / (1.0f - a)), x);
}
/// log(1 + x), or log(2 x) if `large`: the square of a large value would be infinite.
TORCHETTE_INLINE float log1p_or_twice(float x, bool large) {
  return log1p_f(x) + (large ? 0.693147181f : 0.0f);
}
TORCHETTE_INLINE float asinh_f(float x) {
  const float a = abs_f(x), u = a * a;
  return with_sign_of(log1p_or_twice(a > 1e8f ? a : a + u / (1.0f + std::sqrt(u + 1.0f)), a > 1e8f), x);
}
TORCHETTE_INLINE float acosh_f(float x) {
  const float t = x - 1.0f;
  const float y = log1p_or_twice(x > 1e8f ? x : t + std::sqrt(t * (t + 2.0f)), x > 1e8f);
  return x < 1.0f ? NAN : y;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
