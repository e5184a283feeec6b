// SPDX-License-Identifier: BSD-3-Clause
// Checks the environment that a model requires in an image: initialised memory, constructors, the stack,
// floating point, text, the host's command line and files, exit codes, faults. The exit code is the number of
// the first failed check, or 42. With the command line "fault", "stack" or "abort", the image ends in that
// way.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "torchette/build/bare/semihosting.h"

extern "C" [[noreturn]] void abort();

namespace {

int zeroed[100];
int counted = 7;
struct Constructed {
  int value;
  Constructed() : value(counted + 1) {}
} constructed;
volatile float factor = 1.5f;
volatile double precise = 0.1;

bool says(const char* expected, const char* format, ...) {
  char line[48];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  return strcmp(line, expected) == 0 && static_cast<size_t>(length) == strlen(expected);
}

int deeper(int n) {
  volatile char frame[512];
  frame[0] = static_cast<char>(n);
  return n == 0 ? frame[0] : deeper(n - 1) + frame[0];
}

int check() {
  for (const int value : zeroed)
    if (value != 0) return 1;
  if (counted != 7 || constructed.value != 8) return 2;
  if (factor * 2.0f != 3.0f || precise * 3.0 == 0.3) return 3;
  if (!says("-12 7 2147483648 ffff c", "%d %u %zu %x %c", -12, 7u, size_t{0x80000000u}, 0xffffu, 'c'))
    return 4;
  if (!says("-9223372036854775808 007", "%lld %03u", static_cast<long long>(INT64_MIN), 7u)) return 5;
  if (!says("12345678901234567890 100%", "%llu %d%%", 12345678901234567890ull, 100)) return 6;
  if (!says("ab|  -5|-0005|text", "%.*s|%4d|%05d|%s", 2, "abcdef", -5, -5, "text")) return 7;
  char little[4];
  if (snprintf(little, sizeof(little), "%s", "abcdef") != 6 || strcmp(little, "abc") != 0) return 8;
  char moved[] = "0123456789";
  memmove(moved + 2, moved, 5);
  if (strcmp(moved, "0101234789") != 0) return 9;
  memmove(moved, moved + 2, 8);
  if (strcmp(moved, "0123478989") != 0 || memcmp("ab\xff", "aba", 3) <= 0) return 10;
  if (strncmp("abc", "abd", 2) != 0 || strcmp("a", "ab") >= 0 || strlen("four") != 4) return 11;
  char data[16];
  if (semihosting_read_file("no such file", data, sizeof(data)) != -1) return 12;
  if (semihosting_read_file("data.bin", data, sizeof(data)) != 5 || memcmp(data, "bytes", 5) != 0) return 13;
  if (semihosting_read_file("data.bin", data, 2) != 2) return 14;
  return 42;
}

}  // namespace

int main() {
  char line[128];
  semihosting_command_line(line, sizeof(line));
  const char* word = line + strlen(line);
  while (word > line && word[-1] != ' ') --word;
  if (strcmp(word, "fault") == 0) __builtin_trap();
  if (strcmp(word, "stack") == 0) return deeper(1000000);
  if (strcmp(word, "abort") == 0) abort();
  semihosting_write("hello from an image\n");
  return check();
}
