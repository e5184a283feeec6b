// SPDX-License-Identifier: BSD-3-Clause
// Special functions that the C library lacks, in double precision, for functions.cpp.
#pragma once

#include <cmath>

#include "torchette/runtime/span.h"

#if defined(__MINGW32__) && defined(__STRICT_ANSI__)  // provides these functions without declaring them
extern "C" {
double j0(double);
double j1(double);
double y0(double);
double y1(double);
}
#endif

#ifndef TORCHETTE_ISA
#define TORCHETTE_ISA baseline
#endif

namespace torchette {
namespace TORCHETTE_ISA {
namespace special {

constexpr double kNan = NAN, kInfinity = INFINITY;

/// Digamma function, the derivative of log gamma. Uses the asymptotic series from 10 on (Abramowitz and
/// Stegun 6.3.18), recurrence below 10, and reflection for negative arguments.
[[gnu::noinline]] inline double digamma(double x) {
  if (x == 0) return std::copysign(kInfinity, -x);
  double result = 0;
  if (x < 0) {
    if (x == std::floor(x)) return kNan;
    result = -M_PI / std::tan(M_PI * (x - std::trunc(x)));
    x = 1 - x;
  }
  for (; x < 10; x += 1) result -= 1 / x;
  const double z = 1 / (x * x);
  const double series =
      z * (1.0 / 12 -
           z * (1.0 / 120 -
                z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z * (1.0 / 12)))))));
  return result + std::log(x) - 0.5 / x - series;
}

/// Hurwitz zeta function: the sum of 1 / (k + q)^x over k >= 0, by the Euler-Maclaurin formula.
[[gnu::noinline]] inline double zeta(double x, double q) {
  // (2 k)! / B(2 k)
  static constexpr double kTerms[] = {12.0,
                                      -720.0,
                                      30240.0,
                                      -1209600.0,
                                      47900160.0,
                                      -1.8924375803183791606e9,
                                      7.47242496e10,
                                      -2.950130727918164224e12,
                                      1.1646782814350067249e14,
                                      -4.5979787224074726105e15,
                                      1.8152105401943546773e17,
                                      -7.1661652561756670113e18};
  if (x == 1) return kInfinity;
  if (!(x > 1)) return kNan;
  if (q <= 0) {
    if (q == std::floor(q)) return kInfinity;
    if (x != std::floor(x)) return kNan;
  }
  double sum = std::pow(q, -x), a = q, b = 0;
  for (int i = 0; i < 9 || a <= 9; ++i) {
    a += 1;
    b = std::pow(a, -x);
    sum += b;
    if (std::fabs(b) < 1.1e-16 * std::fabs(sum)) return sum;
  }
  sum += b * a / (x - 1) - 0.5 * b;
  double factor = 1, k = 0;
  for (const double term : kTerms) {
    factor *= x + k;
    b /= a;
    const double t = factor * b / term;
    sum += t;
    if (std::fabs(t) < 1.1e-16 * std::fabs(sum)) break;
    k += 1;
    factor *= x + k;
    b /= a;
    k += 1;
  }
  return sum;
}

/// The n-th derivative of digamma.
inline double polygamma(double n, double x) {
  if (n == 0) return digamma(x);
  if (n == 1 && std::isinf(x)) return x > 0 ? 0 : kNan;  // as in torch; zeta(n, inf) is NaN there
  const double sign = std::fmod(n, 2) == 0 ? -1 : 1;
  return sign * std::tgamma(n + 1) * zeta(n + 1, x);
}

/// Quantile of the normal distribution at 1/2 + q, where `tail` is 1/2 - |q|. Starts from Acklam's
/// approximation with nine correct digits and applies `steps` steps of Halley's method.
[[gnu::noinline]] inline double normal_quantile(double q, double tail, int steps) {
  if (!(tail >= 0)) return kNan;
  if (tail == 0) return std::copysign(kInfinity, q);
  double y;
  if (tail > 0.02425) {
    const double r = q * q;
    y = (((((-3.969683028665376e+01 * r + 2.209460984245205e+02) * r - 2.759285104469687e+02) * r +
           1.383577518672690e+02) *
              r -
          3.066479806614716e+01) *
             r +
         2.506628277459239e+00) *
        q /
        (((((-5.447609879822406e+01 * r + 1.615858368580409e+02) * r - 1.556989798598866e+02) * r +
           6.680131188771972e+01) *
              r -
          1.328068155288572e+01) *
             r +
         1);
  } else {
    const double r = std::sqrt(-2 * std::log(tail));
    const double lower =
        (((((-7.784894002430293e-03 * r - 3.223964580411365e-01) * r - 2.400758277161838e+00) * r -
           2.549732539343734e+00) *
              r +
          4.374664141464968e+00) *
             r +
         2.938163982698783e+00) /
        ((((7.784695709041462e-03 * r + 3.224671290700398e-01) * r + 2.445134137142996e+00) * r +
          3.754408661907416e+00) *
             r +
         1);
    y = q < 0 ? lower : -lower;
  }
  // The error, computed from small values in the middle and from the tails at the ends, to avoid
  // cancellation.
  for (int i = 0; i < steps; ++i) {
    const double off = tail > 0.02425 ? 0.5 * std::erf(y * M_SQRT1_2) - q
                                      : (q < 0 ? 0.5 * std::erfc(-y * M_SQRT1_2) - tail
                                               : tail - 0.5 * std::erfc(y * M_SQRT1_2));
    const double u = off * std::sqrt(2 * M_PI) * std::exp(y * y / 2);
    y -= u / (1 + y * u / 2);
  }
  return y;
}
inline double ndtri(double p) { return normal_quantile(p - 0.5, p < 0.5 ? p : 1 - p, 1); }
inline double erfinv(double x, int steps) {
  return normal_quantile(x / 2, (1 - std::fabs(x)) / 2, steps) * M_SQRT1_2;
}

/// e^(x^2) erfc(x)
[[gnu::noinline]] inline double erfcx(double x) {
  if (x < 25) return std::exp(x * x) * std::erfc(x);
  const double z = 1 / (x * x);
  return (1 - z * (0.5 - z * (0.75 - z * (1.875 - z * 6.5625)))) / (x * std::sqrt(M_PI));
}

/// Modified Bessel function of the first kind of order 0 or 1, times e^-|x|.
[[gnu::noinline]] inline double scaled_bessel_i(int order, double x) {
  const double a = std::fabs(x);
  const double sign = order == 1 && x < 0 ? -1 : 1;
  if (a != a) return x;
  double term = order == 0 ? 1 : a / 2, sum = term;
  if (a < 30) {  // power series with positive terms
    const double z = a * a / 4;
    for (int k = 1; term > sum * 1e-17; ++k) {
      term *= z / (k * (k + order));
      sum += term;
    }
    return sign * sum * std::exp(-a);
  }
  // Hankel's asymptotic series.
  const double mu = 4.0 * order * order;
  term = sum = 1;
  for (int k = 1; k < 20; ++k) {
    term *= -(mu - (2 * k - 1) * (2 * k - 1)) / (8.0 * k * a);
    sum += term;
  }
  return sign * sum / std::sqrt(2 * M_PI * a);
}
inline double bessel_i(int order, double x) {
  const double scaled = scaled_bessel_i(order, x);
  // Multiplies in two steps, because e^x overflows earlier than the result.
  return scaled == 0 && std::isfinite(x) ? scaled
                                         : scaled * std::exp(std::fabs(x) / 2) * std::exp(std::fabs(x) / 2);
}

/// Modified Bessel function of the second kind, times e^x: the integral of e^(-x (cosh t - 1)) cosh(order t)
/// over t > 0 (Watson 6.22) by the trapezoidal rule, which converges like e^(-1/h) for this integrand.
[[gnu::noinline]] inline double scaled_bessel_k(double x, double order) {
  if (!(x >= 0)) return kNan;
  if (x == 0) return kInfinity;
  if (std::isinf(x)) return 0;
  const double h = x < 8 ? 0.2 : 0.6 / std::sqrt(x);
  double sum = 0.5, before = 0;
  for (double t = h; sum != before; t += h) {
    before = sum;
    const double s = std::sinh(t / 2);  // cosh t - 1, without cancellation
    sum += std::exp(-2 * x * s * s) * std::cosh(order * t);
  }
  return sum * h;
}

/// Bessel function of the second kind: -infinity at 0, NaN for negative arguments.
inline double bessel_y(double x, int order) {
  if (x < 0) return kNan;
  return x == 0 ? -kInfinity : order == 0 ? ::y0(x) : ::y1(x);
}

inline double spherical_bessel_j0(double x) {
  if (std::isinf(x)) return 0;
  return x == 0 ? 1 : std::sin(x) / x;
}

/// Airy function Ai. Uses a Bessel function of order 1/3 above 1 (Abramowitz and Stegun 10.4.14), the power
/// series near 0, and the asymptotic series for large negative arguments (10.4.60).
[[gnu::noinline]] inline double airy_ai(double x) {
  if (!std::isfinite(x)) return kNan;
  const double a = std::fabs(x), zeta = 2 * a * std::sqrt(a) / 3;
  if (x > 1) return std::sqrt(a / 3) / M_PI * scaled_bessel_k(zeta, 1.0 / 3) * std::exp(-zeta);
  if (x > -7) {
    double f = 1, g = x, value = 0.35502805388781723926, slope = 0.25881940379280679840;
    double result = value - slope * x;
    for (int k = 3; k < 90; k += 3) {
      f *= x * x * x / (k * (k - 1));
      g *= x * x * x / (k * (k + 1));
      result += value * f - slope * g;
    }
    return result;
  }
  double term = 1, even = 1, odd = 0;
  for (int k = 1; k < 14; ++k) {
    term *= (6 * k - 5) * (6 * k - 1) / (72.0 * k * zeta);
    (k % 2 == 0 ? even : odd) += k % 4 < 2 ? term : -term;
  }
  const double angle = zeta + M_PI / 4;
  return (std::sin(angle) * even - std::cos(angle) * odd) / std::sqrt(M_PI * std::sqrt(a));
}

/// Polynomial families. The first four are the Chebyshev polynomials of the four kinds.
enum Family {
  kChebyshevT,
  kChebyshevU,
  kChebyshevV,
  kChebyshevW,
  kHermiteH,
  kHermiteHe,
  kLaguerre,
  kLegendre
};

/// Value at x of the polynomial of a degree, which is truncated to an integer. Returns 0 for a negative
/// degree. For degrees above a million, only Chebyshev polynomials between -1 and 1 have a value.
[[gnu::noinline]] inline double polynomial(double x, double degree, int family) {
  const double n = std::trunc(degree);
  if (!(n >= 0)) return 0;
  const bool chebyshev = family <= kChebyshevW;
  if (chebyshev && n > 30 && std::fabs(x) < 1) {
    const double angle = std::acos(x), half = angle / 2;
    switch (family) {
      case kChebyshevT:
        return std::cos(n * angle);
      case kChebyshevU:
        return std::sin((n + 1) * angle) / std::sin(angle);
      case kChebyshevV:
        return std::cos((n + 0.5) * angle) / std::cos(half);
      default:
        return std::sin((n + 0.5) * angle) / std::sin(half);
    }
  }
  if (n > 1e6) return kNan;
  const bool doubled = chebyshev || family == kHermiteH;
  const double factor = doubled ? 2 * x : x;
  double before = 1;
  double value = family == kChebyshevT   ? x
                 : family == kChebyshevV ? factor - 1
                 : family == kChebyshevW ? factor + 1
                 : family == kLaguerre   ? 1 - x
                                         : factor;
  if (n == 0) return before;
  for (double k = 1; k < n && value == value; ++k) {
    double next;
    switch (family) {
      case kHermiteH:
        next = factor * value - 2 * k * before;
        break;
      case kHermiteHe:
        next = factor * value - k * before;
        break;
      case kLaguerre:
        next = ((2 * k + 1 - x) * value - k * before) / (k + 1);
        break;
      case kLegendre:
        next = ((2 * k + 1) * x * value - k * before) / (k + 1);
        break;
      default:
        next = factor * value - before;
    }
    before = value;
    value = next;
  }
  return value;
}

/// Regularized lower or upper incomplete gamma function. Uses the series if x < a + 1, otherwise the
/// continued fraction with Lentz's method (Abramowitz and Stegun 6.5.29, 6.5.31).
[[gnu::noinline]] inline double incomplete_gamma(double a, double x, bool upper) {
  if (!(a >= 0) || !(x >= 0)) return kNan;
  if (a == 0) return x > 0 ? (upper ? 0 : 1) : kNan;
  if (x == 0) return upper ? 1 : 0;
  if (std::isinf(a)) return std::isinf(x) ? kNan : upper ? 1 : 0;
  if (std::isinf(x)) return upper ? 0 : 1;
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (double k = a + 1; term > sum * 1e-17 && k < a + 100000; k += 1) {
      term *= x / k;
      sum += term;
    }
    const double lower = sum * front;
    return upper ? 1 - lower : lower;
  }
  constexpr double kTiny = 1e-300;
  double b = x + 1 - a, c = 1 / kTiny, d = 1 / b, fraction = d;
  for (int i = 1; i < 100000; ++i) {
    const double n = -i * (i - a);
    b += 2;
    d = n * d + b;
    c = b + n / c;
    d = 1 / (std::fabs(d) < kTiny ? kTiny : d);
    if (std::fabs(c) < kTiny) c = kTiny;
    fraction *= d * c;
    if (std::fabs(d * c - 1) < 1e-16) break;
  }
  return upper ? fraction * front : 1 - fraction * front;
}

}  // namespace special
}  // namespace TORCHETTE_ISA
}  // namespace torchette
