// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <memory>

namespace torchette::extension::threadpool {
namespace {

thread_local void* current_context = nullptr;

}  // namespace

void* task_context() { return current_context; }

TaskContextScope::TaskContextScope(void* context) : before_(current_context) { current_context = context; }
TaskContextScope::~TaskContextScope() { current_context = before_; }

ThreadPool::ThreadPool(size_t thread_count) {
  if (thread_count == 0) thread_count = std::max(1u, std::thread::hardware_concurrency());
  threads_.reserve(thread_count);
  for (size_t i = 0; i < thread_count; ++i) threads_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::submit(void (*task)(void*), void* argument) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back({task, argument, current_context});
  }
  changed_.notify_one();
}

void ThreadPool::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task task = tasks_.front();
    tasks_.pop_front();
    lock.unlock();
    current_context = task.context;
    task.function(task.argument);
    lock.lock();
  }
}

void ThreadPool::run(const std::function<void(size_t)>& task, size_t range) {
  // Shared with helpers that may come only after all is done, and then find nothing left.
  struct Loop {
    const std::function<void(size_t)>* task;
    size_t range;
    std::atomic<size_t> next{0}, finished{0};
    std::mutex mutex;
    std::condition_variable all;

    void turn() {
      for (size_t i; (i = next++) < range;) {
        (*task)(i);
        if (++finished == range) {
          const std::lock_guard<std::mutex> lock(mutex);
          all.notify_all();
        }
      }
    }
  };
  if (range == 0) return;
  const auto loop = std::make_shared<Loop>();
  loop->task = &task;
  loop->range = range;
  for (size_t i = 0; i < std::min(range - 1, threads_.size()); ++i)
    submit(
        [](void* argument) {
          const std::unique_ptr<std::shared_ptr<Loop>> own(static_cast<std::shared_ptr<Loop>*>(argument));
          (*own)->turn();
        },
        new std::shared_ptr<Loop>(loop));
  loop->turn();
  std::unique_lock<std::mutex> lock(loop->mutex);
  loop->all.wait(lock, [&] { return loop->finished == range; });
}

ThreadPool* get_threadpool() {
  static ThreadPool pool;
  return &pool;
}

bool parallel_for(int64_t begin, int64_t end, int64_t grain_size,
                  const std::function<void(int64_t, int64_t)>& task) {
  if (begin > end || grain_size < 1) return false;
  if (begin == end) return true;
  ThreadPool* pool = get_threadpool();
  const auto count = static_cast<uint64_t>(end) - static_cast<uint64_t>(begin);
  const uint64_t threads = pool->get_thread_count() + 1, grain = static_cast<uint64_t>(grain_size);
  const uint64_t part = std::max(grain, count / threads + (count % threads != 0 ? 1 : 0));
  const uint64_t parts = count / part + (count % part != 0 ? 1 : 0);
  pool->run(
      [&](size_t i) {
        const uint64_t first = i * part, last = std::min(count, first + part);
        task(begin + static_cast<int64_t>(first), begin + static_cast<int64_t>(last));
      },
      static_cast<size_t>(parts));
  return true;
}

}  // namespace torchette::extension::threadpool
