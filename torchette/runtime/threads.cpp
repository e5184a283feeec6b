// SPDX-License-Identifier: BSD-3-Clause
// Two thread counts: that of the process, and that of the method that a thread is loading. Firmware that does
// not use them does not link them.
#include "torchette/runtime/threads.h"

#include "torchette/runtime/platform.h"

#if defined(__unix__) || defined(__APPLE__)
#define TORCHETTE_THREAD_LOCAL thread_local
#else  // a microcontroller has neither threads nor thread-local storage
#define TORCHETTE_THREAD_LOCAL
#endif

namespace torchette {
namespace {

size_t process_num_threads = 0;                         // 0: not set
TORCHETTE_THREAD_LOCAL size_t loading_num_threads = 0;  // 0: process_num_threads applies

}  // namespace

Error set_num_threads(size_t count) {
  if (count == 0) {
    TORCHETTE_LOG(Error, "the number of threads must be at least 1");
    return Error::InvalidArgument;
  }
  __atomic_store_n(&process_num_threads, count, __ATOMIC_RELAXED);
  return Error::Ok;
}

size_t num_threads() {
  const size_t count = loading_num_threads != 0 ? loading_num_threads
                                                : __atomic_load_n(&process_num_threads, __ATOMIC_RELAXED);
  return count != 0 ? count : 1;
}
bool num_threads_is_set() {
  return loading_num_threads != 0 || __atomic_load_n(&process_num_threads, __ATOMIC_RELAXED) != 0;
}

NumThreadsScope::NumThreadsScope(size_t count) : previous_count_(loading_num_threads) {
  if (count != 0) loading_num_threads = count;
}
NumThreadsScope::~NumThreadsScope() { loading_num_threads = previous_count_; }

}  // namespace torchette
