// SPDX-License-Identifier: BSD-3-Clause
// MmapDataLoader: a program in a file, mapped into memory. Pages are read when they are first touched and
// shared with other processes.
#pragma once

#include "torchette/runtime/loader.h"

namespace torchette::extension {

/// The file must not shrink while it is mapped: replace model files by renaming, as Model.save() does.
class MmapDataLoader final : public DataLoader {
 public:
  /// Whether the pages are locked into memory, so that no execution waits for a disk. UseMadvise locks
  /// nothing: the system is told that the whole file is needed, and reads it ahead.
  enum class MlockConfig { NoMlock, UseMlock, UseMlockIgnoreErrors, UseMadvise };

  /// Errors: AccessFailed (cannot be opened, mapped or locked).
  static Result<MmapDataLoader> from(const char* path, MlockConfig lock = MlockConfig::NoMlock);
  MmapDataLoader(MmapDataLoader&& other) noexcept : data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
  }
  ~MmapDataLoader();

  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo& info) const override;
  Error load_into(size_t offset, size_t size, const SegmentInfo& info, void* buffer) const override;
  Result<size_t> size() const override { return size_; }

 private:
  MmapDataLoader(void* data, size_t size) : data_(data), size_(size) {}

  void* data_;  // the whole file
  size_t size_;
};

}  // namespace torchette::extension
