// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/pybindings/log.h"

#include <mutex>
#include <utility>

namespace torchette::pybindings {
namespace {

constexpr size_t kMaxBytes = 64 * 1024;  // an error in a loop must not fill the memory

class Log {
 public:
  void append(const char* message, size_t length) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (lines_.size() > kMaxBytes) return;
    if (!lines_.empty()) lines_ += '\n';
    lines_.append(message, length);
  }
  std::string take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::string lines_;
};

/// The log of the thread that submitted the current task, or of this thread.
Log& current_log() {
  static thread_local Log thread_log;
  void* const context = extension::threadpool::task_context();
  return context == nullptr ? thread_log : *static_cast<Log*>(context);
}

}  // namespace

void capture_log_line(torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
                      const char* message, size_t length) {
  current_log().append(message, length);
}

std::string take_log() { return current_log().take(); }

LogScope::LogScope() : scope_(&current_log()) {}

}  // namespace torchette::pybindings
