// SPDX-License-Identifier: BSD-3-Clause
// The platform layer for POSIX systems and Windows: monotonic nanoseconds, log lines on stderr, malloc.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "torchette/runtime/platform.h"

#if defined(_MSC_VER)
#include <chrono>
#endif

extern "C" {

TORCHETTE_WEAK void torchette_pal_init(void) {}

TORCHETTE_WEAK void torchette_pal_abort(void) { abort(); }

TORCHETTE_WEAK torchette_timestamp_t torchette_pal_current_ticks(void) {
#if defined(_MSC_VER)  // its library has no other monotonic clock
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<torchette_timestamp_t>(now.count());
#else
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<torchette_timestamp_t>(now.tv_sec) * 1000000000u +
         static_cast<torchette_timestamp_t>(now.tv_nsec);
#endif
}

TORCHETTE_WEAK torchette_tick_ratio_t torchette_pal_ticks_to_ns_multiplier(void) { return {1, 1}; }

TORCHETTE_WEAK void torchette_pal_emit_log_message(torchette_timestamp_t timestamp,
                                                   torchette_log_level_t level, const char* filename,
                                                   const char* function, size_t line, const char* message,
                                                   size_t length) {
  fprintf(stderr, "%c %" PRIu64 " %s:%zu %s] %.*s\n", static_cast<char>(level), timestamp, filename, line,
          function, static_cast<int>(length), message);
}

TORCHETTE_WEAK void* torchette_pal_allocate(size_t size) { return malloc(size); }

TORCHETTE_WEAK void torchette_pal_free(void* ptr) { free(ptr); }
}
