// SPDX-License-Identifier: BSD-3-Clause
// ScalarType and the 16-bit float types. The codes are those of torch.ScalarType, which the file format
// stores.
#pragma once

#include <cstdint>
#include <cstring>

#include "torchette/runtime/span.h"

namespace torchette {

enum class ScalarType : int8_t {
#define TORCHETTE_DTYPE(number, name, torch_name, bytes, type) name = number,
#define TORCHETTE_STORED_DTYPE(number, name, torch_name, bytes) name = number,
#include "torchette/schema/dtypes.def"
  Undefined = 30,
};

/// Not inside element_size(): the compiler would build the table on each call.
inline constexpr uint8_t kElementSizes[] = {
#define TORCHETTE_DTYPE(number, name, torch_name, bytes, type) bytes,
#define TORCHETTE_STORED_DTYPE(number, name, torch_name, bytes) bytes,
#include "torchette/schema/dtypes.def"
    0};
/// Bytes of one element; 0 for a type that the tensors of this runtime cannot hold.
TORCHETTE_INLINE constexpr size_t element_size(ScalarType type) {
  const auto i = static_cast<uint8_t>(type);
  return i < sizeof(kElementSizes) ? kElementSizes[i] : 0;
}

/// Whether `p` is aligned for elements of `type`.
TORCHETTE_INLINE bool is_aligned_for(const void* p, ScalarType type) {
  const size_t size = element_size(type);
  return (reinterpret_cast<uintptr_t>(p) & ((size > 8 ? 8 : size) - 1)) == 0;
}

TORCHETTE_INLINE constexpr bool is_floating(ScalarType t) {
  return t == ScalarType::Half || t == ScalarType::Float || t == ScalarType::Double ||
         t == ScalarType::BFloat16;
}
/// Integer types except bool.
TORCHETTE_INLINE constexpr bool is_integral(ScalarType t) {
  return static_cast<int8_t>(t) <= static_cast<int8_t>(ScalarType::Long) || t == ScalarType::UInt16 ||
         t == ScalarType::UInt32 || t == ScalarType::UInt64;
}

/// IEEE binary16, stored as bits. Arithmetic uses float.
struct Half {
  uint16_t bits;

  Half() = default;
  TORCHETTE_INLINE Half(float f) : bits(from_float(f)) {}
  TORCHETTE_INLINE operator float() const { return to_float(bits); }

  static TORCHETTE_INLINE float to_float(uint16_t h) {
    // Shift mantissa and exponent and rebase the exponent by a multiplication, which also normalises
    // subnormals exactly. Infinities and NaN get the full exponent back.
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fffu) << 13;
    const uint32_t rebase_bits = 0x77800000u;  // 2^112
    float f, rebase;
    memcpy(&f, &magnitude, 4);
    memcpy(&rebase, &rebase_bits, 4);
    f *= rebase;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((h & 0x7c00u) == 0x7c00u) bits |= 0x7f800000u;
    bits |= sign;
    memcpy(&f, &bits, 4);
    return f;
  }

  static TORCHETTE_INLINE uint16_t from_float(float f) {
    uint32_t x;
    memcpy(&x, &f, 4);
    const uint32_t sign = (x >> 16) & 0x8000u;
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
    if (x >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
    if (x < 0x38800000u) {                                               // subnormal or zero
      // Adding 0.5 aligns the mantissa, so the hardware rounds to nearest even.
      float g;
      memcpy(&g, &x, 4);
      g += 0.5f;
      uint32_t y;
      memcpy(&y, &g, 4);
      return static_cast<uint16_t>(sign | (y - 0x3f000000u));
    }
    x += 0xfffu + ((x >> 13) & 1u);  // to nearest, ties to even
    return static_cast<uint16_t>(sign | ((x - 0x38000000u) >> 13));
  }
};

/// The upper half of a binary32, stored as bits. Arithmetic uses float.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  TORCHETTE_INLINE BFloat16(float f) : bits(from_float(f)) {}
  TORCHETTE_INLINE operator float() const {
    const uint32_t x = static_cast<uint32_t>(bits) << 16;
    float f;
    memcpy(&f, &x, 4);
    return f;
  }

  static TORCHETTE_INLINE uint16_t from_float(float f) {
    uint32_t x;
    memcpy(&x, &f, 4);
    if ((x & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;  // NaN
    x += 0x7fffu + ((x >> 16) & 1u);                      // to nearest, ties to even
    return static_cast<uint16_t>(x >> 16);
  }
};

/// ScalarType of a C++ element type: kScalarType<float> == ScalarType::Float.
template <typename T>
inline constexpr ScalarType kScalarType = ScalarType::Undefined;
#define TORCHETTE_DTYPE(number, name, torch_name, bytes, type) \
  template <>                                                  \
  inline constexpr ScalarType kScalarType<type> = ScalarType::name;
#include "torchette/schema/dtypes.def"

}  // namespace torchette
