# SPDX-License-Identifier: BSD-3-Clause
# The platform layer for an RTOS, examples/platform_freertos.cpp, compiles with FreeRTOS's names and forwards each call
# of the runtime to the RTOS. A few lines of test code replace FreeRTOS.

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.building import CXX, ROOT, run

HEADERS = {
    "FreeRTOS.h": """\
#pragma once
#include <stddef.h>
#include <stdint.h>
typedef uint32_t TickType_t;
typedef long BaseType_t;
#define configTICK_RATE_HZ ((TickType_t)1000)
#define portMAX_DELAY ((TickType_t)0xffffffff)
#define pdTRUE 1
extern "C" {
void* pvPortMalloc(size_t size);
void vPortFree(void* data);
}
""",
    "semphr.h": """\
#pragma once
typedef struct QueueDefinition* SemaphoreHandle_t;
extern "C" {
SemaphoreHandle_t xSemaphoreCreateMutex(void);
BaseType_t xSemaphoreTake(SemaphoreHandle_t semaphore, TickType_t ticks);
BaseType_t xSemaphoreGive(SemaphoreHandle_t semaphore);
}
""",
    "task.h": """\
#pragma once
#define taskSCHEDULER_RUNNING ((BaseType_t)2)
#define taskDISABLE_INTERRUPTS() disable_interrupts()
extern "C" {
void disable_interrupts(void);
TickType_t xTaskGetTickCount(void);
BaseType_t xTaskGetSchedulerState(void);
}
""",
}
PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <csetjmp>
#include <csignal>
#include "FreeRTOS.h"
#include "semphr.h"
#include "task.h"
#include "torchette/runtime/platform.h"

static char heap[64], trace[256];
static BaseType_t scheduler = 1;
static size_t used = 0;
static void note(const char* text, size_t n) { for (size_t i = 0; i < n; ++i) trace[used++] = text[i]; }

extern "C" {
void* pvPortMalloc(size_t) { note("M", 1); return heap; }
void vPortFree(void* data) { note(data == heap ? "F" : "?", 1); }
SemaphoreHandle_t xSemaphoreCreateMutex(void) { note("C", 1); return reinterpret_cast<SemaphoreHandle_t>(heap); }
BaseType_t xSemaphoreTake(SemaphoreHandle_t s, TickType_t) { note(s != nullptr ? "[" : "?", 1); return pdTRUE; }
BaseType_t xSemaphoreGive(SemaphoreHandle_t) { note("]", 1); return pdTRUE; }
TickType_t xTaskGetTickCount(void) { return 123; }
BaseType_t xTaskGetSchedulerState(void) { return scheduler; }
void console_write(const char* text, size_t length) { note(text, length); }
void disable_interrupts(void) { puts(trace); fflush(stdout); _Exit(7); }
}

int main() {
  using namespace torchette;
  runtime_init();
  platform_free(platform_allocate(8));
  TORCHETTE_LOG(Error, "%d", 1);
  scheduler = taskSCHEDULER_RUNNING;
  TORCHETTE_LOG(Error, "%d", 2);
  const uint64_t time = current_ticks() * ticks_to_ns_multiplier().numerator / ticks_to_ns_multiplier().denominator;
  if (time != 123000000) return 1;
  PalImpl mine;  // at run time, over what was linked
  mine.current_ticks = []() -> torchette_timestamp_t { return 5; };
  register_pal(mine);
  if (current_ticks() != 5) return 2;
  runtime_abort();
}
"""


@pytest.fixture
def rtos(tmp_path: Path) -> Path:
    for name, text in HEADERS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "program.cpp").write_text(PROGRAM)
    return tmp_path


def test_runtime_calls_are_forwarded_to_rtos(rtos: Path) -> None:
    sources = [ROOT / "examples" / "platform_freertos.cpp", ROOT / "torchette" / "runtime" / "platform.cpp"]
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-DTORCHETTE_LOG_LEVEL=2", f"-I{rtos}", f"-I{ROOT}"]
    run(CXX, *flags, rtos / "program.cpp", *sources, "-o", rtos / "program")
    done = run(rtos / "program", status=7)
    assert done.stdout == "CMFE 1\n[E 2\n]\n"


def test_platform_compiles_for_microcontroller(rtos: Path) -> None:
    if shutil.which("arm-none-eabi-g++") is None:
        pytest.skip("apt install gcc-arm-none-eabi libnewlib-arm-none-eabi libstdc++-arm-none-eabi-dev")
    flags = ["-mcpu=cortex-m4", "-mthumb", "-std=c++17", "-Os", "-fno-exceptions", "-fno-rtti", "-Werror"]
    defined = {}
    for source in (
        ROOT / "examples" / "platform_freertos.cpp",
        ROOT / "torchette/runtime/platform_minimal.cpp",
    ):
        object_file = rtos / f"{source.stem}.o"
        run("arm-none-eabi-g++", *flags, f"-I{rtos}", f"-I{ROOT}", "-c", source, "-o", object_file)
        lines = run("arm-none-eabi-nm", object_file).stdout.splitlines()
        defined[source.stem] = {line.split()[-1] for line in lines if line.split()[-2] in "TW"}
        if source.stem == "platform_minimal":  # has no external symbols
            assert not [line for line in lines if line.split()[-2] == "U"]
    assert (
        defined["platform_freertos"] == defined["platform_minimal"] and len(defined["platform_minimal"]) == 7
    )
