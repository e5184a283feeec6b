// SPDX-License-Identifier: BSD-3-Clause
// MallocMemoryAllocator: method or scratch memory that grows on the heap.
#pragma once

#include "torchette/runtime/memory.h"
#include "torchette/runtime/platform.h"

namespace torchette::extension {

/// Divides blocks from the platform. reset() replaces several blocks by one that is large enough for all
/// requests so far, so scratch memory needs no allocation after the largest request.
class MallocMemoryAllocator final : public MemoryAllocator {
 public:
  explicit MallocMemoryAllocator(size_t first_block = 4096)
      : MemoryAllocator(0, nullptr), next_size_(first_block) {}
  ~MallocMemoryAllocator() { free_blocks(); }

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || size > SIZE_MAX / 4 ||
        alignment > SIZE_MAX / 4)
      return nullptr;
    const size_t padding = (0 - reinterpret_cast<uintptr_t>(current_)) & (alignment - 1);
    if (begin_ == nullptr || padding + size > free_size()) {
      if (!grow(size + alignment)) return nullptr;
      return allocate(size, alignment);
    }
    uint8_t* const result = current_ + padding;
    current_ = result + size;
    total_ += padding + size;
    return result;
  }

  void reset() override {
    if (blocks_ != nullptr && blocks_->next != nullptr) {
      const size_t required = total_ + total_ / 8;
      free_blocks();
      next_size_ = required > next_size_ ? required : next_size_;
    }
    current_ = begin_;
    total_ = 0;
  }

  uint32_t size() const override { return static_cast<uint32_t>(total_); }

 private:
  struct alignas(16) Block {
    Block* next;
  };

  static constexpr size_t kMaxGrowth = size_t{1} << 24;  // bytes of a block for small requests

  bool grow(size_t size) {
    const size_t bytes = size > next_size_ ? size : next_size_;
    auto* block = static_cast<Block*>(platform_allocate(sizeof(Block) + bytes));
    if (block == nullptr) {
      TORCHETTE_LOG(Error, "the platform cannot allocate %zu bytes", bytes);
      return false;
    }
    block->next = blocks_;
    blocks_ = block;
    begin_ = current_ = reinterpret_cast<uint8_t*>(block + 1);
    end_ = begin_ + bytes;
    // The next size does not depend on the size of the current request. Large requests have their own blocks,
    // so many of them do not make it large.
    if (next_size_ < kMaxGrowth) next_size_ *= 2;
    return true;
  }
  void free_blocks() {
    while (blocks_ != nullptr) {
      Block* const next = blocks_->next;
      platform_free(blocks_);
      blocks_ = next;
    }
    begin_ = end_ = current_ = nullptr;
  }

  Block* blocks_ = nullptr;
  size_t next_size_;
  size_t total_ = 0;
};

}  // namespace torchette::extension
