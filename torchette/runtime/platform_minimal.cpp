// SPDX-License-Identifier: BSD-3-Clause
// The platform layer without dependencies, not even libc: no clock, no log, no heap. A template for a port to
// a board.
#include "torchette/runtime/platform.h"

extern "C" {

TORCHETTE_WEAK void torchette_pal_init(void) {}

TORCHETTE_WEAK void torchette_pal_abort(void) {
  for (;;) TORCHETTE_TRAP();
}

TORCHETTE_WEAK torchette_timestamp_t torchette_pal_current_ticks(void) { return 0; }

TORCHETTE_WEAK torchette_tick_ratio_t torchette_pal_ticks_to_ns_multiplier(void) { return {1, 1}; }

TORCHETTE_WEAK void torchette_pal_emit_log_message(torchette_timestamp_t, torchette_log_level_t, const char*,
                                                   const char*, size_t, const char*, size_t) {}

TORCHETTE_WEAK void* torchette_pal_allocate(size_t) { return nullptr; }

TORCHETTE_WEAK void torchette_pal_free(void*) {}
}
