// SPDX-License-Identifier: BSD-3-Clause
// The number of threads of an execution. The core uses only the calling thread. Backends and the code above
// the core read the number when a method is loaded.
#pragma once

#include <cstddef>

#include "torchette/runtime/error.h"

namespace torchette {

/// Sets the number of threads for methods that are loaded afterwards, by any thread. The default is 1, or
/// default_num_threads() with torchette/extension/kernel_threads.h. A backend uses this number, at most one
/// thread per processor, unless its own option has another number. Error: InvalidArgument (0).
Error set_num_threads(size_t count);
/// The number of threads of the method that this thread is loading; otherwise the number that was set.
size_t num_threads();

/// Whether a number was set, for the process or for the method that this thread is loading.
bool num_threads_is_set();

/// During its lifetime, methods that this thread loads may use `count` threads; 0 has no effect.
class NumThreadsScope {
 public:
  explicit NumThreadsScope(size_t count);
  NumThreadsScope(const NumThreadsScope&) = delete;
  ~NumThreadsScope();

 private:
  size_t previous_count_;
};

/// The threads of an execution. The core has no implementation: the caller passes one to the method, and the
/// method passes it to its kernels (Context::parallel_for).
class Threads {
 public:
  using Part = void (*)(const void* argument, size_t begin, size_t end, size_t worker);

  /// The maximum number of concurrent calls of a Part, including that of the calling thread; at least 1.
  virtual size_t count() const = 0;
  /// Calls `part` for disjoint ranges of [0, items) with at least `grain_size` (> 0) items each. Returns when
  /// all calls have returned. `worker` is less than count() and differs between concurrent calls.
  virtual void run(size_t items, size_t grain_size, Part part, const void* argument) = 0;

 protected:
  ~Threads() = default;
};

}  // namespace torchette
