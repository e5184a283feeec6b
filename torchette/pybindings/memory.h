// SPDX-License-Identifier: BSD-3-Clause
// Memory of the bindings: from the heap, given back by itself, and measured.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "torchette/extension/huge_pages.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/runtime/memory.h"

namespace torchette::pybindings {

constexpr size_t kAlignment = 64;

struct FreeMemory {
  void operator()(void* p) const { free(p); }
};
using Memory = std::unique_ptr<void, FreeMemory>;

/// Zeroed pages come from the system without being touched; others are as they come.
inline Memory allocate_memory(size_t size) {
  void* p = nullptr;
  const size_t alignment = extension::huge_alignment(size, kAlignment);
  if (posix_memalign(&p, alignment, size == 0 ? 1 : extension::huge_size(size)) != 0) throw std::bad_alloc();
  extension::prefer_huge_pages(p, size);
  return Memory(p);
}

/// Memory as on a device with a pool of `limit` bytes that starts at a multiple of any alignment.
class MeasuringAllocator final : public MemoryAllocator {
 public:
  explicit MeasuringAllocator(size_t limit = SIZE_MAX / 4) : MemoryAllocator(0, nullptr), limit_(limit) {}

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    const size_t start = (used_ + alignment - 1) / alignment * alignment;
    if (size > limit_ || start > limit_ - size) {
      wanted_ = start + size;
      return nullptr;
    }
    used_ = start + size;
    return memory_.allocate(size, alignment);
  }

  size_t used() const { return used_; }
  /// What the pool must hold for the last request that was refused.
  size_t wanted() const { return wanted_; }

 private:
  extension::MallocMemoryAllocator memory_;
  size_t limit_, used_ = 0, wanted_ = 0;
};

}  // namespace torchette::pybindings
