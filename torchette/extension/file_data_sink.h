// SPDX-License-Identifier: BSD-3-Clause
// FileDataSink: writes the bytes of logged tensors to a file.
#pragma once

#include "torchette/extension/data_sink.h"

namespace torchette::extension {

class FileDataSink final : public DataSinkBase {
 public:
  /// Creates the file or truncates an existing one. Error: AccessFailed.
  static Result<FileDataSink> create(const char* path);
  FileDataSink(FileDataSink&& other) noexcept : file_(other.file_), written_(other.written_) {
    other.file_ = nullptr;
  }
  ~FileDataSink() override { close(); }

  /// Appends the bytes without gaps. Errors: AccessFailed (the file is closed), Internal (the write failed,
  /// for example because the disk is full).
  Result<size_t> write(const void* data, size_t size) override { return append(data, size); }
  size_t get_used_bytes() const override { return written_; }
  /// Closes the file. Returns whether all bytes were written.
  bool close();

 private:
  explicit FileDataSink(void* file) : file_(file) {}
  Result<size_t> append(const void* data, size_t size);

  void* file_;  // a FILE
  size_t written_ = 0;
};

}  // namespace torchette::extension
