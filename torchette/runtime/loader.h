// SPDX-License-Identifier: BSD-3-Clause
// Where a program's bytes come from. The runtime never touches files: it asks a DataLoader, which the caller
// gives.
#pragma once

#include <cstddef>
#include <cstdint>

#include "torchette/runtime/compiler.h"
#include "torchette/runtime/error.h"
#include "torchette/runtime/result.h"

namespace torchette {

/// Bytes, and how to give them back. Moves, does not copy.
class FreeableBuffer {
 public:
  using FreeFn = void (*)(void* context, void* data, size_t size);

  FreeableBuffer() = default;
  /// `free_fn` may be null where nothing is to be given back.
  FreeableBuffer(const void* data, size_t size, FreeFn free_fn, void* context = nullptr)
      : data_(data), size_(size), free_(free_fn), context_(context) {}
  // not inlined: five words at each of many places are more code than the calls
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

  /// Gives the bytes back now.
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

/// Loads pieces of one program. Used from several threads at once when methods of a program are.
class DataLoader {
 public:
  /// What the bytes are for, so that a loader may choose where they go.
  struct SegmentInfo {
    enum class Type { Program, Constant, Backend, Mutable, External };
    Type segment_type = Type::Program;
    size_t segment_index = 0;
    const char* descriptor = nullptr;

    SegmentInfo() = default;
    SegmentInfo(Type type, size_t index = 0, const char* text = nullptr)
        : segment_type(type), segment_index(index), descriptor(text) {}
  };

  /// The bytes [offset, offset + size). Errors: InvalidArgument (not inside), AccessFailed,
  /// MemoryAllocationFailed.
  virtual Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo& info) const = 0;
  /// The same into `buffer`, which has room for `size` bytes.
  virtual Error load_into(size_t offset, size_t size, const SegmentInfo& info, void* buffer) const = 0;
  /// Bytes in all.
  virtual Result<size_t> size() const = 0;

 protected:
  ~DataLoader() = default;
};

}  // namespace torchette
