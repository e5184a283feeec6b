// SPDX-License-Identifier: BSD-3-Clause
// MallocDynamicAllocator: memory for tensors of sizes that only the run knows, for systems with a heap.
#pragma once

#include <cstddef>

#include "torchette/runtime/platform.h"
#include "torchette/runtime/tensor.h"

namespace torchette::extension {

/// Allocates every piece from the platform and frees it at once; the destructor frees the rest.
class MallocDynamicAllocator final : public DynamicAllocator {
 public:
  MallocDynamicAllocator() = default;
  MallocDynamicAllocator(const MallocDynamicAllocator&) = delete;
  MallocDynamicAllocator& operator=(const MallocDynamicAllocator&) = delete;
  ~MallocDynamicAllocator() {
    while (pieces_ != nullptr) drop(pieces_);
  }

  void* reallocate(void* old, size_t size) override {
    if (old != nullptr) drop(static_cast<Piece*>(old) - 1);
    if (size == 0 || size > SIZE_MAX / 2) return nullptr;
    void* const memory = platform_allocate(sizeof(Piece) + size + kSlack);
    if (memory == nullptr) return nullptr;
    auto* const piece = reinterpret_cast<Piece*>((reinterpret_cast<uintptr_t>(memory) + kSlack) / 16 * 16);
    *piece = {size, &pieces_, pieces_, memory};
    if (pieces_ != nullptr) pieces_->here = &piece->next;
    pieces_ = piece;
    held_ += size;
    if (held_ > peak_) peak_ = held_;
    return piece + 1;
  }

  /// The peak of allocated bytes since the last reset_peak().
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = held_; }

 private:
  struct alignas(16) Piece {
    size_t size;
    Piece** here;  // what points to this one
    Piece* next;
    void* memory;  // as the platform gave it
  };
  static_assert(sizeof(Piece) % 16 == 0);
  // a heap of 32 bits may give multiples of 8
  static constexpr size_t kSlack = alignof(max_align_t) % 16 == 0 ? 0 : 15;

  void drop(Piece* piece) {
    held_ -= piece->size;
    *piece->here = piece->next;
    if (piece->next != nullptr) piece->next->here = piece->here;
    platform_free(piece->memory);
  }

  Piece* pieces_ = nullptr;
  size_t held_ = 0, peak_ = 0;
};

}  // namespace torchette::extension
