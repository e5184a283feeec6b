// SPDX-License-Identifier: BSD-3-Clause
// Scalar functions for the .def files of elementwise operators: float with fast approximations, double with
// the C library, and int64_t.
#pragma once

#include <cmath>

#include "torchette/kernels/vecmath.h"

namespace torchette {
namespace TORCHETTE_ISA {

#define TORCHETTE_FAST(f)                                       \
  static TORCHETTE_INLINE float f(float x) { return f##_f(x); } \
  static TORCHETTE_INLINE double f(double x) { return ::f(x); }
TORCHETTE_FAST(acos)
TORCHETTE_FAST(asin)
TORCHETTE_FAST(atan)
TORCHETTE_FAST(acosh)
TORCHETTE_FAST(asinh)
TORCHETTE_FAST(atanh)
TORCHETTE_FAST(cosh)
TORCHETTE_FAST(sinh)
TORCHETTE_FAST(tan)
TORCHETTE_FAST(exp)
TORCHETTE_FAST(expm1)
TORCHETTE_FAST(log)
TORCHETTE_FAST(log2)
TORCHETTE_FAST(log10)
TORCHETTE_FAST(log1p)
TORCHETTE_FAST(tanh)
TORCHETTE_FAST(erf)
TORCHETTE_FAST(sin)
TORCHETTE_FAST(cos)
#undef TORCHETTE_FAST
#define TORCHETTE_LIBM(name)                                           \
  static TORCHETTE_INLINE float name(float x) { return std::name(x); } \
  static TORCHETTE_INLINE double name(double x) { return std::name(x); }
TORCHETTE_LIBM(sqrt)
TORCHETTE_LIBM(erfc)
TORCHETTE_LIBM(lgamma)
#undef TORCHETTE_LIBM
#define TORCHETTE_ROUND(name, builtin)                                      \
  static TORCHETTE_INLINE float name(float x) { return std::builtin(x); }   \
  static TORCHETTE_INLINE double name(double x) { return std::builtin(x); } \
  static TORCHETTE_INLINE int64_t name(int64_t x) { return x; }
TORCHETTE_ROUND(ceil, ceil)
TORCHETTE_ROUND(floor, floor)
TORCHETTE_ROUND(trunc, trunc)
TORCHETTE_ROUND(round, nearbyint)  // ties to even
#undef TORCHETTE_ROUND

static TORCHETTE_INLINE float abs(float x) { return std::fabs(x); }
static TORCHETTE_INLINE double abs(double x) { return std::fabs(x); }
static TORCHETTE_INLINE int64_t abs(int64_t x) {
  return x < 0 ? static_cast<int64_t>(0 - static_cast<uint64_t>(x)) : x;
}
static TORCHETTE_INLINE float sigmoid(float x) { return sigmoid_f(x); }
static TORCHETTE_INLINE double sigmoid(double x) { return 1 / (::exp(-x) + 1); }
template <typename T>
static TORCHETTE_INLINE T silu(T x) {
  return x / (exp(-x) + 1);
}
static TORCHETTE_INLINE float gelu(float x) { return gelu_f(x); }
static TORCHETTE_INLINE double gelu(double x) { return x * 0.5 * (::erf(x * M_SQRT1_2) + 1); }
static TORCHETTE_INLINE float gelu_tanh(float x) { return gelu_tanh_f(x); }
static TORCHETTE_INLINE double gelu_tanh(double x) {
  return x * 0.5 * (::tanh(M_2_SQRTPI * M_SQRT1_2 * (x * x * x * 0.044715 + x)) + 1);
}

/// Converts a constant to the type of x.
template <typename T>
static TORCHETTE_INLINE T constant(T, int value) {
  return static_cast<T>(value);
}
/// Propagates NaN. The compiler vectorizes two selections in sequence, but not one inside another.
template <typename T>
static TORCHETTE_INLINE T maximum(T a, T b) {
  const T larger = a > b ? a : b;
  return a != a ? a : larger;
}
template <typename T>
static TORCHETTE_INLINE T minimum(T a, T b) {
  const T smaller = a < b ? a : b;
  return a != a ? a : smaller;
}
/// Propagates NaN. Returns the upper bound if the lower bound is larger.
template <typename T>
static TORCHETTE_INLINE T clamp(T x, T low, T high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// The driver rejects divisors of zero. INT64_MIN / -1 would trap.
static TORCHETTE_INLINE int64_t quotient_toward_zero(int64_t a, int64_t b) {
  return b == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : a / b;
}
static TORCHETTE_INLINE int64_t remainder_toward_zero(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
static TORCHETTE_INLINE int64_t remainder_toward_floor(int64_t a, int64_t b) {
  const int64_t r = remainder_toward_zero(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static TORCHETTE_INLINE int64_t quotient_toward_floor(int64_t a, int64_t b) {
  const int64_t r = remainder_toward_zero(a, b);
  return quotient_toward_zero(a, b) - (r != 0 && (r < 0) != (b < 0) ? 1 : 0);
}
template <typename T>
static TORCHETTE_INLINE T quotient_toward_zero(T a, T b) {
  return trunc(a / b);
}
/// Truncates the quotient in double precision, which is exact for quotients below 2^27. Clears `is_exact` for
/// larger ones.
static TORCHETTE_INLINE float remainder_toward_zero(float a, float b, int64_t& is_exact) {
  const double wide = static_cast<double>(a), divisor = static_cast<double>(b);
  const double quotient = std::trunc(wide / divisor);
  const double remainder = std::copysign(wide - quotient * divisor, wide);
  is_exact &= ((std::fabs(quotient) < 0x1p27) & (remainder == remainder)) != 0 ? 1 : 0;
  return static_cast<float>(remainder);
}
static TORCHETTE_INLINE float remainder_toward_zero(float a, float b) {
  int64_t is_exact = 1;
  const float remainder = remainder_toward_zero(a, b, is_exact);
  return is_exact != 0 ? remainder : ::fmodf(a, b);
}
static TORCHETTE_INLINE double remainder_toward_zero(double a, double b) { return ::fmod(a, b); }
template <typename T, typename... IsExact>
static TORCHETTE_INLINE T remainder_toward_floor(T a, T b, IsExact&... is_exact) {
  const T r = remainder_toward_zero(a, b, is_exact...);
  return ((r != 0) & ((r < 0) != (b < 0))) != 0 ? r + b : r;
}
template <typename T>
static TORCHETTE_INLINE T quotient_toward_floor(T a, T b) {
  if (b == 0) return a / b;
  const T r = remainder_toward_zero(a, b);
  T q = (a - r) / b;
  if (r != 0 && (r < 0) != (b < 0)) q -= 1;
  if (q == 0) return std::copysign(constant(a, 0), a / b);
  const T integral = floor(q);
  return q - integral > static_cast<T>(0.5) ? integral + 1 : integral;
}

static TORCHETTE_INLINE float quotient_toward_floor(float a, float b, int64_t& is_exact) {
  const float r = remainder_toward_zero(a, b, is_exact), cut = (a - r) / b;
  const float q = ((r != 0) & ((r < 0) != (b < 0))) != 0 ? cut - 1.0f : cut, integral = floor(q);
  return q == 0 ? std::copysign(0.0f, a / b) : q - integral > 0.5f ? integral + 1.0f : integral;
}

static TORCHETTE_INLINE float pow(float a, float b) { return ::powf(a, b); }
static TORCHETTE_INLINE double pow(double a, double b) { return ::pow(a, b); }
static TORCHETTE_INLINE int64_t pow(int64_t a, int64_t b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? ((b & 1) != 0 ? -1 : 1) : 0;
  uint64_t result = 1, base = static_cast<uint64_t>(a);  // wraps around
  for (; b != 0; b >>= 1, base *= base)
    if ((b & 1) != 0) result *= base;
  return static_cast<int64_t>(result);
}

/// Computes the angle to the nearer axis, then the angle to the positive x axis, without branches.
static TORCHETTE_INLINE float atan2(float a, float b) {
  const float y = abs_f(a), x = abs_f(b), longer = y > x ? y : x, shorter = y > x ? x : y;
  const float quotient = shorter == longer ? 1.0f : shorter / longer;  // also for two infinities
  const float near = atan_f(longer == 0 ? 0.0f : quotient), right = y > x ? 1.57079633f - near : near;
  const float angle = std::signbit(b) ? 3.14159265f - right : right;
  return ((a != a) | (b != b)) != 0 ? a + b : with_sign_of(angle, a);
}
static TORCHETTE_INLINE double atan2(double a, double b) { return ::atan2(a, b); }

static TORCHETTE_INLINE float copysign(float a, float b) { return std::copysign(a, b); }
static TORCHETTE_INLINE double copysign(double a, double b) { return std::copysign(a, b); }
// In double precision no square overflows. The result is infinite if an operand is infinite, even if the
// other is NaN.
static TORCHETTE_INLINE float hypot(float a, float b) {
  const auto length = static_cast<float>(sqrt(double(a) * a + double(b) * b));
  const float infinity = INFINITY;
  const bool infinite_a = abs(a) == infinity, infinite_b = abs(b) == infinity;
  return (infinite_a | infinite_b) != 0 ? infinity : length;
}
static TORCHETTE_INLINE double hypot(double a, double b) { return std::hypot(a, b); }
static TORCHETTE_INLINE float nextafter(float a, float b) { return ::nextafterf(a, b); }
static TORCHETTE_INLINE double nextafter(double a, double b) { return ::nextafter(a, b); }
static TORCHETTE_INLINE bool signbit(float x) { return std::signbit(x); }
static TORCHETTE_INLINE bool signbit(double x) { return std::signbit(x); }
static TORCHETTE_INLINE bool signbit(int64_t x) { return x < 0; }
static TORCHETTE_INLINE bool signbit(uint8_t) { return false; }
static TORCHETTE_INLINE int64_t gcd(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t remainder = remainder_toward_zero(a, b);
    a = b;
    b = remainder;
  }
  return abs(a);
}
static TORCHETTE_INLINE int64_t lcm(int64_t a, int64_t b) {
  const int64_t divisor = gcd(a, b);
  if (divisor == 0) return 0;
  return abs(static_cast<int64_t>(static_cast<uint64_t>(quotient_toward_zero(a, divisor)) *
                                  static_cast<uint64_t>(b)));
}

// A shift by 64 or more bits, or by a negative count, shifts all bits out.
static TORCHETTE_INLINE int64_t shifted_left(int64_t a, int64_t b) {
  return b < 0 || b > 63 ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << b);
}
static TORCHETTE_INLINE int64_t shifted_right(int64_t a, int64_t b) {
  return a >> (b < 0 || b > 63 ? 63 : b);
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
