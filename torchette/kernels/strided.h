// SPDX-License-Identifier: BSD-3-Clause
// Moving elements between two strided layouts: what every operator that rearranges data comes down to.
// Elements are words of 1 to 16 bytes; their type does not matter.
#pragma once

#include <cstring>

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// repeat and pixel_shuffle split every dimension in two.
constexpr ptrdiff_t kMaxLoops = 2 * kMaxDim;

/// Some elements of a tensor: bytes of the first, and per dimension a size and the elements to the next one
/// (0 repeats, negative goes backwards).
struct Strided {
  char* data;
  ptrdiff_t dim;
  ptrdiff_t width;
  ptrdiff_t size[kMaxLoops] = {};
  ptrdiff_t stride[kMaxLoops] = {};

  TORCHETTE_INLINE Strided() : data(nullptr), dim(0), width(1) {}
  TORCHETTE_INLINE explicit Strided(const Tensor& t)
      : data(static_cast<char*>(t.mutable_data_ptr())), dim(t.dim()), width(t.element_size()) {
    for (ptrdiff_t d = 0; d < dim; ++d) {
      size[d] = t.size(d);
      stride[d] = t.strides()[d];
    }
  }

  TORCHETTE_INLINE void append(ptrdiff_t n, ptrdiff_t step) {
    size[dim] = n;
    stride[dim++] = step;
  }
  /// Element `index` of dimension `d` alone; the dimension goes.
  TORCHETTE_INLINE void select(ptrdiff_t d, ptrdiff_t index) {
    data += index * stride[d] * width;
    for (--dim; d < dim; ++d) {
      size[d] = size[d + 1];
      stride[d] = stride[d + 1];
    }
  }
  /// `n` elements of dimension `d` from `start` on, `step` apart.
  TORCHETTE_INLINE void slice(ptrdiff_t d, ptrdiff_t start, ptrdiff_t n, ptrdiff_t step = 1) {
    data += start * stride[d] * width;
    size[d] = n;
    stride[d] *= step;
  }
  TORCHETTE_INLINE ptrdiff_t numel() const {
    ptrdiff_t n = 1;
    for (ptrdiff_t d = 0; d < dim; ++d) n *= size[d];
    return n;
  }
};

/// Copies `from` to `to`, which has the same sizes and width. The two share no bytes, or are the same.
void copy_strided(const Strided& from, const Strided& to);

/// Writes one element, given as bytes, everywhere in `to`.
void fill_strided(const void* element, const Strided& to);

/// `value` as an element of type `type`, in `bytes`. False when the type cannot hold numbers.
bool store_scalar(const Scalar& value, ScalarType type, void* bytes);

/// `dim` counted from the end when negative; -1 when it is out of range. A tensor without dimensions has one
/// to name.
TORCHETTE_INLINE ptrdiff_t wrap_dim(int64_t dim, ptrdiff_t dims) {
  const ptrdiff_t n = dims == 0 ? 1 : dims;
  if (dim < -n || dim >= n) return -1;
  return static_cast<ptrdiff_t>(dim < 0 ? dim + n : dim);
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
