// SPDX-License-Identifier: BSD-3-Clause
// Usage of an image's stack. The linker script defines its size.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Returns the size of the stack in bytes.
size_t stack_size(void);
/// Returns the maximum number of stack bytes used since the image started.
size_t stack_used(void);

#ifdef __cplusplus
}
#endif
