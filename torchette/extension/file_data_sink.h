// SPDX-License-Identifier: BSD-3-Clause
// FileDataSink: the bytes of logged tensors go to a file.
#pragma once

#include "torchette/extension/data_sink.h"

namespace torchette::extension {

class FileDataSink final : public DataSinkBase {
 public:
  /// Empties the file, or makes one. Error: AccessFailed.
  static Result<FileDataSink> create(const char* path);
  FileDataSink(FileDataSink&& other) noexcept : file_(other.file_), written_(other.written_) {
    other.file_ = nullptr;
  }
  ~FileDataSink() override { close(); }

  /// One after the other, without gaps. Errors: AccessFailed (closed), Internal (the disk is full).
  Result<size_t> write(const void* data, size_t size) override { return append(data, size); }
  size_t get_used_bytes() const override { return written_; }
  /// Whether all that was written has arrived.
  bool close();

 private:
  explicit FileDataSink(void* file) : file_(file) {}
  Result<size_t> append(const void* data, size_t size);

  void* file_;  // a FILE
  size_t written_ = 0;
};

}  // namespace torchette::extension
