// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/vulkan/elements.h"

#include <cstring>

namespace torchette {
namespace vulkan {
namespace {

template <typename To, typename From>
void convert(const void* from, void* to, int64_t n) {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<To*>(to);
  for (int64_t i = 0; i < n; ++i) target[i] = static_cast<To>(source[i]);
}

/// Copies floating-point elements; either side may be float32 or float16.
void copy_floats(const void* from, bool from_half, void* to, bool to_half, int64_t n) {
  if (from_half == to_half)
    memcpy(to, from, static_cast<size_t>(n) * (to_half ? 2 : 4));
  else if (to_half)
    convert<Half, float>(from, to, n);
  else
    convert<float, Half>(from, to, n);
}

}  // namespace

bool to_device(ScalarType type, const void* from, Kind kind, void* to, int64_t n) {
  if (is_floating(type) != is_float(kind)) return false;
  switch (type) {
    case ScalarType::Float:
    case ScalarType::Half:
      copy_floats(from, type == ScalarType::Half, to, kind == Kind::kHalf, n);
      return true;
    case ScalarType::Double:
      if (kind != Kind::kFloat) return false;
      convert<float, double>(from, to, n);
      return true;
    case ScalarType::Int:
      memcpy(to, from, static_cast<size_t>(n) * 4);
      return kind == Kind::kInt;
    case ScalarType::Long:
      for (int64_t i = 0; i < n; ++i) {
        const int64_t value = static_cast<const int64_t*>(from)[i];
        if (value != static_cast<int32_t>(value)) return false;
        static_cast<int32_t*>(to)[i] = static_cast<int32_t>(value);
      }
      return kind == Kind::kInt;
    case ScalarType::Bool:
      for (int64_t i = 0; i < n; ++i)
        static_cast<uint32_t*>(to)[i] = static_cast<const uint8_t*>(from)[i] != 0;
      return true;
    case ScalarType::Byte:
      if (kind == Kind::kByte)
        memcpy(to, from, static_cast<size_t>(n));
      else
        convert<int32_t, uint8_t>(from, to, n);
      return kind == Kind::kInt || kind == Kind::kByte;
    case ScalarType::Char:
      if (kind == Kind::kByte)
        memcpy(to, from, static_cast<size_t>(n));
      else
        convert<int32_t, int8_t>(from, to, n);
      return kind == Kind::kInt || kind == Kind::kByte;
    default:
      return false;
  }
}

bool from_device(Kind kind, const void* from, ScalarType type, void* to, int64_t n) {
  if (is_floating(type) != is_float(kind)) return false;
  switch (type) {
    case ScalarType::Float:
    case ScalarType::Half:
      copy_floats(from, kind == Kind::kHalf, to, type == ScalarType::Half, n);
      return true;
    case ScalarType::Double:
      if (kind != Kind::kFloat) return false;
      convert<double, float>(from, to, n);
      return true;
    case ScalarType::Int:
      convert<int32_t, int32_t>(from, to, n);
      return true;
    case ScalarType::Long:
      convert<int64_t, int32_t>(from, to, n);
      return true;
    case ScalarType::Bool:
      for (int64_t i = 0; i < n; ++i)
        static_cast<uint8_t*>(to)[i] = static_cast<const uint32_t*>(from)[i] != 0;
      return true;
    case ScalarType::Byte:
      convert<uint8_t, int32_t>(from, to, n);
      return true;
    case ScalarType::Char:
      convert<int8_t, int32_t>(from, to, n);
      return true;
    default:
      return false;
  }
}

ScalarType stored_type(fb::VkDataType type) {
  switch (type) {
    case fb::VkDataType::FLOAT32:
      return ScalarType::Float;
    case fb::VkDataType::FLOAT64:
      return ScalarType::Double;
    case fb::VkDataType::FLOAT16:
      return ScalarType::Half;
    case fb::VkDataType::BOOL:
      return ScalarType::Bool;
    case fb::VkDataType::UINT8:
      return ScalarType::Byte;
    case fb::VkDataType::INT8:
      return ScalarType::Char;
    case fb::VkDataType::INT64:
      return ScalarType::Long;
    default:
      return ScalarType::Int;
  }
}

}  // namespace vulkan
}  // namespace torchette
