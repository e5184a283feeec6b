// SPDX-License-Identifier: BSD-3-Clause
// Memory of the bindings: from the heap, freed by its owner.
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

/// Zeroed pages come from the system without being touched; others are as they come.
inline Memory allocate_memory(size_t size) {
  void* p = nullptr;
  const size_t alignment = extension::huge_alignment(size, kAlignment);
  if (posix_memalign(&p, alignment, size == 0 ? 1 : extension::huge_size(size)) != 0) throw std::bad_alloc();
  extension::prefer_huge_pages(p, size);
  return Memory(p);
}

}  // namespace torchette::pybindings
