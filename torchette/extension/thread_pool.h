// SPDX-License-Identifier: BSD-3-Clause
// ThreadPool: threads for a ParallelMethod and for loops of the caller.
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

/// Returns the context pointer of this thread, initially null. A task of a ThreadPool has the context of the
/// thread that submitted it, so a platform's log function can assign a line to a call.
void* task_context();

/// Sets the context pointer of this thread and restores the previous one in its destructor.
class TaskContextScope {
 public:
  explicit TaskContextScope(void* context);
  TaskContextScope(const TaskContextScope&) = delete;
  ~TaskContextScope();

 private:
  void* before_;
};

/// A child of fork() starts new threads at the first task. It does not run tasks of its parent.
class ThreadPool final : public Executor {
 public:
  /// Starts `thread_count` threads; 0 means one for each core.
  explicit ThreadPool(size_t thread_count = 0);
  /// Waits until all tasks have run.
  ~ThreadPool() override;

  size_t get_thread_count() const { return count_; }
  void submit(void (*task)(void*), void* argument) override;
  /// Calls `task(0)` to `task(range - 1)` on the threads of the pool and on the calling thread. Returns when
  /// all calls have returned. A task may call it.
  void run(const std::function<void(size_t)>& task, size_t range);

 private:
  struct Task {
    void (*function)(void*);
    void* argument;
    void* context;  // of the thread that submitted it
  };

  /// Replaced in a child of fork(), which has none of the threads and may have a locked mutex.
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
  ThreadPool* next_ = nullptr;  // in the list of all pools
};

/// Returns the pool of the process, which has a thread for each core. The first call creates it.
ThreadPool* get_threadpool();

/// Calls `task(first, last)` in parallel for parts [first, last) of [begin, end) with at least `grain_size`
/// items each. Returns false without calling `task` if begin > end or grain_size < 1.
bool parallel_for(int64_t begin, int64_t end, int64_t grain_size,
                  const std::function<void(int64_t, int64_t)>& task);

}  // namespace torchette::extension::threadpool

namespace torchette::extension {
using threadpool::parallel_for;
}
