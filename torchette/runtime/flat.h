// SPDX-License-Identifier: BSD-3-Clause
// A bounds-checked reader of FlatBuffers bytes. An access outside of the buffer reads as an absent field and
// makes ok() false permanently. A loader therefore reads a whole section and checks ok() once before it uses
// the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "torchette/runtime/span.h"

namespace torchette::flat {

/// A buffer, and whether all accesses so far were inside it. Must outlive the tables read from it.
class Reader {
 public:
  Reader(const void* data, size_t size) : data_(static_cast<const uint8_t*>(data)), end_(data_ + size) {}

  bool ok() const { return ok_; }
  size_t size() const { return bytes_left(data_); }
  const uint8_t* data() const { return data_; }
  /// The address of [position, position + bytes), or null if the range is not inside the buffer.
  const uint8_t* at(size_t position, size_t bytes) {
    if (position <= size() && bytes <= size() - position) return data_ + position;
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
  friend class Cursor;

  // Tables and vectors are passed as the address of their first byte; null is the absent table or vector. All
  // arguments fit in registers: a method of the two classes below is one call of these functions.
  const uint8_t* root();
  const uint8_t* table_at(size_t position);
  const uint8_t* check_table(const uint8_t* p);
  const uint8_t* field(const uint8_t* table, uint16_t slot, size_t bytes);
  const uint8_t* follow(const uint8_t* table, uint16_t slot);
  const uint8_t* table(const uint8_t* table, uint16_t slot);
  const uint8_t* tables(const uint8_t* table, uint16_t slot);
  const uint8_t* item(const uint8_t* vector, size_t index);
  /// The bytes from `p` to the end of the buffer. `p` is inside the buffer or its end.
  size_t bytes_left(const uint8_t* p) const { return static_cast<size_t>(end_ - p); }
  /// The target of the offset stored at `here`; null if it is outside of the buffer.
  const uint8_t* follow_offset(const uint8_t* here) {
    const size_t offset = load<uint32_t>(here);
    if (offset != 0 && offset <= bytes_left(here)) return here + offset;
    fail();
    return nullptr;
  }
  /// The items of the vector at `p`; a null address if the vector is not inside the buffer.
  Span<const uint8_t> items_at(const uint8_t* p, unsigned log2_size);
  Span<const uint8_t> items(const uint8_t* table, uint16_t slot, unsigned log2_size);
  Span<const char> string(const uint8_t* table, uint16_t slot);
  uint64_t scalar(const uint8_t* table, uint16_t slot, size_t bytes);

  const uint8_t* data_;
  const uint8_t* end_;
  bool ok_ = true;
};

template <size_t kSize>
constexpr unsigned log2_of() {
  static_assert(kSize == 1 || kSize == 2 || kSize == 4 || kSize == 8);
  return kSize == 8 ? 3 : kSize / 2;
}

class Tables;
class Cursor;

/// A table, or the absent table, in which every field is absent. Slots are constants of the schema's header.
class Table {
 public:
  TORCHETTE_INLINE static Table at(Reader* reader, size_t position) {
    return {reader, reader->table_at(position)};
  }
  TORCHETTE_INLINE static Table root(Reader* reader) { return {reader, reader->root()}; }

  TORCHETTE_INLINE bool present() const { return address_ != nullptr; }
  /// The argument of at() for this table. The table must be present.
  TORCHETTE_INLINE size_t position() const { return static_cast<size_t>(address_ - reader_->data_); }

  template <typename T>
  TORCHETTE_INLINE T get(uint16_t slot) const {
    const uint64_t bits = reader_->scalar(address_, slot, sizeof(T));
    T value;
    memcpy(&value, &bits, sizeof(T));  // little-endian, like the file
    return value;
  }
  TORCHETTE_INLINE Table table(uint16_t slot) const { return {reader_, reader_->table(address_, slot)}; }
  Tables tables(uint16_t slot) const;
  /// The address and count of a vector's items, used in place. The address must be a multiple of the item
  /// size, 1 << `log2_size`.
  TORCHETTE_INLINE Span<const uint8_t> items(uint16_t slot, unsigned log2_size) const {
    return reader_->items(address_, slot, log2_size);
  }
  template <typename T>
  TORCHETTE_INLINE Span<const T> vector(uint16_t slot) const {
    const Span<const uint8_t> bytes = items(slot, log2_of<sizeof(T)>());
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size()};
  }
  /// The text without its terminating zero byte, which follows it in the file; "" if the field is absent.
  TORCHETTE_INLINE Span<const char> string(uint16_t slot) const { return reader_->string(address_, slot); }

 private:
  friend class Tables;
  friend class Cursor;
  TORCHETTE_INLINE Table(Reader* reader, const uint8_t* p) : reader_(reader), address_(p) {}

  Reader* reader_;
  const uint8_t* address_;
};

/// A vector of tables.
class Tables {
 public:
  TORCHETTE_INLINE Tables() : reader_(nullptr), address_(nullptr) {}
  TORCHETTE_INLINE size_t size() const { return address_ == nullptr ? 0 : Reader::load<uint32_t>(address_); }
  TORCHETTE_INLINE Table operator[](size_t i) const { return {reader_, reader_->item(address_, i)}; }

 private:
  friend class Table;
  friend class Cursor;
  TORCHETTE_INLINE Tables(Reader* reader, const uint8_t* p) : reader_(reader), address_(p) {}

  Reader* reader_;
  const uint8_t* address_;
};

TORCHETTE_INLINE Tables Table::tables(uint16_t slot) const {
  return {reader_, reader_->tables(address_, slot)};
}

/// Reads tables of one type in sequence, for sections with thousands of tables. Such tables share few
/// vtables. The cursor checks each vtable once, with the widths of its fields; after that, reading a field is
/// one load.
class Cursor {
 public:
  /// Moves to the table at `p`, a result of follow(); to the absent table if `p` is null.
  void seek(const uint8_t* p) {
    if (p != nullptr && vtable_->table_size <= reader_->bytes_left(p) && vtable_at(p) == vtable_->address) {
      table_ = p;
    } else {
      add_vtable(p);
    }
  }
  TORCHETTE_INLINE void seek(const Table& table) { seek(table.address_); }
  /// Moves to the table of item `i` of `tables`. The item must exist.
  void seek(const Tables& tables, size_t i) { seek(reader_->follow_offset(tables.address_ + 4 + 4 * i)); }
  TORCHETTE_INLINE bool present() const { return table_ != nullptr; }

  template <typename T>
  TORCHETTE_INLINE T get(uint16_t slot) const {
    const uint16_t at = entry(slot);
    return at == 0 ? T{} : Reader::load<T>(table_ + at);
  }
  /// The address of the object that an offset field refers to; null if the field is absent.
  const uint8_t* follow(uint16_t slot) const {
    const uint16_t at = entry(slot);
    if (at == 0) return nullptr;
    return reader_->follow_offset(table_ + at);
  }
  TORCHETTE_INLINE Table table(uint16_t slot) const { return {reader_, reader_->check_table(follow(slot))}; }
  /// The vector at `p`, a result of follow(), used in place. Its items must be aligned to their size.
  template <typename T>
  TORCHETTE_INLINE Span<const T> vector_at(const uint8_t* p) const {
    const Span<const uint8_t> items = reader_->items_at(p, log2_of<sizeof(T)>());
    return {reinterpret_cast<const T*>(items.data()), items.size()};
  }
  template <typename T>
  TORCHETTE_INLINE Span<const T> vector(uint16_t slot) const {
    return vector_at<T>(follow(slot));
  }

 protected:
  static constexpr size_t kMaxFields = 10, kMaxVtables = 4;

  Cursor(Reader* reader, const uint8_t* widths, size_t count);

 private:
  struct Vtable {
    uintptr_t address;
    size_t table_size;
    uint16_t entries[kMaxFields];
  };

  TORCHETTE_INLINE uint16_t entry(uint16_t slot) const { return vtable_->entries[slot / 2 - 2]; }
  /// If the subtraction wraps, the result is not the address of a vtable.
  static uintptr_t vtable_at(const uint8_t* p) {
    return reinterpret_cast<uintptr_t>(p) - static_cast<uintptr_t>(Reader::load<int32_t>(p));
  }
  void add_vtable(const uint8_t* p);

  Reader* reader_;
  const uint8_t* widths_;
  size_t count_;
  const uint8_t* table_ = nullptr;
  Vtable vtables_[kMaxVtables];  // entry 0 is always that of the absent table
  Vtable* vtable_ = vtables_;
};

/// A cursor over the tables of one type of the schema.
template <typename Schema>
class CursorOf : public Cursor {
 public:
  explicit CursorOf(Reader& reader) : Cursor(&reader, Schema::kWidths, sizeof(Schema::kWidths)) {
    static_assert(sizeof(Schema::kWidths) <= kMaxFields);
  }
};

}  // namespace torchette::flat
