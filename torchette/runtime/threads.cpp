// SPDX-License-Identifier: BSD-3-Clause
// Two numbers: one of the process, and one of a thread that loads a method with a number of its own. Firmware
// that never asks links neither.
#include "torchette/runtime/threads.h"

#include "torchette/runtime/platform.h"

#if defined(__unix__) || defined(__APPLE__)
#define TORCHETTE_THREAD_LOCAL thread_local
#else  // a microcontroller has no threads, and nothing that tells them apart
#define TORCHETTE_THREAD_LOCAL
#endif

namespace torchette {
namespace {

size_t set_count = 0;                             // nobody has said
TORCHETTE_THREAD_LOCAL size_t loading_count = 0;  // 0: the one above

}  // namespace

Error set_num_threads(size_t count) {
  if (count == 0) {
    TORCHETTE_LOG(Error, "a method cannot run on 0 threads: 1 is the least");
    return Error::InvalidArgument;
  }
  __atomic_store_n(&set_count, count, __ATOMIC_RELAXED);
  return Error::Ok;
}

size_t num_threads() {
  const size_t count = loading_count != 0 ? loading_count : __atomic_load_n(&set_count, __ATOMIC_RELAXED);
  return count != 0 ? count : 1;
}
bool num_threads_is_set() { return loading_count != 0 || __atomic_load_n(&set_count, __ATOMIC_RELAXED) != 0; }

NumThreadsScope::NumThreadsScope(size_t count) : before_(loading_count) {
  if (count != 0) loading_count = count;
}
NumThreadsScope::~NumThreadsScope() { loading_count = before_; }

}  // namespace torchette
