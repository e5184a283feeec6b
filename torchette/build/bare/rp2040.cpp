// SPDX-License-Identifier: BSD-3-Clause
// Boards with an RP2040, such as the Raspberry Pi Pico: the boot block, and text output on UART0 (GP0, 115200
// baud) instead of semihosting, which requires a debugger. Registers and boot process: "RP2040 Datasheet",
// Raspberry Pi.
#include <stddef.h>
#include <stdint.h>

#include "torchette/build/bare/semihosting.h"

namespace {

volatile uint32_t& peripheral(uint32_t address) { return *reinterpret_cast<volatile uint32_t*>(address); }

constexpr uint32_t kClear = 0x3000;  // writes to this alias of a register clear bits
constexpr uint32_t kResets = 0x4000C000, kClocks = 0x40008000, kCrystal = 0x40024000;
constexpr uint32_t kPins = 0x40014000, kUart = 0x40034000;

/// Clocks the processor and UART0 from the 12 MHz crystal, and connects pin GP0.
void start_uart() {
  peripheral(kCrystal + 0x0C) = 47;  // start-up delay, 1 ms in units of 256 cycles
  peripheral(kCrystal) = 0xFAB << 12 | 0xAA0;
  while (peripheral(kCrystal + 0x04) >> 31 == 0) {  // wait until it is stable
  }
  peripheral(kClocks + 0x30) = 2;  // reference clock: the crystal; the system clock follows it
  while (peripheral(kClocks + 0x38) != 1 << 2) {
  }
  peripheral(kClocks + 0x48) = 1 << 11 | 4 << 5;         // peripheral clock: on, the crystal
  constexpr uint32_t kUsed = 1 << 22 | 1 << 8 | 1 << 5;  // UART0, pads, pins
  peripheral(kResets + kClear) = kUsed;
  while ((peripheral(kResets + 0x08) & kUsed) != kUsed) {
  }
  peripheral(kPins + 0x04) = 2;  // GP0: UART0's output
  peripheral(kUart + 0x24) = 6;  // 12 MHz / (16 * 115200) = 6 + 33/64
  peripheral(kUart + 0x28) = 33;
  peripheral(kUart + 0x2C) = 0x70;  // 8 bits, FIFO
  peripheral(kUart + 0x30) = 0x101;
}

// The code of the boot block; `call` calls the ROM function with the two-letter code in r1:
//     movs r4, #0
//     ldr r1, ="FC"          flash_flush_cache
//     bl call
//     ldr r1, ="CX"          flash_enter_cmd_xip: any flash, read at addresses with the command 03h
//     bl call
//     ldr r0, =0x10000100    the vector table
//     ldr r1, =0xe000ed08    its register, VTOR
//     str r0, [r1]
//     ldmia r0!, {r1, r2}
//     msr msp, r1
//     bx r2
//     call: push {r4, lr}
//     ldrh r0, [r4, #0x14]   the table of functions
//     ldrh r2, [r4, #0x18]   rom_table_lookup
//     blx r2
//     blx r0
//     pop {r4, pc}
// The last word is the CRC-32 of the others; the ROM runs only blocks with a valid CRC.
__attribute__((section(".boot"), used)) const uint32_t boot_block[64] = {
    0x49092400, 0xf80af000, 0xf0004908, 0x4808f807, 0x60084908, 0xf381c806, 0x47108808, 0x8aa0b510,
    0x47908b22, 0xbd104780, 0x00004346, 0x00005843, 0x10000100, 0xe000ed08, 0,          0,
    0,          0,          0,          0,          0,          0,          0,          0,
    0,          0,          0,          0,          0,          0,          0,          0,
    0,          0,          0,          0,          0,          0,          0,          0,
    0,          0,          0,          0,          0,          0,          0,          0,
    0,          0,          0,          0,          0,          0,          0,          0,
    0,          0,          0,          0,          0,          0,          0,          0x337da008};

}  // namespace

extern "C" {

void semihosting_write(const char* text) {
  static bool is_started = false;
  if (!is_started) start_uart();
  is_started = true;
  for (; *text != 0; ++text) {
    while ((peripheral(kUart + 0x18) & 1 << 5) != 0) {  // wait while the FIFO is full
    }
    peripheral(kUart) = static_cast<uint8_t>(*text);
  }
}

void semihosting_command_line(char* line, size_t) { line[0] = 0; }

ptrdiff_t semihosting_read_file(const char*, void*, size_t) { return -1; }

void semihosting_exit(int) {
  for (;;) asm volatile("wfi");
}
}
