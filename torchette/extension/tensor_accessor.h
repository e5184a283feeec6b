// SPDX-License-Identifier: BSD-3-Clause
// TensorAccessor: accesses the elements of a tensor by index, accessor[i][j], with its strides.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette::extension {

/// A view of the memory and metadata of a tensor, which must outlive it. Indices are not checked.
template <typename T, ptrdiff_t N>
class TensorAccessor {
 public:
  TensorAccessor(T* data, const SizesType* sizes, const StridesType* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}

  /// 0 <= d < N.
  SizesType size(ptrdiff_t d) const { return sizes_[d]; }
  StridesType stride(ptrdiff_t d) const { return strides_[d]; }
  /// Returns a reference to the element if N is 1, else an accessor of the remaining dimensions.
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

/// Returns an accessor of `tensor`. Error: InvalidArgument (the tensor does not have N dimensions, or its
/// element size is not sizeof(T)).
template <typename T, ptrdiff_t N>
Result<TensorAccessor<T, N>> make_tensor_accessor(const Tensor& tensor) {
  static_assert(N > 0, "use const_data_ptr<T>() for the element of a tensor without dimensions");
  TORCHETTE_CHECK(tensor.dim() == N, InvalidArgument, "the accessor has %d dimensions, the tensor has %d",
                  static_cast<int>(N), static_cast<int>(tensor.dim()));
  TORCHETTE_CHECK(tensor.element_size() == sizeof(T), InvalidArgument,
                  "the accessor has elements of %d bytes, the tensor has elements of %d bytes",
                  static_cast<int>(sizeof(T)), static_cast<int>(tensor.element_size()));
  return TensorAccessor<T, N>(static_cast<T*>(tensor.mutable_data_ptr()), tensor.sizes().data(),
                              tensor.strides().data());
}

}  // namespace torchette::extension
