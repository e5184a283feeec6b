// SPDX-License-Identifier: BSD-3-Clause
// Tensor: a handle to sizes, strides and data, which it does not own. Source-compatible with the subset of
// at::Tensor that kernels use.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "torchette/runtime/dtype.h"
#include "torchette/runtime/error.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette {

using SizesType = int32_t;
using StridesType = int32_t;
using DimOrderType = uint8_t;

// Loading refuses tensors of more than kMaxDim dimensions, so kernels may keep arrays of this length on the
// stack.
#define TORCHETTE_LIMIT(name, value) constexpr size_t name = value;
#include "torchette/schema/limits.def"

/// How sizes may differ from those in the file. The values are those of the file format, except OWNED, which
/// the runtime uses for internal tensors of DYNAMIC_UNBOUND shape (OwnedTensorImpl).
enum class TensorShapeDynamism : uint8_t { STATIC = 0, DYNAMIC_BOUND = 1, DYNAMIC_UNBOUND = 2, OWNED = 3 };

/// Metadata of a Tensor. Strides count elements. `dim_order` lists the dimensions from outermost to innermost
/// in memory. `capacity` is the number of elements that fit in `data`.
struct TensorImpl {
  void* data;
  SizesType* sizes;
  StridesType* strides;
  const DimOrderType* dim_order;
  size_t capacity;
  int32_t numel;
  uint8_t dim;
  ScalarType type;
  TensorShapeDynamism dynamism;
};

/// Memory for tensors of unbounded dynamic shape. Such a tensor allocates memory when it is resized, and
/// frees it after its last use. Each method has its own allocator, which must outlive it. Blocks that
/// remain when the method is destroyed stay with the allocator. A subclass defines reallocate().
class DynamicAllocator {
 public:
  /// Frees `old` (a result of this function, or null). Returns `size` uninitialised bytes at a multiple of
  /// 16; null if there is not enough memory or `size` is 0.
  virtual void* reallocate(void* old, size_t size) {
    (void)old;
    (void)size;
    return nullptr;
  }
  /// Replaces the memory of an OWNED tensor by space for `numel` elements, or fewer if there is not enough
  /// memory. The tensor then has no elements, so an instruction that reads it before it is written (jumps of
  /// a damaged file may cause that) reads nothing. Virtual, so that methods without such tensors do not link
  /// it.
  virtual void allocate_tensor(TensorImpl& tensor, int32_t numel) {
    tensor.capacity = static_cast<size_t>(numel);
    tensor.data = reallocate(tensor.data, tensor.capacity * torchette::element_size(tensor.type));
    if (tensor.data == nullptr) tensor.capacity = 0;
    tensor.sizes[0] = 0;
    tensor.numel = 0;
  }
};
struct OwnedTensorImpl : TensorImpl {
  DynamicAllocator* memory;
};

class Tensor {
 public:
  using SizesType = torchette::SizesType;
  using StridesType = torchette::StridesType;
  using DimOrderType = torchette::DimOrderType;

  TORCHETTE_INLINE constexpr Tensor() : impl_(nullptr) {}
  TORCHETTE_INLINE constexpr explicit Tensor(TensorImpl* impl) : impl_(impl) {}

  TORCHETTE_INLINE ptrdiff_t dim() const { return impl_->dim; }
  TORCHETTE_INLINE ptrdiff_t numel() const { return impl_->numel; }
  TORCHETTE_INLINE ScalarType scalar_type() const { return impl_->type; }
  TORCHETTE_INLINE ScalarType dtype() const { return impl_->type; }
  TORCHETTE_INLINE ptrdiff_t element_size() const {
    return static_cast<ptrdiff_t>(torchette::element_size(impl_->type));
  }
  TORCHETTE_INLINE size_t nbytes() const {
    return static_cast<size_t>(numel()) * torchette::element_size(impl_->type);
  }
  /// Size of dimension `d`, 0 <= d < dim().
  TORCHETTE_INLINE ptrdiff_t size(ptrdiff_t d) const { return impl_->sizes[d]; }
  TORCHETTE_INLINE Span<const SizesType> sizes() const { return {impl_->sizes, impl_->dim}; }
  TORCHETTE_INLINE Span<const StridesType> strides() const { return {impl_->strides, impl_->dim}; }
  TORCHETTE_INLINE Span<const DimOrderType> dim_order() const { return {impl_->dim_order, impl_->dim}; }
  TORCHETTE_INLINE TensorShapeDynamism shape_dynamism() const { return impl_->dynamism; }

  TORCHETTE_INLINE const void* const_data_ptr() const { return impl_->data; }
  TORCHETTE_INLINE void* mutable_data_ptr() const { return impl_->data; }
  template <typename T>
  TORCHETTE_INLINE const T* const_data_ptr() const {
    return static_cast<const T*>(impl_->data);
  }
  template <typename T>
  TORCHETTE_INLINE T* mutable_data_ptr() const {
    return static_cast<T*>(impl_->data);
  }
  // Older names of at::Tensor.
  TORCHETTE_INLINE void* data_ptr() const { return impl_->data; }
  template <typename T>
  TORCHETTE_INLINE T* data_ptr() const {
    return static_cast<T*>(impl_->data);
  }
  TORCHETTE_INLINE TensorImpl* unsafeGetTensorImpl() const { return impl_; }
  TORCHETTE_INLINE TensorImpl* unsafe_impl() const { return impl_; }

 private:
  TensorImpl* impl_;
};

/// Whether the elements are in row-major order without gaps. Dimensions of size 1 are ignored.
bool is_contiguous(const Tensor& t);
/// Whether both tensors have the same rank and the same order of dimensions in memory.
bool same_dim_order(const Tensor& a, const Tensor& b);

/// Stores the strides of a tensor without gaps in dim order `dim_order` (a permutation) and returns its
/// number of elements. Error: InvalidArgument (a negative size, or a stride greater than 2^31 - 1).
Result<int32_t> dense_strides(Span<const SizesType> sizes, const DimOrderType* dim_order,
                              StridesType* strides);

/// A size in a list for resize_tensor(). A value that is not a SizesType becomes -1, which is refused.
struct ListedSize {
  template <typename Integer, typename = std::enable_if_t<std::is_integral_v<Integer>>>
  constexpr ListedSize(Integer size)
      : value(static_cast<uint64_t>(size) <= uint64_t{INT32_MAX} ? static_cast<SizesType>(size) : -1) {}
  SizesType value;
};
/// Resizes `t` within its capacity and recomputes its strides from its dim order. A STATIC tensor accepts
/// only its current sizes. An OWNED tensor allocates more memory if necessary; its contents are then lost.
/// Errors: NotSupported (static shape or another rank), MemoryAllocationFailed (more elements than the
/// capacity or the available memory).
Error resize_tensor(const Tensor& t, Span<const SizesType> sizes);
/// The same for a list of integers of any type: resize_tensor(out, {rows, 2 * columns}).
inline Error resize_tensor(const Tensor& t, std::initializer_list<ListedSize> sizes) {
  SizesType converted[kMaxDim];
  if (sizes.size() > kMaxDim) return Error::NotSupported;
  size_t dim = 0;
  for (const ListedSize size : sizes) converted[dim++] = size.value;
  return resize_tensor(t, {converted, dim});
}
/// Replaces the memory of an OWNED tensor by space for `numel` elements, or frees it if `numel` is 0. The
/// tensor then has no elements. Does nothing for other tensors.
void reserve_tensor(TensorImpl& impl, int32_t numel);

}  // namespace torchette
