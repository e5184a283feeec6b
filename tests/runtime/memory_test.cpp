// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/runtime/memory.h"

#include "check.h"
#include "torchette/extension/malloc_memory_allocator.h"

using namespace torchette;

static bool is_at(const void* p, size_t alignment) { return reinterpret_cast<uintptr_t>(p) % alignment == 0; }

static void bump() {
  alignas(64) uint8_t pool[128];
  MemoryAllocator memory(sizeof(pool), pool);
  CHECK(memory.allocate(1, 1) == pool);
  CHECK(memory.allocate(8, 8) == pool + 8);
  CHECK(memory.used_size() == 16);
  CHECK(memory.free_size() == 112);
  CHECK(memory.allocate(113) == nullptr);
  CHECK(memory.allocate(SIZE_MAX) == nullptr);
  CHECK(memory.allocate(SIZE_MAX - 7, 8) == nullptr);
  CHECK(memory.allocate(1, 3) == nullptr);
  CHECK(memory.allocate(1, 0) == nullptr);
  CHECK(memory.allocate(1, size_t{1} << 63) == nullptr);
  CHECK(memory.allocate_list<uint64_t>(SIZE_MAX / 4) == nullptr);
  CHECK(memory.used_size() == 16);
  CHECK(memory.allocate(112, 16) == pool + 16);
  CHECK(memory.free_size() == 0);
  CHECK(memory.allocate(0, 1) != nullptr);
  CHECK(memory.allocate(1, 1) == nullptr);
  memory.reset();
  CHECK(memory.used_size() == 0);
  CHECK(memory.allocate_instance<double>() != nullptr);
}

static void planned() {
  uint8_t a[16], b[8];
  Span<uint8_t> spans[] = {{a, 16}, {b, 8}};
  const HierarchicalAllocator memory({spans, 2});
  CHECK(*memory.get_offset_address(0, 0, 16) == a);
  CHECK(*memory.get_offset_address(1, 8, 0) == b + 8);
  CHECK(*memory.get_offset_address(1, 4, 4) == b + 4);
  CHECK(!memory.get_offset_address(2, 0, 0).ok());
  CHECK(!memory.get_offset_address(1, 4, 5).ok());
  CHECK(!memory.get_offset_address(1, 9, 0).ok());
  CHECK(!memory.get_offset_address(0, SIZE_MAX, 2).ok());
  CHECK(!memory.get_offset_address(0, 2, SIZE_MAX).ok());
}

static void growing() {
  extension::MallocMemoryAllocator memory(64);
  void* first = memory.allocate(40);
  CHECK(first != nullptr);
  for (size_t alignment = 1; alignment <= 256; alignment *= 2)
    CHECK(is_at(memory.allocate(100, alignment), alignment));
  CHECK(memory.allocate(SIZE_MAX) == nullptr);
  CHECK(memory.allocate(1, 3) == nullptr);
  memory.reset();
  // one block holds from now on what took several before
  auto* p = static_cast<uint8_t*>(memory.allocate(500));
  auto* q = static_cast<uint8_t*>(memory.allocate(300));
  CHECK(p != nullptr && q == p + 504 - 0);
  memory.reset();
  CHECK(memory.allocate(500) == p);
}

void memory_tests() {
  bump();
  planned();
  growing();
}
