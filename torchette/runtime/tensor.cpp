// SPDX-License-Identifier: BSD-3-Clause
// Layout of tensors, and resizing within their memory.
#include "torchette/runtime/tensor.h"

#include "torchette/runtime/platform.h"

namespace torchette {

bool is_contiguous(const Tensor& t) {
  int64_t expected = 1;
  for (ptrdiff_t d = t.dim(); d-- > 0;) {
    if (t.size(d) == 1) continue;
    if (t.size(d) == 0) return true;
    if (t.strides()[static_cast<size_t>(d)] != expected) return false;
    expected *= t.size(d);
  }
  return true;
}

bool same_dim_order(const Tensor& a, const Tensor& b) {
  if (a.dim() != b.dim()) return false;
  const auto n = static_cast<size_t>(a.dim());
  // A dimension of size 1 in both tensors does not affect the layout, so its position is ignored.
  const auto next = [&](const Tensor& t, size_t i) {
    while (i < n && a.size(t.dim_order()[i]) == 1 && b.size(t.dim_order()[i]) == 1) ++i;
    return i;
  };
  size_t i = next(a, 0), j = next(b, 0);
  while (i < n && j < n && a.dim_order()[i] == b.dim_order()[j]) {
    i = next(a, i + 1);
    j = next(b, j + 1);
  }
  return i == n && j == n;
}

Result<int32_t> dense_strides(Span<const SizesType> sizes, const DimOrderType* dim_order,
                              StridesType* strides) {
  int64_t stride = 1, numel = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    const size_t d = dim_order[i];
    if (sizes[d] < 0) return Error::InvalidArgument;
    strides[d] = static_cast<StridesType>(stride);
    numel *= sizes[d];
    stride *= sizes[d] > 0 ? sizes[d] : 1;
    if (stride > INT32_MAX) return Error::InvalidArgument;
  }
  return static_cast<int32_t>(numel);
}

void reserve_tensor(TensorImpl& impl, int32_t numel) {
  if (impl.dynamism == TensorShapeDynamism::OWNED)
    static_cast<OwnedTensorImpl&>(impl).memory->allocate_tensor(impl, numel);
}

Error resize_tensor(const Tensor& t, Span<const SizesType> sizes) {
  TensorImpl& impl = *t.unsafe_impl();
  if (sizes.size() != impl.dim) {
    TORCHETTE_LOG(Error, "a tensor of rank %u cannot be resized to rank %zu", impl.dim, sizes.size());
    return Error::NotSupported;
  }
  bool same = true;
  for (size_t d = 0; d < sizes.size(); ++d) same = same && sizes[d] == impl.sizes[d];
  if (same) return Error::Ok;
  if (impl.dynamism == TensorShapeDynamism::STATIC) {
    TORCHETTE_LOG(Error, "a tensor of fixed sizes cannot be resized (rank %u, first size %d to %d)", impl.dim,
                  static_cast<int>(impl.sizes[0]), static_cast<int>(sizes[0]));
    return Error::NotSupported;
  }
  StridesType strides[kMaxDim];
  Result<int32_t> numel = dense_strides(sizes, impl.dim_order, strides);
  if (!numel.ok()) {
    TORCHETTE_LOG(Error, "sizes are negative or more than 2^31 - 1 elements");
    return numel.error();
  }
  if (static_cast<size_t>(*numel) > impl.capacity) reserve_tensor(impl, *numel);
  if (static_cast<size_t>(*numel) > impl.capacity) {
    TORCHETTE_LOG(Error, "a tensor with room for %zu elements cannot hold %d", impl.capacity,
                  static_cast<int>(*numel));
    return Error::MemoryAllocationFailed;
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    impl.sizes[d] = sizes[d];
    impl.strides[d] = strides[d];
  }
  impl.numel = *numel;
  return Error::Ok;
}

}  // namespace torchette
