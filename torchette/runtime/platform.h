// SPDX-License-Identifier: BSD-3-Clause
// The platform layer: the C functions that a port provides, and logging. Every function has a weak default,
// so a port overrides it at link time (on Windows: all of them). register_pal() replaces functions at run
// time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "torchette/runtime/compiler.h"

extern "C" {

typedef uint64_t torchette_timestamp_t;

typedef struct {
  uint64_t numerator;
  uint64_t denominator;
} torchette_tick_ratio_t;

typedef enum {
  TORCHETTE_LOG_DEBUG = 'D',
  TORCHETTE_LOG_INFO = 'I',
  TORCHETTE_LOG_ERROR = 'E',
  TORCHETTE_LOG_FATAL = 'F',
} torchette_log_level_t;

TORCHETTE_REPLACEABLE void torchette_pal_init(void);
[[noreturn]] TORCHETTE_REPLACEABLE void torchette_pal_abort(void);
TORCHETTE_REPLACEABLE torchette_timestamp_t torchette_pal_current_ticks(void);
TORCHETTE_REPLACEABLE torchette_tick_ratio_t torchette_pal_ticks_to_ns_multiplier(void);
TORCHETTE_REPLACEABLE void torchette_pal_emit_log_message(torchette_timestamp_t timestamp,
                                                          torchette_log_level_t level, const char* filename,
                                                          const char* function, size_t line,
                                                          const char* message, size_t length);
TORCHETTE_REPLACEABLE void* torchette_pal_allocate(size_t size);
TORCHETTE_REPLACEABLE void torchette_pal_free(void* ptr);
}

namespace torchette {

/// Run-time replacements of the platform's functions. A null member keeps the linked function.
struct PalImpl {
  void (*init)() = nullptr;
  void (*abort)() = nullptr;
  torchette_timestamp_t (*current_ticks)() = nullptr;
  torchette_tick_ratio_t (*ticks_to_ns_multiplier)() = nullptr;
  void (*emit_log_message)(torchette_timestamp_t, torchette_log_level_t, const char* filename,
                           const char* function, size_t line, const char* message, size_t length) = nullptr;
  void* (*allocate)(size_t) = nullptr;
  void (*free)(void*) = nullptr;

  /// ExecuTorch's factories. The name of the registering source file is ignored.
  static PalImpl create(decltype(emit_log_message) emit_log_message, const char* source_filename) {
    return create(nullptr, nullptr, nullptr, nullptr, emit_log_message, nullptr, nullptr, source_filename);
  }
  static PalImpl create(decltype(init) init, decltype(abort) abort, decltype(current_ticks) current_ticks,
                        decltype(ticks_to_ns_multiplier) ticks_to_ns_multiplier,
                        decltype(emit_log_message) emit_log_message, decltype(allocate) allocate,
                        decltype(free) free, const char*) {
    PalImpl impl;
    impl.init = init;
    impl.abort = abort;
    impl.current_ticks = current_ticks;
    impl.ticks_to_ns_multiplier = ticks_to_ns_multiplier;
    impl.emit_log_message = emit_log_message;
    impl.allocate = allocate;
    impl.free = free;
    return impl;
  }
};

/// Must be called before all other functions of the runtime. A second call replaces functions of the first.
bool register_pal(const PalImpl& impl);

/// Initialises the platform. Call it once before the runtime is used.
void runtime_init();
/// Ends the program. No file and no input can cause this, only an incorrect call, such as EValue::toInt() on
/// a tensor.
[[noreturn]] void runtime_abort();
torchette_timestamp_t current_ticks();
torchette_tick_ratio_t ticks_to_ns_multiplier();
/// Memory for the extension. The core uses it only for scratch memory of a method without a temp allocator.
void* platform_allocate(size_t size);
void platform_free(void* ptr);

/// Formats like printf and passes the line to the platform. Use TORCHETTE_LOG instead of calling it.
void log_message(torchette_log_level_t level, const char* filename, const char* function, size_t line,
                 const char* format, ...) TORCHETTE_FORMAT(5, 6);

}  // namespace torchette

// 0 off, 1 fatal, 2 error, 3 info, 4 debug. With 0 the object files contain no format strings.
#ifndef TORCHETTE_LOG_LEVEL
#define TORCHETTE_LOG_LEVEL 2
#endif
#define TORCHETTE_LOG_RANK_Fatal 1
#define TORCHETTE_LOG_RANK_Error 2
#define TORCHETTE_LOG_RANK_Info 3
#define TORCHETTE_LOG_RANK_Debug 4
#define TORCHETTE_LOG_CODE_Fatal TORCHETTE_LOG_FATAL
#define TORCHETTE_LOG_CODE_Error TORCHETTE_LOG_ERROR
#define TORCHETTE_LOG_CODE_Info TORCHETTE_LOG_INFO
#define TORCHETTE_LOG_CODE_Debug TORCHETTE_LOG_DEBUG
/// TORCHETTE_LOG(Error, "input %zu has dtype %d", index, dtype). The log level of the build decides whether
/// the call is compiled.
#define TORCHETTE_LOG(level, ...)                                                                      \
  do {                                                                                                 \
    if constexpr (TORCHETTE_LOG_RANK_##level <= TORCHETTE_LOG_LEVEL)                                   \
      ::torchette::log_message(TORCHETTE_LOG_CODE_##level, __FILE__, __func__, __LINE__, __VA_ARGS__); \
  } while (0)
