// SPDX-License-Identifier: BSD-3-Clause
// FileDataLoader: loads a program from a file by reading segments into memory of the platform.
#pragma once

#include "torchette/runtime/loader.h"

namespace torchette::extension {

/// load() calls load_into(), so a subclass that decrypts needs to override only load_into().
class FileDataLoader : public DataLoader {
 public:
  /// Opens a file. `alignment` is the alignment of the loaded segments, a power of two up to 4096. Errors:
  /// AccessFailed (the file cannot be opened or read), InvalidArgument (`alignment` is invalid).
  static Result<FileDataLoader> from(const char* path, size_t alignment = 16);
  /// Uses a file that is open for reading, such as an asset of a mobile application. Duplicates the
  /// descriptor, so the caller may close it. Errors: those of from().
  static Result<FileDataLoader> from_descriptor(int descriptor, size_t alignment = 16);
  /// Uses an open file with a descriptor in a URI, such as "fd:///12". Errors: those of from().
  static Result<FileDataLoader> fromFileDescriptorUri(const char* uri, size_t alignment = 16);
  FileDataLoader(FileDataLoader&& other) noexcept
      : file_(other.file_), size_(other.size_), alignment_(other.alignment_) {
    other.file_ = -1;
  }
  // Virtual functions are inline because the type information of a subclass refers to that of this class,
  // which the library lacks.
  virtual ~FileDataLoader() { close(); }

  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo& info) const override {
    return read(offset, size, info);
  }
  Error load_into(size_t offset, size_t size, const SegmentInfo&, void* buffer) const override {
    return read_into(offset, size, buffer);
  }
  Result<size_t> size() const override { return size_; }

 private:
  FileDataLoader(int file, size_t size, size_t alignment) : file_(file), size_(size), alignment_(alignment) {}
  Result<FreeableBuffer> read(size_t offset, size_t size, const SegmentInfo& info) const;
  Error read_into(size_t offset, size_t size, void* buffer) const;
  void close();

  int file_;
  size_t size_;
  size_t alignment_;
};

/// ExecuTorch's name of a loader of an open file.
using FileDescriptorDataLoader = FileDataLoader;

}  // namespace torchette::extension
