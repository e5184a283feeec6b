// SPDX-License-Identifier: BSD-3-Clause
// ThreadPool: some threads, for a ParallelMethod and for loops of one's own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "torchette/extension/executor.h"

namespace torchette::extension::threadpool {

/// The pointer that this thread works with; null at first. A task of a ThreadPool has the pointer of the
/// thread that submitted it, so a platform's log can tell to which call a line belongs.
void* task_context();

/// While it lives, this thread works with `context`.
class TaskContextScope {
 public:
  explicit TaskContextScope(void* context);
  TaskContextScope(const TaskContextScope&) = delete;
  ~TaskContextScope();

 private:
  void* before_;
};

/// A child of fork() starts new threads with the first task. Tasks of its parent do not run in it.
class ThreadPool final : public Executor {
 public:
  /// 0 means as many threads as the machine has cores.
  explicit ThreadPool(size_t thread_count = 0);
  /// Returns when all tasks have run.
  ~ThreadPool() override;

  size_t get_thread_count() const { return count_; }
  void submit(void (*task)(void*), void* argument) override;
  /// Calls `task(0)` to `task(range - 1)`, on the threads and on this one; returns when all have returned.
  /// May be called from within a task.
  void run(const std::function<void(size_t)>& task, size_t range);

 private:
  struct Task {
    void (*function)(void*);
    void* argument;
    void* context;  // of the thread that submitted it
  };

  /// Replaced in a child of fork(), which has none of the threads, and the mutex as it was.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool ends = false;
    std::vector<std::thread> threads;
  };

  void start(State& state) const;
  static void work(State& state);
  static void renew_all();

  size_t count_;
  State* state_ = new State;
  ThreadPool* next_ = nullptr;  // of all pools
};

/// The process's pool, made on first use, with a thread for each core.
ThreadPool* get_threadpool();

/// Calls `task(first, last)` for parts of [begin, end) of at least `grain_size` items each. False, and
/// nothing is done, where begin > end or grain_size < 1.
bool parallel_for(int64_t begin, int64_t end, int64_t grain_size,
                  const std::function<void(int64_t, int64_t)>& task);

}  // namespace torchette::extension::threadpool

namespace torchette::extension {
using threadpool::parallel_for;
}
