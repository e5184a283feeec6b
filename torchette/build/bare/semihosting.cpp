// SPDX-License-Identifier: BSD-3-Clause
// Arm's semihosting for processors that run Thumb code only: an operation and a block of words, handed over
// by a breakpoint. Numbers of operations: "Semihosting for AArch32 and AArch64", Arm.
#include "torchette/build/bare/semihosting.h"

#include <stdint.h>

namespace {

enum Operation : uintptr_t {
  kOpen = 0x01,
  kClose = 0x02,
  kWriteText = 0x04,
  kRead = 0x06,
  kGetCommandLine = 0x15,
  kExitExtended = 0x20,
};

intptr_t ask(Operation operation, const void* block) {
  register uintptr_t r0 asm("r0") = operation;
  register const void* r1 asm("r1") = block;
  asm volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return static_cast<intptr_t>(r0);
}

uintptr_t word(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

extern "C" {

void semihosting_write(const char* text) { ask(kWriteText, text); }

void semihosting_command_line(char* line, size_t size) {
  const uintptr_t block[] = {word(line), size};
  line[0] = 0;
  if (ask(kGetCommandLine, block) != 0) line[0] = 0;
  line[size - 1] = 0;
}

ptrdiff_t semihosting_read_file(const char* path, void* data, size_t size) {
  size_t length = 0;
  while (path[length] != 0) ++length;
  const uintptr_t open[] = {word(path), 1, length};  // 1: for reading, as bytes
  const intptr_t file = ask(kOpen, open);
  if (file < 0) return -1;
  const uintptr_t read[] = {static_cast<uintptr_t>(file), word(data), size};
  const intptr_t left = ask(kRead, read);  // how many bytes are missing
  const uintptr_t close[] = {static_cast<uintptr_t>(file)};
  ask(kClose, close);
  return left < 0 || static_cast<size_t>(left) > size ? -1 : static_cast<ptrdiff_t>(size) - left;
}

void semihosting_exit(int code) {
  const uintptr_t block[] = {0x20026, static_cast<uintptr_t>(code)};  // the application has ended
  for (;;) ask(kExitExtended, block);
}
}
