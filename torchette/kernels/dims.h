// SPDX-License-Identifier: BSD-3-Clause
// Checks of dimensions and types, shared by the kernel families.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Resizes a result with resize_tensor(). `name` is the name of the argument.
TORCHETTE_INLINE Error resize_result(const Tensor& out, Span<const SizesType> sizes,
                                     const char* name = "out") {
  const Error error = resize_tensor(out, sizes);
  if (TORCHETTE_UNLIKELY(error != Error::Ok))
    TORCHETTE_LOG(Error, "%s does not have enough memory for the result", name);
  return error;
}

/// Converts a negative dimension index to the equivalent non-negative one. A 0-d tensor counts as 1-d.
TORCHETTE_INLINE Error wrap_dim(int64_t& dim, size_t rank, const char* name = "dim") {
  const int64_t n = rank == 0 ? 1 : static_cast<int64_t>(rank);
  TORCHETTE_CHECK(dim >= -n && dim < n, InvalidArgument, "%s %lld is out of range for %lld dimensions", name,
                  static_cast<long long>(dim), static_cast<long long>(n));
  if (dim < 0) dim += n;
  return Error::Ok;
}

/// Converts a list of dimensions to a bit set.
TORCHETTE_INLINE Error wrap_dims(Span<const int64_t> dims, size_t rank, uint32_t& set,
                                 const char* name = "dim") {
  set = 0;
  for (int64_t dim : dims) {
    TORCHETTE_TRY(wrap_dim(dim, rank, name));
    TORCHETTE_CHECK((set >> dim & 1u) == 0, InvalidArgument, "%s contains dimension %d twice", name,
                    static_cast<int>(dim));
    set |= 1u << dim;
  }
  return Error::Ok;
}

/// Checks that two tensors have the same type. `names` contains both names: "self and out".
TORCHETTE_INLINE Error same_type(const Tensor& a, const Tensor& b, const char* names) {
  TORCHETTE_CHECK(a.scalar_type() == b.scalar_type(), InvalidType,
                  "%s are of types %d and %d, expected one type", names, static_cast<int>(a.scalar_type()),
                  static_cast<int>(b.scalar_type()));
  return Error::Ok;
}

/// A temporary tensor that views the memory of another tensor, for the duration of a kernel.
struct View {
  TORCHETTE_INLINE explicit View(const Tensor& t) : impl(*t.unsafe_impl()) {
    for (size_t d = 0; d < impl.dim; ++d) {
      sizes[d] = impl.sizes[d];
      strides[d] = impl.strides[d];
    }
    impl.sizes = sizes;
    impl.strides = strides;
    impl.dynamism = TensorShapeDynamism::STATIC;
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  /// Steps `count` elements along dimension `d`.
  TORCHETTE_INLINE void advance(size_t d, int64_t count) {
    impl.data = static_cast<char*>(impl.data) +
                count * strides[d] * static_cast<int64_t>(torchette::element_size(impl.type));
  }
  /// Truncates dimension `d` to `size` elements.
  TORCHETTE_INLINE void cut(size_t d, int64_t size) {
    sizes[d] = static_cast<SizesType>(size);
    impl.numel = 1;
    for (size_t i = 0; i < impl.dim; ++i) impl.numel *= sizes[i];
  }
  TORCHETTE_INLINE void drop(size_t d) {
    cut(d, 1);
    --impl.dim;
    for (size_t i = d; i < impl.dim; ++i) {
      sizes[i] = sizes[i + 1];
      strides[i] = strides[i + 1];
    }
  }
  TORCHETTE_INLINE Tensor tensor() { return Tensor(&impl); }

  TensorImpl impl;
  SizesType sizes[kMaxDim];
  StridesType strides[kMaxDim];
};

}  // namespace TORCHETTE_ISA
}  // namespace torchette
