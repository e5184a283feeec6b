// SPDX-License-Identifier: BSD-3-Clause
// Implements the thread pool for loops of kernels. Workers spin for a short time before they sleep, because
// kernels follow each other in microseconds. The caller runs parts of the loop, and waits only for workers
// that have entered the loop. A worker that wakes too late finds the loop closed.
#include "torchette/extension/kernel_threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>
#endif
#ifdef __linux__
#include <sched.h>

#include <cstdio>
#include <set>
#include <string>
#endif

#include "torchette/runtime/compiler.h"

namespace torchette::extension {

namespace {

constexpr size_t kMaxThreads = 256;
// The time that a worker spins before it sleeps.
constexpr std::chrono::microseconds kSpin{100};
// Parts per thread. Several parts balance the load when the system interrupts a thread.
constexpr size_t kPartsPerThread = 4;

class Pool {
 public:
  /// Returns the pool. It is never destroyed, because its threads may outlive static destructors. A child of
  /// fork() has none of the threads and may have locked mutexes, so it creates a new pool.
  static Pool& get() {
    static Pool* pool = [] {
#if defined(__linux__) || defined(__APPLE__)
      pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
#endif
      return new Pool;
    }();
    return *pool;
  }

  /// Runs a loop. Returns false if another loop is running.
  bool run(size_t threads, size_t items, size_t part_size, Threads::Part part, const void* argument) {
    if (is_busy_.exchange(1, std::memory_order_acquire)) return false;
    grow(threads - 1);
    part_ = part;
    argument_ = argument;
    part_size_ = part_size;
    threads_ = threads;
    // Shares differ by at most one item. If a share would be smaller than a part, shares are multiples of a
    // part.
    const size_t min_items = items / threads < part_size ? part_size : 1,
                 pieces = (items + min_items - 1) / min_items;
    for (size_t i = 0; i < threads; ++i) {
      shares_[i].next.store(pieces * i / threads * min_items, std::memory_order_relaxed);
      shares_[i].end = std::min(pieces * (i + 1) / threads * min_items, items);
    }
    num_inside_.store(kOpen, std::memory_order_release);
    loop_count_.fetch_add(1);
    if (num_asleep_.load() > 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    run_parts(0);
    num_inside_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (size_t spins = 0; num_inside_.load(std::memory_order_acquire) != 0; ++spins)
      if (spins < 10000)
        pause_processor();
      else
        std::this_thread::yield();
    is_busy_.store(0, std::memory_order_release);
    return true;
  }

 private:
  static constexpr uint32_t kOpen = uint32_t{1} << 31;

  /// The items that a thread processes first. A thread has the same share of every loop, so the next layer
  /// reads rows of an image that the same core has just written.
  struct alignas(64) Share {
    std::atomic<size_t> next{0};
    size_t end = 0;
  };

  void grow(size_t workers) {
    for (; num_workers_ < std::min(workers, kMaxThreads - 1); ++num_workers_)
      std::thread([this, worker = num_workers_ + 1] { work(worker); }).detach();
  }

  /// Runs the parts of the worker's share, then remaining parts of other shares.
  void run_parts(size_t worker) {
    for (size_t i = 0; i < threads_; ++i) {
      Share& share = shares_[(worker + i) % threads_];
      for (;;) {
        if (share.next.load(std::memory_order_relaxed) >= share.end) break;
        const size_t begin = share.next.fetch_add(part_size_, std::memory_order_relaxed);
        if (begin >= share.end) break;
        part_(argument_, begin, std::min(begin + part_size_, share.end), worker);
      }
    }
  }

  /// Enters the loop if it is still open. Returns whether it was.
  bool enter() {
    uint32_t num_inside = num_inside_.load(std::memory_order_acquire);
    while ((num_inside & kOpen) != 0)
      if (num_inside_.compare_exchange_weak(num_inside, num_inside + 1, std::memory_order_acq_rel))
        return true;
    return false;
  }

  void work(size_t worker) {
    uint64_t last_loop = 0;
    for (;;) {
      const auto until = std::chrono::steady_clock::now() + kSpin;
      while (loop_count_.load(std::memory_order_acquire) == last_loop &&
             std::chrono::steady_clock::now() < until)
        for (int i = 0; i < 32 && loop_count_.load(std::memory_order_relaxed) == last_loop; ++i)
          pause_processor();
      if (loop_count_.load() == last_loop) {
        std::unique_lock<std::mutex> lock(mutex_);
        ++num_asleep_;
        wake_.wait(lock, [&] { return loop_count_.load() != last_loop; });
        --num_asleep_;
      }
      last_loop = loop_count_.load(std::memory_order_acquire);
      if (!enter()) continue;
      if (worker < threads_) run_parts(worker);
      num_inside_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  std::atomic<uint32_t> is_busy_{0};  // not bool: on RISC-V, exchanging a byte requires a library
  // The current loop.
  Threads::Part part_;
  const void* argument_;
  size_t part_size_, threads_;
  Share shares_[kMaxThreads];
  std::atomic<uint32_t> num_inside_{0};  // number of workers in the loop, and kOpen while more may enter
  std::atomic<uint64_t> loop_count_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<size_t> num_asleep_{0};
  size_t num_workers_ = 0;
};

class PoolThreads final : public Threads {
 public:
  explicit PoolThreads(size_t count) : count_(count) {}
  size_t count() const override { return count_; }
  void run(size_t items, size_t min_items, Part part, const void* argument) override {
    const size_t equal_part = (items + count_ * kPartsPerThread - 1) / (count_ * kPartsPerThread);
    const size_t part_size = std::max(equal_part, min_items);
    if (part_size >= items || !Pool::get().run(count_, items, part_size, part, argument))
      part(argument, 0, items, 0);
  }

 private:
  size_t count_;
};

}  // namespace

Threads* kernel_threads(size_t count) {
  if (count < 2) return nullptr;
  static std::mutex mutex;
  static auto* const thread_sets = new std::map<size_t, std::unique_ptr<PoolThreads>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<PoolThreads>& threads = (*thread_sets)[std::min(count, kMaxThreads)];
  if (threads == nullptr) threads = std::make_unique<PoolThreads>(std::min(count, kMaxThreads));
  return threads.get();
}

size_t physical_cores() {
#ifdef __linux__
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &mask)) continue;
      // Logical processors of one core have the same list of siblings.
      const std::string path =
          "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list";
      std::string siblings = std::to_string(cpu);
      if (FILE* file = std::fopen(path.c_str(), "r"); file != nullptr) {
        char text[256];
        if (std::fgets(text, sizeof(text), file) != nullptr) siblings = text;
        std::fclose(file);
      }
      cores.insert(siblings);
    }
    if (!cores.empty()) return cores.size();
  }
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

size_t default_num_threads() { return num_threads_is_set() ? num_threads() : physical_cores(); }

}  // namespace torchette::extension
