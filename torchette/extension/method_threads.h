// SPDX-License-Identifier: BSD-3-Clause
// MethodThreads: the threads of one method, with the scratch memory of what runs at the same time on them.
#pragma once

#include <memory>

#include "torchette/runtime/method.h"

namespace torchette::extension {

class MethodThreads {
 public:
  /// Null where the method has nothing that may run at the same time, or `count` is 1: then it executes by
  /// itself. The method must outlive this. Not in WebAssembly, which has no threads.
  static std::unique_ptr<MethodThreads> make(Method& method, size_t count);
  virtual ~MethodThreads() = default;
  /// Errors: those of Method::execute().
  virtual Error execute() = 0;
};

}  // namespace torchette::extension
