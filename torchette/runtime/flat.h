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
  friend class Table;
  friend class Tables;

  // Tables and vectors by position, 0 being the absent one, and all in registers: a method of the two classes
  // below is one call of these.
  size_t check_table(size_t position);
  const uint8_t* field(size_t table, uint16_t slot, size_t bytes);
  size_t follow(size_t table, uint16_t slot);
  size_t table(size_t table, uint16_t slot);
  size_t vector(size_t table, uint16_t slot, size_t item_size);
  size_t element(size_t vector, size_t index);
  Span<const uint8_t> items(size_t table, uint16_t slot, size_t item_size);
  Span<const char> string(size_t table, uint16_t slot);
  uint64_t number(size_t table, uint16_t slot, size_t bytes);

  const uint8_t* data_;
  size_t size_;
  bool ok_ = true;
};

class Tables;

/// A table, or the absent table, whose fields are all absent. Slots are the constants of the schema's header.
class Table {
 public:
  TORCHETTE_INLINE static Table at(Reader* reader, size_t position) {
    return {reader, reader->check_table(position)};
  }
  TORCHETTE_INLINE static Table root(Reader* reader) {
    const uint8_t* p = reader->at(0, 4);
    return at(reader, p == nullptr ? 0 : Reader::load<uint32_t>(p));
  }

  TORCHETTE_INLINE bool present() const { return position_ != 0; }
  TORCHETTE_INLINE size_t position() const { return position_; }

  template <typename T>
  TORCHETTE_INLINE T get(uint16_t slot) const {
    const uint64_t bits = reader_->number(position_, slot, sizeof(T));
    T value;
    memcpy(&value, &bits, sizeof(T));  // little-endian, as the file
    return value;
  }
  TORCHETTE_INLINE Table table(uint16_t slot) const { return {reader_, reader_->table(position_, slot)}; }
  Tables tables(uint16_t slot) const;
  /// Numbers in place; their address must be a multiple of their size.
  template <typename T>
  TORCHETTE_INLINE Span<const T> vector(uint16_t slot) const {
    const Span<const uint8_t> bytes = reader_->items(position_, slot, sizeof(T));
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size()};
  }
  /// The text without its terminating zero, which is there; "" where it is absent.
  TORCHETTE_INLINE Span<const char> string(uint16_t slot) const { return reader_->string(position_, slot); }

 private:
  friend class Tables;
  TORCHETTE_INLINE Table(Reader* reader, size_t position) : reader_(reader), position_(position) {}

  Reader* reader_;
  size_t position_;
};

/// A vector of tables.
class Tables {
 public:
  TORCHETTE_INLINE size_t size() const {
    return position_ == 0 ? 0 : Reader::load<uint32_t>(reader_->data() + position_);
  }
  TORCHETTE_INLINE Table operator[](size_t i) const { return {reader_, reader_->element(position_, i)}; }

 private:
  friend class Table;
  TORCHETTE_INLINE Tables(Reader* reader, size_t position) : reader_(reader), position_(position) {}

  Reader* reader_;
  size_t position_;
};

TORCHETTE_INLINE Tables Table::tables(uint16_t slot) const {
  return {reader_, reader_->vector(position_, slot, 4)};
}

}  // namespace torchette::flat
