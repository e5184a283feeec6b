// SPDX-License-Identifier: BSD-3-Clause
// The few places where an offset of the file becomes an address. Positions never exceed the size, so that no
// sum here can wrap, not even where size_t has 32 bits.
#include "torchette/runtime/flat.h"

namespace torchette::flat {

Table::Table(Reader* reader, size_t position) {
  const uint8_t* p = reader->at(position, 4);
  if (p == nullptr) return;
  // the vtable stands at `position` minus a signed number
  const auto back = Reader::load<int32_t>(p);
  const int64_t vtable = static_cast<int64_t>(position) - back;
  const uint8_t* v = vtable < 0 ? nullptr : reader->at(static_cast<size_t>(vtable), 4);
  const uint16_t vtable_size = v == nullptr ? 0 : Reader::load<uint16_t>(v);
  const uint16_t size = v == nullptr ? 0 : Reader::load<uint16_t>(v + 2);
  if (vtable_size < 4 || size < 4 || reader->at(static_cast<size_t>(vtable), vtable_size) == nullptr ||
      reader->at(position, size) == nullptr) {
    reader->fail();
    return;
  }
  reader_ = reader;
  position_ = position;
  vtable_ = v;
  vtable_size_ = vtable_size;
  size_ = size;
}

Table Table::root(Reader* reader) {
  const uint8_t* p = reader->at(0, 4);
  return p == nullptr ? Table() : Table(reader, Reader::load<uint32_t>(p));
}

const uint8_t* Table::field(uint16_t slot, size_t bytes) const {
  if (reader_ == nullptr || slot + 2 > vtable_size_) return nullptr;
  const uint16_t offset = Reader::load<uint16_t>(vtable_ + slot);
  if (offset == 0) return nullptr;
  if (offset < 4 || offset + bytes > size_) {
    reader_->fail();
    return nullptr;
  }
  return reader_->data() + position_ + offset;
}

size_t Table::follow(uint16_t slot) const {
  const uint8_t* p = field(slot, 4);
  if (p == nullptr) return 0;
  const size_t here = static_cast<size_t>(p - reader_->data());
  const size_t offset = Reader::load<uint32_t>(p);
  return offset != 0 && reader_->at(here, 4) != nullptr && offset <= reader_->size() - here
             ? here + offset
             : (reader_->fail(), 0);
}

Table Table::table(uint16_t slot) const {
  const size_t target = follow(slot);
  return target == 0 ? Table() : Table(reader_, target);
}

Span<const uint8_t> Table::items(uint16_t slot, size_t item_size) const {
  const size_t target = follow(slot);
  const uint8_t* p = target == 0 ? nullptr : reader_->at(target, 4);
  if (p == nullptr) return {};
  const size_t count = Reader::load<uint32_t>(p);
  p += 4;
  const size_t room = reader_->size() - target - 4;
  if (count > room / item_size || (count != 0 && reinterpret_cast<uintptr_t>(p) % item_size != 0)) {
    reader_->fail();
    return {};
  }
  return {p, count};
}

Tables Table::tables(uint16_t slot) const {
  const Span<const uint8_t> offsets = items(slot, 4);
  return {reader_, offsets.data(), offsets.size()};
}

Table Tables::operator[](size_t i) const {
  if (i >= size_) {
    if (reader_ != nullptr) reader_->fail();
    return {};
  }
  const uint8_t* p = items_ + 4 * i;
  const size_t here = static_cast<size_t>(p - reader_->data());
  const size_t offset = Reader::load<uint32_t>(p);
  if (offset > reader_->size() - here) {
    reader_->fail();
    return {};
  }
  return Table(reader_, here + offset);
}

Span<const char> Table::string(uint16_t slot) const {
  const Span<const uint8_t> bytes = items(slot, 1);
  if (bytes.data() == nullptr) return {"", 0};
  const uint8_t* end = reader_->at(static_cast<size_t>(bytes.end() - reader_->data()), 1);
  if (end == nullptr || *end != 0) {
    reader_->fail();
    return {"", 0};
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace torchette::flat
