// SPDX-License-Identifier: BSD-3-Clause
// Where memory comes from: the caller. A bump allocator over bytes that the caller owns, the planned buffers,
// and the three of them together. Nothing in the runtime allocates otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "torchette/runtime/error.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette {

/// Hands out aligned pieces of [base, base + size) one after the other. Subclasses may take memory from
/// elsewhere. The destructor is not virtual (that would pull `operator delete` into firmware): owners destroy
/// what they made. All virtual functions are inline, so that code with RTTI can derive from it though the
/// core has none.
class MemoryAllocator {
 public:
  static constexpr size_t kDefaultAlignment = alignof(void*);

  MemoryAllocator(size_t size, uint8_t* base) : begin_(base), end_(base + size), current_(base) {}
  MemoryAllocator(const MemoryAllocator&) = delete;
  MemoryAllocator& operator=(const MemoryAllocator&) = delete;

  /// `size` bytes at a multiple of `alignment` (a power of two), or null when they do not fit.
  virtual void* allocate(size_t size, size_t alignment = kDefaultAlignment) { return bump(size, alignment); }
  /// Forgets all that was handed out.
  virtual void reset() { current_ = begin_; }

  /// Room for `count` objects of T, not constructed; null when it does not fit or the size overflows.
  template <typename T>
  T* allocate_list(size_t count) {
    if (count > SIZE_MAX / sizeof(T)) return nullptr;
    return static_cast<T*>(allocate(count * sizeof(T), alignof(T)));
  }
  template <typename T>
  T* allocate_instance() {
    return allocate_list<T>(1);
  }
  // ExecuTorch's names
  template <typename T>
  T* allocateList(size_t count) {
    return allocate_list<T>(count);
  }
  template <typename T>
  T* allocateInstance() {
    return allocate_instance<T>();
  }

  virtual uint8_t* base_address() const { return begin_; }
  virtual uint32_t size() const { return static_cast<uint32_t>(end_ - begin_); }
  size_t used_size() const { return static_cast<size_t>(current_ - begin_); }
  size_t free_size() const { return static_cast<size_t>(end_ - current_); }
  /// The bytes that allocate() has not handed out.
  Span<uint8_t> free_bytes() const { return {current_, free_size()}; }

 protected:
  void* bump(size_t size, size_t alignment);

  uint8_t* begin_;
  uint8_t* end_;
  uint8_t* current_;
};

/// The planned buffers: one span of bytes per memory id of the program, in order.
class HierarchicalAllocator {
 public:
  explicit HierarchicalAllocator(Span<Span<uint8_t>> buffers) : buffers_(buffers) {}

  /// The address of [offset, offset + size) in buffer `id`. Errors: InvalidArgument (no such buffer),
  /// MemoryAllocationFailed (not inside).
  Result<void*> get_offset_address(uint32_t id, size_t offset, size_t size) const;
  Span<Span<uint8_t>> buffers() const { return buffers_; }

 private:
  Span<Span<uint8_t>> buffers_;
};

class DynamicAllocator;

/// The memories of a method: its own structures (lives as long as the method), the planned buffers, the
/// kernels' scratch (reset after every instruction), and tensors of sizes that are not known ahead of time.
/// Planned and dynamic memory may be null if a method does not need them. Without a temp allocator, scratch
/// comes from platform_allocate() or, if the platform has no memory, from the free bytes of the method
/// allocator: then methods that share a method allocator must not execute at the same time.
class MemoryManager {
 public:
  explicit MemoryManager(MemoryAllocator* method_allocator, HierarchicalAllocator* planned_memory = nullptr,
                         MemoryAllocator* temp_allocator = nullptr,
                         DynamicAllocator* dynamic_allocator = nullptr)
      : method_allocator_(method_allocator),
        planned_memory_(planned_memory),
        temp_allocator_(temp_allocator),
        dynamic_allocator_(dynamic_allocator) {}

  MemoryAllocator* method_allocator() const { return method_allocator_; }
  HierarchicalAllocator* planned_memory() const { return planned_memory_; }
  MemoryAllocator* temp_allocator() const { return temp_allocator_; }
  DynamicAllocator* dynamic_allocator() const { return dynamic_allocator_; }

 private:
  MemoryAllocator* method_allocator_;
  HierarchicalAllocator* planned_memory_;
  MemoryAllocator* temp_allocator_;
  DynamicAllocator* dynamic_allocator_;
};

}  // namespace torchette
