// SPDX-License-Identifier: BSD-3-Clause
// All conversions of a file offset to an address. Each offset is compared with the remaining bytes before it
// is added, so no addition can wrap, also with a 32-bit size_t.
#include "torchette/runtime/flat.h"

namespace torchette::flat {

const uint8_t* Reader::check_table(const uint8_t* p) {
  if (p == nullptr) return nullptr;
  if (bytes_left(p) >= 4) {
    // The vtable is at `p` minus a signed offset. It starts with its own size and the size of the table.
    // If the subtraction wraps, the address wraps in the same way.
    const size_t vtable = static_cast<size_t>(p - data_) - static_cast<size_t>(load<int32_t>(p));
    const uint8_t* v = at(vtable, 4);
    if (v != nullptr) {
      const uint16_t vtable_size = load<uint16_t>(v), size = load<uint16_t>(v + 2);
      if (vtable_size >= 4 && size >= 4 && bytes_left(v) >= vtable_size && bytes_left(p) >= size) return p;
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
  return check_table(p == nullptr ? nullptr : follow_offset(p));
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
  return p == nullptr ? nullptr : follow_offset(p);
}

const uint8_t* Reader::table(const uint8_t* table, uint16_t slot) { return check_table(follow(table, slot)); }

Span<const uint8_t> Reader::items_at(const uint8_t* p, unsigned log2_size) {
  if (p == nullptr) return {};
  const size_t bytes_left = this->bytes_left(p);
  if (bytes_left >= 4) {
    const size_t count = load<uint32_t>(p);
    p += 4;
    const bool aligned = (reinterpret_cast<uintptr_t>(p) & ((size_t{1} << log2_size) - 1)) == 0;
    if (count <= (bytes_left - 4) >> log2_size && (aligned || count == 0)) return {p, count};
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
  if (index < load<uint32_t>(vector)) return check_table(follow_offset(vector + 4 + 4 * index));
  fail();
  return nullptr;
}

uint64_t Reader::scalar(const uint8_t* table, uint16_t slot, size_t bytes) {
  uint64_t value = 0;
  const uint8_t* p = field(table, slot, bytes);
  if (p != nullptr) memcpy(&value, p, bytes);
  return value;
}

Span<const char> Reader::string(const uint8_t* table, uint16_t slot) {
  const Span<const uint8_t> text = items(table, slot, 0);
  if (text.data() != nullptr) {
    if (bytes_left(text.end()) != 0 && *text.end() == 0)
      return {reinterpret_cast<const char*>(text.data()), text.size()};
    fail();
  }
  return {"", 0};
}

Cursor::Cursor(Reader* reader, const uint8_t* widths, size_t count)
    : reader_(reader), widths_(widths), count_(count) {
  memset(vtables_, 0xff, sizeof(vtables_));  // addresses and sizes that no table has
  memset(vtables_->entries, 0, sizeof(vtables_->entries));
}

void Cursor::add_vtable(const uint8_t* p) {
  table_ = nullptr;
  Vtable* const previous = vtable_;
  vtable_ = vtables_;
  if (reader_->check_table(p) == nullptr) return;
  const uintptr_t address = vtable_at(p);
  const auto* vtable = reinterpret_cast<const uint8_t*>(address);
  Vtable* slot = vtables_ + 1;
  while (slot != vtables_ + kMaxVtables && slot->address != address) ++slot;
  if (slot == vtables_ + kMaxVtables) {
    slot = previous == vtables_ + kMaxVtables - 1 ? vtables_ + 1 : previous + 1;
    slot->address = UINTPTR_MAX;
    const size_t end = Reader::load<uint16_t>(vtable), size = Reader::load<uint16_t>(vtable + 2);
    for (size_t i = 0; i < count_; ++i) {
      const uint16_t offset = 6 + 2 * i <= end ? Reader::load<uint16_t>(vtable + 4 + 2 * i) : 0;
      if (offset != 0 && (offset < 4 || offset + widths_[i] > size)) return reader_->fail();
      slot->entries[i] = offset;
    }
    slot->address = address;
    slot->table_size = size;
  }
  table_ = p;
  vtable_ = slot;
}

}  // namespace torchette::flat
