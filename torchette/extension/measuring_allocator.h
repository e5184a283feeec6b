// SPDX-License-Identifier: BSD-3-Clause
// MeasuringAllocator: counts the bytes that a pool of a device needs for the same requests.
#pragma once

#include "torchette/runtime/memory.h"

namespace torchette::extension {

/// Passes requests on to `memory`, which must outlive it. Counts them like a pool that starts at a multiple
/// of any alignment, and refuses a request for which a pool of `limit` bytes has no room.
class MeasuringAllocator final : public MemoryAllocator {
 public:
  explicit MeasuringAllocator(MemoryAllocator& memory, size_t limit = SIZE_MAX / 4)
      : MemoryAllocator(0, nullptr), memory_(memory), limit_(limit) {}

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    const size_t start = (used_ + alignment - 1) / alignment * alignment;
    if (size > limit_ || start > limit_ - size) {
      wanted_ = start + size;
      return nullptr;
    }
    used_ = start + size;
    return memory_.allocate(size, alignment);
  }

  /// The bytes of the pool that are in use.
  size_t used() const { return used_; }
  /// The bytes that the pool needs for the last refused request.
  size_t wanted() const { return wanted_; }

 private:
  MemoryAllocator& memory_;
  size_t limit_, used_ = 0, wanted_ = 0;
};

}  // namespace torchette::extension
