// SPDX-License-Identifier: BSD-3-Clause
// Converts elements of any dtype with one switch over the dtypes for each direction.
#include "torchette/extension/element.h"

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
#define TORCHETTE_DTYPE(number, name, torch_name, bytes, T) case ScalarType::name:
#include "torchette/schema/dtypes.def"
    return true;
    default:
      return false;
  }
}

Scalar get_element(const void* data, ScalarType type, size_t index) {
  switch (type) {
#define TORCHETTE_DTYPE(number, name, torch_name, bytes, T) \
  case ScalarType::name:                                    \
    return to_scalar(static_cast<const T*>(data)[index]);
#include "torchette/schema/dtypes.def"
    default:
      return {};
  }
}

void set_element(void* data, ScalarType type, size_t index, Scalar value) {
  switch (type) {
#define TORCHETTE_DTYPE(number, name, torch_name, bytes, T) \
  case ScalarType::name:                                    \
    static_cast<T*>(data)[index] = from_scalar<T>(value);   \
    return;
#include "torchette/schema/dtypes.def"
    default:
      return;
  }
}

const char* dtype_name(ScalarType type) {
  static constexpr const char* kNames[] = {
#define TORCHETTE_DTYPE(number, name, torch_name, bytes, type) #torch_name,
#define TORCHETTE_STORED_DTYPE(number, name, torch_name, bytes) #torch_name,
#include "torchette/schema/dtypes.def"
  };
  const auto i = static_cast<size_t>(type);
  return i < sizeof(kNames) / sizeof(*kNames) ? kNames[i] : "an unknown dtype";
}

}  // namespace torchette::extension
