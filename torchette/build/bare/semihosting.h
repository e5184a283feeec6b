// SPDX-License-Identifier: BSD-3-Clause
// Semihosting: a debugger or an emulator does what a board without a console cannot. Where none listens, each
// of these calls faults: a port replaces this file by its own console.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Writes text that ends with a zero byte to the host's console.
void semihosting_write(const char* text);
/// The command line that the host gives, cut to `size` bytes with its zero byte; empty where there is none.
void semihosting_command_line(char* line, size_t size);
/// Reads a file of the host into `data`. Returns how many bytes, at most `size`, or -1 where it cannot be
/// read.
ptrdiff_t semihosting_read_file(const char* path, void* data, size_t size);
/// Ends the program; `code` becomes the emulator's own exit code.
#ifdef __cplusplus
[[noreturn]]
#endif
void semihosting_exit(int code);

#ifdef __cplusplus
}
#endif
