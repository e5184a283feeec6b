// SPDX-License-Identifier: BSD-3-Clause
// SharedPtrDataLoader: loads a program that is in memory and keeps the memory alive.
#pragma once

#include <memory>
#include <utility>

#include "torchette/extension/buffer_data_loader.h"

namespace torchette::extension {

class SharedPtrDataLoader final : public DataLoader {
 public:
  SharedPtrDataLoader(std::shared_ptr<const void> data, size_t size)
      : data_(std::move(data)), buffer_(data_.get(), size) {}

  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo& info) const override {
    return buffer_.load(offset, size, info);
  }
  Error load_into(size_t offset, size_t size, const SegmentInfo& info, void* buffer) const override {
    return buffer_.load_into(offset, size, info, buffer);
  }
  Result<size_t> size() const override { return buffer_.size(); }

 private:
  std::shared_ptr<const void> data_;
  BufferDataLoader buffer_;
};

}  // namespace torchette::extension
