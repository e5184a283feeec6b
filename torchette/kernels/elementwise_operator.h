// SPDX-License-Identifier: BSD-3-Clause
// Elementwise operators from their arithmetic on one element. TORCHETTE_OP(name, ...) defines name_parts,
// which the driver runs (elementwise.h). The kinds of lines in arithmetic.def, comparison.def and
// functions.def also define kernels; elementwise_entries.h makes the entries of the kernel table from the
// same lines.
#pragma once

#include <type_traits>

#include "torchette/kernels/elementwise.h"
#include "torchette/kernels/scalar_math.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Runs an operator of one or two tensors; `b` is `a` if there is one.
Error run_tensors(Context& context, const Elementwise& op, Tensor out, Tensor a, Tensor b);

static TORCHETTE_INLINE Error run(Context& context, const Elementwise& op, Tensor out, Tensor a, Tensor b) {
  return run_tensors(context, op, out, a, b);
}
static TORCHETTE_INLINE Error run(Context& context, const Elementwise& op, Tensor out, Tensor x) {
  return run_tensors(context, op, out, x, x);
}
template <typename... In>
static TORCHETTE_INLINE Error run(Context& context, const Elementwise& op, const Tensor& out,
                                  const In&... in) {
  const Operand operands[] = {in...};
  return run_elementwise(context, op, operands, out);
}

static TORCHETTE_INLINE bool equal(Span<const char> s, const char* text) {
  size_t i = 0;
  while (i < s.size() && text[i] != 0 && s[i] == text[i]) ++i;
  return i == s.size() && text[i] == 0;
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
// All levels use these of the lowest level, which is built for size.
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

/// Computes a chunk without branches, and again with `exact` if a quotient is too large. The output may
/// overwrite the operands, so `results` keeps the results until then.
template <typename Fast, typename Exact>
static TORCHETTE_INLINE void remainders(const float* a, const float* b, float* y, size_t n, Fast fast,
                                        Exact exact) {
  float results[kChunk];
  int64_t is_exact = 1;
  for (size_t i = 0; i < n; ++i) results[i] = fast(a[i], b[i], is_exact);
  if (is_exact != 0) {
    for (size_t i = 0; i < n; ++i) y[i] = results[i];
  } else {
    for (size_t i = 0; i < n; ++i) y[i] = exact(a[i], b[i]);
  }
}

/// The chunk of an operator for a compute type, or null if the operator does not support the type.
template <typename Op, typename T, bool exists>
struct ChunkOf {
  using R = std::conditional_t<Op::kResult == Result::Bool || std::is_same_v<T, uint8_t>, bool, T>;
  static constexpr Chunk value = std::is_same_v<T, float> ? &chunk<Op, T, R> : &scalar_chunk<Op, T, R>;
};
template <typename Op, typename T>
struct ChunkOf<Op, T, false> {
  static constexpr Chunk value = nullptr;
};
/// Logic on bools needs no conversion: operands of 0 and 1 produce 0 or 1.
template <typename Op>
static constexpr bool kIsLogic = Op::kIntegers && (Op::kResult == Result::Bool || !Op::kFloats);
// In a build for several levels, TORCHETTE_LOWEST is the lowest level, and TORCHETTE_IS_LOWEST is defined for
// it.
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
#else  // another level: uses those of the lowest
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
// If a chunk has an angle that the fast range reduction does not support, the C library computes the chunk.
#define TORCHETTE_ANGLE(name, expression)                                           \
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
// An operator on the quotient of floats, in chunks as `remainders` requires.
#define TORCHETTE_DIVISION(name, function)                                                                \
  TORCHETTE_ARITHMETIC(name, 2, Same, true, true, function(a, b))                                         \
  template <>                                                                                             \
  void chunk<name##_op, float, float>(const void* const* in, void* out, size_t n) {                       \
    for (size_t i = 0, m; i < n; i += m) {                                                                \
      m = n - i < kChunk ? n - i : kChunk;                                                                \
      remainders(                                                                                         \
          static_cast<const float*>(in[0]) + i, static_cast<const float*>(in[1]) + i,                     \
          static_cast<float*>(out) + i, m,                                                                \
          [](float a, float b, int64_t& is_exact) TORCHETTE_INLINED { return function(a, b, is_exact); }, \
          [](float a, float b) TORCHETTE_INLINED { return function(a, b); });                             \
    }                                                                                                     \
  }                                                                                                       \
  TORCHETTE_SCALAR_CHUNKS(name)                                                                           \
  static constexpr Elementwise name##_parts = elementwise_of<name##_op>(name##_chunks, false, true);

// --- Kinds of lines in the .def files: each defines the operator, and all but PART define its kernels

#define TORCHETTE_UNARY_KERNEL(name)                                        \
  static Error name##_out(Context& context, const Tensor& x, Tensor& out) { \
    return run(context, name##_parts, out, x);                              \
  }
#define TORCHETTE_BINARY_KERNEL(name)                                                        \
  static Error name##_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) { \
    return run(context, name##_parts, out, a, b);                                            \
  }
#define TORCHETTE_BINARY_KERNELS(name)                                                              \
  TORCHETTE_BINARY_KERNEL(name)                                                                     \
  static Error name##_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) { \
    return run(context, name##_parts, out, a, b);                                                   \
  }
#define FLOAT(name, expression)                                       \
  TORCHETTE_OP(name, 1, Float, true, false, false, false, expression) \
  TORCHETTE_UNARY_KERNEL(name)
#define ANGLE(name, expression)     \
  TORCHETTE_ANGLE(name, expression) \
  TORCHETTE_UNARY_KERNEL(name)
#define SAME(name, expression)                                      \
  TORCHETTE_OP(name, 1, Same, true, true, false, false, expression) \
  TORCHETTE_UNARY_KERNEL(name)
#define TEST(name, expression)                                      \
  TORCHETTE_OP(name, 1, Bool, true, true, false, false, expression) \
  TORCHETTE_UNARY_KERNEL(name)
#define BINARY(name, expression)                                    \
  TORCHETTE_OP(name, 2, Same, true, true, false, false, expression) \
  TORCHETTE_BINARY_KERNEL(name)
#define REAL(name, expression)                                        \
  TORCHETTE_OP(name, 2, Float, true, false, false, false, expression) \
  TORCHETTE_BINARY_KERNEL(name)
#define WHOLE(name, expression)                                      \
  TORCHETTE_OP(name, 2, Same, false, true, false, false, expression) \
  TORCHETTE_BINARY_KERNEL(name)
#define LOGICAL(name, expression)                                   \
  TORCHETTE_OP(name, 2, Bool, true, true, false, false, expression) \
  TORCHETTE_BINARY_KERNEL(name)
#define COMPARE(name, expression)                                   \
  TORCHETTE_OP(name, 2, Bool, true, true, false, false, expression) \
  TORCHETTE_BINARY_KERNELS(name)
#define BITWISE(name, expression)                                    \
  TORCHETTE_OP(name, 2, Same, false, true, false, false, expression) \
  TORCHETTE_BINARY_KERNELS(name)
#define DIVIDE(name, function)       \
  TORCHETTE_DIVISION(name, function) \
  TORCHETTE_BINARY_KERNELS(name)
#define PART(name, arity, result, expression) \
  TORCHETTE_OP(name, arity, result, true, Result::result != Result::Float, false, false, expression)

}  // namespace TORCHETTE_ISA
}  // namespace torchette
