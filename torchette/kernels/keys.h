// SPDX-License-Identifier: BSD-3-Clause
// 64-bit keys that sort elements of any type in the order of that type, and a heap of such keys. Shared by
// sorting, ranks and unique. NaN sorts above all other values.
#pragma once

#include <cstring>

#include "torchette/runtime/tensor.h"

#ifndef TORCHETTE_ISA
#define TORCHETTE_ISA baseline
#endif

namespace torchette {
namespace TORCHETTE_ISA {

constexpr uint64_t kSign = uint64_t{1} << 63;

struct Entry {
  uint64_t key;
  int64_t index;
  /// Whether this entry precedes `other` in the result: larger keys first, then lower indices.
  TORCHETTE_INLINE bool before(const Entry& other) const {
    return key != other.key ? key > other.key : index < other.index;
  }
};

TORCHETTE_INLINE uint64_t key_of(double value) {
  if (value != value) return ~uint64_t{0};
  value += 0.0;  // both zeros are equal
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

/// Returns the element as an unsigned integer with the order of its type, for any type that is_real().
inline uint64_t key_at(const char* p, ScalarType type) {
  const auto read = [p](auto value) {
    memcpy(&value, p, sizeof(value));
    return value;
  };
  switch (type) {
    case ScalarType::Byte:
    case ScalarType::Bool:
      return read(uint8_t{}) ^ kSign;
    case ScalarType::Char:
      return static_cast<uint64_t>(int64_t{read(int8_t{})}) ^ kSign;
    case ScalarType::Short:
      return static_cast<uint64_t>(int64_t{read(int16_t{})}) ^ kSign;
    case ScalarType::Int:
      return static_cast<uint64_t>(int64_t{read(int32_t{})}) ^ kSign;
    case ScalarType::Long:
      return read(uint64_t{}) ^ kSign;
    case ScalarType::Half:
      return key_of(static_cast<float>(read(Half{})));
    case ScalarType::BFloat16:
      return key_of(static_cast<float>(read(BFloat16{})));
    case ScalarType::Float:
      return key_of(read(float{}));
    default:
      return key_of(read(double{}));
  }
}

/// Replaces the root of a heap, which is the last entry in the result, with `entry`.
inline void sift_down(Entry* heap, size_t count, Entry entry) {
  size_t at = 0;
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= count) break;
    if (child + 1 < count && heap[child].before(heap[child + 1])) ++child;
    if (!entry.before(heap[child])) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = entry;
}

inline void sift_up(Entry* heap, size_t at, Entry entry) {
  while (at > 0 && heap[(at - 1) / 2].before(entry)) {
    heap[at] = heap[(at - 1) / 2];
    at = (at - 1) / 2;
  }
  heap[at] = entry;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
