// SPDX-License-Identifier: BSD-3-Clause
// Functions that a generated unit uses in place of the interpreter: resize inputs, move tensors, evaluate
// conditions. Included after the runtime's headers. A unit may use only some of them.
#pragma once

#include <cstring>

#include "torchette/runtime/kernel.h"

namespace torchette {

/// Sets the sizes of a dynamic input after the check of its bounds. Memory of the caller (`lent`) has exactly
/// this size.
static inline Error set_sizes(const Tensor& input, Span<const SizesType> sizes, bool lent) {
  TensorImpl& impl = *input.unsafe_impl();
  StridesType strides[kMaxDim];
  const Result<int32_t> numel = dense_strides(sizes, impl.dim_order, strides);
  if (!numel.ok()) return numel.error();
  if (lent) impl.capacity = static_cast<size_t>(*numel);
  return resize_tensor(input, sizes);
}

/// Returns whether all elements of a bool tensor are true.
static inline bool holds(const Tensor& condition) {
  const auto* bytes = condition.const_data_ptr<uint8_t>();
  for (ptrdiff_t i = 0; i < condition.numel(); ++i)
    if (bytes[i] == 0) return false;
  return true;
}

/// Copies `from` to `to`. A `to` without memory becomes an alias of `from`.
static inline Error move(const Tensor& from, const Tensor& to) {
  TORCHETTE_TRY(resize_tensor(to, from.sizes()));
  if (to.const_data_ptr() == nullptr)
    to.unsafe_impl()->data = from.mutable_data_ptr();
  else if (from.numel() != 0)
    memmove(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  return Error::Ok;
}

/// Returns Ok if the tensor has memory. A view has no memory before its instruction has run.
static inline Error backed(const Tensor& tensor) {
  return tensor.const_data_ptr() == nullptr && tensor.numel() != 0 ? Error::InvalidState : Error::Ok;
}

}  // namespace torchette
