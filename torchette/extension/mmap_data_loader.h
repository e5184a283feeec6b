// SPDX-License-Identifier: BSD-3-Clause
// MmapDataLoader: loads a program from a file by mapping it into memory. Pages are read when they are first
// accessed and are shared with other processes.
#pragma once

#include "torchette/runtime/loader.h"

namespace torchette::extension {

/// The file must not shrink while it is mapped. Replace model files by renaming, as Model.save() does.
class MmapDataLoader final : public DataLoader {
 public:
  /// Selects whether the pages are locked into memory, so that executions do not wait for the disk.
  /// UseMadvise locks nothing and asks the system to read the file ahead.
  enum class MlockConfig { NoMlock, UseMlock, UseMlockIgnoreErrors, UseMadvise };

  /// Maps a file. Error: AccessFailed (the file cannot be opened, mapped or locked).
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

  void* data_;  // the mapping of the file
  size_t size_;
};

}  // namespace torchette::extension
