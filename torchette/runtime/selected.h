// SPDX-License-Identifier: BSD-3-Clause
// The contents of a selective build, as constants. The build (torchette/build/selection.py) includes a header
// that defines TORCHETTE_SELECTED_OPERATORS, a comma-separated list of names, and TORCHETTE_SELECTED_DTYPES,
// one bit per ScalarType. Without that header a build contains everything.
#pragma once

#include "torchette/runtime/dtype.h"

namespace torchette {

#ifdef TORCHETTE_SELECTED_OPERATORS
constexpr bool is_selected(const char* name) {
  constexpr const char* kNames[] = {TORCHETTE_SELECTED_OPERATORS nullptr};
  for (const char* const* selected = kNames; *selected != nullptr; ++selected) {
    size_t i = 0;
    while (name[i] == (*selected)[i] && name[i] != 0) ++i;
    if (name[i] == (*selected)[i]) return true;
  }
  return false;
}
#else
constexpr bool is_selected(const char*) { return true; }
#endif

#ifdef TORCHETTE_SELECTED_DTYPES
inline constexpr uint32_t kSelectedDtypes = TORCHETTE_SELECTED_DTYPES;
#else
inline constexpr uint32_t kSelectedDtypes = ~uint32_t{0};
#endif

/// Whether the build supports tensors of this dtype. Loading refuses other dtypes, so their code is never
/// reached.
constexpr bool has_dtype(ScalarType type) {
  return (kSelectedDtypes >> static_cast<uint8_t>(type) & 1u) != 0;
}

/// Whether kernels of the build may compute in T: float (also for both 16-bit float types), double, or
/// int64_t for integers and booleans.
template <typename T>
constexpr bool computes_in() {
  for (uint8_t i = 0; i < 32; ++i) {
    const auto type = static_cast<ScalarType>(i);
    const ScalarType computed = type == ScalarType::Double ? type
                                : is_floating(type)        ? ScalarType::Float
                                                           : ScalarType::Long;
    if (has_dtype(type) && computed == kScalarType<T>) return true;
  }
  return false;
}

}  // namespace torchette
