// SPDX-License-Identifier: BSD-3-Clause
// What an image can ask about its stack, whose size the linker script says.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Bytes of the stack.
size_t stack_size(void);
/// The most bytes of it that were in use since the image started.
size_t stack_used(void);

#ifdef __cplusplus
}
#endif
