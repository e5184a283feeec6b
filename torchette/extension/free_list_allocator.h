// SPDX-License-Identifier: BSD-3-Clause
// FreeListAllocator: allocates memory from a fixed buffer for tensors with sizes that are known only at run
// time. For systems without a heap.
#pragma once

#include "torchette/runtime/tensor.h"

namespace torchette::extension {

/// First fit in a list of all pieces in address order. Adjacent free pieces are merged. `base` must be
/// aligned to 16 bytes. The overhead is 16 bytes per piece and time linear in the number of pieces.
class FreeListAllocator final : public DynamicAllocator {
 public:
  FreeListAllocator(size_t size, uint8_t* base) : end_(base + size / kUnit * kUnit) {
    if (size < 2 * kUnit) return;
    first_ = reinterpret_cast<Piece*>(base);
    *first_ = {static_cast<size_t>(end_ - base), false};
  }
  FreeListAllocator(const FreeListAllocator&) = delete;
  FreeListAllocator& operator=(const FreeListAllocator&) = delete;

  void* reallocate(void* old, size_t size) override {
    if (old != nullptr) (static_cast<Piece*>(old) - 1)->is_used = false;
    if (size == 0 || size > static_cast<size_t>(-1) / 2) return nullptr;
    const size_t required = sizeof(Piece) + (size + kUnit - 1) / kUnit * kUnit;
    for (Piece* piece = first_; piece != nullptr; piece = next_piece(piece)) {
      if (piece->is_used) continue;
      for (Piece* next = next_piece(piece); next != nullptr && !next->is_used; next = next_piece(piece))
        piece->size += next->size;
      if (piece->size < required) continue;
      if (piece->size >= required + 2 * kUnit) {
        auto* const remainder = reinterpret_cast<Piece*>(reinterpret_cast<uint8_t*>(piece) + required);
        *remainder = {piece->size - required, false};
        piece->size = required;
      }
      piece->is_used = true;
      return piece + 1;
    }
    return nullptr;
  }

 private:
  static constexpr size_t kUnit = 16;
  struct alignas(kUnit) Piece {
    size_t size;  // this header included
    bool is_used;
  };
  static_assert(sizeof(Piece) == kUnit);

  Piece* next_piece(Piece* piece) const {
    uint8_t* const next = reinterpret_cast<uint8_t*>(piece) + piece->size;
    return next < end_ ? reinterpret_cast<Piece*>(next) : nullptr;
  }

  uint8_t* end_;
  Piece* first_ = nullptr;
};

}  // namespace torchette::extension
