// SPDX-License-Identifier: BSD-3-Clause
// DataLoader: the source of a program's bytes. The runtime does not access files; the caller passes a
// DataLoader.
#pragma once

#include <cstddef>
#include <cstdint>

#include "torchette/runtime/compiler.h"
#include "torchette/runtime/error.h"
#include "torchette/runtime/result.h"

namespace torchette {

/// Bytes with a function that frees them. Movable, not copyable.
class FreeableBuffer {
 public:
  using FreeFn = void (*)(void* context, void* data, size_t size);

  FreeableBuffer() = default;
  /// `free_fn` may be null if there is nothing to free.
  FreeableBuffer(const void* data, size_t size, FreeFn free_fn, void* context = nullptr)
      : data_(data), size_(size), free_(free_fn), context_(context) {}
  // Not inlined: the copy of five words at each call site is more code than the calls.
  TORCHETTE_NOINLINE FreeableBuffer(FreeableBuffer&& other) noexcept
      : data_(other.data_), size_(other.size_), free_(other.free_), context_(other.context_) {
    other.forget();
  }
  FreeableBuffer& operator=(FreeableBuffer&& other) noexcept {
    if (this != &other) {
      Free();
      new (this) FreeableBuffer(std::move(other));
    }
    return *this;
  }
  ~FreeableBuffer() { Free(); }

  /// Frees the bytes now.
  void Free() {
    if (free_ != nullptr) free_(context_, const_cast<void*>(data_), size_);
    forget();
  }
  const void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void forget() { data_ = nullptr, size_ = 0, free_ = nullptr; }

  const void* data_ = nullptr;
  size_t size_ = 0;
  FreeFn free_ = nullptr;
  void* context_ = nullptr;
};

/// Loads parts of one program. Must be thread-safe if several threads load methods of the program.
class DataLoader {
 public:
  /// The use of the bytes, so that a loader can choose the memory for them.
  struct SegmentInfo {
    enum class Type { Program, Constant, Backend, Mutable, External };
    Type segment_type = Type::Program;
    size_t segment_index = 0;
    const char* descriptor = nullptr;

    SegmentInfo() = default;
    SegmentInfo(Type type, size_t index = 0, const char* text = nullptr)
        : segment_type(type), segment_index(index), descriptor(text) {}
  };

  /// Returns the bytes [offset, offset + size). Errors: InvalidArgument (not inside), AccessFailed,
  /// MemoryAllocationFailed.
  virtual Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo& info) const = 0;
  /// Copies the bytes to `buffer`, which has space for `size` bytes. Errors as for load().
  virtual Error load_into(size_t offset, size_t size, const SegmentInfo& info, void* buffer) const = 0;
  /// Total size in bytes.
  virtual Result<size_t> size() const = 0;

 protected:
  ~DataLoader() = default;
};

}  // namespace torchette
