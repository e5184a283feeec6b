// SPDX-License-Identifier: BSD-3-Clause
// The family of elementwise operators: elementwise.def says what each computes; here is how any of them runs.
#include "torchette/kernels/elementwise.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "torchette/kernels/dims.h"
#include "torchette/kernels/scientific/special.h"
#include "torchette/kernels/strided.h"
#include "torchette/kernels/vecmath.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace torchette {
namespace TORCHETTE_ISA {

// --- The arithmetic that elementwise.def speaks of: float fast, double by the C library, int64_t

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
#define TORCHETTE_WHOLE(name, builtin)                                      \
  static TORCHETTE_INLINE float name(float x) { return std::builtin(x); }   \
  static TORCHETTE_INLINE double name(double x) { return std::builtin(x); } \
  static TORCHETTE_INLINE int64_t name(int64_t x) { return x; }
TORCHETTE_WHOLE(ceil, ceil)
TORCHETTE_WHOLE(floor, floor)
TORCHETTE_WHOLE(trunc, trunc)
TORCHETTE_WHOLE(round, nearbyint)  // ties to even
#undef TORCHETTE_WHOLE

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

/// Special functions are computed in double precision even for floats.
template <typename F, typename T, typename... More>
static TORCHETTE_INLINE T wide(F function, T x, More... more) {
  return static_cast<T>(function(static_cast<double>(x), more...));
}
template <int kOrder>
static double bessel_i(double x) {
  return special::bessel_i(kOrder, x);
}
template <int kOrder>
static double scaled_bessel_i(double x) {
  return special::scaled_bessel_i(kOrder, x);
}

static TORCHETTE_INLINE float erfinv(float x) {
  return static_cast<float>(special::erfinv(static_cast<double>(x), 0));
}
static TORCHETTE_INLINE double erfinv(double x) { return special::erfinv(x, 1); }

/// A constant of x's type.
template <typename T>
static TORCHETTE_INLINE T number(T, int value) {
  return static_cast<T>(value);
}
/// NaN wins.
template <typename T>
static TORCHETTE_INLINE T maximum(T a, T b) {
  return a != a ? a : (a > b ? a : b);
}
template <typename T>
static TORCHETTE_INLINE T minimum(T a, T b) {
  return a != a ? a : (a < b ? a : b);
}
/// NaN stays; the upper bound wins over the lower.
template <typename T>
static TORCHETTE_INLINE T clamp(T x, T low, T high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// Divisors of zero are refused before; the most negative number divided by -1 would trap.
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
/// In double precision the quotient is exact enough to be cut, unless it is very large: `known` becomes false
/// then.
static TORCHETTE_INLINE float remainder_toward_zero(float a, float b, int64_t& known) {
  const double wide = static_cast<double>(a), divisor = static_cast<double>(b);
  const double quotient = std::trunc(wide / divisor);
  const double rest = std::copysign(wide - quotient * divisor, wide);
  known &= ((std::fabs(quotient) < 0x1p27) & (rest == rest)) != 0 ? 1 : 0;
  return static_cast<float>(rest);
}
static TORCHETTE_INLINE float remainder_toward_zero(float a, float b) {
  int64_t known = 1;
  const float rest = remainder_toward_zero(a, b, known);
  return known != 0 ? rest : ::fmodf(a, b);
}
static TORCHETTE_INLINE double remainder_toward_zero(double a, double b) { return ::fmod(a, b); }
template <typename T, typename... Known>
static TORCHETTE_INLINE T remainder_toward_floor(T a, T b, Known&... known) {
  const T r = remainder_toward_zero(a, b, known...);
  return ((r != 0) & ((r < 0) != (b < 0))) != 0 ? r + b : r;
}
template <typename T>
static TORCHETTE_INLINE T quotient_toward_floor(T a, T b) {
  if (b == 0) return a / b;
  const T r = remainder_toward_zero(a, b);
  T q = (a - r) / b;
  if (r != 0 && (r < 0) != (b < 0)) q -= 1;
  if (q == 0) return std::copysign(number(a, 0), a / b);
  const T whole = floor(q);
  return q - whole > static_cast<T>(0.5) ? whole + 1 : whole;
}

static TORCHETTE_INLINE float quotient_toward_floor(float a, float b, int64_t& known) {
  const float r = remainder_toward_zero(a, b, known), cut = (a - r) / b;
  const float q = ((r != 0) & ((r < 0) != (b < 0))) != 0 ? cut - 1.0f : cut, whole = floor(q);
  return q == 0 ? std::copysign(0.0f, a / b) : q - whole > 0.5f ? whole + 1.0f : whole;
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

/// The angle to the nearer axis, then to the right: without branches.
static TORCHETTE_INLINE float atan2(float a, float b) {
  const float y = abs_f(a), x = abs_f(b), longer = y > x ? y : x, shorter = y > x ? x : y;
  const float quotient = shorter == longer ? 1.0f : shorter / longer;  // of infinities, too
  const float near = atan_f(longer == 0 ? 0.0f : quotient), right = y > x ? 1.57079633f - near : near;
  const float angle = std::signbit(b) ? 3.14159265f - right : right;
  return ((a != a) | (b != b)) != 0 ? a + b : with_sign_of(angle, a);
}
static TORCHETTE_INLINE double atan2(double a, double b) { return ::atan2(a, b); }

static TORCHETTE_INLINE float copysign(float a, float b) { return std::copysign(a, b); }
static TORCHETTE_INLINE double copysign(double a, double b) { return std::copysign(a, b); }
// No square overflows where the result does not; of an infinite number and none at all the result is
// infinite.
static TORCHETTE_INLINE float hypot(float a, float b) {
  const auto length = static_cast<float>(sqrt(double(a) * a + double(b) * b));
  const float infinity = INFINITY;
  const bool endless_a = abs(a) == infinity, endless_b = abs(b) == infinity;
  return (endless_a | endless_b) != 0 ? infinity : length;
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
    const int64_t rest = remainder_toward_zero(a, b);
    a = b;
    b = rest;
  }
  return abs(a);
}
static TORCHETTE_INLINE int64_t lcm(int64_t a, int64_t b) {
  const int64_t divisor = gcd(a, b);
  if (divisor == 0) return 0;
  return abs(static_cast<int64_t>(static_cast<uint64_t>(quotient_toward_zero(a, divisor)) *
                                  static_cast<uint64_t>(b)));
}

// A shift beyond the width shifts everything out.
static TORCHETTE_INLINE int64_t shifted_left(int64_t a, int64_t b) {
  return b < 0 || b > 63 ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << b);
}
static TORCHETTE_INLINE int64_t shifted_right(int64_t a, int64_t b) {
  return a >> (b < 0 || b > 63 ? 63 : b);
}

// --- Chunks

template <typename Op, typename T, typename R>
static TORCHETTE_INLINE void each(const void* const* in, void* out, size_t n) {
  const T* a = static_cast<const T*>(in[0]);
  const T* b = static_cast<const T*>(Op::kArity > 1 ? in[1] : in[0]);
  const T* c = static_cast<const T*>(Op::kArity > 2 ? in[2] : in[0]);
  const T* d = static_cast<const T*>(Op::kArity > 3 ? in[3] : in[0]);
  R* y = static_cast<R*>(out);
  TORCHETTE_IVDEP
  for (size_t i = 0; i < n; ++i) y[i] = static_cast<R>(Op::of(a[i], b[i], c[i], d[i]));
}
template <typename Op, typename T, typename R>
static void chunk(const void* const* in, void* out, size_t n) {
  each<Op, T, R>(in, out, n);
}
// All levels have these from the lowest, which is built for size.
template <typename Op, typename T, typename R>
TORCHETTE_FOR_SPEED static void scalar_chunk(const void* const* in, void* out, size_t n) {
  each<Op, T, R>(in, out, n);
}

template <typename Fast, typename Exact>
static TORCHETTE_INLINE void angles(const float* x, float* y, size_t n, Fast fast, Exact exact) {
  float largest = 0;
  for (size_t i = 0; i < n; ++i) largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
  if (largest <= kMaxAngle) {
    TORCHETTE_IVDEP
    for (size_t i = 0; i < n; ++i) y[i] = fast(x[i]);
  } else {
    for (size_t i = 0; i < n; ++i) y[i] = exact(x[i]);
  }
}

/// Without branches where the quotients allow it. Results wait in `found`, since they may overwrite operands.
template <typename Fast, typename Exact>
static TORCHETTE_INLINE void remainders(const float* a, const float* b, float* y, size_t n, Fast fast,
                                        Exact exact) {
  float found[kChunk];
  int64_t known = 1;
  for (size_t i = 0; i < n; ++i) found[i] = fast(a[i], b[i], known);
  if (known != 0) {
    for (size_t i = 0; i < n; ++i) y[i] = found[i];
  } else {
    for (size_t i = 0; i < n; ++i) y[i] = exact(a[i], b[i]);
  }
}

/// The chunk of an operator for a compute type, or null where it has no meaning.
template <typename Op, typename T, bool exists>
struct ChunkOf {
  using R = std::conditional_t<Op::kResult == Result::Bool || std::is_same_v<T, uint8_t>, bool, T>;
  static constexpr Chunk value = std::is_same_v<T, float> ? &chunk<Op, T, R> : &scalar_chunk<Op, T, R>;
};
template <typename Op, typename T>
struct ChunkOf<Op, T, false> {
  static constexpr Chunk value = nullptr;
};
/// Logic on bools needs no conversion: bytes that are 0 or 1 give such bytes.
template <typename Op>
static constexpr bool kIsLogic = Op::kIntegers && (Op::kResult == Result::Bool || !Op::kFloats);
// A build for several levels names the lowest in TORCHETTE_LOWEST, and that is told by TORCHETTE_IS_LOWEST.
#ifndef TORCHETTE_LOWEST
template <typename Op>
static constexpr ScalarChunks scalar_chunks_of() {
  return {ChunkOf < Op, double,  Op::kFloats && computes_in<double>() > ::value,
          ChunkOf < Op, int64_t, Op::kIntegers && computes_in<int64_t>() > ::value,
          ChunkOf < Op, uint8_t, kIsLogic<Op> && has_dtype(ScalarType::Bool) > ::value};
}
#ifdef TORCHETTE_IS_LOWEST
#define TORCHETTE_SCALAR_CHUNKS(name)      \
  extern const ScalarChunks name##_chunks; \
  const ScalarChunks name##_chunks = scalar_chunks_of<name##_op>();
#else
#define TORCHETTE_SCALAR_CHUNKS(name) \
  static constexpr ScalarChunks name##_chunks = scalar_chunks_of<name##_op>();
#endif
#else  // the level that has them
#define TORCHETTE_SCALAR_CHUNKS(name)      \
  }                                        \
  namespace TORCHETTE_LOWEST {             \
  extern const ScalarChunks name##_chunks; \
  }                                        \
  namespace TORCHETTE_ISA {                \
  using TORCHETTE_LOWEST::name##_chunks;
#endif
template <typename Op>
static constexpr Elementwise elementwise_of(const ScalarChunks& scalar, bool selects = false,
                                            bool divides = false) {
  return {ChunkOf < Op, float,      Op::kFloats && computes_in<float>() > ::value,
          &scalar,      Op::kArity, Op::kResult,
          selects,      divides};
}

#define TORCHETTE_ARITHMETIC(name, arity, result, floats, integers, expression) \
  struct name##_op {                                                            \
    static constexpr uint8_t kArity = arity;                                    \
    static constexpr Result kResult = Result::result;                           \
    static constexpr bool kFloats = floats, kIntegers = integers;               \
    template <typename T>                                                       \
    static TORCHETTE_INLINE auto of(T a, T b, T c, T d) {                       \
      [[maybe_unused]] const T x = a;                                           \
      (void)b, (void)c, (void)d;                                                \
      return expression;                                                        \
    }                                                                           \
  };
#define TORCHETTE_OP(name, arity, result, floats, integers, selects, divides, expression) \
  TORCHETTE_ARITHMETIC(name, arity, result, floats, integers, expression)                 \
  TORCHETTE_SCALAR_CHUNKS(name)                                                           \
  static constexpr Elementwise name##_parts = elementwise_of<name##_op>(name##_chunks, selects, divides);
// A chunk with an angle that the fast reduction cannot do is left to the C library.
#define ANGLE(name, expression)                                                     \
  TORCHETTE_ARITHMETIC(name, 1, Float, true, false, expression)                     \
  template <>                                                                       \
  void chunk<name##_op, float, float>(const void* const* in, void* out, size_t n) { \
    for (size_t i = 0, m; i < n; i += m) {                                          \
      m = n - i < kChunk ? n - i : kChunk;                                          \
      angles(                                                                       \
          static_cast<const float*>(in[0]) + i, static_cast<float*>(out) + i, m,    \
          [](float x) TORCHETTE_INLINED { return name(x); },                        \
          [](float x) TORCHETTE_INLINED { return std::name(x); });                  \
    }                                                                               \
  }                                                                                 \
  TORCHETTE_SCALAR_CHUNKS(name)                                                     \
  static constexpr Elementwise name##_parts = elementwise_of<name##_op>(name##_chunks);
// Floats go in such chunks as `remainders` takes.
#define DIVIDE(name, function)                                                                      \
  TORCHETTE_ARITHMETIC(name, 2, Same, true, true, function(a, b))                                   \
  template <>                                                                                       \
  void chunk<name##_op, float, float>(const void* const* in, void* out, size_t n) {                 \
    for (size_t i = 0, m; i < n; i += m) {                                                          \
      m = n - i < kChunk ? n - i : kChunk;                                                          \
      remainders(                                                                                   \
          static_cast<const float*>(in[0]) + i, static_cast<const float*>(in[1]) + i,               \
          static_cast<float*>(out) + i, m,                                                          \
          [](float a, float b, int64_t& known) TORCHETTE_INLINED { return function(a, b, known); }, \
          [](float a, float b) TORCHETTE_INLINED { return function(a, b); });                       \
    }                                                                                               \
  }                                                                                                 \
  TORCHETTE_SCALAR_CHUNKS(name)                                                                     \
  static constexpr Elementwise name##_parts = elementwise_of<name##_op>(name##_chunks, false, true);
#define FLOAT(name, expression) TORCHETTE_OP(name, 1, Float, true, false, false, false, expression)
#define SAME(name, expression) TORCHETTE_OP(name, 1, Same, true, true, false, false, expression)
#define TEST(name, expression) TORCHETTE_OP(name, 1, Bool, true, true, false, false, expression)
#define BINARY(name, expression) TORCHETTE_OP(name, 2, Same, true, true, false, false, expression)
#define REAL(name, expression) TORCHETTE_OP(name, 2, Float, true, false, false, false, expression)
#define WHOLE(name, expression) TORCHETTE_OP(name, 2, Same, false, true, false, false, expression)
#define LOGICAL(name, expression) TORCHETTE_OP(name, 2, Bool, true, true, false, false, expression)
#define COMPARE(name, expression) TORCHETTE_OP(name, 2, Bool, true, true, false, false, expression)
#define BITWISE(name, expression) TORCHETTE_OP(name, 2, Same, false, true, false, false, expression)
#define PART(name, arity, result, expression) \
  TORCHETTE_OP(name, arity, result, true, Result::result != Result::Float, false, false, expression)
#include "torchette/kernels/elementwise.def"
DIVIDE(div_floor, quotient_toward_floor)
TORCHETTE_OP(div_trunc, 2, Same, true, true, false, true, quotient_toward_zero(a, b))
TORCHETTE_OP(where, 3, Same, true, true, true, false, a != 0 ? b : c)
TORCHETTE_OP(bitwise_not, 1, Same, false, true, false, false, ~x)
TORCHETTE_OP(gelu, 1, Same, true, false, false, false, gelu(x))
TORCHETTE_OP(gelu_tanh, 1, Same, true, false, false, false, gelu_tanh(x))
TORCHETTE_OP(leaky_relu, 2, Same, true, false, false, false, a < 0 ? a * b : a)
TORCHETTE_OP(elu, 4, Same, true, false, false, false, a < 0 ? expm1(a * d) * b * c : a * c)
TORCHETTE_OP(shift_left, 2, Same, false, true, false, false, shifted_left(a, b))
TORCHETTE_OP(shift_right, 2, Same, false, true, false, false, shifted_right(a, b))
#undef FLOAT
#undef ANGLE
#undef SAME
#undef TEST
#undef BINARY
#undef REAL
#undef WHOLE
#undef LOGICAL
#undef COMPARE
#undef BITWISE
#undef DIVIDE
#undef PART

// --- Conversion between the types of tensors and the three compute types

/// A bool of a tensor, whose byte may be anything when the file is hostile: to read that as bool is
/// undefined.
struct Truth {
  uint8_t byte;
};

template <typename To, typename From>
static TORCHETTE_INLINE To convert(From x) {
  if constexpr (std::is_same_v<From, Truth>) {
    return static_cast<To>(x.byte != 0);
  } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return convert<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != 0;
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    return To(static_cast<float>(x));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To> && sizeof(To) < 4) {
    return static_cast<To>(convert<int32_t>(x));  // wraps around as eager's does
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // What does not fit, NaN too, becomes the least one, as eager's does on x86-64, and not undefined.
    constexpr From kBound = sizeof(To) == 4 ? static_cast<From>(0x1p31) : static_cast<From>(0x1p63);
    return x >= -kBound && x < kBound ? static_cast<To>(x) : std::numeric_limits<To>::min();
  } else {
    return static_cast<To>(x);
  }
}

template <typename From, typename To>
static void convert_run(const void* src, ptrdiff_t stride, void* dst, size_t n) {
  const From* from = static_cast<const From*>(src);
  To* to = static_cast<To*>(dst);
  if (stride == 1) {
#ifdef __F16C__
    for (; std::is_same_v<From, Half> && std::is_same_v<To, float> && n >= 8; from += 8, to += 8, n -= 8)
      _mm256_storeu_ps(reinterpret_cast<float*>(to),
                       _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    for (; std::is_same_v<From, float> && std::is_same_v<To, Half> && n >= 8; from += 8, to += 8, n -= 8)
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(to),
          _mm256_cvtps_ph(_mm256_loadu_ps(reinterpret_cast<const float*>(from)), _MM_FROUND_TO_NEAREST_INT));
#endif
    TORCHETTE_IVDEP
    for (size_t i = 0; i < n; ++i) to[i] = convert<To>(from[i]);
  } else if (stride == 0) {
    const To value = convert<To>(*from);
    for (size_t i = 0; i < n; ++i) {
      vectorize_float_only<From, To>();
      to[i] = value;
    }
  } else {
    for (size_t i = 0; i < n; ++i) {
      vectorize_float_only<>();
      to[i] = convert<To>(from[static_cast<ptrdiff_t>(i) * stride]);
    }
  }
}
/// What numbers are computed in is there in any build.
template <typename T>
static constexpr bool kBuilt = has_dtype(kScalarType<T>) || std::is_same_v<T, float> ||
                               std::is_same_v<T, double> || std::is_same_v<T, int64_t>;
template <>
constexpr bool kBuilt<Truth> = kBuilt<bool>;

template <typename From, typename To>
static constexpr Convert conversion() {
  if constexpr (kBuilt<From> && kBuilt<To>)
    return &convert_run<From, To>;
  else
    return nullptr;
}
#define TORCHETTE_REAL_TYPES(X, Bool) \
  X(uint8_t) X(int8_t) X(int16_t) X(int32_t) X(int64_t) X(Half) X(float) X(double) X(Bool) X(BFloat16)
// From a type to floats, doubles and int64, and back. Floats and indices gain from wide vectors.
#ifndef TORCHETTE_LOWEST
#define TORCHETTE_LOAD(T) {conversion<T, float>(), conversion<T, double>(), conversion<T, int64_t>()},
#define TORCHETTE_STORE(T) {conversion<float, T>(), conversion<double, T>(), conversion<int64_t, T>()},
#else
#define TORCHETTE_LOAD(T) {conversion<T, float>()},
#define TORCHETTE_STORE(T) {conversion<float, T>()},
#endif
static constexpr Convert kLoad[][3] = {TORCHETTE_REAL_TYPES(TORCHETTE_LOAD, Truth)};
static constexpr Convert kStore[][3] = {TORCHETTE_REAL_TYPES(TORCHETTE_STORE, bool)};
#undef TORCHETTE_LOAD
#undef TORCHETTE_STORE

TORCHETTE_INLINE static size_t row_of(ScalarType t) {
  return t == ScalarType::Bool ? 8 : t == ScalarType::BFloat16 ? 9 : static_cast<size_t>(t);
}

#ifdef TORCHETTE_LOWEST
}
namespace TORCHETTE_LOWEST {
Convert load_as(ScalarType from, Compute to);
Convert store_as(Compute from, ScalarType to);
}  // namespace TORCHETTE_LOWEST
namespace TORCHETTE_ISA {
Convert load_as(ScalarType from, Compute to) {
  if (to == kI64 && from == ScalarType::Int) return conversion<int32_t, int64_t>();
  return to == kF32 ? kLoad[row_of(from)][kF32] : TORCHETTE_LOWEST::load_as(from, to);
}
Convert store_as(Compute from, ScalarType to) {
  if (from == kI64 && to == ScalarType::Int) return conversion<int64_t, int32_t>();
  if (from == kF64 && to == ScalarType::Float) return conversion<double, float>();
  return from == kF32 ? kStore[row_of(to)][kF32] : TORCHETTE_LOWEST::store_as(from, to);
}
#else
Convert load_as(ScalarType from, Compute to) { return kLoad[row_of(from)][to]; }
Convert store_as(Compute from, ScalarType to) { return kStore[row_of(to)][from]; }
#endif

// --- Types

/// Undefined is the neutral element.
static ScalarType promote(ScalarType a, ScalarType b) {
  if (a == b || b == ScalarType::Undefined) return a;
  if (a == ScalarType::Undefined) return b;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_floating(a)) {
    if (a == ScalarType::Double || b == ScalarType::Double) return ScalarType::Double;
    return ScalarType::Float;  // also what Half and BFloat16 give
  }
  if (a == ScalarType::Bool) return b;
  if (b == ScalarType::Bool) return a;
  if (a == ScalarType::Byte || b == ScalarType::Byte) {
    const ScalarType other = a == ScalarType::Byte ? b : a;
    return other == ScalarType::Char ? ScalarType::Short : other;
  }
  return static_cast<int8_t>(a) > static_cast<int8_t>(b) ? a : b;
}

ScalarType promote_operands(const Operand* in, size_t count) {
  ScalarType numbers = ScalarType::Undefined, points = ScalarType::Undefined, tensors = ScalarType::Undefined;
  for (size_t i = 0; i < count; ++i) {
    if (!in[i].is_tensor) {
      numbers = promote(numbers, in[i].scalar.is_floating() ? ScalarType::Float
                                 : in[i].scalar.is_bool()   ? ScalarType::Bool
                                                            : ScalarType::Long);
    } else {
      ScalarType& category = in[i].tensor.dim() == 0 ? points : tensors;
      category = promote(category, in[i].tensor.scalar_type());
    }
  }
  const auto ranked = [](ScalarType higher, ScalarType lower) {
    if (higher == ScalarType::Undefined) return lower;
    if (is_floating(higher)) return higher;
    if (higher == ScalarType::Bool || is_floating(lower)) return promote(higher, lower);
    return higher;
  };
  return ranked(ranked(tensors, points), numbers);
}

// --- The driver

/// Of tensors of one rank: same sizes, same place of every element.
static TORCHETTE_INLINE bool same_geometry(const Tensor& a, const Tensor& b) {
  for (size_t d = 0; d < static_cast<size_t>(a.dim()); ++d)
    if (a.sizes()[d] != b.sizes()[d] || a.strides()[d] != b.strides()[d]) return false;
  return true;
}
/// No gaps, so that the elements are one run, in whatever order.
static TORCHETTE_INLINE bool is_one_run(const Tensor& t) {
  int64_t last = 0;
  for (size_t d = 0; d < static_cast<size_t>(t.dim()); ++d) {
    vectorize_float_only<>();
    last += static_cast<int64_t>(t.sizes()[d] - 1) * t.strides()[d];
  }
  return last == t.numel() - 1 || t.numel() == 0;
}

/// The number of an operand among the operator's arguments.
static size_t argument_of(const Operand* in, size_t k) {
  return in[k].argument >= 0 ? static_cast<size_t>(in[k].argument) : k;
}

static Error broadcast_sizes(const Operand* in, size_t count, SizesType* sizes, size_t& dim) {
  dim = 0;
  for (size_t k = 0; k < count; ++k)
    if (in[k].is_tensor && static_cast<size_t>(in[k].tensor.dim()) > dim)
      dim = static_cast<size_t>(in[k].tensor.dim());
  for (size_t d = 0; d < dim; ++d) sizes[d] = 1;
  for (size_t k = 0; k < count; ++k) {
    if (!in[k].is_tensor) continue;
    const Span<const SizesType> from = in[k].tensor.sizes();
    SizesType* to = sizes + (dim - from.size());
    for (size_t d = 0; d < from.size(); ++d) {
      if (from[d] == to[d] || from[d] == 1) continue;
      TORCHETTE_CHECK(to[d] == 1, InvalidArgument,
                      "argument %zu has size %d in dimension %zu, which does not broadcast to %d",
                      argument_of(in, k), from[d], d, to[d]);
      to[d] = from[d];
    }
  }
  return Error::Ok;
}

/// One operand on its way through the loops.
struct Stream {
  const char* data;
  size_t element;  // bytes
  Convert load;
  bool same_type;  // is of the compute type
  bool constant;   // one number for all elements, already in the buffer
  bool linear;     // element i of the walk is element i of the memory
  char* buffer;
  const char* spread;  // the number that fills the whole buffer, where the innermost stride is 0
  ptrdiff_t stride[kMaxDim];
};

/// Fills the buffer of `s` with elements i to i + n of the walk.
static void gather(const Stream& s, const Loops& loops, size_t compute_bytes, size_t i, size_t n) {
  size_t at[kMaxDim];
  ptrdiff_t offset = 0;
  size_t rest = i;
  for (size_t d = loops.dim; d-- > 0;) {
    at[d] = rest % loops.size[d];
    rest /= loops.size[d];
    offset += static_cast<ptrdiff_t>(at[d]) * s.stride[d];
  }
  const size_t inner = loops.dim - 1;
  char* to = s.buffer;
  for (;;) {
    const size_t run = n < loops.size[inner] - at[inner] ? n : loops.size[inner] - at[inner];
    s.load(s.data + offset * static_cast<ptrdiff_t>(s.element), s.stride[inner], to, run);
    n -= run;
    if (n == 0) return;
    to += run * compute_bytes;
    offset -= static_cast<ptrdiff_t>(at[inner]) * s.stride[inner];
    at[inner] = 0;
    for (size_t d = inner; d-- > 0;) {
      offset += s.stride[d];
      if (++at[d] < loops.size[d]) break;
      offset -= static_cast<ptrdiff_t>(at[d]) * s.stride[d];
      at[d] = 0;
    }
  }
}

/// What is worth a thread of its own: some 10 microseconds of an addition.
constexpr size_t kLeastElements = size_t{1} << 16;

/// Calls `body(begin, end)` for parts of [0, total) that begin at multiples of `unit`: some operators choose
/// their way chunk by chunk, and the chunks are then the same on any number of threads.
template <typename Body>
static void in_parts(Context& context, size_t total, size_t unit, const Body& body) {
  context.parallel_for(
      (total + unit - 1) / unit, (kLeastElements + unit - 1) / unit,
      [&](size_t begin, size_t end, size_t) { body(begin * unit, end * unit < total ? end * unit : total); });
}

/// The loops over elements of `out`, as walk() has prepared them.
struct ElementLoops {
  const Elementwise& op;
  Chunk chunk;
  Compute compute;
  const Operand* in;
  Loops loops;
  Stream streams[kMaxOperands];  // all but their buffers
  size_t total;
  bool chunked, by_rows, long_rows;
  Convert store;  // where out is of another type than the results; of bools as int64
  char* to;
  size_t element;  // bytes of one of `out`

  /// Computes elements [begin, end). False where a whole number is divided by zero.
  bool part(size_t begin, size_t end) const;
};

/// `out` has the broadcast sizes. The operands are read in compute type `compute`. Without a context on the
/// thread that calls.
static Error walk(Context* context, const Elementwise& op, Chunk chunk, Compute compute, const Operand* in,
                  const Tensor& out) {
  if (out.numel() == 0) return Error::Ok;
  ElementLoops w = {op,
                    chunk,
                    compute,
                    in,
                    {},
                    {},
                    static_cast<size_t>(out.numel()),
                    false,
                    false,
                    false,
                    nullptr,
                    static_cast<char*>(out.mutable_data_ptr()),
                    element_size(out.scalar_type())};
  Loops& loops = w.loops;
  Stream* const streams = w.streams;
  loops.dim = 0;
  // from the outermost dimension of `out` to the innermost, so that `out` is written as one run
  const auto rank = static_cast<size_t>(out.dim());
  const ScalarType result = op.result == Result::Bool ? ScalarType::Bool : scalar_type_of(compute);
  const bool converts_out = out.scalar_type() != result;
  if (converts_out) w.store = store_as(op.result == Result::Bool ? kI64 : compute, out.scalar_type());
  TORCHETTE_CHECK(is_one_run(out), NotSupported, "out has gaps between its elements");

  for (size_t i = 0; i < rank; ++i) {
    const size_t d = out.dim_order()[i];
    const auto size = static_cast<size_t>(out.size(static_cast<ptrdiff_t>(d)));
    if (size == 1) continue;
    ptrdiff_t stride[kMaxOperands];
    bool merges = loops.dim > 0;
    for (size_t k = 0; k < op.arity; ++k) {
      stride[k] = 0;
      if (in[k].is_tensor) {
        const size_t missing = rank - static_cast<size_t>(in[k].tensor.dim());
        if (d >= missing && in[k].tensor.sizes()[d - missing] != 1)
          stride[k] = in[k].tensor.strides()[d - missing];
      }
      if (merges && streams[k].stride[loops.dim - 1] != stride[k] * static_cast<ptrdiff_t>(size))
        merges = false;
    }
    if (merges) {
      loops.size[loops.dim - 1] *= size;
    } else {
      loops.size[loops.dim++] = size;
    }
    for (size_t k = 0; k < op.arity; ++k) streams[k].stride[loops.dim - 1] = stride[k];
  }
  if (loops.dim == 0) {
    loops.size[loops.dim++] = 1;
    for (size_t k = 0; k < op.arity; ++k) streams[k].stride[0] = 0;
  }

  w.chunked = converts_out;
  for (size_t k = 0; k < op.arity; ++k) {
    Stream& s = streams[k];
    s.constant = true;
    s.linear = true;
    ptrdiff_t dense = 1;
    for (size_t d = loops.dim; d-- > 0;) {
      if (s.stride[d] != 0) s.constant = false;
      if (s.stride[d] != dense) s.linear = false;
      dense *= static_cast<ptrdiff_t>(loops.size[d]);
    }
    if (in[k].is_tensor) {
      const ScalarType type = in[k].tensor.scalar_type();
      s.data = static_cast<const char*>(in[k].tensor.const_data_ptr());
      s.element = element_size(type);
      s.load = load_as(type, compute);
      s.same_type = type == scalar_type_of(compute);
    }
    if (s.constant || !s.same_type) w.chunked = true;
    if (!s.constant && !s.linear) w.by_rows = true;
  }
  w.long_rows = loops.size[loops.dim - 1] >= kChunk / 4;

  bool divided = true;
  if (context == nullptr || w.total < 2 * kLeastElements)
    divided = w.part(0, w.total);
  else
    in_parts(*context, w.total, w.by_rows && w.long_rows ? loops.size[loops.dim - 1] : kChunk,
             [&](size_t begin, size_t end) {
               if (!w.part(begin, end)) __atomic_store_n(&divided, false, __ATOMIC_RELAXED);
             });
  TORCHETTE_CHECK(divided, InvalidArgument, "other: a whole number is divided by zero");
  return Error::Ok;
}

bool ElementLoops::part(size_t begin, size_t end) const {
  alignas(64) char buffers[kMaxOperands + 2][kChunk * 8];
  Stream own[kMaxOperands];
  const size_t bytes = compute_size(compute);
  const size_t spread = end - begin < kChunk ? end - begin : kChunk;  // of an operand that is one number
  for (size_t k = 0; k < op.arity; ++k) {
    Stream& s = own[k];
    s = streams[k];
    s.buffer = buffers[k];
    s.spread = nullptr;
    if (in[k].is_tensor) {
      if (s.constant) s.load(s.data, 0, s.buffer, spread);
    } else {
      const double wide = in[k].scalar.to_double();
      const int64_t whole = in[k].scalar.to_int();
      if (compute == kI64)
        convert_run<int64_t, int64_t>(&whole, 0, s.buffer, spread);
      else
        load_as(ScalarType::Double, compute)(&wide, 0, s.buffer, spread);
    }
  }

  const size_t row = loops.size[loops.dim - 1];
  for (size_t i = begin, n; i < end; i += n) {
    n = end - i;
    if (by_rows) {
      if (long_rows) {
        const size_t left = row - i % row;
        n = n < left ? n : left;
      }
      if (!chunked) {
        // a row that is not one run in some operand needs that operand's buffer
        for (size_t k = 0; k < op.arity; ++k)
          if (!own[k].linear && (!long_rows || own[k].stride[loops.dim - 1] != 1) && n > kChunk) n = kChunk;
      }
    }
    if (chunked && n > kChunk) n = kChunk;
    const void* from[kMaxOperands];
    for (size_t k = 0; k < op.arity; ++k) {
      Stream& s = own[k];
      from[k] = s.buffer;
      if (s.constant) continue;
      if (s.linear) {
        const char* p = s.data + i * s.element;
        if (s.same_type)
          from[k] = p;
        else
          s.load(p, 1, s.buffer, n);
      } else if (long_rows &&
                 (s.stride[loops.dim - 1] == 0 || (s.same_type && s.stride[loops.dim - 1] == 1))) {
        ptrdiff_t offset = 0;
        size_t rest = i;
        for (size_t d = loops.dim; d-- > 0; rest /= loops.size[d])
          offset += static_cast<ptrdiff_t>(rest % loops.size[d]) * s.stride[d];
        const char* p = s.data + offset * static_cast<ptrdiff_t>(s.element);
        if (s.stride[loops.dim - 1] == 1) {
          from[k] = p;
        } else if (s.spread != p) {
          s.load(p, 0, s.buffer, kChunk < row ? kChunk : row);
          s.spread = p;
        }
      } else {
        gather(s, loops, bytes, i, n);
      }
    }
    if (op.divides && compute == kI64) {
      const int64_t* divisor = static_cast<const int64_t*>(from[1]);
      bool zero = false;
      for (size_t j = 0; j < n; ++j) zero = zero || divisor[j] == 0;
      if (zero) return false;
    }
    if (store == nullptr) {
      chunk(from, to + i * element, n);
    } else {
      chunk(from, buffers[kMaxOperands], n);
      const char* results = buffers[kMaxOperands];
      if (op.result == Result::Bool) {
        convert_run<Truth, int64_t>(results, 1, buffers[kMaxOperands + 1], n);
        results = buffers[kMaxOperands + 1];
      }
      store(results, 1, to + i * element, n);
    }
  }
  return true;
}

Error run_elementwise(Context& context, const Elementwise& op, const Operand* in, const Tensor& out) {
  for (size_t k = 0; k < op.arity; ++k)
    TORCHETTE_CHECK(!in[k].is_tensor || is_real(in[k].tensor.scalar_type()), InvalidType,
                    "argument %zu is of type %d, which is not supported", argument_of(in, k),
                    static_cast<int>(in[k].tensor.scalar_type()));
  TORCHETTE_CHECK(is_real(out.scalar_type()), InvalidType, "out is of type %d, which is not supported",
                  static_cast<int>(out.scalar_type()));
  const size_t skipped = op.selects ? 1 : 0;
  ScalarType type = promote_operands(in + skipped, op.arity - skipped);
  if (op.result == Result::Float && !is_floating(type)) type = ScalarType::Float;
  const Compute compute = compute_type(type);
  const Chunk chunk = compute == kF32 ? op.f32 : compute == kF64 ? op.scalar->f64 : op.scalar->i64;
  TORCHETTE_CHECK(chunk != nullptr, InvalidType, "argument %zu: the operator has no meaning for type %d",
                  argument_of(in, skipped), static_cast<int>(type));
  const ScalarType result = op.result == Result::Bool ? ScalarType::Bool : type;
  TORCHETTE_CHECK(can_cast(result, out.scalar_type()), InvalidType,
                  "out: a result of type %d cannot be cast to type %d", static_cast<int>(result),
                  static_cast<int>(out.scalar_type()));

  SizesType sizes[kMaxDim];
  size_t dim;
  TORCHETTE_TRY(broadcast_sizes(in, op.arity, sizes, dim));
  TORCHETTE_TRY(resize_result(out, {sizes, dim}));
  return walk(&context, op, chunk, compute, in, out);
}

Error assign(const Tensor& in, const Tensor& out) {
  TORCHETTE_CHECK(is_real(in.scalar_type()) && is_real(out.scalar_type()), InvalidType,
                  "self, input, A or out: elements of type %d cannot be copied to type %d",
                  static_cast<int>(in.scalar_type()), static_cast<int>(out.scalar_type()));
  const auto dim = static_cast<size_t>(out.dim());
  bool fits = in.dim() <= out.dim();
  for (size_t d = 0; fits && d < static_cast<size_t>(in.dim()); ++d) {
    const SizesType to = out.sizes()[dim - static_cast<size_t>(in.dim()) + d];
    fits = in.sizes()[d] == to || in.sizes()[d] == 1;
  }
  TORCHETTE_CHECK(fits, InvalidArgument, "src does not broadcast to the sizes of self");
  if (in.scalar_type() == out.scalar_type()) {
    if (in.const_data_ptr() == out.const_data_ptr()) return Error::Ok;  // an alias of itself
    Move nest;
    const size_t missing = dim - static_cast<size_t>(in.dim());
    for (size_t d = 0; d < dim; ++d) {
      const bool there = d >= missing && in.sizes()[d - missing] != 1;
      nest.add(static_cast<size_t>(out.sizes()[d]), out.strides()[d], there ? in.strides()[d - missing] : 0);
    }
    move(nest, out.mutable_data_ptr(), in.const_data_ptr(), element_size(in.scalar_type()));
    return Error::Ok;
  }
  // whole numbers go to floats of 32 and 16 bits by floats of 32, as torch's do
  const Compute compute = compute_type(out.scalar_type()) == kF32 && in.scalar_type() != ScalarType::Double
                              ? kF32
                              : compute_type(in.scalar_type());
  bool alike = in.dim() == out.dim() && is_one_run(out);
  for (size_t d = 0; alike && d < dim; ++d)
    alike = in.sizes()[d] == out.sizes()[d] && in.strides()[d] == out.strides()[d];
  const Convert whole = !alike                                         ? nullptr
                        : scalar_type_of(compute) == in.scalar_type()  ? store_as(compute, out.scalar_type())
                        : scalar_type_of(compute) == out.scalar_type() ? load_as(in.scalar_type(), compute)
                                                                       : nullptr;
  if (whole != nullptr) {
    whole(in.const_data_ptr(), 1, out.mutable_data_ptr(), static_cast<size_t>(out.numel()));
    return Error::Ok;
  }
  const Operand operands[] = {in, out};
  return walk(nullptr, copy_parts,
              compute == kF32   ? copy_parts.f32
              : compute == kF64 ? copy_parts.scalar->f64
                                : copy_parts.scalar->i64,
              compute, operands, out);
}

Error fill(const Tensor& out, const Scalar& value) {
  TORCHETTE_CHECK(is_real(out.scalar_type()) && is_one_run(out), InvalidType,
                  "out is of type %d or has gaps, it cannot be filled", static_cast<int>(out.scalar_type()));
  const double wide = value.to_double();
  const int64_t whole = value.is_floating() ? 0 : value.to_int();
  if (value.is_floating())
    store_as(kF64, out.scalar_type())(&wide, 0, out.mutable_data_ptr(), static_cast<size_t>(out.numel()));
  else
    store_as(kI64, out.scalar_type())(&whole, 0, out.mutable_data_ptr(), static_cast<size_t>(out.numel()));
  return Error::Ok;
}

// --- Kernels

#define FLOAT(name, expression)                                             \
  static Error name##_out(Context& context, const Tensor& x, Tensor& out) { \
    return run(context, name##_parts, out, x);                              \
  }
#define ANGLE FLOAT
#define SAME FLOAT
#define TEST FLOAT
#define BINARY(name, expression)                                                             \
  static Error name##_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) { \
    return run(context, name##_parts, out, a, b);                                            \
  }
#define REAL BINARY
#define WHOLE BINARY
#define LOGICAL BINARY
#define COMPARE(name, expression)                                                                   \
  BINARY(name, expression)                                                                          \
  static Error name##_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) { \
    return run(context, name##_parts, out, a, b);                                                   \
  }
#define BITWISE COMPARE
#define DIVIDE COMPARE
#define PART(name, arity, result, expression)

template <typename... In>
static TORCHETTE_INLINE Error run(Context& context, const Elementwise& op, const Tensor& out,
                                  const In&... in) {
  const Operand operands[] = {in...};
  return run_elementwise(context, op, operands, out);
}
/// The general way of two tensors, apart so that its stack is not that of the short way.
[[gnu::noinline]] static Error run_any(Context& context, const Elementwise& op, Tensor out, Tensor a,
                                       Tensor b) {
  const Operand operands[] = {a, b};
  return run_elementwise(context, op, operands, out);
}
/// What most calls are takes the short way: floats, or bools, of the same sizes with every element in the
/// same place. For tiny tensors these checks are what the call costs, so that sizes and strides of single
/// elements are not even fetched.
[[gnu::noinline]] static Error run(Context& context, const Elementwise& op, Tensor out, Tensor a, Tensor b) {
  const ScalarType type = a.scalar_type();
  const Chunk direct = type == ScalarType::Float  ? op.f32
                       : type == ScalarType::Bool ? op.scalar->bools
                                                  : nullptr;
  if (direct == nullptr || b.scalar_type() != type ||
      out.scalar_type() != (op.result == Result::Bool ? ScalarType::Bool : type) || a.dim() != out.dim() ||
      b.dim() != out.dim())
    return run_any(context, op, out, a, b);
  const bool single = out.numel() == 1 && a.numel() == 1 && b.numel() == 1;
  if (!single && !(same_geometry(a, out) && same_geometry(b, out) && is_one_run(out)))
    return run_any(context, op, out, a, b);
  const auto total = static_cast<size_t>(out.numel());
  if (total >= 2 * kLeastElements) {
    const size_t bytes = element_size(type), bytes_out = element_size(out.scalar_type());
    in_parts(context, total, kChunk, [&](size_t begin, size_t end) {
      const void* const from[] = {static_cast<const char*>(a.const_data_ptr()) + begin * bytes,
                                  static_cast<const char*>(b.const_data_ptr()) + begin * bytes};
      direct(from, static_cast<char*>(out.mutable_data_ptr()) + begin * bytes_out, end - begin);
    });
    return Error::Ok;
  }
  const void* const from[] = {a.const_data_ptr(), b.const_data_ptr()};
  direct(from, out.mutable_data_ptr(), total);
  return Error::Ok;
}
static Error run(Context& context, const Elementwise& op, Tensor out, Tensor x) {
  return run(context, op, out, x, x);
}
#include "torchette/kernels/elementwise.def"
#undef FLOAT
#undef ANGLE
#undef SAME
#undef TEST
#undef BINARY
#undef REAL
#undef WHOLE
#undef LOGICAL
#undef COMPARE
#undef BITWISE
#undef DIVIDE

static bool is_one(const Scalar& s) { return s.is_floating() ? s.to_double() == 1 : s.to_int() == 1; }

/// The alpha of add and sub must be whole where the result is.
static Error check_alpha(const Operand* in, const Scalar& alpha) {
  TORCHETTE_CHECK(!alpha.is_floating() || is_floating(promote_operands(in, 2)), InvalidType,
                  "alpha is a fraction where the operands are whole numbers");
  return Error::Ok;
}
static Error add_operands(Context& context, const Operand& a, const Operand& b, const Scalar& alpha,
                          const Tensor& out) {
  if (is_one(alpha)) {
    const Operand in[] = {a, b};
    return run_elementwise(context, add_parts, in, out);
  }
  const Operand in[] = {a, b, alpha};
  TORCHETTE_TRY(check_alpha(in, alpha));
  return run_elementwise(context, add_scaled_parts, in, out);
}
static Error sub_operands(Context& context, const Operand& a, const Operand& b, const Scalar& alpha,
                          const Tensor& out) {
  const Operand in[] = {a, b};
  if (is_one(alpha)) return run_elementwise(context, sub_parts, in, out);
  TORCHETTE_TRY(check_alpha(in, alpha));
  return add_operands(context, a, b,
                      alpha.is_floating() ? Scalar(-alpha.to_double()) : Scalar(-alpha.to_int()), out);
}
static Error add_out(Context& context, const Tensor& a, const Tensor& b, const Scalar& alpha, Tensor& out) {
  return is_one(alpha) ? run(context, add_parts, out, a, b) : add_operands(context, a, b, alpha, out);
}
static Error add_scalar_out(Context& context, const Tensor& a, const Scalar& b, const Scalar& alpha,
                            Tensor& out) {
  return add_operands(context, a, b, alpha, out);
}
static Error sub_out(Context& context, const Tensor& a, const Tensor& b, const Scalar& alpha, Tensor& out) {
  return is_one(alpha) ? run(context, sub_parts, out, a, b) : sub_operands(context, a, b, alpha, out);
}
static Error sub_scalar_out(Context& context, const Tensor& a, const Scalar& b, const Scalar& alpha,
                            Tensor& out) {
  return sub_operands(context, a, b, alpha, out);
}
static Error rsub_scalar_out(Context& context, const Tensor& a, const Scalar& b, const Scalar& alpha,
                             Tensor& out) {
  return sub_operands(context, b, {a, 0}, alpha, out);
}
static Error mul_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, mul_parts, out, a, b);
}
static Error mul_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  return run(context, mul_parts, out, a, b);
}

static Error div_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, div_parts, out, a, b);
}
static Error div_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  return run(context, div_parts, out, a, b);
}
static bool equal(Span<const char> s, const char* text) {
  size_t i = 0;
  while (i < s.size() && text[i] != 0 && s[i] == text[i]) ++i;
  return i == s.size() && text[i] == 0;
}
static Error div_operands(Context& context, const Operand& a, const Operand& b,
                          const Optional<Span<const char>>& mode, const Tensor& out) {
  if (!mode.has_value()) return run(context, div_parts, out, a, b);
  if (equal(*mode, "floor")) return run(context, div_floor_parts, out, a, b);
  TORCHETTE_CHECK(equal(*mode, "trunc"), InvalidArgument, "div: rounding_mode is neither floor nor trunc");
  return run(context, div_trunc_parts, out, a, b);
}
static Error div_mode_out(Context& context, const Tensor& a, const Tensor& b, Optional<Span<const char>> mode,
                          Tensor& out) {
  return div_operands(context, a, b, mode, out);
}
static Error div_scalar_mode_out(Context& context, const Tensor& a, const Scalar& b,
                                 Optional<Span<const char>> mode, Tensor& out) {
  return div_operands(context, a, b, mode, out);
}
static Error floor_divide_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, div_floor_parts, out, a, b);
}

static Error pow_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, pow_parts, out, a, b);
}
static Error pow_base_out(Context& context, const Scalar& a, const Tensor& b, Tensor& out) {
  return run(context, pow_parts, out, a, b);
}
static Error pow_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  const double exponent = b.to_double();
  const Operand in[] = {a, b};
  const bool floating = is_floating(promote_operands(in, 2)) && is_floating(a.scalar_type());
  if (exponent == 2 && (floating || !b.is_floating())) return run(context, square_parts, out, a);
  if (exponent == 3 && (floating || !b.is_floating())) return run(context, cube_parts, out, a);
  if (floating && exponent == 0.5) return run(context, sqrt_parts, out, a);
  if (floating && exponent == -0.5) return run(context, rsqrt_parts, out, a);
  if (floating && exponent == -1) return run(context, reciprocal_parts, out, a);
  TORCHETTE_CHECK(is_floating(promote_operands(in, 2)) || b.to_int() >= 0, InvalidArgument,
                  "exponent: whole numbers cannot be raised to a negative whole power");
  return run(context, pow_parts, out, a, b);
}

static Error bitwise_not_out(Context& context, const Tensor& x, Tensor& out) {
  return run(context, x.scalar_type() == ScalarType::Bool ? logical_not_parts : bitwise_not_parts, out, x);
}
static Error shift_left_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, shift_left_parts, out, a, b);
}
static Error shift_left_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  return run(context, shift_left_parts, out, a, b);
}
static Error shift_right_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, shift_right_parts, out, a, b);
}
static Error shift_right_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  return run(context, shift_right_parts, out, a, b);
}

static Error where_out(Context& context, const Tensor& condition, const Tensor& a, const Tensor& b,
                       Tensor& out) {
  TORCHETTE_CHECK(condition.scalar_type() == ScalarType::Bool || condition.scalar_type() == ScalarType::Byte,
                  InvalidType, "where: condition is not a tensor of bool");
  return run(context, where_parts, out, condition, a, b);
}
static Error masked_fill_scalar_out(Context& context, const Tensor& x, const Tensor& mask,
                                    const Scalar& value, Tensor& out) {
  TORCHETTE_CHECK(mask.scalar_type() == ScalarType::Bool, InvalidType,
                  "masked_fill: mask is not a tensor of bool");
  return run(context, where_parts, out, Operand(mask, 1), value, Operand(x, 0));
}
static Error masked_fill_tensor_out(Context& context, const Tensor& x, const Tensor& mask,
                                    const Tensor& value, Tensor& out) {
  TORCHETTE_CHECK(mask.scalar_type() == ScalarType::Bool && value.dim() == 0, InvalidType,
                  "masked_fill: mask is not a tensor of bool or value not a number");
  return run(context, where_parts, out, Operand(mask, 1), Operand(value, 2), Operand(x, 0));
}

template <typename Bound>
static Error clamp_operands(Context& context, const Tensor& x, const Optional<Bound>& low,
                            const Optional<Bound>& high, const Tensor& out) {
  if (low.has_value() && high.has_value()) return run(context, clamp_parts, out, x, *low, *high);
  if (low.has_value()) return run(context, at_least_parts, out, x, *low);
  TORCHETTE_CHECK(high.has_value(), InvalidArgument, "clamp: neither min nor max is given");
  return run(context, at_most_parts, out, x, *high);
}
static Error clamp_out(Context& context, const Tensor& x, Optional<Scalar> low, Optional<Scalar> high,
                       Tensor& out) {
  return clamp_operands(context, x, low, high, out);
}
static Error clamp_tensor_out(Context& context, const Tensor& x, Optional<Tensor> low, Optional<Tensor> high,
                              Tensor& out) {
  return clamp_operands(context, x, low, high, out);
}
static Error clamp_min_out(Context& context, const Tensor& x, const Scalar& low, Tensor& out) {
  return run(context, at_least_parts, out, x, low);
}
static Error clamp_max_out(Context& context, const Tensor& x, const Scalar& high, Tensor& out) {
  return run(context, at_most_parts, out, x, high);
}
/// Operators of neural networks keep the type of their input, whatever the types of their numbers.
static Scalar as_type_of(const Tensor& x, const Scalar& s) {
  return is_floating(x.scalar_type()) || !s.is_floating() ? s : Scalar(s.to_int());
}
static Error hardtanh_out(Context& context, const Tensor& x, const Scalar& low, const Scalar& high,
                          Tensor& out) {
  return run(context, clamp_parts, out, x, as_type_of(x, low), as_type_of(x, high));
}
static Error leaky_relu_out(Context& context, const Tensor& x, const Scalar& slope, Tensor& out) {
  return run(context, leaky_relu_parts, out, x, slope);
}
static Error elu_out(Context& context, const Tensor& x, const Scalar& alpha, const Scalar& scale,
                     const Scalar& input_scale, Tensor& out) {
  return run(context, elu_parts, out, x, alpha, scale, input_scale);
}
static Error gelu_out(Context& context, const Tensor& x, Span<const char> approximate, Tensor& out) {
  if (equal(approximate, "none")) return run(context, gelu_parts, out, x);
  TORCHETTE_CHECK(equal(approximate, "tanh"), InvalidArgument, "gelu: approximate is neither none nor tanh");
  return run(context, gelu_tanh_parts, out, x);
}
static Error logit_out(Context& context, const Tensor& x, Optional<double> eps, Tensor& out) {
  if (!eps.has_value()) return run(context, logit_parts, out, x);
  return run(context, logit_within_parts, out, x, Scalar(*eps), Scalar(1 - *eps));
}
static Error atan2_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, atan2_parts, out, a, b);
}

static Error copysign_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  return run(context, copysign_parts, out, a, b);
}
static Error polygamma_out(Context& context, int64_t n, const Tensor& x, Tensor& out) {
  TORCHETTE_CHECK(n >= 0, InvalidArgument, "polygamma: n is %lld", static_cast<long long>(n));
  return run(context, polygamma_parts, out, Scalar(static_cast<double>(n)), x);
}
/// The first half along a dimension, times the sigmoid of the second.
static Error glu_out(Context& context, const Tensor& x, int64_t dim, Tensor& out) {
  TORCHETTE_CHECK(x.dim() > 0, InvalidArgument, "glu: self has no dimensions");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  const auto d = static_cast<size_t>(dim);
  TORCHETTE_CHECK(x.sizes()[d] % 2 == 0 && is_floating(x.scalar_type()), InvalidArgument,
                  "glu: self has size %d in dimension %zu, type %d", x.sizes()[d], d,
                  static_cast<int>(x.scalar_type()));
  View first(x), second(x);
  first.cut(d, x.sizes()[d] / 2);
  second.cut(d, x.sizes()[d] / 2);
  second.advance(d, x.sizes()[d] / 2);
  return run(context, glu_parts, out, first.tensor(), second.tensor());
}

#define FLOAT(name, expression) TORCHETTE_KERNEL("aten::" #name ".out", name##_out),
#define ANGLE FLOAT
#define SAME FLOAT
#define TEST FLOAT
#define BINARY FLOAT
#define REAL FLOAT
#define WHOLE FLOAT
#define LOGICAL FLOAT
#define COMPARE(name, expression)                             \
  TORCHETTE_KERNEL("aten::" #name ".Tensor_out", name##_out), \
      TORCHETTE_KERNEL("aten::" #name ".Scalar_out", name##_scalar_out),
#define BITWISE COMPARE
#define DIVIDE COMPARE
// clang-format off
static constexpr Kernel elementwise_entries[] = {
#include "torchette/kernels/elementwise.def"
    TORCHETTE_KERNEL("aten::add.out", add_out),
    TORCHETTE_KERNEL("aten::add.Scalar_out", add_scalar_out),
    TORCHETTE_KERNEL("aten::sub.out", sub_out),
    TORCHETTE_KERNEL("aten::sub.Scalar_out", sub_scalar_out),
    TORCHETTE_KERNEL("aten::rsub.Scalar_out", rsub_scalar_out),
    TORCHETTE_KERNEL("aten::mul.out", mul_out),
    TORCHETTE_KERNEL("aten::mul.Scalar_out", mul_scalar_out),
    TORCHETTE_KERNEL("aten::div.out", div_out),
    TORCHETTE_KERNEL("aten::div.Scalar_out", div_scalar_out),
    TORCHETTE_KERNEL("aten::div.out_mode", div_mode_out),
    TORCHETTE_KERNEL("aten::div.Scalar_mode_out", div_scalar_mode_out),
    TORCHETTE_KERNEL("aten::floor_divide.out", floor_divide_out),
    TORCHETTE_KERNEL("aten::pow.Tensor_Tensor_out", pow_out),
    TORCHETTE_KERNEL("aten::pow.Tensor_Scalar_out", pow_scalar_out),
    TORCHETTE_KERNEL("aten::pow.Scalar_out", pow_base_out),
    TORCHETTE_KERNEL("aten::bitwise_not.out", bitwise_not_out),
    TORCHETTE_KERNEL("aten::bitwise_left_shift.Tensor_out", shift_left_out),
    TORCHETTE_KERNEL("aten::bitwise_left_shift.Tensor_Scalar_out", shift_left_scalar_out),
    TORCHETTE_KERNEL("aten::bitwise_right_shift.Tensor_out", shift_right_out),
    TORCHETTE_KERNEL("aten::bitwise_right_shift.Tensor_Scalar_out", shift_right_scalar_out),
    TORCHETTE_KERNEL("aten::where.self_out", where_out),
    TORCHETTE_KERNEL("aten::masked_fill.Scalar_out", masked_fill_scalar_out),
    TORCHETTE_KERNEL("aten::masked_fill.Tensor_out", masked_fill_tensor_out),
    TORCHETTE_KERNEL("aten::clamp.out", clamp_out),
    TORCHETTE_KERNEL("aten::clamp.Tensor_out", clamp_tensor_out),
    TORCHETTE_KERNEL("aten::clamp_min.out", clamp_min_out),
    TORCHETTE_KERNEL("aten::clamp_max.out", clamp_max_out),
    TORCHETTE_KERNEL("aten::hardtanh.out", hardtanh_out),
    TORCHETTE_KERNEL("aten::leaky_relu.out", leaky_relu_out),
    TORCHETTE_KERNEL("aten::elu.out", elu_out),
    TORCHETTE_KERNEL("aten::gelu.out", gelu_out),
    TORCHETTE_KERNEL("aten::logit.out", logit_out),
    TORCHETTE_KERNEL("aten::copysign.Scalar_out", copysign_scalar_out),
    TORCHETTE_KERNEL("aten::polygamma.out", polygamma_out),
    TORCHETTE_KERNEL("aten::glu.out", glu_out),
    TORCHETTE_KERNEL("aten::atan2.out", atan2_out)};
// clang-format on
TORCHETTE_FAMILY(elementwise)

}  // namespace TORCHETTE_ISA
}  // namespace torchette
