// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/pybindings/log.h"

namespace torchette::pybindings {
namespace {

thread_local std::string log_lines;
thread_local SharedLog* shared_log = nullptr;

void append_line(std::string& lines, const char* message, size_t length) {
  if (lines.size() > 64 * 1024) return;  // a fault in a loop must not eat the memory
  if (!lines.empty()) lines += '\n';
  lines.append(message, length);
}

}  // namespace

void capture_log_line(torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
                      const char* message, size_t length) {
  if (shared_log == nullptr) return append_line(log_lines, message, length);
  const std::lock_guard<std::mutex> lock(shared_log->mutex);
  append_line(shared_log->lines, message, length);
}

std::string take_log() { return std::exchange(log_lines, {}); }

void LoggingPool::run(void* argument) {
  const std::unique_ptr<Task> task(static_cast<Task*>(argument));
  shared_log = task->log;
  task->task(task->argument);
  shared_log = nullptr;
}

}  // namespace torchette::pybindings
