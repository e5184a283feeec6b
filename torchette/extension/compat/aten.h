// SPDX-License-Identifier: BSD-3-Clause
// executorch::aten: the tensor types of kernels. They are Torchette's types or, if TORCHETTE_ATEN
// (ExecuTorch: USE_ATEN_LIB) is defined, those of the installed torch, so that one source supports both.
#pragma once

#include <optional>
#include <string_view>

#include "torchette/runtime/tensor.h"
#include "torchette/runtime/value.h"

#if defined(USE_ATEN_LIB) && !defined(TORCHETTE_ATEN)
#define TORCHETTE_ATEN
#endif
#ifdef TORCHETTE_ATEN
#include <ATen/ATen.h>
#endif

namespace executorch::aten {

using std::nullopt;
using std::nullopt_t;
using std::optional;
using std::string_view;
using ::torchette::TensorShapeDynamism;

#ifdef TORCHETTE_ATEN

template <typename T>
using ArrayRef = c10::ArrayRef<T>;
using at::Tensor;
using at::TensorImpl;
using at::TensorList;
using c10::BFloat16;
using c10::Half;
using c10::Scalar;
using c10::ScalarType;
using DimOrderType = uint8_t;
using SizesType = int64_t;
using StridesType = int64_t;

#else

template <typename T>
using ArrayRef = ::torchette::Span<const T>;
using ::torchette::BFloat16;
using ::torchette::DimOrderType;
using ::torchette::Half;
using ::torchette::Scalar;
using ::torchette::ScalarType;
using ::torchette::SizesType;
using ::torchette::StridesType;
using ::torchette::Tensor;
using TensorList = ArrayRef<Tensor>;

/// The implementation of a tensor that the caller creates. It contains the dim order and the strides of a
/// dense tensor if the caller does not pass them.
class TensorImpl : public ::torchette::TensorImpl {
 public:
  using DimOrderType = aten::DimOrderType;
  using SizesType = aten::SizesType;
  using StridesType = aten::StridesType;

  TensorImpl(ScalarType scalar_type, ptrdiff_t rank, SizesType* own_sizes, void* own_data = nullptr,
             DimOrderType* own_dim_order = nullptr, StridesType* own_strides = nullptr,
             TensorShapeDynamism own_dynamism = TensorShapeDynamism::STATIC)
      : ::torchette::TensorImpl{own_data,
                                own_sizes,
                                own_strides != nullptr ? own_strides : strides_,
                                own_dim_order != nullptr ? own_dim_order : dim_order_,
                                0,
                                0,
                                static_cast<uint8_t>(rank),
                                scalar_type,
                                own_dynamism} {
    const auto n = static_cast<size_t>(rank);
    if (rank < 0 || n > ::torchette::kMaxDim) refuse("rank");
    for (size_t d = 0; d < n; ++d) dim_order_[d] = static_cast<DimOrderType>(d);
    for (size_t d = 0; d < n; ++d)
      if (dim_order[d] >= n) refuse("dim order");
    const ::torchette::Result<int32_t> count =
        ::torchette::dense_strides({own_sizes, n}, dim_order, strides_);
    if (!count.ok()) refuse("size");
    numel = *count;
    capacity = static_cast<size_t>(*count);
  }
  TensorImpl(const TensorImpl&) = delete;
  TensorImpl& operator=(const TensorImpl&) = delete;

 private:
  [[noreturn]] static void refuse([[maybe_unused]] const char* what) {
    TORCHETTE_LOG(Fatal, "the %s of the tensor is invalid", what);
    ::torchette::runtime_abort();
  }

  StridesType strides_[::torchette::kMaxDim];
  DimOrderType dim_order_[::torchette::kMaxDim];
};

#endif

using IntArrayRef = ArrayRef<int64_t>;

}  // namespace executorch::aten

namespace exec_aten = ::executorch::aten;
