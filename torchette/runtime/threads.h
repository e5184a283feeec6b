// SPDX-License-Identifier: BSD-3-Clause
// How many threads an execution may use. The core uses the one that calls it; backends, and what stands above
// the core, ask here when a method is loaded.
#pragma once

#include <cstddef>

#include "torchette/runtime/error.h"

namespace torchette {

/// Of methods that are loaded from now on, by any thread; where nobody has said, 1, or what stands above the
/// core takes: default_num_threads() of torchette/extension/kernel_threads.h. A backend uses as many, at most
/// one for each processor, unless an option of its own says how many. Error: InvalidArgument (0).
Error set_num_threads(size_t count);
/// What the method that this thread is loading may use; asked when nothing is loaded, what was set.
size_t num_threads();

/// Whether somebody has said how many, for the process or for what this thread is loading.
bool num_threads_is_set();

/// While one lives, methods that this thread loads may use `count` threads; 0: as many as was set.
class NumThreadsScope {
 public:
  explicit NumThreadsScope(size_t count);
  NumThreadsScope(const NumThreadsScope&) = delete;
  ~NumThreadsScope();

 private:
  size_t before_;
};

/// Threads that an execution may use. The core knows none: who has them gives them to the method, and the
/// method to its kernels (Context::parallel_for).
class Threads {
 public:
  using Part = void (*)(const void* argument, size_t begin, size_t end, size_t worker);

  /// How many run at the same time, the one that calls included; at least 1.
  virtual size_t count() const = 0;
  /// Calls `part` for parts of [0, items) of at least `least` items (> 0) each; returns when all have
  /// returned. `worker` is less than count(), and another one for parts that run at the same time.
  virtual void run(size_t items, size_t least, Part part, const void* argument) = 0;

 protected:
  ~Threads() = default;
};

}  // namespace torchette
