// SPDX-License-Identifier: BSD-3-Clause
// The functions of a C library that the runtime calls, for images that are linked without one. They need no
// heap, files or locales. They are weak, so that functions of a C library linked as objects replace them.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "torchette/build/bare/semihosting.h"

#define WEAK __attribute__((weak))

// The loops below must not be compiled to calls of the functions that they define. For clang, the build
// passes -fno-builtin.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif

namespace {

/// Writes text to a fixed-size buffer; counts characters that do not fit, like snprintf.
struct Text {
  char* to;
  size_t room;
  size_t count = 0;

  void put(char c) {
    if (count + 1 < room) to[count] = c;
    ++count;
  }
  void put(const char* text, size_t length) {
    for (size_t i = 0; i < length; ++i) put(text[i]);
  }
  void put(uint64_t value, unsigned base, bool negative, size_t width, char fill) {
    char digits[24];
    size_t length = 0;
    do {
      // 32-bit division suffices for most values; 64-bit division is a software loop.
      const auto low = static_cast<uint32_t>(value);
      const bool small = value == low;
      digits[length++] = "0123456789abcdef"[small ? low % base : value % base];
      value = small ? low / base : value / base;
    } while (value != 0);
    if (negative && fill == '0') put('-');
    for (size_t i = length + negative; i < width; ++i) put(fill);
    if (negative && fill != '0') put('-');
    while (length > 0) put(digits[--length]);
  }
};

size_t length_of(const char* text, size_t most) {
  size_t length = 0;
  while (length < most && text[length] != 0) ++length;
  return length;
}

/// Writes a double with three decimals, truncated. Uses integer arithmetic, because floating-point arithmetic
/// would be linked only for this function.
void put_double(Text& text, uint64_t bits) {
  const bool negative = bits >> 63 != 0;
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  const uint64_t digits = (bits & 0xfffffffffffff) | 0x10000000000000;
  if (exponent > 62) return text.put(exponent == 1024 && digits << 12 != 0 ? "nan" : "big", 3);
  const uint64_t whole = exponent < 0    ? 0
                         : exponent < 52 ? digits >> (52 - exponent)
                                         : digits << (exponent - 52);
  // Three decimals require the first ten fractional bits.
  const uint64_t fraction = exponent < -10 || exponent > 51 ? 0
                            : exponent < 43                 ? digits >> (42 - exponent)
                                                            : digits << (exponent - 42);
  text.put(whole, 10, negative, 0, ' ');
  text.put('.');
  text.put((fraction & 1023) * 1000 >> 10, 10, false, 3, '0');
}

}  // namespace

extern "C" {

WEAK void* memcpy(void* to, const void* from, size_t n) {
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  if (((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) & 3) == 0)
    for (; n >= 4; n -= 4, out += 4, in += 4)
      *reinterpret_cast<uint32_t __attribute__((may_alias))*>(out) =
          *reinterpret_cast<const uint32_t __attribute__((may_alias))*>(in);
  for (; n > 0; --n) *out++ = *in++;
  return to;
}

WEAK void* memmove(void* to, const void* from, size_t n) {
  if (to <= from) return memcpy(to, from, n);
  while (n-- > 0) static_cast<uint8_t*>(to)[n] = static_cast<const uint8_t*>(from)[n];
  return to;
}

WEAK void* memset(void* to, int value, size_t n) {
  auto* out = static_cast<uint8_t*>(to);
  const auto byte = static_cast<uint8_t>(value);
  if ((reinterpret_cast<uintptr_t>(to) & 3) == 0)
    for (; n >= 4; n -= 4, out += 4)
      *reinterpret_cast<uint32_t __attribute__((may_alias))*>(out) = byte * 0x01010101u;
  for (; n > 0; --n) *out++ = byte;
  return to;
}

WEAK int memcmp(const void* a, const void* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const int difference = static_cast<const uint8_t*>(a)[i] - static_cast<const uint8_t*>(b)[i];
    if (difference != 0) return difference;
  }
  return 0;
}

WEAK size_t strlen(const char* text) { return length_of(text, SIZE_MAX); }

WEAK int strncmp(const char* a, const char* b, size_t n) {
  for (; n > 0; ++a, ++b, --n) {
    const int difference = static_cast<uint8_t>(*a) - static_cast<uint8_t>(*b);
    if (difference != 0 || *a == 0) return difference;
  }
  return 0;
}

WEAK int strcmp(const char* a, const char* b) { return strncmp(a, b, SIZE_MAX); }

/// Supports the formats that the runtime's messages use: d i u x c s p f g %, the lengths h l ll z t j, a
/// width, and a precision of strings.
WEAK int vsnprintf(char* to, size_t room, const char* format, va_list arguments) {
  Text text{to, room};
  for (const char* at = format; *at != 0; ++at) {
    if (*at != '%') {
      text.put(*at);
      continue;
    }
    char fill = ' ';
    size_t width = 0, precision = SIZE_MAX;
    if (*++at == '0') fill = '0';
    for (; *at >= '0' && *at <= '9'; ++at) width = 10 * width + static_cast<size_t>(*at - '0');
    if (*at == '.') {
      if (*++at == '*') {
        precision = static_cast<size_t>(va_arg(arguments, int));
        ++at;
      } else {
        for (precision = 0; *at >= '0' && *at <= '9'; ++at)
          precision = 10 * precision + static_cast<size_t>(*at - '0');
      }
    }
    int longs = 0;
    for (; *at == 'h' || *at == 'l' || *at == 'z' || *at == 't' || *at == 'j'; ++at)
      longs += *at == 'l' ? 1 : *at == 'j' ? 2 : 0;  // pointers and long have the size of int
    if (*at == 'd' || *at == 'i') {
      const int64_t value = longs > 1 ? va_arg(arguments, long long) : va_arg(arguments, int);
      const auto bits = static_cast<uint64_t>(value);
      text.put(value < 0 ? 0 - bits : bits, 10, value < 0, width, fill);
    } else if (*at == 'u' || *at == 'x' || *at == 'p') {
      const uint64_t value = longs > 1 ? va_arg(arguments, unsigned long long) : va_arg(arguments, unsigned);
      text.put(value, *at == 'u' ? 10 : 16, false, width, fill);
    } else if (*at == 'f' || *at == 'g') {
      const double value = va_arg(arguments, double);
      uint64_t bits;
      __builtin_memcpy(&bits, &value, sizeof(bits));
      put_double(text, bits);
    } else if (*at == 's') {
      const char* value = va_arg(arguments, const char*);
      text.put(value, length_of(value, precision));
    } else if (*at == 'c') {
      text.put(static_cast<char>(va_arg(arguments, int)));
    } else if (*at == 0) {
      break;
    } else {
      text.put(*at);
    }
  }
  if (room > 0) to[text.count < room ? text.count : room - 1] = 0;
  return static_cast<int>(text.count);
}

WEAK int snprintf(char* to, size_t room, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int count = vsnprintf(to, room, format, arguments);
  va_end(arguments);
  return count;
}

[[noreturn]] WEAK void abort() {
  semihosting_write("abort\n");
  semihosting_exit(254);
}

[[noreturn]] WEAK void __cxa_pure_virtual() { abort(); }
}
