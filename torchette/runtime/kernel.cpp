// SPDX-License-Identifier: BSD-3-Clause
// Scratch memory of kernels.
#include "torchette/runtime/kernel.h"

namespace torchette {

// Not in the header: kernels of every instruction-set level would contain a copy of the functions
// of the allocator, and the linker would keep one of any level.
void* Context::allocate_temp(size_t size, size_t alignment) {
  if (event_tracer() != nullptr) event_tracer()->track_allocation(allocator_id(), size);
  if (temp_allocator_ == nullptr) {
#if TORCHETTE_PLATFORM_SCRATCH
    return allocate_without_allocator(size, alignment);
#else
    return nullptr;
#endif
  }
  release_ = reset_allocator;
  return temp_allocator_->allocate(size, alignment);
}

#if TORCHETTE_PLATFORM_SCRATCH

/// ExecuTorch's programs are often executed without a temp allocator.
void* Context::allocate_without_allocator(size_t size, size_t alignment) {
  if (memory_ == nullptr || alignment == 0 || (alignment & (alignment - 1)) != 0 ||
      size > SIZE_MAX - sizeof(Block) - alignment)
    return nullptr;
  if (release_ == nullptr) {
    blocks_ = nullptr;
    borrowed_ = 0;
    release_ = release_blocks;
  }
  if (void* memory = platform_allocate(sizeof(Block) + alignment + size)) {
    blocks_ = new (memory) Block{blocks_};
    const auto begin = reinterpret_cast<uintptr_t>(blocks_ + 1);
    return reinterpret_cast<void*>((begin + alignment - 1) & ~(alignment - 1));
  }
  const Span<uint8_t> free = memory_->method_allocator()->free_bytes();
  MemoryAllocator free_part(free.size() - borrowed_, free.data() + borrowed_);
  void* const memory = free_part.allocate(size, alignment);
  borrowed_ += free_part.used_size();
  return memory;
}

void Context::release_blocks(Context& context) {
  while (context.blocks_ != nullptr) {
    Block* const block = context.blocks_;
    context.blocks_ = block->next;
    platform_free(block);
  }
  context.release_ = nullptr;
}

#endif

}  // namespace torchette
