// SPDX-License-Identifier: BSD-3-Clause
// The bump allocator and the planned buffers. Sizes and offsets may come from a file, so no arithmetic here
// may wrap.
#include "torchette/runtime/memory.h"

#include "torchette/runtime/platform.h"

namespace torchette {

void* MemoryAllocator::bump(size_t size, size_t alignment) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    TORCHETTE_LOG(Error, "alignment %zu is not a power of two", alignment);
    return nullptr;
  }
  const size_t padding = (0 - reinterpret_cast<uintptr_t>(current_)) & (alignment - 1);
  const size_t available = free_size();
  if (padding > available || size > available - padding) {
    const size_t used = used_size() + padding;
    TORCHETTE_LOG(Error, "an allocator of %zu bytes is too small: at least %zu are needed",
                  used_size() + available, size > SIZE_MAX - used ? SIZE_MAX : used + size);
    return nullptr;
  }
  uint8_t* const result = current_ + padding;
  current_ = result + size;
  return result;
}

Result<void*> HierarchicalAllocator::get_offset_address(uint32_t id, size_t offset, size_t size) const {
  if (id >= buffers_.size()) {
    TORCHETTE_LOG(Error, "planned buffer %u does not exist, buffers: %zu", id, buffers_.size());
    return Error::InvalidArgument;
  }
  const Span<uint8_t> buffer = buffers_[id];
  if (offset > buffer.size() || size > buffer.size() - offset) {
    TORCHETTE_LOG(Error, "%zu bytes at %zu are outside planned buffer %u of %zu bytes", size, offset, id,
                  buffer.size());
    return Error::MemoryAllocationFailed;
  }
  return static_cast<void*>(buffer.data() + offset);
}

}  // namespace torchette
