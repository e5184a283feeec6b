// SPDX-License-Identifier: BSD-3-Clause
// The driver of all elementwise operators: checks, type promotion, resizing, broadcasting, conversion. An
// operator is a loop over a chunk of numbers in one of three compute types; everything else is here, once.
#pragma once

#include <type_traits>

#include "torchette/runtime/kernel.h"

namespace torchette {

/// `n` results from `n` numbers of each operand. Inputs and output may be the same memory.
using Chunk = void (*)(const void* const* in, void* out, size_t n);

/// The chunks that wide vectors do not make faster: all levels have them from the lowest.
struct ScalarChunks {
  Chunk f64, i64;  // null where the operator has no meaning
  Chunk bools;     // on unconverted bools, or null
};

/// The types that kernels compute in.
enum Compute { kF32, kF64, kI64 };

/// dst[i] = src[i * stride], converted.
using Convert = void (*)(const void* src, ptrdiff_t stride, void* dst, size_t n);

namespace TORCHETTE_ISA {

/// Elements per chunk where something must be converted or spread on the stack; else a chunk is the whole
/// run.
constexpr size_t kChunk = 256;
constexpr size_t kMaxOperands = 4;

/// In a loop: vector code for it pays only where one of the types is float; else the loop stays as small as
/// it is.
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

/// From a tensor's type (is_real) to a compute type, and back.
Convert load_as(ScalarType from, Compute to);
Convert store_as(Compute from, ScalarType to);

/// A tensor or a number.
struct Operand {
  TORCHETTE_INLINE Operand(const Tensor& t, int8_t number = -1)
      : tensor(t), is_tensor(true), argument(number) {}
  TORCHETTE_INLINE Operand(const Scalar& s) : scalar(s), is_tensor(false) {}
  Tensor tensor;
  Scalar scalar;
  bool is_tensor;
  int8_t argument = -1;  // its number among the operator's, where that is not its place among the operands
};

enum class Result : uint8_t {
  Same,   // the promoted type of the operands
  Float,  // the same, integers computing in float32
  Bool,
};

struct Elementwise {
  Chunk f32;  // null where the operator has no meaning
  const ScalarChunks* scalar;
  uint8_t arity;
  Result result;
  bool selects = false;  // the first operand is a condition and takes no part in the promotion
  bool divides = false;  // an integer divisor of zero is an error
};

/// out = op(in[0], ...), broadcast and resized as torch does.
Error run_elementwise(Context& context, const Elementwise& op, const Operand* in, const Tensor& out);

/// out = in, broadcast and converted to out's type; `out` is not resized.
Error assign(const Tensor& in, const Tensor& out);
/// Every element of `out` becomes `value`, converted to out's type.
Error fill(const Tensor& out, const Scalar& value);

/// The type that torch computes in for these operands: tensors with dimensions rank above 0-d tensors, these
/// above numbers.
ScalarType promote_operands(const Operand* in, size_t count);

/// Whether a result of type `from` may be stored in `to`, as torch.can_cast.
TORCHETTE_INLINE bool can_cast(ScalarType from, ScalarType to) {
  if (is_floating(from)) return is_floating(to);
  return to != ScalarType::Bool || from == ScalarType::Bool;
}

/// The seven integer and floating point types and bool that kernels compute on.
TORCHETTE_INLINE bool is_real(ScalarType t) {
  return static_cast<int8_t>(t) <= static_cast<int8_t>(ScalarType::Double) || t == ScalarType::Bool ||
         t == ScalarType::BFloat16;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
