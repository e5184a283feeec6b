// SPDX-License-Identifier: BSD-3-Clause
// A bounds-checked view of FlatBuffers bytes: reading is verifying. Whatever leaves the buffer reads as
// absent and makes ok() false for good, so a loader reads a whole section and asks once before it believes
// any of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "torchette/runtime/span.h"

namespace torchette::flat {

/// The bytes and whether all that was read from them so far was inside. Must outlive the tables that come
/// from it.
class Reader {
 public:
  Reader(const void* data, size_t size) : data_(static_cast<const uint8_t*>(data)), size_(size) {}

  bool ok() const { return ok_; }
  size_t size() const { return size_; }
  const uint8_t* data() const { return data_; }
  /// The address of [position, position + bytes), or null.
  const uint8_t* at(size_t position, size_t bytes) {
    if (position <= size_ && bytes <= size_ - position) return data_ + position;
    ok_ = false;
    return nullptr;
  }
  void fail() { ok_ = false; }

  template <typename T>
  static T load(const uint8_t* p) {
    T value;
    memcpy(&value, p, sizeof(T));
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  bool ok_ = true;
};

class Tables;

/// A table, or the absent table, whose fields are all absent. Slots are the constants of the schema's header.
class Table {
 public:
  Table() = default;
  Table(Reader* reader, size_t position);
  static Table root(Reader* reader);

  bool present() const { return reader_ != nullptr; }
  size_t position() const { return position_; }

  template <typename T>
  T get(uint16_t slot, T absent = T()) const {
    const uint8_t* p = field(slot, sizeof(T));
    return p == nullptr ? absent : Reader::load<T>(p);
  }
  Table table(uint16_t slot) const;
  Tables tables(uint16_t slot) const;
  /// Numbers in place; their address must be a multiple of their size.
  template <typename T>
  Span<const T> vector(uint16_t slot) const {
    const Span<const uint8_t> bytes = items(slot, sizeof(T));
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size()};
  }
  /// The text without its terminating zero, which is there.
  Span<const char> string(uint16_t slot) const;

 private:
  const uint8_t* field(uint16_t slot, size_t bytes) const;
  size_t follow(uint16_t slot) const;
  /// Address and number of a vector's elements of `item_size` bytes each.
  Span<const uint8_t> items(uint16_t slot, size_t item_size) const;
  friend class Tables;

  Reader* reader_ = nullptr;
  size_t position_ = 0;
  const uint8_t* vtable_ = nullptr;
  uint16_t vtable_size_ = 0;
  uint16_t size_ = 0;
};

/// A vector of tables.
class Tables {
 public:
  Tables() = default;
  Tables(Reader* reader, const uint8_t* items, size_t size) : reader_(reader), items_(items), size_(size) {}
  size_t size() const { return size_; }
  Table operator[](size_t i) const;

 private:
  Reader* reader_ = nullptr;
  const uint8_t* items_ = nullptr;
  size_t size_ = 0;
};

}  // namespace torchette::flat
