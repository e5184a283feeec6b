// SPDX-License-Identifier: BSD-3-Clause
// Heap memory of the bindings.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "torchette/extension/huge_pages.h"

namespace torchette::pybindings {

constexpr size_t kAlignment = 64;

struct FreeMemory {
  void operator()(void* p) const { free(p); }
};
using Memory = std::unique_ptr<void, FreeMemory>;

/// Returns uninitialised memory. Large blocks use huge pages, unless only a part of them may be used.
inline Memory allocate_memory(size_t size, bool is_used_in_part = false) {
  void* p = nullptr;
  const size_t alignment = is_used_in_part ? kAlignment : extension::huge_alignment(size, kAlignment);
  if (posix_memalign(&p, alignment, size == 0 ? 1 : extension::huge_size(size)) != 0) throw std::bad_alloc();
  if (!is_used_in_part) extension::prefer_huge_pages(p, size);
  return Memory(p);
}

}  // namespace torchette::pybindings
