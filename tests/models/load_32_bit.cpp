// SPDX-License-Identifier: BSD-3-Clause
// Loads a method as a 32-bit program without a C library, on x86 Linux with the 8-byte alignment of other
// 32-bit machines. Usage: load_32_bit MODEL.pte METHOD PLANNED...; exits with the error code of the loader, 0
// for Ok. The kernel table, kernels.inc, contains the names and signatures of all kernels; nothing is
// executed.
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/runtime/method.h"

using namespace torchette;

extern "C" {
void* memcpy(void* to, const void* from, size_t n) {
  for (size_t i = 0; i < n; ++i) static_cast<char*>(to)[i] = static_cast<const char*>(from)[i];
  return to;
}
void* memmove(void* to, const void* from, size_t n) {
  if (to < from) return memcpy(to, from, n);
  while (n-- > 0) static_cast<char*>(to)[n] = static_cast<const char*>(from)[n];
  return to;
}
void* memset(void* to, int value, size_t n) {
  for (size_t i = 0; i < n; ++i) static_cast<char*>(to)[i] = static_cast<char>(value);
  return to;
}
int memcmp(const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const int d = static_cast<const uint8_t*>(a)[i] - static_cast<const uint8_t*>(b)[i];
    if (d != 0) return d;
  }
  return 0;
}
size_t strlen(const char* s) {
  size_t n = 0;
  while (s[n] != 0) ++n;
  return n;
}
int strcmp(const char* a, const char* b) {
  while (*a != 0 && *a == *b) ++a, ++b;
  return static_cast<uint8_t>(*a) - static_cast<uint8_t>(*b);
}
int strncmp(const char* a, const char* b, size_t n) {
  for (; n > 0 && *a != 0 && *a == *b; --n) ++a, ++b;
  return n == 0 ? 0 : static_cast<uint8_t>(*a) - static_cast<uint8_t>(*b);
}
// Functions of the compiler's runtime library, which may lack a 32-bit build.
uint64_t __udivmoddi4(uint64_t n, uint64_t d, uint64_t* rest) {
  uint64_t q = 0, r = 0;
  for (int i = 63; i >= 0; --i) {
    r = r << 1 | (n >> i & 1);
    if (r >= d) r -= d, q |= uint64_t{1} << i;
  }
  if (rest != nullptr) *rest = r;
  return q;
}
uint64_t __udivdi3(uint64_t n, uint64_t d) { return __udivmoddi4(n, d, nullptr); }
uint64_t __umoddi3(uint64_t n, uint64_t d) {
  uint64_t r;
  __udivmoddi4(n, d, &r);
  return r;
}
int64_t __divdi3(int64_t n, int64_t d) {
  const auto q = static_cast<int64_t>(
      __udivdi3(static_cast<uint64_t>(n < 0 ? -n : n), static_cast<uint64_t>(d < 0 ? -d : d)));
  return (n < 0) != (d < 0) ? -q : q;
}
int64_t __moddi3(int64_t n, int64_t d) { return n - __divdi3(n, d) * d; }
}

namespace torchette {
namespace {
Error no_kernel(Context&, Args) { return Error::NotSupported; }
const Kernel kernels[] = {
#define KERNEL(name, signature) {name, no_kernel, signature},
#include "kernels.inc"
};
const Kernels families[] = {Kernels(kernels)};
}  // namespace
Span<const Kernels> kernel_table() { return {families, 1}; }
const char* kernel_isa() { return "none"; }
}  // namespace torchette

namespace {

alignas(64) uint8_t file[160 << 20], method_pool[8 << 20], planned_pool[64 << 20];

int call(int number, int a, const void* b = nullptr, size_t c = 0) {
  int result;
  asm volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
  return result;
}

size_t number(const char* text) {
  size_t value = 0;
  for (; *text != 0; ++text) value = 10 * value + static_cast<size_t>(*text - '0');
  return value;
}

int run(int argc, char** argv) {
  static_assert(sizeof(void*) == 4);
  const int opened = call(5, reinterpret_cast<int>(argv[1]));
  if (opened < 0) return 255;
  size_t size = 0;
  for (int n; (n = call(3, opened, file + size, sizeof(file) - size)) > 0;) size += static_cast<size_t>(n);
  extension::BufferDataLoader loader(file, size);
  Result<Program> program = Program::load(&loader);
  if (!program.ok()) return static_cast<int>(program.error());
  Span<uint8_t> buffers[4];
  const int count = argc - 3;
  for (int i = 0; i < count && i < 4; ++i) buffers[i] = {planned_pool, number(argv[3 + i])};
  MemoryAllocator method_memory(number(argv[2]), method_pool);
  HierarchicalAllocator planned({buffers, static_cast<size_t>(count)});
  MemoryManager memory(&method_memory, &planned);
  const Result<Method> method = program->load_method("forward", &memory);
  return static_cast<int>(method.error());
}

}  // namespace

extern "C" [[noreturn]] void begin(void** stack) {
  call(1, run(static_cast<int>(reinterpret_cast<intptr_t>(stack[0])), reinterpret_cast<char**>(stack + 1)));
  __builtin_unreachable();
}
asm(".global _start\n_start: mov %esp, %eax\n and $-16, %esp\n sub $12, %esp\n push %eax\n call begin\n");
