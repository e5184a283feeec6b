// SPDX-License-Identifier: BSD-3-Clause
// Kernels' scratch memory.
#include "torchette/runtime/kernel.h"

namespace torchette {

// Not in the header: kernels of every instruction-set level would bring a copy of the allocator's functions,
// and the linker would keep one.
void* Context::allocate_temp(size_t size, size_t alignment) {
  temp_used_ = true;
  if (event_tracer() != nullptr) event_tracer()->track_allocation(allocator_id(), size);
  return temp_allocator_ == nullptr ? nullptr : temp_allocator_->allocate(size, alignment);
}

}  // namespace torchette
