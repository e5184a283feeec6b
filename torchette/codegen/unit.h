// SPDX-License-Identifier: BSD-3-Clause
// What a generated unit does itself, since it has no interpreter: resize inputs, move tensors, judge
// conditions. Included after the runtime's headers; every function here may be unused.
#pragma once

#include <cstring>

#include "torchette/runtime/kernel.h"

namespace torchette {

/// Gives an input of varying sizes those that it is called with, which have been held against its bounds.
/// Bytes of the caller have room for just these.
static inline Error set_sizes(const Tensor& input, Span<const SizesType> sizes, bool lent) {
  TensorImpl& impl = *input.unsafe_impl();
  StridesType strides[kMaxDim];
  const Result<int32_t> numel = dense_strides(sizes, impl.dim_order, strides);
  if (!numel.ok()) return numel.error();
  if (lent) impl.capacity = static_cast<size_t>(*numel);
  return resize_tensor(input, sizes);
}

/// Whether all elements of a bool tensor hold.
static inline bool holds(const Tensor& condition) {
  const auto* bytes = condition.const_data_ptr<uint8_t>();
  for (ptrdiff_t i = 0; i < condition.numel(); ++i)
    if (bytes[i] == 0) return false;
  return true;
}

/// `to` becomes equal to `from`, or where it has no memory of its own another reading of the same bytes.
static inline Error move(const Tensor& from, const Tensor& to) {
  TORCHETTE_TRY(resize_tensor(to, from.sizes()));
  if (to.const_data_ptr() == nullptr)
    to.unsafe_impl()->data = from.mutable_data_ptr();
  else if (from.numel() != 0)
    memmove(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  return Error::Ok;
}

/// Ok where the tensor has bytes: one that is a view of others has none before its own instruction has run.
static inline Error backed(const Tensor& tensor) {
  return tensor.const_data_ptr() == nullptr && tensor.numel() != 0 ? Error::InvalidState : Error::Ok;
}

}  // namespace torchette
