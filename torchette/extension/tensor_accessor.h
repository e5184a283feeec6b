// SPDX-License-Identifier: BSD-3-Clause
// TensorAccessor: the elements of a tensor by their indices, accessor[i][j], through its strides.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette::extension {

/// A view of the tensor's memory and metadata, which must outlive it. Indices are not checked.
template <typename T, ptrdiff_t N>
class TensorAccessor {
 public:
  TensorAccessor(T* data, const SizesType* sizes, const StridesType* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}

  /// 0 <= d < N.
  SizesType size(ptrdiff_t d) const { return sizes_[d]; }
  StridesType stride(ptrdiff_t d) const { return strides_[d]; }
  /// A reference to the element, or an accessor of the other dimensions.
  decltype(auto) operator[](ptrdiff_t i) const {
    if constexpr (N == 1)
      return (data_[strides_[0] * i]);
    else
      return TensorAccessor<T, N - 1>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
  }

 private:
  T* data_;
  const SizesType* sizes_;
  const StridesType* strides_;
};

/// Error: InvalidArgument (the tensor does not have N dimensions, or its elements another size than T).
template <typename T, ptrdiff_t N>
Result<TensorAccessor<T, N>> make_tensor_accessor(const Tensor& tensor) {
  static_assert(N > 0, "a tensor without dimensions has one element: const_data_ptr<T>()");
  TORCHETTE_CHECK(tensor.dim() == N, InvalidArgument, "the accessor has %d dimensions, the tensor has %d",
                  static_cast<int>(N), static_cast<int>(tensor.dim()));
  TORCHETTE_CHECK(tensor.element_size() == sizeof(T), InvalidArgument,
                  "the accessor has elements of %d bytes, the tensor has elements of %d bytes",
                  static_cast<int>(sizeof(T)), static_cast<int>(tensor.element_size()));
  return TensorAccessor<T, N>(static_cast<T*>(tensor.mutable_data_ptr()), tensor.sizes().data(),
                              tensor.strides().data());
}

}  // namespace torchette::extension
