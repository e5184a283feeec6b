// SPDX-License-Identifier: BSD-3-Clause
// Driver of the elementwise operators: checks, type promotion, resizing, broadcasting, and conversion. An
// operator only supplies a loop over a chunk of values in one of three compute types.
#pragma once

#include <type_traits>

#include "torchette/runtime/kernel.h"

namespace torchette {

/// Computes `n` results from `n` values of each operand. The output may alias an input.
using Chunk = void (*)(const void* const* in, void* out, size_t n);

/// Chunk functions that wide vectors do not accelerate. All levels share those of the lowest level.
struct ScalarChunks {
  Chunk f64, i64;  // null if the operator does not support the type
  Chunk bools;     // operates on bools without conversion, or null
};

/// Compute types of the kernels.
enum Compute { kF32, kF64, kI64 };

/// dst[i] = src[i * stride] with conversion.
using Convert = void (*)(const void* src, ptrdiff_t stride, void* dst, size_t n);

namespace TORCHETTE_ISA {

/// Elements per chunk if operands are converted or broadcast on the stack; otherwise a chunk is the whole
/// run.
constexpr size_t kChunk = 256;
constexpr size_t kMaxOperands = 4;

/// Placed in a loop: permits vectorization only if one of the types is float. In other loops, vector code
/// does not pay off and would increase the size.
template <typename... T>
TORCHETTE_INLINE void vectorize_float_only() {
  if constexpr (!(std::is_same_v<T, float> || ...)) TORCHETTE_NO_VECTORS();
}

TORCHETTE_INLINE Compute compute_type(ScalarType t) {
  return t == ScalarType::Double ? kF64 : is_floating(t) ? kF32 : kI64;
}
TORCHETTE_INLINE size_t compute_size(Compute c) { return c == kF32 ? 4 : 8; }
TORCHETTE_INLINE ScalarType scalar_type_of(Compute c) {
  return c == kF32 ? ScalarType::Float : c == kF64 ? ScalarType::Double : ScalarType::Long;
}

/// Return the function that converts from a tensor's type (see is_real) to a compute type, and back.
Convert load_as(ScalarType from, Compute to);
Convert store_as(Compute from, ScalarType to);

/// A tensor or scalar operand.
struct Operand {
  TORCHETTE_INLINE Operand(const Tensor& t, int8_t index = -1)
      : tensor(t), is_tensor(true), argument(index) {}
  TORCHETTE_INLINE Operand(const Scalar& s) : scalar(s), is_tensor(false) {}
  Tensor tensor;
  Scalar scalar;
  bool is_tensor;
  int8_t argument = -1;  // index among the operator's arguments if it differs from the operand index
};

enum class Result : uint8_t {
  Same,   // the promoted type of the operands
  Float,  // like Same, but integers are computed in float32
  Bool,
};

struct Elementwise {
  Chunk f32;  // null if the operator does not support the type
  const ScalarChunks* scalar;
  uint8_t arity;
  Result result;
  bool selects = false;  // the first operand is a condition and is not promoted
  bool divides = false;  // an integer divisor of zero is an error
};

/// out = op(in[0], ...), broadcast and resized as torch does.
Error run_elementwise(Context& context, const Elementwise& op, const Operand* in, const Tensor& out);

/// out = in, broadcast and converted to out's type; `out` is not resized.
Error assign(const Tensor& in, const Tensor& out);
/// Sets every element of `out` to `value`, converted to the type of out.
Error fill(const Tensor& out, const Scalar& value);

/// Returns the type in which torch computes these operands. Tensors with dimensions take precedence over 0-d
/// tensors, and 0-d tensors over scalars.
ScalarType promote_operands(const Operand* in, size_t count);

/// Whether a result of type `from` may be stored in type `to`, as defined by torch.can_cast.
TORCHETTE_INLINE bool can_cast(ScalarType from, ScalarType to) {
  if (is_floating(from)) return is_floating(to);
  return to != ScalarType::Bool || from == ScalarType::Bool;
}

/// Whether the type is bool or one of the integer and floating types on which kernels compute.
TORCHETTE_INLINE bool is_real(ScalarType t) {
  return static_cast<int8_t>(t) <= static_cast<int8_t>(ScalarType::Double) || t == ScalarType::Bool ||
         t == ScalarType::BFloat16;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
