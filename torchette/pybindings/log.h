// SPDX-License-Identifier: BSD-3-Clause
// The log lines of the runtime. They are kept for the message of an exception.
#pragma once

#include <string>

#include "torchette/extension/thread_pool.h"
#include "torchette/runtime/platform.h"

namespace torchette::pybindings {

/// For register_pal(): stores the line for take_log().
void capture_log_line(torchette_timestamp_t time, torchette_log_level_t level, const char* filename,
                      const char* function, size_t line, const char* message, size_t length);
/// Returns and removes the lines of this thread and of threads that worked for it in a LogScope.
std::string take_log();

/// During its lifetime, thread-pool tasks that this thread submits log to this thread.
class LogScope {
 public:
  LogScope();

 private:
  extension::threadpool::TaskContextScope scope_;
};

}  // namespace torchette::pybindings
