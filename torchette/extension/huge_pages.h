// SPDX-License-Identifier: BSD-3-Clause
// Large blocks of memory in large pages: a method's planned memory is written to when it is loaded, and the
// system takes a microsecond or two for each page of 4 KB that is touched for the first time.
#pragma once

#include <cstddef>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace torchette::extension {

constexpr size_t kHugePage = size_t{1} << 21;

/// How many bytes to allocate for so many, at a multiple of `huge_alignment(size)`: whole huge pages, unless
/// half of the last one would be wasted.
constexpr size_t huge_size(size_t size) {
  const size_t rounded = (size + kHugePage / 2) / kHugePage * kHugePage;
  return rounded > size ? rounded : size;
}
constexpr size_t huge_alignment(size_t size, size_t otherwise) {
  return huge_size(size) >= kHugePage ? kHugePage : otherwise;
}

/// Asks the system for huge pages in memory of huge_size(size) bytes. Where it has none nothing changes.
inline void prefer_huge_pages(void* memory, size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (huge_size(size) >= kHugePage) (void)madvise(memory, huge_size(size), MADV_HUGEPAGE);
#else
  (void)memory, (void)size;
#endif
}

}  // namespace torchette::extension
