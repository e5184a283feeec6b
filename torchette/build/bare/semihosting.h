// SPDX-License-Identifier: BSD-3-Clause
// Semihosting: I/O through a debugger or an emulator, for boards without a console. Without a debugger, each
// call faults; a port replaces these functions.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Writes text that ends with a zero byte to the host's console.
void semihosting_write(const char* text);
/// Writes the host's command line, truncated to `size` bytes including its zero byte; empty if there is none.
void semihosting_command_line(char* line, size_t size);
/// Reads a file of the host into `data`. Returns the number of bytes, at most `size`, or -1 if the file
/// cannot be read.
ptrdiff_t semihosting_read_file(const char* path, void* data, size_t size);
/// Ends the program; `code` becomes the exit code of the emulator.
#ifdef __cplusplus
[[noreturn]]
#endif
void semihosting_exit(int code);

#ifdef __cplusplus
}
#endif
