// SPDX-License-Identifier: BSD-3-Clause
// Semihosting: an operation and its arguments, passed to the debugger through a breakpoint. Operations:
// "Semihosting for AArch32 and AArch64", Arm, and "RISC-V Semihosting". The functions are weak; a board with
// its own output replaces them.
#include "torchette/build/bare/semihosting.h"

#include <stdint.h>

#define WEAK __attribute__((weak))

namespace {

enum Operation : uintptr_t {
  kOpen = 0x01,
  kClose = 0x02,
  kWriteText = 0x04,
  kRead = 0x06,
  kGetCommandLine = 0x15,
  kExitExtended = 0x20,
};

#ifdef __riscv
// The two shifts mark the breakpoint. The three instructions must be uncompressed and in one page.
[[gnu::noinline]] intptr_t ask(Operation operation, const void* block) {
  register uintptr_t a0 asm("a0") = operation;
  register const void* a1 asm("a1") = block;
  asm volatile(
      ".option push\n .option norvc\n .balign 16\n"
      "slli x0, x0, 0x1f\n ebreak\n srai x0, x0, 7\n"
      ".option pop"
      : "+r"(a0)
      : "r"(a1)
      : "memory");
  return static_cast<intptr_t>(a0);
}
#else
intptr_t ask(Operation operation, const void* block) {
  register uintptr_t r0 asm("r0") = operation;
  register const void* r1 asm("r1") = block;
  asm volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return static_cast<intptr_t>(r0);
}
#endif

uintptr_t word(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

extern "C" {

WEAK void semihosting_write(const char* text) { ask(kWriteText, text); }

WEAK void semihosting_command_line(char* line, size_t size) {
  const uintptr_t block[] = {word(line), size};
  line[0] = 0;
  if (ask(kGetCommandLine, block) != 0) line[0] = 0;
  line[size - 1] = 0;
}

WEAK ptrdiff_t semihosting_read_file(const char* path, void* data, size_t size) {
  size_t length = 0;
  while (path[length] != 0) ++length;
  const uintptr_t open[] = {word(path), 1, length};  // 1: mode "rb"
  const intptr_t file = ask(kOpen, open);
  if (file < 0) return -1;
  const uintptr_t read[] = {static_cast<uintptr_t>(file), word(data), size};
  const intptr_t left = ask(kRead, read);  // number of bytes that were not read
  const uintptr_t close[] = {static_cast<uintptr_t>(file)};
  ask(kClose, close);
  return left < 0 || static_cast<size_t>(left) > size ? -1 : static_cast<ptrdiff_t>(size) - left;
}

WEAK void semihosting_exit(int code) {
  const uintptr_t block[] = {0x20026, static_cast<uintptr_t>(code)};  // ADP_Stopped_ApplicationExit
  for (;;) ask(kExitExtended, block);
}
}
