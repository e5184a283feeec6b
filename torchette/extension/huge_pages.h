// SPDX-License-Identifier: BSD-3-Clause
// Selects the page size of large blocks of memory. The first access to each 4 KB page costs one or two
// microseconds; the first access to a huge page makes 2 MB resident.
#pragma once

#include <cstddef>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace torchette::extension {

constexpr size_t kHugePage = size_t{1} << 21;

/// Returns the number of bytes to allocate for `size` bytes with an alignment of `huge_alignment(size)`.
/// Rounds up to a multiple of huge pages, unless that wastes more than half of the last page.
constexpr size_t huge_size(size_t size) {
  const size_t rounded = (size + kHugePage / 2) / kHugePage * kHugePage;
  return rounded > size ? rounded : size;
}
constexpr size_t huge_alignment(size_t size, size_t default_alignment) {
  return huge_size(size) >= kHugePage ? kHugePage : default_alignment;
}

/// Requests huge pages for memory of huge_size(size) bytes. Has no effect if the system does not support
/// them.
inline void prefer_huge_pages(void* memory, size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (huge_size(size) >= kHugePage) (void)madvise(memory, huge_size(size), MADV_HUGEPAGE);
#else
  (void)memory, (void)size;
#endif
}

/// Requests small pages for memory that begins at a page.
inline void refuse_huge_pages(void* memory, size_t size) {
#if defined(__linux__) && defined(MADV_NOHUGEPAGE)
  if (size >= kHugePage) (void)madvise(memory, size, MADV_NOHUGEPAGE);
#else
  (void)memory, (void)size;
#endif
}

}  // namespace torchette::extension
