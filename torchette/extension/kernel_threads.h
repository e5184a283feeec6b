// SPDX-License-Identifier: BSD-3-Clause
// The process's threads for loops of kernels: one pool, which all methods share.
#pragma once

#include "torchette/runtime/threads.h"

namespace torchette::extension {

/// Physical cores that this process may run on; at least 1.
size_t physical_cores();
/// What num_threads() says where somebody has, else the physical cores.
size_t default_num_threads();

/// Up to `count` threads of the pool, the caller's included, which lasts as long as the process; null for 0
/// and
/// 1. One loop runs at a time: a loop inside of another, or of another thread at the same
/// time, runs on its caller alone, so nobody waits for anybody and no core has two.
Threads* kernel_threads(size_t count);

}  // namespace torchette::extension
