// SPDX-License-Identifier: BSD-3-Clause
// Dense arrays of the compute type for tensors of any type and layout, for operators that would otherwise
// need a loop per type and per layout. A tensor that already is such an array is used in place.
#pragma once

#include "torchette/kernels/elementwise.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// The elements of a tensor in row-major order, of dtype `type`: the tensor's memory, or scratch memory.
class Dense {
 public:
  Dense() = default;
  Dense(const Dense&) = delete;
  Dense& operator=(const Dense&) = delete;

  /// Opens an operand. Converts and copies it if it is not an array of `type` already.
  Error read(Context& context, const Tensor& t, ScalarType type);
  /// Opens a result with the sizes of `t`. finish() stores the values written to data() in `t`.
  Error open(Context& context, const Tensor& t, ScalarType type);
  Error finish();

  /// Returns the array as a tensor, valid for the lifetime of this object.
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

/// Calls `body` with a value of the type in which elements of `type` are computed: float (also for the 16-bit
/// types), double, or, if `kIntegers`, int64_t for integers and bools. `what` names the operator and
/// `argument` the operand in errors.
template <bool kIntegers, typename Body>
TORCHETTE_INLINE Error for_compute(ScalarType type, const char* what, const char* argument,
                                   const Body& body) {
  TORCHETTE_CHECK(is_real(type) && (kIntegers || is_floating(type)), InvalidType,
                  "%s: %s is of unsupported type %d", what, argument, static_cast<int>(type));
  if constexpr (computes_in<double>())
    if (type == ScalarType::Double) return body(double());
  if constexpr (kIntegers && computes_in<int64_t>())
    if (!is_floating(type)) return body(int64_t());
  if constexpr (computes_in<float>())
    if (is_floating(type)) return body(float());
  return Error::InvalidType;  // unreachable: loading rejects the program
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
