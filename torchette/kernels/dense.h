// SPDX-License-Identifier: BSD-3-Clause
// Tensors of any type and layout as plain arrays of the type that is computed in, for operators that would
// otherwise need a loop per type and per layout. What is a plain array already is used where it lies.
#pragma once

#include "torchette/kernels/elementwise.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// The elements of a tensor in row-major order, as `type`: its own memory, or scratch memory.
class Dense {
 public:
  Dense() = default;
  Dense(const Dense&) = delete;
  Dense& operator=(const Dense&) = delete;

  /// For an operand: converts and copies where the tensor is not an array of `type` already.
  Error read(Context& context, const Tensor& t, ScalarType type);
  /// For a result with the sizes of `t`: after finish(), `t` has what was written to data().
  Error open(Context& context, const Tensor& t, ScalarType type);
  Error finish();

  /// The array as a tensor, for as long as this lives.
  TORCHETTE_INLINE Tensor tensor() { return Tensor(&impl_); }
  template <typename T>
  TORCHETTE_INLINE T* data() const {
    return static_cast<T*>(impl_.data);
  }

 private:
  Error through(const Tensor& from, const Tensor& to, const Tensor& permuted, ScalarType type);

  Context* context_;
  Tensor target_;
  TensorImpl impl_;
  StridesType strides_[kMaxDim];
};

/// Calls `body` with a number of the type that elements of `type` are computed in: float (also for the two
/// 16-bit types), double, and where `kWhole` int64_t for whole numbers and bools. `what` names the
/// operator, `argument` what is of this type.
template <bool kWhole, typename Body>
TORCHETTE_INLINE Error for_compute(ScalarType type, const char* what, const char* argument,
                                   const Body& body) {
  TORCHETTE_CHECK(is_real(type) && (kWhole || is_floating(type)), InvalidType, "%s: %s is of type %d", what,
                  argument, static_cast<int>(type));
  if constexpr (computes_in<double>())
    if (type == ScalarType::Double) return body(double());
  if constexpr (kWhole && computes_in<int64_t>())
    if (!is_floating(type)) return body(int64_t());
  if constexpr (computes_in<float>())
    if (is_floating(type)) return body(float());
  return Error::InvalidType;  // loading has refused it
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
