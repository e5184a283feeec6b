// SPDX-License-Identifier: BSD-3-Clause
// BufferDataLoader: loads a program that is in memory, without copying.
#pragma once

#include <cstring>

#include "torchette/runtime/loader.h"
#include "torchette/runtime/platform.h"

namespace torchette::extension {

/// The bytes must outlive the loader and be aligned to 16 bytes, the alignment of constants.
class BufferDataLoader final : public DataLoader {
 public:
  BufferDataLoader(const void* data, size_t size) : data_(static_cast<const uint8_t*>(data)), size_(size) {}

  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo&) const override {
    if (offset > size_ || size > size_ - offset) {
      TORCHETTE_LOG(Error, "%zu bytes at offset %zu exceed the buffer of %zu bytes", size, offset, size_);
      return Error::InvalidArgument;
    }
    return FreeableBuffer(data_ + offset, size, nullptr);
  }
  Error load_into(size_t offset, size_t size, const SegmentInfo& info, void* buffer) const override {
    const Result<FreeableBuffer> bytes = load(offset, size, info);
    if (!bytes.ok()) return bytes.error();
    if (size != 0) memcpy(buffer, bytes->data(), size);
    return Error::Ok;
  }
  Result<size_t> size() const override { return size_; }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace torchette::extension
