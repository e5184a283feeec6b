// SPDX-License-Identifier: BSD-3-Clause
// Memory of a method. The caller owns all of it: a bump allocator over the caller's bytes, the planned
// buffers, and the MemoryManager that combines them. The runtime allocates nothing else, except scratch
// memory (see MemoryManager).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "torchette/runtime/error.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette {

/// Allocates aligned blocks of [base, base + size) in sequence. Subclasses may use other memory. The
/// destructor is not virtual, since that would link `operator delete` into firmware: the owner destroys the
/// derived object. All virtual functions are inline, so that code compiled with RTTI can derive from the
/// class although the core has no RTTI.
class MemoryAllocator {
 public:
  static constexpr size_t kDefaultAlignment = alignof(void*);

  MemoryAllocator(size_t size, uint8_t* base) : begin_(base), end_(base + size), current_(base) {}
  MemoryAllocator(const MemoryAllocator&) = delete;
  MemoryAllocator& operator=(const MemoryAllocator&) = delete;

  /// Returns `size` bytes at a multiple of `alignment` (a power of two), or null if they do not fit.
  virtual void* allocate(size_t size, size_t alignment = kDefaultAlignment) { return bump(size, alignment); }
  /// Frees all allocations.
  virtual void reset() { current_ = begin_; }

  /// Memory for `count` objects of T, not constructed. Null if it does not fit or the size overflows.
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
  /// The bytes that are not allocated.
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

  /// Returns the address of [offset, offset + size) in buffer `id`. Errors: InvalidArgument (no such buffer),
  /// MemoryAllocationFailed (the range is not inside the buffer).
  Result<void*> get_offset_address(uint32_t id, size_t offset, size_t size) const;
  Span<Span<uint8_t>> buffers() const { return buffers_; }
  /// Sets the first `size` bytes of buffer `id` to zero, at load and at Method::reset(). A subclass may do so
  /// without writing, if its memory is zero or comes from a system with virtual memory.
  virtual void clear(size_t id, size_t size) { memset(buffers_[id].data(), 0, size); }

 protected:
  Span<Span<uint8_t>> buffers_;
};

class DynamicAllocator;

/// The memory of a method:
/// - method allocator: the method's own structures, for the lifetime of the method;
/// - planned memory: the planned buffers;
/// - temp allocator: scratch memory of kernels, reset after every instruction;
/// - dynamic allocator: tensors with sizes that are not known before execution.
/// Planned memory and the dynamic allocator may be null if the method does not need them. Without a temp
/// allocator, scratch memory comes from platform_allocate() or, if the platform has no heap, from the free
/// bytes of the method allocator. Methods that share a method allocator must then not execute concurrently.
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
