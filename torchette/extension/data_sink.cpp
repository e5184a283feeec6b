// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/data_sink.h"

#include <cstring>

#include "torchette/runtime/platform.h"

namespace torchette::extension {

void* OnPlatformHeap::operator new(size_t size) noexcept { return platform_allocate(size); }
void OnPlatformHeap::operator delete(void* memory) noexcept { platform_free(memory); }

Result<size_t> BufferDataSink::append(const void* data, size_t size) {
  const auto end = reinterpret_cast<uintptr_t>(buffer_.data()) + used_;
  const size_t padding = (alignment_ - end % alignment_) % alignment_, available = buffer_.size() - used_;
  if (padding > available || size > available - padding) return Error::OutOfResources;
  const size_t start = used_ + padding;
  if (size != 0) memcpy(buffer_.data() + start, data, size);
  used_ = start + size;
  return start;
}

}  // namespace torchette::extension
