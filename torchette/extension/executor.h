// SPDX-License-Identifier: BSD-3-Clause
// Executor: the caller's threads, as ParallelMethod asks for them.
#pragma once

namespace torchette::extension {

class Executor {
 public:
  virtual ~Executor() = default;
  /// Calls `task(argument)` once, on any thread, before or after this returns.
  virtual void submit(void (*task)(void*), void* argument) = 0;
};

}  // namespace torchette::extension
