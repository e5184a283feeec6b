// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/arena.h"

#include <cstring>
#include <utility>

#include "torchette/extension/huge_pages.h"
#include "torchette/extension/shared_arenas.h"
#include "torchette/runtime/platform.h"

#if !defined(_WIN32) && !defined(__wasm__)
#define TORCHETTE_HAS_MMAP 1
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace torchette::extension {
namespace {

#ifdef TORCHETTE_HAS_MMAP

/// Smaller arenas are on the heap: mapping them takes more time than writing them.
constexpr size_t kMinMapped = size_t{1} << 18;

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

size_t align_up(size_t size, size_t alignment) { return (size + alignment - 1) / alignment * alignment; }

/// Makes whole pages of a mapping zero. Returns false if the system refuses, for example because they are
/// locked.
bool release_pages(uint8_t* bytes, size_t size) {
#ifdef __linux__
  return madvise(bytes, size, MADV_DONTNEED) == 0;
#else
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  return mmap(bytes, size, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED;
#endif
}

#endif

}  // namespace

Result<Arena> Arena::allocate(size_t size, Pages pages) {
  TORCHETTE_CHECK(size <= SIZE_MAX / 2, MemoryAllocationFailed, "cannot allocate %zu bytes", size);
  Arena arena;
  size_t alignment = kAlignment;
#ifdef TORCHETTE_HAS_MMAP
  if (size >= kMinMapped) {
    const bool huge = pages == Pages::Huge && huge_size(size) >= kHugePage;
    alignment = huge ? kHugePage : page_size();
    arena.mapped_size_ = align_up(huge ? huge_size(size) : size, page_size()) + (huge ? kHugePage : 0);
    arena.memory_ =
        mmap(nullptr, arena.mapped_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena.memory_ == MAP_FAILED) arena.memory_ = nullptr;
  }
#endif
  if (arena.mapped_size_ == 0) arena.memory_ = platform_allocate(size + alignment);
  TORCHETTE_CHECK(arena.memory_ != nullptr, MemoryAllocationFailed, "cannot allocate %zu bytes", size);
  const size_t padding = (0 - reinterpret_cast<uintptr_t>(arena.memory_)) & (alignment - 1);
  arena.bytes_ = {static_cast<uint8_t*>(arena.memory_) + padding, size};
#ifdef TORCHETTE_HAS_MMAP
  if (alignment == kHugePage)
    prefer_huge_pages(arena.bytes_.data(), size);
  else if (arena.mapped_size_ != 0)
    refuse_huge_pages(arena.memory_, arena.mapped_size_);
#else
  static_cast<void>(pages);
#endif
  return arena;
}

Arena::~Arena() {
  if (memory_ == nullptr) return;
#ifdef TORCHETTE_HAS_MMAP
  if (mapped_size_ != 0) {
    munmap(memory_, mapped_size_);
    return;
  }
#endif
  platform_free(memory_);
}

void Arena::clear(size_t begin, size_t end) {
  uint8_t* const bytes = bytes_.data();
#ifdef TORCHETTE_HAS_MMAP
  if (mapped_size_ != 0) {
    const size_t first = align_up(begin, page_size()), last = end / page_size() * page_size();
    if (first < last && release_pages(bytes + first, last - first)) {
      memset(bytes + begin, 0, first - begin);
      memset(bytes + last, 0, end - last);
      return;
    }
  }
#endif
  memset(bytes + begin, 0, end - begin);
}

void ArenaAllocator::add(Arena arena) {
  spans_.push_back(arena.bytes());
  arenas_.push_back(std::move(arena));
  buffers_ = Span<Span<uint8_t>>(spans_);
}

void ArenaAllocator::add(SharedArenas& shared) {
  shared_ = &shared;
  spans_.push_back(shared.arena(spans_.size()));
  arenas_.emplace_back();
  buffers_ = Span<Span<uint8_t>>(spans_);
}

void ArenaAllocator::clear(size_t id, size_t size) {
  if (!arenas_[id].bytes().empty())
    arenas_[id].clear(0, size);
  else if (shared_ != nullptr)
    shared_->clear(id, size);
}

}  // namespace torchette::extension
