// SPDX-License-Identifier: BSD-3-Clause
// Implements MmapDataLoader with a private, read-only mapping of the file. Segments are views of the mapping.
#include "torchette/extension/mmap_data_loader.h"

#include <fcntl.h>
#ifdef _WIN32
#include <io.h>
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "torchette/extension/open_file.h"
#include "torchette/runtime/platform.h"

namespace torchette::extension {

namespace {

#ifdef _WIN32

/// Returns null if the file cannot be mapped. The view keeps the mapping open.
void* map(int file, size_t) {
  const auto handle = reinterpret_cast<HANDLE>(_get_osfhandle(file));
  const HANDLE mapping = CreateFileMappingW(handle, nullptr, PAGE_READONLY, 0, 0, nullptr);
  void* data = mapping == nullptr ? nullptr : MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
  if (mapping != nullptr) CloseHandle(mapping);
  if (data == nullptr) errno = EIO;
  return data;
}
void unmap(void* data, size_t) { UnmapViewOfFile(data); }
bool lock_pages(void* data, size_t size) { return VirtualLock(data, size) != 0; }
void read_ahead(void*, size_t) {}
/// VirtualUnlock() of pages that are not locked removes them from the working set of the process.
void release_pages(void*, void* data, size_t size) { VirtualUnlock(data, size); }

#else

void* map(int file, size_t size) {
  void* const data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  return data == MAP_FAILED ? nullptr : data;
}
void unmap(void* data, size_t size) { munmap(data, size); }

#ifdef __wasi__  // mmap reads the file into memory that cannot be released
bool lock_pages(void*, size_t) { return true; }
void read_ahead(void*, size_t) {}
void release_pages(void*, void*, size_t) {}
#else
bool lock_pages(void* data, size_t size) { return mlock(data, size) == 0; }
/// If the system ignores this hint, pages are read when they are first accessed.
void read_ahead(void* data, size_t size) { madvise(data, size, MADV_WILLNEED); }

/// Maximum size of the aligned region that one page fault may map.
constexpr uintptr_t kFolio = uintptr_t{1} << 21;

/// release_pages() releases ranges of at least kMinBytes bytes. From kMinFolioBytes bytes, it also releases
/// the pages before them.
constexpr size_t kMinFolioBytes = kFolio / 16, kMinBytes = kMinFolioBytes / 2;

/// Removes the pages within the range from the process. A later access reads them from the file. For a range
/// of at least kMinFolioBytes bytes, also removes the pages before it in its folio, which a page fault may
/// have mapped again after an earlier call.
void release_pages(void* mapping, void* data, size_t size) {
  if (size < kMinBytes) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(data);
  const auto begin = size < kMinFolioBytes
                         ? (first + page - 1) / page * page
                         : std::max(reinterpret_cast<uintptr_t>(mapping), first / kFolio * kFolio);
  const auto end = (first + size) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}
#endif

#endif

}  // namespace

Result<MmapDataLoader> MmapDataLoader::from(const char* path, MlockConfig lock) {
  size_t size;
  const int file = open_regular_file(path, &size);
  if (file < 0) return Error::AccessFailed;
  // An empty file cannot be mapped. Program::load() reports that it is not a program.
  void* data = size == 0 ? nullptr : map(file, size);
  close(file);
  if (data == nullptr && size != 0) {
    TORCHETTE_LOG(Error, "cannot map %s: %s", path, strerror(errno));
    return Error::AccessFailed;
  }
  MmapDataLoader loader(data, size);
  if (lock == MlockConfig::UseMadvise) {
    if (size != 0) read_ahead(data, size);
  } else if (lock != MlockConfig::NoMlock && !lock_pages(data, size) && lock == MlockConfig::UseMlock) {
    TORCHETTE_LOG(Error, "cannot lock %s into memory: %s", path, strerror(errno));
    return Error::AccessFailed;
  }
  return loader;
}

MmapDataLoader::~MmapDataLoader() {
  if (data_ != nullptr) unmap(data_, size_);
}

Result<FreeableBuffer> MmapDataLoader::load(size_t offset, size_t size, const SegmentInfo&) const {
  if (offset > size_ || size > size_ - offset) {
    TORCHETTE_LOG(Error, "%zu bytes at offset %zu exceed the file of %zu bytes", size, offset, size_);
    return Error::InvalidArgument;
  }
  return FreeableBuffer(static_cast<const uint8_t*>(data_) + offset, size, release_pages, data_);
}

Error MmapDataLoader::load_into(size_t offset, size_t size, const SegmentInfo& info, void* buffer) const {
  const Result<FreeableBuffer> bytes = load(offset, size, info);
  if (!bytes.ok()) return bytes.error();
  if (size != 0) memcpy(buffer, bytes->data(), size);
  return Error::Ok;
}

}  // namespace torchette::extension
