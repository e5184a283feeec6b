// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/runtime/platform.h"

#include <cstdlib>
#include <cstring>

#include "check.h"

using namespace torchette;

namespace {

int linked_calls = 0;
int registered_calls = 0;
char last_line[64];

}  // namespace

// Overrides the weak default at link time.
extern "C" void torchette_pal_init(void) { ++linked_calls; }

void platform_tests() {
  runtime_init();
  CHECK(linked_calls == 1);

  PalImpl impl;
  impl.init = [] { ++registered_calls; };
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
  CHECK(linked_calls == 1 && registered_calls == 1);
  CHECK(current_ticks() == 42);
  CHECK(ticks_to_ns_multiplier().numerator == 3);
  platform_free(platform_allocate(8));
  CHECK(registered_calls == 3);
  TORCHETTE_LOG(Error, "%d of %s", 7, "seven");
  CHECK(strcmp(last_line, "7 of seven") == 0);
  last_line[0] = 0;
  TORCHETTE_LOG(Debug, "not at this level");
  CHECK(last_line[0] == 0);

  // the other tests provoke errors: nobody wants to read them
  PalImpl quiet;
  quiet.emit_log_message = [](torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
                              const char*, size_t) {};
  register_pal(quiet);
}
