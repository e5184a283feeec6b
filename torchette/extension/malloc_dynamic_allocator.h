// SPDX-License-Identifier: BSD-3-Clause
// MallocDynamicAllocator: memory for tensors of sizes that only the run knows, for systems with a heap.
#pragma once

#include <cstddef>

#include "torchette/runtime/platform.h"
#include "torchette/runtime/tensor.h"

namespace torchette::extension {

/// Allocates pieces from the platform; the destructor frees what is left. Large pieces that are given back
/// serve the next ones until the last large one is given back: a system takes longer to give and to clear
/// such memory anew than some kernels take for it. With those that wait it takes 1.5 times the peak at most.
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
    Piece* piece = take(size);
    if (piece == nullptr) {
      while (spare_ != nullptr && taken_ + size > peak_ + peak_ / 2) release(spare_);
      void* const memory = platform_allocate(sizeof(Piece) + size + kSlack);
      if (memory == nullptr) return nullptr;
      piece = reinterpret_cast<Piece*>((reinterpret_cast<uintptr_t>(memory) + kSlack) / 16 * 16);
      piece->room = size;
      piece->memory = memory;
      taken_ += size;
    }
    piece->size = size;
    link(piece, pieces_);
    if (piece->room >= kLarge) ++large_;
    held_ += size;
    if (held_ > peak_) peak_ = held_;
    return piece + 1;
  }

  /// The peak of allocated bytes since the last reset_peak().
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = held_; }

 private:
  struct alignas(16) Piece {
    size_t size, room;
    Piece** here;  // what points to this one
    Piece* next;
    void* memory;  // as the platform gave it
  };
  static_assert(sizeof(Piece) % 16 == 0);
  // a heap of 32 bits may give multiples of 8
  static constexpr size_t kSlack = alignof(max_align_t) % 16 == 0 ? 0 : 15;
  // Smaller pieces a heap gives again itself.
  static constexpr size_t kLarge = size_t{1} << 16;

  static void link(Piece* piece, Piece*& list) {
    piece->here = &list;
    piece->next = list;
    if (list != nullptr) list->here = &piece->next;
    list = piece;
  }
  static void unlink(Piece* piece) {
    *piece->here = piece->next;
    if (piece->next != nullptr) piece->next->here = piece->here;
  }
  /// The smallest spare piece that has room, unless most of it would be wasted; or null.
  Piece* take(size_t size) {
    Piece* best = nullptr;
    for (Piece* piece = spare_; piece != nullptr; piece = piece->next)
      if (piece->room >= size && piece->room / 4 <= size && (best == nullptr || piece->room < best->room))
        best = piece;
    if (best != nullptr) unlink(best);
    return best;
  }
  void release(Piece* piece) {
    unlink(piece);
    taken_ -= piece->room;
    platform_free(piece->memory);
  }
  void drop(Piece* piece) {
    held_ -= piece->size;
    if (piece->room < kLarge) return release(piece);
    unlink(piece);
    link(piece, spare_);
    if (--large_ == 0)
      while (spare_ != nullptr) release(spare_);
  }

  Piece *pieces_ = nullptr, *spare_ = nullptr;
  size_t held_ = 0, peak_ = 0;    // bytes that were asked for
  size_t taken_ = 0, large_ = 0;  // bytes from the platform, and pieces that are large and not spare
};

}  // namespace torchette::extension
