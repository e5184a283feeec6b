// SPDX-License-Identifier: BSD-3-Clause
// MallocDynamicAllocator: allocates memory of the heap for tensors with sizes that are known only at run
// time.
#pragma once

#include <cstddef>

#include "torchette/runtime/platform.h"
#include "torchette/runtime/tensor.h"

namespace torchette::extension {

/// Allocates pieces from the platform and frees all of them in the destructor. Large pieces that are released
/// are reused until the last large piece is released, because a system needs more time to map and clear such
/// memory than some kernels need to run. Including spare pieces, it uses at most 1.5 times the peak.
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
    Piece** here;  // the pointer to this piece
    Piece* next;
    void* memory;  // the platform's allocation
  };
  static_assert(sizeof(Piece) % 16 == 0);
  // The heap of a 32-bit platform may align only to 8 bytes.
  static constexpr size_t kSlack = alignof(max_align_t) % 16 == 0 ? 0 : 15;
  // The heap itself reuses smaller pieces.
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
  /// Returns the smallest spare piece that is large enough but at most four times as large, or null.
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
  size_t held_ = 0, peak_ = 0;    // requested bytes
  size_t taken_ = 0, large_ = 0;  // bytes from the platform; number of large pieces in use
};

}  // namespace torchette::extension
