// SPDX-License-Identifier: BSD-3-Clause
// Data sinks receive the bytes of logged tensors. BufferDataSink writes to a buffer of the caller;
// file_data_sink.h has a sink that writes to a file.
#pragma once

#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette::extension {

/// `new` and `delete` that use the platform's memory. A program for a platform without a heap then links no
/// allocator.
struct OnPlatformHeap {
  static void* operator new(size_t size) noexcept;
  static void* operator new(size_t, void* memory) noexcept { return memory; }
  static void operator delete(void* memory) noexcept;
};

class DataSinkBase : public OnPlatformHeap {
 public:
  /// Copies `size` bytes to the sink. Returns the offset of the copy in bytes from the start of the sink.
  virtual Result<size_t> write(const void* data, size_t size) = 0;
  virtual size_t get_used_bytes() const = 0;
  virtual ~DataSinkBase() = default;
};

class BufferDataSink final : public DataSinkBase {
 public:
  /// Creates a sink of size 0.
  BufferDataSink() = default;
  /// Creates a sink that starts each write at an address that is a multiple of `alignment`. Error:
  /// InvalidArgument (`alignment` is not a power of two).
  static Result<BufferDataSink> create(Span<uint8_t> buffer, size_t alignment = 64) {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) return Error::InvalidArgument;
    return BufferDataSink(buffer, alignment);
  }
  static Result<BufferDataSink> create(void* data, size_t size, size_t alignment = 64) {
    return create({static_cast<uint8_t*>(data), size}, alignment);
  }
  BufferDataSink(BufferDataSink&&) = default;
  BufferDataSink& operator=(BufferDataSink&&) = default;

  /// Error: OutOfResources (the buffer is full).
  Result<size_t> write(const void* data, size_t size) override { return append(data, size); }
  Result<size_t> get_storage_size() const { return buffer_.size(); }
  size_t get_used_bytes() const override { return used_; }

 private:
  BufferDataSink(Span<uint8_t> buffer, size_t alignment) : buffer_(buffer), alignment_(alignment) {}
  Result<size_t> append(const void* data, size_t size);

  Span<uint8_t> buffer_;
  size_t used_ = 0, alignment_ = 1;
};

}  // namespace torchette::extension
