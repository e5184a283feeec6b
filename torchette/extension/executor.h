// SPDX-License-Identifier: BSD-3-Clause
// Executor: the interface through which ParallelMethod runs tasks on threads of the caller.
#pragma once

namespace torchette::extension {

class Executor {
 public:
  virtual ~Executor() = default;
  /// Calls `task(argument)` once, on any thread, before or after this function returns.
  virtual void submit(void (*task)(void*), void* argument) = 0;
};

}  // namespace torchette::extension
