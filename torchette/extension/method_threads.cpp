// SPDX-License-Identifier: BSD-3-Clause
// Implements MethodThreads with a thread pool that exists as long as the method, so executions do not wait
// for threads to start.
#include "torchette/extension/method_threads.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/extension/parallel_method.h"
#include "torchette/extension/thread_pool.h"

namespace torchette::extension {
namespace {

constexpr size_t kMaxThreads = 256;  // the maximum number of chains of a ParallelMethod
constexpr size_t kScratchBytes = 64 * 1024;

class PooledMethod final : public MethodThreads {
 public:
  PooledMethod(Method& method, size_t count) {
    std::vector<MemoryAllocator*> scratch;
    for (size_t i = 0; i < count; ++i) scratch.push_back(&scratch_.emplace_back(kScratchBytes));
    method_.emplace(method, std::move(scratch));
    if (method_->is_parallel()) pool_.emplace(count - 1);  // the executing thread also runs chains
  }
  bool is_parallel() const { return pool_.has_value(); }
  Error execute() override { return method_->execute(&*pool_); }

 private:
  std::deque<MallocMemoryAllocator> scratch_;
  std::optional<threadpool::ThreadPool> pool_;
  std::optional<ParallelMethod> method_;  // last, so that it is destroyed first
};

}  // namespace

std::unique_ptr<MethodThreads> MethodThreads::make(Method& method, size_t count) {
  if (count < 2) return nullptr;
  auto threads = std::make_unique<PooledMethod>(method, std::min(count, kMaxThreads));
  if (!threads->is_parallel()) return nullptr;
  return threads;
}

}  // namespace torchette::extension
