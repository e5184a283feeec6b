// SPDX-License-Identifier: BSD-3-Clause
// A switch over the dtypes for each direction.
#include "torchette/extension/element.h"

#define TORCHETTE_ELEMENTS(X) \
  X(Byte, uint8_t)            \
  X(Char, int8_t)             \
  X(Short, int16_t)           \
  X(Int, int32_t)             \
  X(Long, int64_t)            \
  X(Half, Half)               \
  X(Float, float)             \
  X(Double, double)           \
  X(Bool, bool)               \
  X(BFloat16, BFloat16)       \
  X(UInt16, uint16_t)         \
  X(UInt32, uint32_t)         \
  X(UInt64, uint64_t)

namespace torchette::extension {
namespace {

template <typename T>
Scalar to_scalar(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return Scalar(value);
  } else if constexpr (std::is_integral_v<T>) {
    return Scalar(static_cast<int64_t>(value));
  } else if constexpr (std::is_same_v<T, double>) {
    return Scalar(value);
  } else {
    return Scalar(static_cast<double>(static_cast<float>(value)));
  }
}

template <typename T>
T from_scalar(Scalar value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value.to_bool();
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value.to_int());
  } else if constexpr (std::is_same_v<T, double>) {
    return value.to_double();
  } else {
    return static_cast<T>(static_cast<float>(value.to_double()));
  }
}

}  // namespace

bool has_elements(ScalarType type) {
  switch (type) {
#define TORCHETTE_CASE(name, T) case ScalarType::name:
    TORCHETTE_ELEMENTS(TORCHETTE_CASE)
    return true;
#undef TORCHETTE_CASE
    default:
      return false;
  }
}

Scalar get_element(const void* data, ScalarType type, size_t index) {
  switch (type) {
#define TORCHETTE_CASE(name, T) \
  case ScalarType::name:        \
    return to_scalar(static_cast<const T*>(data)[index]);
    TORCHETTE_ELEMENTS(TORCHETTE_CASE)
#undef TORCHETTE_CASE
    default:
      return {};
  }
}

void set_element(void* data, ScalarType type, size_t index, Scalar value) {
  switch (type) {
#define TORCHETTE_CASE(name, T)                           \
  case ScalarType::name:                                  \
    static_cast<T*>(data)[index] = from_scalar<T>(value); \
    return;
    TORCHETTE_ELEMENTS(TORCHETTE_CASE)
#undef TORCHETTE_CASE
    default:
      return;
  }
}

}  // namespace torchette::extension
