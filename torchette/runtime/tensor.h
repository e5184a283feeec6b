// SPDX-License-Identifier: BSD-3-Clause
// Tensor: a handle to sizes, strides and bytes that somebody else owns. Source-compatible with the subset of
// at::Tensor that kernels use.
#pragma once

#include "torchette/runtime/dtype.h"
#include "torchette/runtime/error.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette {

using SizesType = int32_t;
using StridesType = int32_t;
using DimOrderType = uint8_t;

// Tensors of more than kMaxDim dimensions are refused at load, so kernels may keep index arrays of this
// length on the stack.
#define TORCHETTE_LIMIT(name, value) constexpr size_t name = value;
#include "torchette/schema/limits.def"

/// How far a tensor's sizes may move away from those in the file. Numbers are the format's.
/// OWNED is the runtime's own: a DYNAMIC_UNBOUND tensor inside of a method, an OwnedTensorImpl.
enum class TensorShapeDynamism : uint8_t { STATIC = 0, DYNAMIC_BOUND = 1, DYNAMIC_UNBOUND = 2, OWNED = 3 };

/// The metadata block behind a Tensor. Strides count elements. `dim_order` lists dimensions from outermost to
/// innermost in memory. `capacity` is the number of elements that `data` has room for.
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

/// Memory for tensors whose size is known only while a method runs: each takes what it needs when it gets its
/// sizes, and gives it back after its last use. One for each method, which must outlive it; what the method
/// still holds when it goes away stays with the allocator. A subclass defines reallocate().
class DynamicAllocator {
 public:
  /// Takes back `old`, which it gave before, or null. Then gives `size` bytes at a multiple of 16, whose
  /// contents do not matter; null where there are none, or `size` is 0.
  virtual void* reallocate(void* old, size_t size) {
    (void)old;
    (void)size;
    return nullptr;
  }
  /// Room for `numel` elements in an OWNED tensor, or less where there is none. There are no elements in it
  /// yet: whoever reads it now, since a file's jumps may lead there, finds nothing. Virtual so that a method
  /// which has no such tensor does not link it.
  virtual void give(TensorImpl& tensor, int32_t numel) {
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
  // at::Tensor's older spellings
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

/// True when elements lie in row-major order without gaps (dimensions of size 1 do not matter).
bool is_contiguous(const Tensor& t);
/// True when both tensors have the same number of dimensions and lie in memory in the same order.
bool same_dim_order(const Tensor& a, const Tensor& b);

/// Strides of a tensor without gaps whose dimensions lie in `dim_order` (a permutation), and its number of
/// elements. Error: InvalidArgument (a negative size, or a stride beyond 2^31 - 1).
Result<int32_t> dense_strides(Span<const SizesType> sizes, const DimOrderType* dim_order,
                              StridesType* strides);

/// Gives `t` new sizes within its capacity and recomputes its strides from its dim order.
/// A STATIC tensor accepts only the sizes that it has; an OWNED one takes more memory where it needs to, and
/// its contents are then lost. Errors: NotSupported (static, or other number of dimensions),
/// MemoryAllocationFailed (more elements than the capacity, or than there is memory for).
Error resize_tensor(const Tensor& t, Span<const SizesType> sizes);
/// Gives an OWNED tensor's memory back, or takes some, and leaves it without elements; does nothing to
/// others.
void reserve_tensor(TensorImpl& impl, int32_t numel);

}  // namespace torchette
