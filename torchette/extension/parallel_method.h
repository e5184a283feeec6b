// SPDX-License-Identifier: BSD-3-Clause
// ParallelMethod: runs the chains of a method that need nothing of each other at the same time, on threads
// that the caller has; without threads it runs them one after the other and gives the same bits.
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "torchette/extension/executor.h"
#include "torchette/runtime/method.h"

namespace torchette::extension {

/// What a chain waits for follows from the memory that its instructions really use, and not from what
/// the file says: two chains run at the same time only if neither writes where the other reads or
/// writes. So any file is safe, and one that was not compiled with `parallel` runs as it always does. Inputs
/// and outputs are set and read at the Method, which must outlive this and must not run by itself meanwhile.
class ParallelMethod {
 public:
  using Callback = void (*)(void* context, Error error);

  /// `temp`: scratch memory for each chain that may run at the same time; not the method's own.
  ParallelMethod(Method& method, std::vector<MemoryAllocator*> temp);
  ParallelMethod(const ParallelMethod&) = delete;
  ParallelMethod& operator=(const ParallelMethod&) = delete;
  /// Waits for the current execution.
  ~ParallelMethod();

  /// 0 if the method runs as a whole: it has one chain, control flow, or tensors that allocate memory while
  /// it runs.
  size_t num_chains() const { return chains_.size(); }
  /// Whether chain `later` waits for `earlier`.
  bool waits_for(size_t later, size_t earlier) const;
  /// Whether any two chains may run at the same time.
  bool is_parallel() const { return parallel_; }

  /// Starts an execution and returns; `callback`, which may be null, is called on the thread that ends it,
  /// where a new one may be started, but this not be destroyed. Errors: InvalidState (one runs already, an
  /// input or output is missing). Those of the execution come with the callback and from wait():
  /// OutOfResources (cancelled), those of kernels and backends.
  Error execute_async(Executor& executor, Callback callback = nullptr, void* context = nullptr);
  /// Whether no execution runs.
  bool done() const;
  /// Waits for the end of the execution that was started last; its error.
  Error wait();
  /// Both, with this thread working too; without an executor it does everything.
  Error execute(Executor* executor = nullptr);

 private:
  struct Chain {
    ParallelMethod* owner;
    size_t begin, end;                  // instructions
    std::vector<size_t> dependents;     // chains that wait for this one
    size_t waits_for = 0;               // how many it waits for
    size_t left = 0;                    // of them in this execution
    size_t next = 0;                    // instruction
    Error error = Error::Ok;            // of the delegate call that it waited for
    MemoryAllocator* temp = nullptr;    // while it runs
    BackendExecutionContext context{};  // with that memory
  };
  class Analysis;

  bool lent_memory_is_apart() const;
  Error begin(Executor& executor, Callback callback, void* context, bool here);
  Chain* proceed(std::unique_lock<std::mutex>& lock, bool keep_one);
  static void run_chain(void* chain);
  static void go_on(void* chain, Error error);
  static void run_whole(void* self);
  Chain* ended(std::unique_lock<std::mutex>& lock, Error error);
  bool run(Chain& chain, Error* error);

  Method& method_;
  std::vector<MemoryAllocator*> temp_;  // those that no chain uses
  std::vector<Chain> chains_;
  std::vector<std::pair<int32_t, bool>>
      lent_;  // tensors in the caller's memory, and whether they are written
  bool parallel_ = false;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  Executor* executor_ = nullptr;
  Callback callback_ = nullptr;
  void* callback_context_ = nullptr;
  std::vector<size_t> ready_;
  size_t running_ = 0;    // tasks
  size_t remaining_ = 0;  // tasks that have not succeeded yet
  size_t inside_ = 0;     // threads that are about to hand out tasks
  bool active_ = false;
  Error error_ = Error::Ok;
};

}  // namespace torchette::extension
