// SPDX-License-Identifier: BSD-3-Clause
// ParallelMethod: runs independent chains of a method in parallel, on threads of the caller. Without threads
// it runs them in sequence, with bitwise equal results.
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "torchette/extension/executor.h"
#include "torchette/runtime/method.h"

namespace torchette::extension {

/// The dependencies between chains are computed from the memory that their instructions use and do not depend
/// on declarations in the file. Two chains run in parallel only if neither writes memory that the other reads
/// or writes. So every file is safe, and a file that was not compiled with `parallel` runs in sequence. The
/// caller sets inputs and reads outputs at the Method, which must outlive the object and must not execute at
/// the same time.
class ParallelMethod {
 public:
  using Callback = void (*)(void* context, Error error);

  /// `temp` has an allocator of scratch memory for each chain that may run in parallel. The allocator of the
  /// method must not be one of them.
  ParallelMethod(Method& method, std::vector<MemoryAllocator*> temp);
  ParallelMethod(const ParallelMethod&) = delete;
  ParallelMethod& operator=(const ParallelMethod&) = delete;
  /// Waits for the current execution.
  ~ParallelMethod();

  /// Returns the number of chains, or 0 if they cannot run separately: the method has one chain, more than
  /// 256 chains, control flow, or tensors that allocate memory during the execution.
  size_t num_chains() const { return chains_.size(); }
  /// Returns whether chain `later` waits for chain `earlier`.
  bool waits_for(size_t later, size_t earlier) const;
  /// Returns whether any two chains may run in parallel.
  bool is_parallel() const { return parallel_; }

  /// Starts an execution and returns. `callback`, which may be null, is called on the thread that ends the
  /// execution. It may start another execution, but must not destroy the object. Error: InvalidState (an
  /// execution is running, or an input or output is missing). The callback and wait() receive the errors of
  /// the execution: OutOfResources (cancelled), those of kernels and backends.
  Error execute_async(Executor& executor, Callback callback = nullptr, void* context = nullptr);
  /// Returns whether no execution is running.
  bool done() const;
  /// Waits for the end of the last execution and returns its error.
  Error wait();
  /// Starts an execution, runs chains on the calling thread, and waits for the end. Without an executor, the
  /// calling thread runs the method.
  Error execute(Executor* executor = nullptr);

 private:
  struct Chain {
    ParallelMethod* owner;
    size_t begin, end;                  // range of instructions
    std::vector<size_t> dependents;     // chains that wait for this one
    size_t waits_for = 0;               // number of chains that this one waits for
    size_t num_pending = 0;             // number of them that have not ended in this execution
    size_t next = 0;                    // next instruction
    Error error = Error::Ok;            // result of the last asynchronous delegate call
    MemoryAllocator* temp = nullptr;    // while the chain runs
    BackendExecutionContext context{};  // uses `temp`
  };
  class Analysis;

  bool caller_memory_is_disjoint() const;
  Error begin(Executor& executor, Callback callback, void* context, bool run_on_caller);
  Chain* proceed(std::unique_lock<std::mutex>& lock, bool keep_chain);
  static void run_chain(void* chain);
  static void continue_chain(void* chain, Error error);
  static void run_method(void* self);
  Chain* ended(std::unique_lock<std::mutex>& lock, Error error);
  bool run(Chain& chain, Error* error);

  Method& method_;
  std::vector<MemoryAllocator*> temp_;  // allocators that no chain uses
  std::vector<Chain> chains_;
  std::vector<std::pair<int32_t, bool>>
      caller_values_;  // values with the caller's memory, and whether they are written
  bool parallel_ = false;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  Executor* executor_ = nullptr;
  Callback callback_ = nullptr;
  void* callback_context_ = nullptr;
  std::vector<size_t> ready_;
  size_t num_running_ = 0;     // submitted tasks that have not ended
  size_t num_remaining_ = 0;   // tasks that have not succeeded
  size_t num_proceeding_ = 0;  // threads in proceed()
  bool is_active_ = false;
  Error error_ = Error::Ok;
};

}  // namespace torchette::extension
