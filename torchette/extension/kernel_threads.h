// SPDX-License-Identifier: BSD-3-Clause
// The thread pool for loops of kernels, which all methods of the process share.
#pragma once

#include "torchette/runtime/threads.h"

namespace torchette::extension {

/// Returns the number of physical cores that this process may use; at least 1.
size_t physical_cores();
/// Returns num_threads() if set_num_threads() was called, else the number of physical cores.
size_t default_num_threads();

/// Returns an interface to up to `count` threads of the pool, including the caller's thread, or null if
/// `count` is 0 or 1. The pool exists until the process ends. Only one loop at a time uses the pool: a nested
/// loop, or a loop of another thread, runs on its caller's thread. So loops do not wait for each other, and
/// the pool has at most one running thread per core.
Threads* kernel_threads(size_t count);

}  // namespace torchette::extension
