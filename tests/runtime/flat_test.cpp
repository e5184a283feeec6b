// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/runtime/flat.h"

#include <initializer_list>

#include "check.h"

using namespace torchette;
using flat::Reader;
using flat::Table;

namespace {

// Root at 20: {a: int32 = 7 at +4, b: vector [1, 2] at +8, c: string at +12}; vtable at 8.
struct alignas(8) Bytes {
  uint8_t data[64] = {20, 0, 0, 0, 0,   0,   0, 0, 10, 0, 16, 0, 4,  0, 8, 0, 12, 0, 0, 0,  // root, vtable
                      12, 0, 0, 0, 7,   0,   0, 0, 8,  0, 0,  0, 16, 0, 0, 0,               // table
                      2,  0, 0, 0, 1,   0,   0, 0, 2,  0, 0,  0,                            // vector at 36
                      2,  0, 0, 0, 'h', 'i', 0};                                            // string at 48
};
constexpr uint16_t kA = 4, kB = 6, kC = 8, kAbsent = 10;

struct Kind {
  static constexpr uint8_t kWidths[] = {4, 4, 4, 8};
};

void reads() {
  Bytes bytes;
  Reader reader(bytes.data, 55);
  const Table root = Table::root(&reader);
  CHECK(root.present());
  CHECK(root.get<int32_t>(kA) == 7);
  CHECK(root.get<int32_t>(kAbsent) == 0);
  CHECK(root.vector<int32_t>(kB).size() == 2 && root.vector<int32_t>(kB)[1] == 2);
  CHECK(root.string(kC).size() == 2 && root.string(kC)[1] == 'i');
  CHECK(root.string(kAbsent).data()[0] == 0);
  CHECK(!root.table(kAbsent).present());
  CHECK(root.table(kAbsent).tables(kA).size() == 0);
  CHECK(root.tables(kAbsent)[3].get<int>(kA) == 0);
  CHECK(reader.ok());

  flat::CursorOf<Kind> cursor(reader);
  for (int round = 0; round < 2; ++round) {
    cursor.seek(Table::at(&reader, 20));
    CHECK(cursor.present() && cursor.get<int32_t>(kA) == 7 && cursor.vector<int32_t>(kB)[1] == 2);
    CHECK(cursor.get<uint64_t>(kAbsent) == 0 && cursor.follow(kC) == bytes.data + 48);
    cursor.seek(Table::at(&reader, 0));
    CHECK(!cursor.present() && cursor.get<int32_t>(kA) == 0 && cursor.vector<int32_t>(kB).empty());
  }
  CHECK(reader.ok());
  cursor.seek(bytes.data + 55);
  CHECK(!cursor.present() && cursor.follow(kC) == nullptr && !reader.ok());
}

/// A cursor reads the same values as a table, independent of earlier reads, or reports an error.
void cursor_sees_the_same(uint8_t* data, size_t size) {
  Reader one(data, size), other(data, size);
  flat::CursorOf<Kind> cursor(other);
  for (const size_t position :
       {size_t{20}, size_t{0}, size_t{36}, size_t{20}, size_t{8}, size - 1, size_t{20}}) {
    const Table table = Table::at(&one, position);
    cursor.seek(position == 0 ? nullptr : data + position);
    const bool same = table.present() == cursor.present() &&
                      table.get<int32_t>(kA) == cursor.get<int32_t>(kA) &&
                      table.vector<int32_t>(kB).data() == cursor.vector<int32_t>(kB).data() &&
                      table.get<uint64_t>(kAbsent) == cursor.get<uint64_t>(kAbsent);
    CHECK(same || !other.ok());
    CHECK(one.ok() || !other.ok());
  }
}

void every_byte_cut() {
  // No read is outside of the buffer (checked by the sanitizer), and errors are reported.
  for (size_t size = 0; size < 55; ++size) {
    Bytes bytes;
    auto* exact = new uint8_t[size + 8];
    uint8_t* start = exact + (8 - reinterpret_cast<uintptr_t>(exact) % 8) % 8;
    memcpy(start, bytes.data, size);
    Reader reader(start, size);
    const Table root = Table::root(&reader);
    root.get<int32_t>(kA);
    root.vector<int32_t>(kB);
    root.string(kC);
    CHECK(!reader.ok());
    if (size > 36) cursor_sees_the_same(start, size);
    delete[] exact;
  }
}

void every_byte_changed() {
  for (size_t at = 0; at < 55; ++at) {
    for (int change = 1; change < 256; ++change) {
      Bytes bytes;
      bytes.data[at] = static_cast<uint8_t>(bytes.data[at] + change);
      cursor_sees_the_same(bytes.data, 55);
      Reader reader(bytes.data, 55);
      const Table root = Table::root(&reader);
      for (uint16_t slot : {kA, kB, kC, kAbsent}) {
        root.get<uint64_t>(slot);
        root.table(slot).table(slot);
        root.tables(slot)[1].string(slot);
        int64_t sum = 0;
        for (int32_t n : root.vector<int32_t>(slot)) sum += n;
        for (int64_t n : root.vector<int64_t>(slot)) sum ^= n;
        for (char c : root.string(slot)) sum += c;
        static volatile int64_t sink;
        sink = sum;
      }
      ++checks;
    }
  }
}

void misaligned() {
  alignas(8) uint8_t data[64];
  Bytes bytes;
  memcpy(data + 1, bytes.data, 55);
  Reader reader(data + 1, 55);
  CHECK(Table::root(&reader).get<int32_t>(kA) == 7);  // scalars may be misaligned
  CHECK(Table::root(&reader).vector<int32_t>(kB).empty() && !reader.ok());
}

}  // namespace

void flat_tests() {
  reads();
  every_byte_cut();
  every_byte_changed();
  misaligned();
}
