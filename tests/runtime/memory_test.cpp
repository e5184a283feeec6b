// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/runtime/memory.h"

#include "check.h"
#include "torchette/extension/free_list_allocator.h"
#include "torchette/extension/malloc_dynamic_allocator.h"
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
  CHECK(memory.allocate(1, SIZE_MAX / 2 + 1) == nullptr);
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

/// Blocks are aligned and disjoint. After all are freed, the memory is one block again.
static void free_list() {
  alignas(16) static uint8_t pool[4096];
  extension::FreeListAllocator memory(sizeof(pool), pool);
  uint8_t* pieces[16] = {};
  size_t sizes[16] = {};
  uint32_t random = 1;
  for (int iteration = 0; iteration < 5000; ++iteration) {
    random = random * 1664525 + 1013904223;
    const size_t i = random >> 28, size = random >> 12 & 511;
    for (size_t k = 0; k < sizes[i]; ++k) CHECK(pieces[i][k] == i);
    pieces[i] = static_cast<uint8_t*>(memory.reallocate(pieces[i], size));
    sizes[i] = pieces[i] == nullptr ? 0 : size;
    if (sizes[i] == 0) continue;
    CHECK(is_at(pieces[i], 16) && pieces[i] >= pool && pieces[i] + size <= pool + sizeof(pool));
    memset(pieces[i], static_cast<int>(i), size);
  }
  for (uint8_t* piece : pieces) memory.reallocate(piece, 0);
  CHECK(memory.reallocate(nullptr, sizeof(pool)) == nullptr);
  CHECK(memory.reallocate(nullptr, sizeof(pool) - 16) == pool + 16);
}

static void dynamic() {
  extension::MallocDynamicAllocator memory;
  void* const a = memory.reallocate(nullptr, 100);
  void* const b = memory.reallocate(nullptr, 50);
  CHECK(is_at(a, 16) && is_at(b, 16) && memory.peak() == 150);
  CHECK(memory.reallocate(a, 0) == nullptr && memory.reallocate(nullptr, SIZE_MAX) == nullptr);
  memory.reset_peak();
  CHECK(memory.peak() == 50);
}

/// Freed large blocks are reused while others are in use, and keep their contents.
static void dynamic_reuse() {
  constexpr size_t kLarge = size_t{1} << 16;
  extension::MallocDynamicAllocator memory;
  auto* const in_use = static_cast<uint8_t*>(memory.reallocate(nullptr, kLarge));
  void* const reusable = memory.reallocate(nullptr, 4 * kLarge);
  memory.reallocate(reusable, 0);
  CHECK(memory.reallocate(nullptr, 2 * kLarge) == reusable);
  CHECK(memory.peak() == 5 * kLarge);
  memory.reallocate(reusable, 0);
  void* const small = memory.reallocate(nullptr, 1000);  // a block of the large size would waste memory
  CHECK(small != reusable);
  memory.reallocate(small, 0);
  memset(in_use, 7, kLarge);
  uint8_t* pieces[8] = {};
  size_t sizes[8] = {};
  uint32_t random = 1;
  for (int iteration = 0; iteration < 2000; ++iteration) {
    random = random * 1664525 + 1013904223;
    const size_t i = random >> 29, size = (random >> 8 & 3) * kLarge + (random >> 12 & 255);
    for (size_t k = 0; k < sizes[i]; k += 61) CHECK(pieces[i][k] == i);
    pieces[i] = static_cast<uint8_t*>(memory.reallocate(pieces[i], size));
    sizes[i] = size;
    CHECK((size == 0) == (pieces[i] == nullptr) && (size == 0 || is_at(pieces[i], 16)));
    if (size != 0) memset(pieces[i], static_cast<int>(i), size);
  }
  for (size_t k = 0; k < kLarge; ++k) CHECK(in_use[k] == 7);
}

static void planned() {
  uint8_t a[16], b[8];
  Span<uint8_t> spans[] = {{a, 16}, {b, 8}};
  HierarchicalAllocator memory({spans, 2});
  CHECK(*memory.get_offset_address(0, 0, 16) == a);
  CHECK(*memory.get_offset_address(1, 8, 0) == b + 8);
  CHECK(*memory.get_offset_address(1, 4, 4) == b + 4);
  CHECK(!memory.get_offset_address(2, 0, 0).ok());
  CHECK(!memory.get_offset_address(1, 4, 5).ok());
  CHECK(!memory.get_offset_address(1, 9, 0).ok());
  CHECK(!memory.get_offset_address(0, SIZE_MAX, 2).ok());
  CHECK(!memory.get_offset_address(0, 2, SIZE_MAX).ok());
  memset(a, 7, sizeof(a));
  memset(b, 7, sizeof(b));
  memory.clear(1, 5);  // the caller's memory may have any content
  for (size_t i = 0; i < sizeof(b); ++i) CHECK(a[i] == 7 && b[i] == (i < 5 ? 0 : 7));
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
  // After reset(), one block holds the memory that needed several blocks before.
  auto* p = static_cast<uint8_t*>(memory.allocate(500));
  auto* q = static_cast<uint8_t*>(memory.allocate(300));
  CHECK(p != nullptr && q == p + (500 + MemoryAllocator::kDefaultAlignment - 1) /
                                     MemoryAllocator::kDefaultAlignment * MemoryAllocator::kDefaultAlignment);
  memory.reset();
  CHECK(memory.allocate(500) == p);
}

void memory_tests() {
  bump();
  free_list();
  dynamic();
  dynamic_reuse();
  planned();
  growing();
}
