// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/runtime/platform.h"

#include <csetjmp>
#include <cstdlib>
#include <cstring>

#include "check.h"

using namespace torchette;

namespace {

int linked_calls = 0;
int registered_calls = 0;
char last_line[1100];
jmp_buf before_abort;

/// Whether runtime_abort() calls the abort function that passes `number` to longjmp().
bool aborts_with(int number) {
  const volatile int expected = number;
  const int reached = setjmp(before_abort);
  if (reached == 0) runtime_abort();
  return reached == expected;
}

}  // namespace

// Strong definitions, which replace the weak defaults at link time.
extern "C" {
void torchette_pal_init(void) { ++linked_calls; }
[[noreturn]] void torchette_pal_abort(void) { longjmp(before_abort, 1); }
torchette_timestamp_t torchette_pal_current_ticks(void) { return 41; }
torchette_tick_ratio_t torchette_pal_ticks_to_ns_multiplier(void) { return {1, 2}; }
void torchette_pal_emit_log_message(torchette_timestamp_t, torchette_log_level_t, const char*, const char*,
                                    size_t, const char* message, size_t) {
  snprintf(last_line, sizeof(last_line), "linked: %s", message);
}
void* torchette_pal_allocate(size_t size) {
  ++linked_calls;
  return malloc(size);
}
void torchette_pal_free(void* data) {
  ++linked_calls;
  free(data);
}
}

void platform_tests() {
  linked_calls = 0;  // memory of the tests before this one
  runtime_init();
  CHECK(linked_calls == 1);
  CHECK(current_ticks() == 41 && ticks_to_ns_multiplier().denominator == 2);
  platform_free(platform_allocate(8));
  CHECK(linked_calls == 3);
  TORCHETTE_LOG(Error, "a line");
  CHECK(strcmp(last_line, "linked: a line") == 0);  // ignores the allocations of earlier tests
  CHECK(aborts_with(1));

  PalImpl impl;
  impl.init = [] { ++registered_calls; };
  impl.abort = [] { longjmp(before_abort, 2); };
  impl.current_ticks = []() -> torchette_timestamp_t { return 42; };
  impl.ticks_to_ns_multiplier = []() -> torchette_tick_ratio_t { return {3, 2}; };
  impl.allocate = [](size_t size) -> void* {
    ++registered_calls;
    return malloc(size);
  };
  impl.free = [](void* p) {
    ++registered_calls;
    free(p);
  };
  impl.emit_log_message = [](torchette_timestamp_t at, torchette_log_level_t level, const char* file,
                             const char*, size_t, const char* message, size_t length) {
    CHECK(at == 42 && level == TORCHETTE_LOG_ERROR && strcmp(file, "platform_test.cpp") == 0);
    CHECK(length == strlen(message));
    snprintf(last_line, sizeof(last_line), "%s", message);
  };
  register_pal(impl);
  runtime_init();
  CHECK(linked_calls == 3 && registered_calls == 1);
  CHECK(current_ticks() == 42);
  CHECK(ticks_to_ns_multiplier().numerator == 3);
  platform_free(platform_allocate(8));
  CHECK(linked_calls == 3 && registered_calls == 3);
  CHECK(aborts_with(2));
  TORCHETTE_LOG(Error, "%d of %s", 7, "seven");
  CHECK(strcmp(last_line, "7 of seven") == 0);
  char longest[2000] = {};
  for (size_t shift = 0; shift < 3; ++shift) {  // 3-byte characters, cut at each offset
    for (size_t i = 0; i + 4 < sizeof(longest); ++i) longest[i] = "\xE2\x82\xAC"[(i + shift) % 3];
    const char* const characters = longest + (3 - shift) % 3;
    TORCHETTE_LOG(Error, "%.*s%s", static_cast<int>(shift), "ab", characters);
    const size_t length = strlen(last_line);
    CHECK(length > 250 && length < 1024 && strcmp(last_line + length - 3, "...") == 0);
    CHECK((length - 3 - shift) % 3 == 0 && strncmp(last_line + shift, characters, length - 3 - shift) == 0);
  }
  last_line[0] = 0;
  TORCHETTE_LOG(Debug, "not at this level");
  CHECK(last_line[0] == 0);

  // The other tests cause errors on purpose.
  PalImpl quiet;
  quiet.emit_log_message = [](torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
                              const char*, size_t) {};
  register_pal(quiet);
}
