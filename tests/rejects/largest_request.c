// SPDX-License-Identifier: BSD-3-Clause
// Loaded before the C library (LD_PRELOAD). Records the size of the largest single memory request since
// reset_largest_request(). Larger requests than kLimit fail, so that no machine runs out of memory.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

static size_t largest;
static const size_t kLimit = (size_t)1 << 36;

size_t largest_request(void) { return __atomic_load_n(&largest, __ATOMIC_RELAXED); }
void reset_largest_request(void) { __atomic_store_n(&largest, 0, __ATOMIC_RELAXED); }

static int is_refused(size_t size) {
  if (size > largest_request()) __atomic_store_n(&largest, size, __ATOMIC_RELAXED);
  return size > kLimit;
}

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) { return is_refused(size) ? NULL : __libc_malloc(size); }

void* calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) bytes = SIZE_MAX;
  return is_refused(bytes) ? NULL : __libc_calloc(count, size);
}

void* realloc(void* old, size_t size) { return is_refused(size) ? NULL : __libc_realloc(old, size); }

void* memalign(size_t alignment, size_t size) {
  return is_refused(size) ? NULL : __libc_memalign(alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void** out, size_t alignment, size_t size) {
  *out = memalign(alignment, size);
  return *out == NULL ? ENOMEM : 0;
}

void* mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) {
  static void* (*next)(void*, size_t, int, int, int, off_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "mmap");
  if (!is_refused(size)) return next(address, size, protection, flags, file, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}
