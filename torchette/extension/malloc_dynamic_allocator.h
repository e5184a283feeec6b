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
    while (pieces_ != nullptr) free_piece(pieces_);
  }

  void* reallocate(void* old, size_t size) override {
    if (old != nullptr) free_piece(static_cast<Piece*>(old) - 1);
    if (size == 0 || size > SIZE_MAX / 2) return nullptr;
    Piece* piece = take_spare(size);
    if (piece == nullptr) {
      while (spare_ != nullptr && reserved_ + size > peak_ + peak_ / 2) release(spare_);
      void* const memory = platform_allocate(sizeof(Piece) + size + kSlack);
      if (memory == nullptr) return nullptr;
      piece = reinterpret_cast<Piece*>((reinterpret_cast<uintptr_t>(memory) + kSlack) / 16 * 16);
      piece->capacity = size;
      piece->memory = memory;
      reserved_ += size;
    }
    piece->size = size;
    add_to_list(piece, pieces_);
    if (piece->capacity >= kLarge) ++num_large_;
    used_ += size;
    if (used_ > peak_) peak_ = used_;
    return piece + 1;
  }

  /// Returns the peak of allocated bytes since the last reset_peak().
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = used_; }

 private:
  struct alignas(16) Piece {
    size_t size, capacity;
    Piece** previous_next;  // the pointer to this piece
    Piece* next;
    void* memory;  // the platform's allocation
  };
  static_assert(sizeof(Piece) % 16 == 0);
  // The heap of a 32-bit platform may align only to 8 bytes.
  static constexpr size_t kSlack = alignof(max_align_t) % 16 == 0 ? 0 : 15;
  // The heap itself reuses smaller pieces.
  static constexpr size_t kLarge = size_t{1} << 16;

  static void add_to_list(Piece* piece, Piece*& list) {
    piece->previous_next = &list;
    piece->next = list;
    if (list != nullptr) list->previous_next = &piece->next;
    list = piece;
  }
  static void remove_from_list(Piece* piece) {
    *piece->previous_next = piece->next;
    if (piece->next != nullptr) piece->next->previous_next = piece->previous_next;
  }
  /// Returns the smallest spare piece that is large enough but at most four times as large, or null.
  Piece* take_spare(size_t size) {
    Piece* best = nullptr;
    for (Piece* piece = spare_; piece != nullptr; piece = piece->next)
      if (piece->capacity >= size && piece->capacity / 4 <= size &&
          (best == nullptr || piece->capacity < best->capacity))
        best = piece;
    if (best != nullptr) remove_from_list(best);
    return best;
  }
  void release(Piece* piece) {
    remove_from_list(piece);
    reserved_ -= piece->capacity;
    platform_free(piece->memory);
  }
  void free_piece(Piece* piece) {
    used_ -= piece->size;
    if (piece->capacity < kLarge) return release(piece);
    remove_from_list(piece);
    add_to_list(piece, spare_);
    if (--num_large_ == 0)
      while (spare_ != nullptr) release(spare_);
  }

  Piece *pieces_ = nullptr, *spare_ = nullptr;
  size_t used_ = 0, peak_ = 0;           // requested bytes
  size_t reserved_ = 0, num_large_ = 0;  // bytes from the platform; number of large pieces in use
};

}  // namespace torchette::extension
