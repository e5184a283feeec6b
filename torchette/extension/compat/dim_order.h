// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's functions on dim orders (dimensions from outermost to innermost) and on strides, which count
// elements, for any integer types.
#pragma once

#include <array>
#include <cstdio>

#include "torchette/extension/compat/runtime.h"

namespace executorch::runtime {

template <typename DimOrderType>
bool validate_dim_order(const DimOrderType* dim_order, size_t dims) {
  if (dims > kTensorDimensionLimit) return false;
  uint32_t seen = 0;
  for (size_t i = 0; i < dims; ++i)
    if (static_cast<size_t>(dim_order[i]) < dims) seen |= uint32_t{1} << dim_order[i];
  return seen == (uint32_t{1} << dims) - 1;
}

template <typename DimOrderType>
bool is_contiguous_dim_order(const DimOrderType* dim_order, size_t dims) {
  for (size_t i = 0; i < dims; ++i)
    if (static_cast<size_t>(dim_order[i]) != i) return false;
  return true;
}

/// 0, 2, 3, 1 or 0, 2, 3, 4, 1.
template <typename DimOrderType>
bool is_channels_last_dim_order(const DimOrderType* dim_order, size_t dims) {
  if (dims != 4 && dims != 5) return false;
  for (size_t i = 0; i < dims; ++i) {
    const size_t expected = i == 0 ? 0 : i == dims - 1 ? 1 : i + 1;
    if (static_cast<size_t>(dim_order[i]) != expected) return false;
  }
  return true;
}

/// Computes the strides of a dense tensor. A dimension of size 0 counts as one of size 1.
template <typename SizesType, typename DimOrderType, typename StridesType>
void dim_order_to_stride_nocheck(const SizesType* sizes, const DimOrderType* dim_order, size_t dims,
                                 StridesType* strides) {
  StridesType stride = 1;
  for (size_t i = dims; i-- > 0;) {
    strides[dim_order[i]] = stride;
    if (sizes[dim_order[i]] != 0) stride *= static_cast<StridesType>(sizes[dim_order[i]]);
  }
}

/// Error: InvalidArgument (`dim_order` is not a permutation).
template <typename SizesType, typename DimOrderType, typename StridesType>
[[nodiscard]] Error dim_order_to_stride(const SizesType* sizes, const DimOrderType* dim_order, size_t dims,
                                        StridesType* strides) {
  TORCHETTE_CHECK(validate_dim_order(dim_order, dims), InvalidArgument,
                  "the dim order of %zu dimensions is not a permutation", dims);
  dim_order_to_stride_nocheck(sizes, dim_order, dims, strides);
  return Error::Ok;
}

/// Sorts dimensions by descending stride; the sort is stable. Errors: InvalidArgument (null), NotSupported
/// (too many dimensions).
template <typename DimOrderType, typename StridesType>
[[nodiscard]] Error stride_to_dim_order(const StridesType* strides, size_t dims, DimOrderType* dim_order) {
  TORCHETTE_CHECK(dim_order != nullptr, InvalidArgument, "the memory for the dim order is null");
  TORCHETTE_CHECK(dims <= kTensorDimensionLimit, NotSupported, "%zu dimensions exceed the limit of %zu", dims,
                  kTensorDimensionLimit);
  for (size_t i = 0; i < dims; ++i) {
    size_t at = i;
    for (; at > 0 && strides[dim_order[at - 1]] < strides[i]; --at) dim_order[at] = dim_order[at - 1];
    dim_order[at] = static_cast<DimOrderType>(i);
  }
  return Error::Ok;
}

constexpr size_t kTensorShapeStringSizeLimit = 2 + 12 * kTensorDimensionLimit;

/// Returns text such as "(2, 3)" for messages. Omits sizes beyond kTensorDimensionLimit.
template <typename SizesType>
std::array<char, kTensorShapeStringSizeLimit> tensor_shape_to_c_string(Span<SizesType> shape) {
  std::array<char, kTensorShapeStringSizeLimit> text{"("};
  size_t length = 1;
  for (size_t i = 0; i < shape.size() && length < text.size(); ++i)
    length += static_cast<size_t>(snprintf(text.data() + length, text.size() - length, "%s%lld",
                                           i == 0 ? "" : ", ", static_cast<long long>(shape[i])));
  if (length + 2 <= text.size()) text[length] = ')';
  return text;
}

}  // namespace executorch::runtime

namespace torch::executor {
using ::executorch::runtime::dim_order_to_stride;
using ::executorch::runtime::dim_order_to_stride_nocheck;
using ::executorch::runtime::is_channels_last_dim_order;
using ::executorch::runtime::is_contiguous_dim_order;
using ::executorch::runtime::stride_to_dim_order;
}  // namespace torch::executor
