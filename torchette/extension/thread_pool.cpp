// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace torchette::extension::threadpool {
namespace {

thread_local void* current_context = nullptr;

}  // namespace

void* task_context() { return current_context; }

TaskContextScope::TaskContextScope(void* context) : before_(current_context) { current_context = context; }
TaskContextScope::~TaskContextScope() { current_context = before_; }

namespace {

std::mutex pools_mutex;  // guards the list of all pools; locked while the process forks
ThreadPool* first_pool = nullptr;

}  // namespace

ThreadPool::ThreadPool(size_t thread_count)
    : count_(thread_count != 0 ? thread_count : std::max(1u, std::thread::hardware_concurrency())) {
  {
    const std::lock_guard<std::mutex> lock(pools_mutex);
#if defined(__linux__) || defined(__APPLE__)
    static bool is_registered = false;
    if (!std::exchange(is_registered, true))
      pthread_atfork([] { pools_mutex.lock(); }, [] { pools_mutex.unlock(); }, [] { renew_all(); });
#endif
    next_ = first_pool;
    first_pool = this;
  }
  start(*state_);
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(pools_mutex);
    ThreadPool** link = &first_pool;
    while (*link != this) link = &(*link)->next_;
    *link = next_;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->ends = true;
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
  delete state_;
}

/// Creates new states in a child of fork(). The old states are not destroyed, because the destructors of
/// locked mutexes and running threads must not run.
void ThreadPool::renew_all() {
  for (ThreadPool* pool = first_pool; pool != nullptr; pool = pool->next_) pool->state_ = new State;
  pools_mutex.unlock();
}

void ThreadPool::start(State& state) const {
  state.threads.reserve(count_);
  for (size_t i = 0; i < count_; ++i) state.threads.emplace_back([&state] { work(state); });
}

void ThreadPool::submit(void (*task)(void*), void* argument) {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (state_->threads.empty()) start(*state_);
    state_->tasks.push_back({task, argument, current_context});
  }
  state_->changed.notify_one();
}

void ThreadPool::work(State& state) {
  std::unique_lock<std::mutex> lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return state.ends || !state.tasks.empty(); });
    if (state.tasks.empty()) return;
    const Task task = state.tasks.front();
    state.tasks.pop_front();
    lock.unlock();
    current_context = task.context;
    task.function(task.argument);
    lock.lock();
  }
}

void ThreadPool::run(const std::function<void(size_t)>& task, size_t range) {
  // Shared with threads that may start after the loop has ended; they then find no items.
  struct Loop {
    const std::function<void(size_t)>* task;
    size_t range;
    std::atomic<size_t> next{0}, finished{0};
    std::mutex mutex;
    std::condition_variable all;

    void run_items() {
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
  for (size_t i = 0; i < std::min(range - 1, count_); ++i)
    submit(
        [](void* argument) {
          const std::unique_ptr<std::shared_ptr<Loop>> loop_holder(
              static_cast<std::shared_ptr<Loop>*>(argument));
          (*loop_holder)->run_items();
        },
        new std::shared_ptr<Loop>(loop));
  loop->run_items();
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
