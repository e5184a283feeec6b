// SPDX-License-Identifier: BSD-3-Clause
// The few places where an offset of the file becomes an address. Positions never exceed the size, so that no
// sum here can wrap, not even where size_t has 32 bits.
#include "torchette/runtime/flat.h"

namespace torchette::flat {

size_t Reader::check_table(size_t position) {
  if (position == 0) return 0;
  // the vtable stands at `position` minus a signed number, and starts with its own size and the table's
  const uint8_t* p = at(position, 4);
  if (p == nullptr) return 0;
  // where the difference wraps, the address that it stands for wraps alike
  const size_t vtable = position - static_cast<size_t>(load<int32_t>(p));
  const uint8_t* v = at(vtable, 4);
  if (v != nullptr) {
    const uint16_t vtable_size = load<uint16_t>(v), size = load<uint16_t>(v + 2);
    if (vtable_size >= 4 && size >= 4 && at(vtable, vtable_size) != nullptr && at(position, size) != nullptr)
      return position;
  }
  fail();
  return 0;
}

size_t Reader::root() {
  const uint8_t* p = at(0, 4);
  return check_table(p == nullptr ? 0 : load<uint32_t>(p));
}

const uint8_t* Reader::field(size_t table, uint16_t slot, size_t bytes) {
  if (table == 0) return nullptr;
  const uint8_t* p = data_ + table;
  const uint8_t* vtable = p - load<int32_t>(p);
  if (slot + 2 > load<uint16_t>(vtable)) return nullptr;
  const uint16_t offset = load<uint16_t>(vtable + slot);
  if (offset == 0) return nullptr;
  if (offset < 4 || offset + bytes > load<uint16_t>(vtable + 2)) {
    fail();
    return nullptr;
  }
  return p + offset;
}

size_t Reader::follow(size_t table, uint16_t slot) {
  const uint8_t* p = field(table, slot, 4);
  if (p == nullptr) return 0;
  const auto here = static_cast<size_t>(p - data_);
  const size_t offset = load<uint32_t>(p);
  if (offset != 0 && offset <= size_ - here) return here + offset;
  fail();
  return 0;
}

size_t Reader::table(size_t table, uint16_t slot) { return check_table(follow(table, slot)); }

Span<const uint8_t> Reader::items_at(size_t position, unsigned log2_size) {
  const uint8_t* p = position == 0 ? nullptr : at(position, 4);
  if (p == nullptr) return {};
  p += 4;
  const size_t count = load<uint32_t>(p - 4);
  const bool aligned = (reinterpret_cast<uintptr_t>(p) & ((size_t{1} << log2_size) - 1)) == 0;
  if (count <= (size_ - position - 4) >> log2_size && (aligned || count == 0)) return {p, count};
  fail();
  return {};
}

size_t Reader::tables(size_t table, uint16_t slot) {
  const size_t target = follow(table, slot);
  return items_at(target, 2).data() == nullptr ? 0 : target;
}

size_t Reader::item(size_t vector, size_t index) {
  if (vector == 0) return 0;
  if (index < load<uint32_t>(data_ + vector)) return check_table(element(vector, index));
  fail();
  return 0;
}

uint64_t Reader::number(size_t table, uint16_t slot, size_t bytes) {
  uint64_t value = 0;
  const uint8_t* p = field(table, slot, bytes);
  if (p != nullptr) memcpy(&value, p, bytes);
  return value;
}

Span<const uint8_t> Reader::items(size_t table, uint16_t slot, unsigned log2_size) {
  return items_at(follow(table, slot), log2_size);
}

Span<const char> Reader::string(size_t table, uint16_t slot) {
  const Span<const uint8_t> text = items(table, slot, 0);
  if (text.data() != nullptr) {
    const uint8_t* end = at(static_cast<size_t>(text.end() - data_), 1);
    if (end != nullptr && *end == 0) return {reinterpret_cast<const char*>(text.data()), text.size()};
    fail();
  }
  return {"", 0};
}

Cursor::Cursor(Reader* reader, const uint8_t* widths, size_t count)
    : reader_(reader), widths_(widths), count_(count) {
  memset(seen_, 0xff, sizeof(seen_));  // positions and sizes that no table has
  memset(seen_->entries, 0, sizeof(seen_->entries));
}

void Cursor::learn(size_t position) {
  table_ = nullptr;
  Vtable* const last = known_;
  known_ = seen_;
  if (reader_->check_table(position) == 0) return;
  const uint8_t* table = reader_->data_ + position;
  const uint8_t* vtable = table - Reader::load<int32_t>(table);
  const auto at = static_cast<size_t>(vtable - reader_->data_);
  Vtable* room = seen_ + 1;
  while (room != seen_ + kVtables && room->position != at) ++room;
  if (room == seen_ + kVtables) {
    room = last == seen_ + kVtables - 1 ? seen_ + 1 : last + 1;
    room->position = SIZE_MAX;
    const size_t end = Reader::load<uint16_t>(vtable), size = Reader::load<uint16_t>(vtable + 2);
    for (size_t i = 0; i < count_; ++i) {
      const uint16_t offset = 6 + 2 * i <= end ? Reader::load<uint16_t>(vtable + 4 + 2 * i) : 0;
      if (offset != 0 && (offset < 4 || offset + widths_[i] > size)) return reader_->fail();
      room->entries[i] = offset;
    }
    room->position = at;
    room->table_size = size;
  }
  table_ = table;
  known_ = room;
}

}  // namespace torchette::flat
