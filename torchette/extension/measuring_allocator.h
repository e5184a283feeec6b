// SPDX-License-Identifier: BSD-3-Clause
// MeasuringAllocator: counts the bytes that a fixed pool on a device needs for the same requests.
#pragma once

#include "torchette/runtime/memory.h"

namespace torchette::extension {

/// Forwards requests to `memory`, which must outlive the object. Counts like a pool with a start that
/// satisfies every alignment. Returns null for a request that does not fit a pool of `limit` bytes.
class MeasuringAllocator final : public MemoryAllocator {
 public:
  explicit MeasuringAllocator(MemoryAllocator& memory, size_t limit = SIZE_MAX / 4)
      : MemoryAllocator(0, nullptr), memory_(memory), limit_(limit) {}

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    const size_t start = (used_ + alignment - 1) / alignment * alignment;
    if (size > limit_ || start > limit_ - size) {
      required_ = start + size;
      return nullptr;
    }
    used_ = start + size;
    return memory_.allocate(size, alignment);
  }

  /// Returns the number of bytes of the pool that are in use.
  size_t used() const { return used_; }
  /// Returns the size of a pool that is large enough for the last request that did not fit.
  size_t required() const { return required_; }

 private:
  MemoryAllocator& memory_;
  size_t limit_, used_ = 0, required_ = 0;
};

}  // namespace torchette::extension
