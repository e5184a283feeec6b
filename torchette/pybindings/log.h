// SPDX-License-Identifier: BSD-3-Clause
// What the runtime says: the lines of a thread wait until somebody takes them into a message.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "torchette/extension/thread_pool.h"
#include "torchette/runtime/platform.h"

namespace torchette::pybindings {

/// Messages of the threads that work for one execution.
struct SharedLog {
  std::mutex mutex;
  std::string lines;
};

/// For register_pal(): keeps the line for take_log() of this thread.
void capture_log_line(torchette_timestamp_t time, torchette_log_level_t level, const char* filename,
                      const char* function, size_t line, const char* message, size_t length);
/// The lines of this thread since the last call.
std::string take_log();

/// Threads whose messages can be had afterwards.
class LoggingPool final : public extension::Executor {
 public:
  explicit LoggingPool(size_t threads) : pool_(threads) {}
  void submit(void (*task)(void*), void* argument) override {
    pool_.submit(&run, new Task{task, argument, &log_});
  }
  std::string take_log() {
    const std::lock_guard<std::mutex> lock(log_.mutex);
    return std::exchange(log_.lines, {});
  }

 private:
  struct Task {
    void (*task)(void*);
    void* argument;
    SharedLog* log;
  };
  static void run(void* argument);

  SharedLog log_;
  extension::threadpool::ThreadPool pool_;
};

}  // namespace torchette::pybindings
