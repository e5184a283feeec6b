// SPDX-License-Identifier: BSD-3-Clause
// All conversions of a file offset to an address. Each offset is compared with the remaining bytes before it
// is added, so no addition can wrap, also with a 32-bit size_t.
#include "torchette/runtime/flat.h"

namespace torchette::flat {

const uint8_t* Reader::check_table(const uint8_t* place) {
  if (place == nullptr) return nullptr;
  if (room(place) >= 4) {
    // The vtable is at `place` minus a signed offset. It starts with its own size and the size of the table.
    // If the subtraction wraps, the address wraps in the same way.
    const size_t vtable = static_cast<size_t>(place - data_) - static_cast<size_t>(load<int32_t>(place));
    const uint8_t* v = at(vtable, 4);
    if (v != nullptr) {
      const uint16_t vtable_size = load<uint16_t>(v), size = load<uint16_t>(v + 2);
      if (vtable_size >= 4 && size >= 4 && room(v) >= vtable_size && room(place) >= size) return place;
    }
  }
  fail();
  return nullptr;
}

const uint8_t* Reader::table_at(size_t position) {
  return check_table(position == 0 ? nullptr : at(position, 4));
}

const uint8_t* Reader::root() {
  const uint8_t* p = at(0, 4);
  return check_table(p == nullptr ? nullptr : led_from(p));
}

const uint8_t* Reader::field(const uint8_t* table, uint16_t slot, size_t bytes) {
  if (table == nullptr) return nullptr;
  const uint8_t* vtable = table - load<int32_t>(table);
  if (slot + 2 > load<uint16_t>(vtable)) return nullptr;
  const uint16_t offset = load<uint16_t>(vtable + slot);
  if (offset == 0) return nullptr;
  if (offset < 4 || offset + bytes > load<uint16_t>(vtable + 2)) {
    fail();
    return nullptr;
  }
  return table + offset;
}

const uint8_t* Reader::follow(const uint8_t* table, uint16_t slot) {
  const uint8_t* p = field(table, slot, 4);
  return p == nullptr ? nullptr : led_from(p);
}

const uint8_t* Reader::table(const uint8_t* table, uint16_t slot) { return check_table(follow(table, slot)); }

Span<const uint8_t> Reader::items_at(const uint8_t* place, unsigned log2_size) {
  if (place == nullptr) return {};
  const size_t room = this->room(place);
  if (room >= 4) {
    const size_t count = load<uint32_t>(place);
    place += 4;
    const bool aligned = (reinterpret_cast<uintptr_t>(place) & ((size_t{1} << log2_size) - 1)) == 0;
    if (count <= (room - 4) >> log2_size && (aligned || count == 0)) return {place, count};
  }
  fail();
  return {};
}

Span<const uint8_t> Reader::items(const uint8_t* table, uint16_t slot, unsigned log2_size) {
  return items_at(follow(table, slot), log2_size);
}

const uint8_t* Reader::tables(const uint8_t* table, uint16_t slot) {
  const uint8_t* first = items(table, slot, 2).data();
  return first == nullptr ? nullptr : first - 4;
}

const uint8_t* Reader::item(const uint8_t* vector, size_t index) {
  if (vector == nullptr) return nullptr;
  if (index < load<uint32_t>(vector)) return check_table(led_from(vector + 4 + 4 * index));
  fail();
  return nullptr;
}

uint64_t Reader::number(const uint8_t* table, uint16_t slot, size_t bytes) {
  uint64_t value = 0;
  const uint8_t* p = field(table, slot, bytes);
  if (p != nullptr) memcpy(&value, p, bytes);
  return value;
}

Span<const char> Reader::string(const uint8_t* table, uint16_t slot) {
  const Span<const uint8_t> text = items(table, slot, 0);
  if (text.data() != nullptr) {
    if (room(text.end()) != 0 && *text.end() == 0)
      return {reinterpret_cast<const char*>(text.data()), text.size()};
    fail();
  }
  return {"", 0};
}

Cursor::Cursor(Reader* reader, const uint8_t* widths, size_t count)
    : reader_(reader), widths_(widths), count_(count) {
  memset(seen_, 0xff, sizeof(seen_));  // addresses and sizes that no table has
  memset(seen_->entries, 0, sizeof(seen_->entries));
}

void Cursor::learn(const uint8_t* place) {
  table_ = nullptr;
  Vtable* const last = known_;
  known_ = seen_;
  if (reader_->check_table(place) == nullptr) return;
  const uintptr_t address = vtable_at(place);
  const auto* vtable = reinterpret_cast<const uint8_t*>(address);
  Vtable* room = seen_ + 1;
  while (room != seen_ + kVtables && room->address != address) ++room;
  if (room == seen_ + kVtables) {
    room = last == seen_ + kVtables - 1 ? seen_ + 1 : last + 1;
    room->address = UINTPTR_MAX;
    const size_t end = Reader::load<uint16_t>(vtable), size = Reader::load<uint16_t>(vtable + 2);
    for (size_t i = 0; i < count_; ++i) {
      const uint16_t offset = 6 + 2 * i <= end ? Reader::load<uint16_t>(vtable + 4 + 2 * i) : 0;
      if (offset != 0 && (offset < 4 || offset + widths_[i] > size)) return reader_->fail();
      room->entries[i] = offset;
    }
    room->address = address;
    room->table_size = size;
  }
  table_ = place;
  known_ = room;
}

}  // namespace torchette::flat
