// SPDX-License-Identifier: BSD-3-Clause
// MethodThreads: the threads of a method, and the scratch memory of the chains that run in parallel.
#pragma once

#include <memory>

#include "torchette/runtime/method.h"

namespace torchette::extension {

class MethodThreads {
 public:
  /// Creates the threads of a method, which must outlive the result. Returns null if no chains of the method
  /// may run in parallel or if `count` is less than 2. Not available in WebAssembly, which has no threads.
  static std::unique_ptr<MethodThreads> make(Method& method, size_t count);
  virtual ~MethodThreads() = default;
  /// Executes the method. Errors: those of Method::execute().
  virtual Error execute() = 0;
};

}  // namespace torchette::extension
