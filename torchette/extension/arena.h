// SPDX-License-Identifier: BSD-3-Clause
// Arena: the memory of a planned buffer. Large arenas are zero without being written, so a page becomes
// resident when a kernel first writes to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "torchette/runtime/memory.h"

namespace torchette::extension {

class SharedArenas;

class Arena {
 public:
  static constexpr size_t kAlignment = 64;  // for vector instructions

  /// Huge pages need fewer page faults. Small pages make only the used parts of an arena resident.
  enum class Pages : uint8_t { Small, Huge };

  /// Allocates `size` bytes. They are zero only after clear(). Error: MemoryAllocationFailed.
  static Result<Arena> allocate(size_t size, Pages pages);
  Arena() = default;
  Arena(Arena&& other) noexcept
      : bytes_(other.bytes_), memory_(other.memory_), mapped_size_(other.mapped_size_) {
    other.memory_ = nullptr;
  }
  Arena& operator=(Arena&&) = delete;
  ~Arena();

  Span<uint8_t> bytes() const { return bytes_; }
  /// Sets [begin, end) to zero. Returns whole pages of a large arena to the system instead of writing them.
  void clear(size_t begin, size_t end);

 private:
  Span<uint8_t> bytes_;
  void* memory_ = nullptr;  // of the system or, if `mapped_size_` is 0, of the platform
  size_t mapped_size_ = 0;
};

/// The planned buffers of a method: its own arenas, and arenas that methods share.
class ArenaAllocator final : public HierarchicalAllocator {
 public:
  ArenaAllocator() : HierarchicalAllocator({}) {}
  ArenaAllocator(const ArenaAllocator&) = delete;
  ArenaAllocator& operator=(const ArenaAllocator&) = delete;

  /// Adds the next planned buffer.
  void add(Arena arena);
  /// Adds the next planned buffer, which `shared` owns. `shared` must outlive the object.
  void add(SharedArenas& shared);
  void clear(size_t id, size_t size) override;

 private:
  std::vector<Span<uint8_t>> spans_;
  std::vector<Arena> arenas_;  // by id; empty if the arena is shared
  SharedArenas* shared_ = nullptr;
};

}  // namespace torchette::extension
