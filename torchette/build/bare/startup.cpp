// SPDX-License-Identifier: BSD-3-Clause
// Start-up of a Cortex-M or RISC-V processor, before main(): vector table, floating-point unit, initial
// values of memory. A fault is reported to the host and ends the program. No libc start-up is linked;
// image.ld defines the symbols.
#include "torchette/build/bare/startup.h"

#include <stdint.h>

#include "torchette/build/bare/semihosting.h"

extern "C" {

int call_main() asm("main");

extern uint32_t image_stack_end[], image_data_source[], image_data_begin[], image_data_end[];
extern uint32_t image_bss_begin[], image_bss_end[], image_stack_begin[];
typedef void (*Function)();
extern const Function image_constructors_begin[], image_constructors_end[];

[[noreturn]] void reset();
[[noreturn]] void fault();
#ifndef __riscv
/// Applications define interrupt handlers with these names; by default, an interrupt is a fault.
__attribute__((weak, alias("fault"))) void supervisor_call();
__attribute__((weak, alias("fault"))) void pend_supervisor();
__attribute__((weak, alias("fault"))) void system_tick();
#endif
}

namespace {

constexpr uint32_t kUnused = 0x57ac57ac;  // fill pattern of unused stack

void write_hexadecimal(const char* name, uint32_t value) {
  char text[] = " 0x00000000";
  for (int digit = 0; digit < 8; ++digit) text[10 - digit] = "0123456789abcdef"[value >> (4 * digit) & 15];
  semihosting_write(name);
  semihosting_write(text);
}

#ifdef __riscv
[[noreturn]] __attribute__((used)) void report_fault(uint32_t cause, uint32_t position, uint32_t value) {
  write_hexadecimal("fault: exception", cause);
  write_hexadecimal(", value", value);
  write_hexadecimal(", at", position);
  semihosting_write("\n");
  semihosting_exit(255);
}
#else
uint32_t& control_register(uint32_t address) { return *reinterpret_cast<uint32_t*>(address); }

/// The interrupted code's stack contains r0 to r3, r12, lr, pc, psr.
[[noreturn]] __attribute__((used)) void report_fault(const uint32_t* stack) {
  uint32_t number;
  asm volatile("mrs %0, ipsr" : "=r"(number));
  write_hexadecimal("fault: exception", number);
  write_hexadecimal(", status", control_register(0xE000ED28));
  if (stack >= image_stack_begin && stack < image_stack_end) write_hexadecimal(", at", stack[6]);
  semihosting_write("\n");
  semihosting_exit(255);
}
#endif

}  // namespace

extern "C" {

// The fault may be caused by the stack, so the handler has no frame and switches to a new stack.
#ifdef __riscv
__attribute__((naked, aligned(4))) void fault() {
  asm volatile(
      "lla sp, image_stack_end\n csrr a0, mcause\n csrr a1, mepc\n csrr a2, mtval\n lla t0, %0\n jr t0"
      :
      : "i"(report_fault));
}
#else
__attribute__((naked)) void fault() {
  asm volatile("mrs r0, msp\n ldr r1, =image_stack_end\n msr msp, r1\n ldr r1, =%0\n bx r1\n .ltorg"
               :
               : "i"(report_fault));
}
#endif

/// Separate from reset(), because the compiler may save and use vector registers here.
[[noreturn]] __attribute__((noinline, used)) void start() {
  uint32_t* here;
#ifdef __riscv
  asm volatile("mv %0, sp" : "=r"(here));
#else
  asm volatile("mov %0, sp" : "=r"(here));
#endif
  for (uint32_t* at = image_stack_begin; at < here; ++at) *at = kUnused;
  const uint32_t* from = image_data_source;
  for (uint32_t* to = image_data_begin; to < image_data_end;) *to++ = *from++;
  for (uint32_t* to = image_bss_begin; to < image_bss_end;) *to++ = 0;
  for (const Function* each = image_constructors_begin; each < image_constructors_end; ++each) (*each)();
  semihosting_exit(call_main());
}

size_t stack_size() { return sizeof(uint32_t) * static_cast<size_t>(image_stack_end - image_stack_begin); }

size_t stack_used() {
  const volatile uint32_t* at = image_stack_begin;
  while (at < image_stack_end && *at == kUnused) ++at;
  return sizeof(uint32_t) * static_cast<size_t>(image_stack_end - at);
}

#ifdef __riscv
/// Execution begins here, at the first address of flash.
__attribute__((naked, section(".vectors"))) void reset() {
  asm volatile("lla sp, image_stack_end\n lla t0, fault\n csrw mtvec, t0\n lla t0, start\n jr t0");
}
#else
void reset() {
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
  control_register(0xE000ED88) |= 0xFu << 20;  // coprocessors 10 and 11: floating point, and vectors
#endif
#if __ARM_ARCH >= 8
  asm volatile("msr msplim, %0" : : "r"(image_stack_begin));  // a stack overflow is a fault
#endif
  asm volatile("dsb\n isb" : : : "memory");
  start();
}

/// The processor reads this table at reset: the initial stack pointer, then a handler for each exception.
__attribute__((section(".vectors"), used)) const Function vectors[16] = {
    reinterpret_cast<Function>(image_stack_end),
    reset,
    fault,  // non-maskable
    fault,  // hard
    fault,  // memory management
    fault,  // bus
    fault,  // usage
    fault,  // security
    nullptr,
    nullptr,
    nullptr,
    supervisor_call,
    fault,  // debug
    nullptr,
    pend_supervisor,
    system_tick,
};
#endif
}
