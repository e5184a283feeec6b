// SPDX-License-Identifier: BSD-3-Clause
// The platform layer on FreeRTOS: its clock, its heap, and log lines on the board's console, one at a time.
// Link it instead of platform_minimal.cpp. For another RTOS replace the five calls.
// tests/build/test_platform.py compiles and runs it.
#include "FreeRTOS.h"
#include "semphr.h"
#include "task.h"
#include "torchette/runtime/platform.h"

extern "C" void console_write(const char* text, size_t length);  // implemented by the board

static SemaphoreHandle_t console_in_use;

extern "C" {

void torchette_pal_init(void) { console_in_use = xSemaphoreCreateMutex(); }

void torchette_pal_abort(void) {
  taskDISABLE_INTERRUPTS();
  for (;;) __builtin_trap();
}

torchette_timestamp_t torchette_pal_current_ticks(void) { return xTaskGetTickCount(); }

torchette_tick_ratio_t torchette_pal_ticks_to_ns_multiplier(void) {
  return {1000000000u / configTICK_RATE_HZ, 1};
}

void torchette_pal_emit_log_message(torchette_timestamp_t, torchette_log_level_t level, const char*,
                                    const char*, size_t, const char* message, size_t length) {
  // before the scheduler runs there is no other task
  const bool shared = console_in_use != nullptr && xTaskGetSchedulerState() == taskSCHEDULER_RUNNING;
  if (shared) xSemaphoreTake(console_in_use, portMAX_DELAY);
  const char lead[] = {static_cast<char>(level), ' '};
  console_write(lead, sizeof(lead));
  console_write(message, length);
  console_write("\n", 1);
  if (shared) xSemaphoreGive(console_in_use);
}

void* torchette_pal_allocate(size_t size) { return pvPortMalloc(size); }

void torchette_pal_free(void* ptr) { vPortFree(ptr); }
}
