// SPDX-License-Identifier: BSD-3-Clause
// FileDataLoader: a program in a file, read piece by piece into memory of the platform.
#pragma once

#include "torchette/runtime/loader.h"

namespace torchette::extension {

/// load() reads through load_into(): a subclass that decrypts overrides the latter alone.
class FileDataLoader : public DataLoader {
 public:
  /// `alignment` is that of the loaded pieces, a power of two. Errors: AccessFailed (cannot be opened or
  /// read), InvalidArgument.
  static Result<FileDataLoader> from(const char* path, size_t alignment = 16);
  /// Of a file that is open already, for reading and with a position, such as one inside of a phone's
  /// package. The descriptor is duplicated: the caller may close it. Errors: as above.
  static Result<FileDataLoader> from_descriptor(int descriptor, size_t alignment = 16);
  /// The same from text, "fd:///12".
  static Result<FileDataLoader> fromFileDescriptorUri(const char* uri, size_t alignment = 16);
  FileDataLoader(FileDataLoader&& other) noexcept
      : file_(other.file_), size_(other.size_), alignment_(other.alignment_) {
    other.file_ = -1;
  }
  // virtual functions are inline: the library has no type information that a subclass's would refer to
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

/// ExecuTorch's name for the loader of an open file.
using FileDescriptorDataLoader = FileDataLoader;

}  // namespace torchette::extension
