// SPDX-License-Identifier: BSD-3-Clause
// Checks of the operands of the engine's operators: float32, contiguous, in natural dimension order.
#pragma once

#include "torchette/kernels/dims.h"
#include "torchette/kernels/engine/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {

inline Error check_floats(const char* op, const Tensor& t, const char* name) {
  TORCHETTE_CHECK(t.scalar_type() == ScalarType::Float, InvalidType, "%s: %s is of type %d, expected float32",
                  op, name, static_cast<int>(t.scalar_type()));
  TORCHETTE_CHECK(is_contiguous(t), InvalidArgument, "%s: %s is not contiguous", op, name);
  return Error::Ok;
}

/// Checks a weight that may be stored as 16-bit floats, or as pairs if `may_be_pairs`.
inline Error check_stored(const char* op, const Tensor& t, Stored& stored, const char* name = "weight",
                          bool may_be_pairs = false) {
  const ScalarType type = t.scalar_type();
  stored = type == ScalarType::BFloat16              ? Stored::bfloat16
           : type == ScalarType::Half                ? Stored::float16
           : type == ScalarType::Int && may_be_pairs ? Stored::pairs
                                                     : Stored::float32;
  if (stored == Stored::float32) return check_floats(op, t, name);
  TORCHETTE_CHECK(is_contiguous(t), InvalidArgument, "%s: %s is not contiguous", op, name);
  return Error::Ok;
}

/// Checks the sizes of an optional operand.
inline Error check_operand(const char* op, const Optional<Tensor>& t, Span<const SizesType> sizes,
                           const char* name) {
  if (!t.has_value()) return Error::Ok;
  TORCHETTE_TRY(check_floats(op, *t, name));
  bool same = t->dim() == static_cast<ptrdiff_t>(sizes.size());
  for (size_t d = 0; same && d < sizes.size(); ++d) same = t->sizes()[d] == sizes[d];
  TORCHETTE_CHECK(same, InvalidArgument,
                  "%s: %s has %d dimensions and %d elements, which does not match the result", op, name,
                  static_cast<int>(t->dim()), static_cast<int>(t->numel()));
  return Error::Ok;
}

/// Resizes the result and checks that it is contiguous float32.
inline Error check_result(const char* op, const Tensor& out, Span<const SizesType> sizes,
                          const char* name = "out") {
  TORCHETTE_TRY(resize_result(out, sizes, name));
  return check_floats(op, out, name);
}

TORCHETTE_INLINE const float* floats_of(const Optional<Tensor>& t) {
  return t.has_value() ? t->const_data_ptr<float>() : nullptr;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
