// SPDX-License-Identifier: BSD-3-Clause
// Calls a platform function: the one set at run time or the linked one. Formats log lines.
#include "torchette/runtime/platform.h"

#if TORCHETTE_LOG_LEVEL > 0
#include <cstdarg>
#include <cstdio>
#endif

namespace torchette {
namespace {

PalImpl overrides;

}  // namespace

bool register_pal(const PalImpl& impl) {
  if (impl.init != nullptr) overrides.init = impl.init;
  if (impl.abort != nullptr) overrides.abort = impl.abort;
  if (impl.current_ticks != nullptr) overrides.current_ticks = impl.current_ticks;
  if (impl.ticks_to_ns_multiplier != nullptr) overrides.ticks_to_ns_multiplier = impl.ticks_to_ns_multiplier;
  if (impl.emit_log_message != nullptr) overrides.emit_log_message = impl.emit_log_message;
  if (impl.allocate != nullptr) overrides.allocate = impl.allocate;
  if (impl.free != nullptr) overrides.free = impl.free;
  return true;
}

void runtime_init() { overrides.init != nullptr ? overrides.init() : torchette_pal_init(); }

void runtime_abort() {
  if (overrides.abort != nullptr) overrides.abort();
  torchette_pal_abort();
}

torchette_timestamp_t current_ticks() {
  return overrides.current_ticks != nullptr ? overrides.current_ticks() : torchette_pal_current_ticks();
}

torchette_tick_ratio_t ticks_to_ns_multiplier() {
  return overrides.ticks_to_ns_multiplier != nullptr ? overrides.ticks_to_ns_multiplier()
                                                     : torchette_pal_ticks_to_ns_multiplier();
}

void* platform_allocate(size_t size) {
  return overrides.allocate != nullptr ? overrides.allocate(size) : torchette_pal_allocate(size);
}

void platform_free(void* ptr) { overrides.free != nullptr ? overrides.free(ptr) : torchette_pal_free(ptr); }

#if TORCHETTE_LOG_LEVEL > 0
void log_message(torchette_log_level_t level, const char* filename, const char* function, size_t line,
                 const char* format, ...) {
#if defined(__unix__) || defined(__APPLE__) || defined(_WIN32)
  char text[1024];  // errors with lists of names are long
#else
  char text[256];
#endif
  va_list arguments;
  va_start(arguments, format);
  const int full_length = vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  size_t length = full_length < 0 ? 0 : static_cast<size_t>(full_length);
  if (length >= sizeof(text)) {  // a truncated line ends with "..."
    length = sizeof(text) - 4;
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;  // UTF-8
    for (size_t i = 0; i < 3; ++i) text[length++] = '.';
  }
  text[length] = 0;
  const char* file = filename;
  for (const char* c = filename; *c != 0; ++c)
    if (*c == '/') file = c + 1;
  const auto emit =
      overrides.emit_log_message != nullptr ? overrides.emit_log_message : torchette_pal_emit_log_message;
  emit(current_ticks(), level, file, function, line, text, length);
}
#endif

}  // namespace torchette
