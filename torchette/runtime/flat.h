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
  friend class Cursor;

  // Tables and vectors by position, 0 being the absent one, and all in registers: a method of the two classes
  // below is one call of these.
  size_t root();
  size_t check_table(size_t position);
  const uint8_t* field(size_t table, uint16_t slot, size_t bytes);
  size_t follow(size_t table, uint16_t slot);
  size_t table(size_t table, uint16_t slot);
  size_t tables(size_t table, uint16_t slot);
  size_t item(size_t vector, size_t index);
  /// `index` must be within.
  size_t element(size_t vector, size_t index) {
    const size_t here = vector + 4 + 4 * index;
    const size_t offset = load<uint32_t>(data_ + here);
    if (offset <= size_ - here) return here + offset;
    fail();
    return 0;
  }
  /// The items of the vector at `position`, whose address is null where the vector is not inside.
  Span<const uint8_t> items_at(size_t position, unsigned log2_size);
  Span<const uint8_t> items(size_t table, uint16_t slot, unsigned log2_size);
  Span<const char> string(size_t table, uint16_t slot);
  uint64_t number(size_t table, uint16_t slot, size_t bytes);

  const uint8_t* data_;
  size_t size_;
  bool ok_ = true;
};

template <size_t kSize>
constexpr unsigned log2_of() {
  static_assert(kSize == 1 || kSize == 2 || kSize == 4 || kSize == 8);
  return kSize == 8 ? 3 : kSize / 2;
}

class Tables;

/// A table, or the absent table, whose fields are all absent. Slots are the constants of the schema's header.
class Table {
 public:
  TORCHETTE_INLINE static Table at(Reader* reader, size_t position) {
    return {reader, reader->check_table(position)};
  }
  TORCHETTE_INLINE static Table root(Reader* reader) { return {reader, reader->root()}; }

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
  /// The numbers of a vector in place: the address of the first and how many there are. It must be a multiple
  /// of their size, 1 << `log2_size`.
  TORCHETTE_INLINE Span<const uint8_t> items(uint16_t slot, unsigned log2_size) const {
    return reader_->items(position_, slot, log2_size);
  }
  template <typename T>
  TORCHETTE_INLINE Span<const T> vector(uint16_t slot) const {
    const Span<const uint8_t> bytes = items(slot, log2_of<sizeof(T)>());
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
  TORCHETTE_INLINE Tables() : reader_(nullptr), position_(0) {}
  TORCHETTE_INLINE size_t size() const {
    return position_ == 0 ? 0 : Reader::load<uint32_t>(reader_->data() + position_);
  }
  TORCHETTE_INLINE Table operator[](size_t i) const { return {reader_, reader_->item(position_, i)}; }

 private:
  friend class Table;
  friend class Cursor;
  TORCHETTE_INLINE Tables(Reader* reader, size_t position) : reader_(reader), position_(position) {}

  Reader* reader_;
  size_t position_;
};

TORCHETTE_INLINE Tables Table::tables(uint16_t slot) const {
  return {reader_, reader_->tables(position_, slot)};
}

/// Reads tables of one kind one after the other, for the sections that a file has thousands of. Such tables
/// share few vtables: each is checked once, with the width of its fields, and then a field is one load.
class Cursor {
 public:
  /// The table at `position`, which is not beyond the end; at 0 the absent one.
  void seek(size_t position) {
    const uint8_t* p = reader_->data_ + position;
    if (position != 0 && known_->table_size <= reader_->size_ - position &&
        position - static_cast<size_t>(Reader::load<int32_t>(p)) == known_->position) {
      table_ = p;
    } else {
      learn(position);
    }
  }
  /// The table that item `i` of `tables`, which must be there, points to.
  void seek(const Tables& tables, size_t i) { seek(reader_->element(tables.position_, i)); }
  TORCHETTE_INLINE bool present() const { return table_ != nullptr; }

  template <typename T>
  TORCHETTE_INLINE T get(uint16_t slot) const {
    const uint16_t at = entry(slot);
    return at == 0 ? T{} : Reader::load<T>(table_ + at);
  }
  /// Where the object stands that the field points to; 0 where there is none.
  size_t follow(uint16_t slot) const {
    const uint16_t at = entry(slot);
    if (at == 0) return 0;
    const auto here = static_cast<size_t>(table_ - reader_->data_) + at;
    const size_t offset = Reader::load<uint32_t>(table_ + at);
    if (offset != 0 && offset <= reader_->size_ - here) return here + offset;
    reader_->fail();
    return 0;
  }
  TORCHETTE_INLINE Table table(uint16_t slot) const { return Table::at(reader_, follow(slot)); }
  /// Numbers in place; their address must be a multiple of their size.
  template <typename T>
  TORCHETTE_INLINE Span<const T> vector(uint16_t slot) const {
    const Span<const uint8_t> items = reader_->items_at(follow(slot), log2_of<sizeof(T)>());
    return {reinterpret_cast<const T*>(items.data()), items.size()};
  }

 protected:
  static constexpr size_t kMostFields = 10, kVtables = 4;

  Cursor(Reader* reader, const uint8_t* widths, size_t count);

 private:
  struct Vtable {
    size_t position;
    size_t table_size;
    uint16_t entries[kMostFields];
  };

  TORCHETTE_INLINE uint16_t entry(uint16_t slot) const { return known_->entries[slot / 2 - 2]; }
  void learn(size_t position);

  Reader* reader_;
  const uint8_t* widths_;
  size_t count_;
  const uint8_t* table_ = nullptr;
  Vtable seen_[kVtables];  // the first one stays that of the absent table
  Vtable* known_ = seen_;
};

/// A cursor over the tables that the schema describes under this name.
template <typename Schema>
class CursorOf : public Cursor {
 public:
  explicit CursorOf(Reader& reader) : Cursor(&reader, Schema::kWidths, sizeof(Schema::kWidths)) {
    static_assert(sizeof(Schema::kWidths) <= kMostFields);
  }
};

}  // namespace torchette::flat
