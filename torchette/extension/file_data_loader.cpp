// SPDX-License-Identifier: BSD-3-Clause
// Reads with pread, so that several threads may load from one file.
#include "torchette/extension/file_data_loader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "torchette/extension/open_file.h"
#include "torchette/runtime/platform.h"

namespace torchette::extension {

Result<FileDataLoader> FileDataLoader::from(const char* path, size_t alignment) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > 4096) {
    TORCHETTE_LOG(Error, "alignment %zu is not a power of two up to 4096", alignment);
    return Error::InvalidArgument;
  }
  size_t size;
  const int file = open_regular_file(path, &size);
  if (file < 0) return Error::AccessFailed;
  return FileDataLoader(file, size, alignment);
}

FileDataLoader::~FileDataLoader() {
  if (file_ >= 0) close(file_);
}

Error FileDataLoader::load_into(size_t offset, size_t size, const SegmentInfo&, void* buffer) const {
  if (offset > size_ || size > size_ - offset) {
    TORCHETTE_LOG(Error, "%zu bytes at %zu are not inside of the file of %zu", size, offset, size_);
    return Error::InvalidArgument;
  }
  auto* at = static_cast<uint8_t*>(buffer);
  while (size > 0) {
    const ssize_t got = pread(file_, at, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      TORCHETTE_LOG(Error, "the file cannot be read at %zu: %s", offset,
                    got < 0 ? strerror(errno) : "it has shrunk");
      return Error::AccessFailed;
    }
    at += got;
    offset += static_cast<size_t>(got);
    size -= static_cast<size_t>(got);
  }
  return Error::Ok;
}

Result<FreeableBuffer> FileDataLoader::load(size_t offset, size_t size, const SegmentInfo& info) const {
  if (offset > size_ || size > size_ - offset) {
    TORCHETTE_LOG(Error, "%zu bytes at %zu are not inside of the file of %zu", size, offset, size_);
    return Error::InvalidArgument;
  }
  // `context` is what was allocated, `data` the aligned place in it
  void* memory = platform_allocate(size + alignment_);
  if (memory == nullptr) {
    TORCHETTE_LOG(Error, "there is no memory for %zu bytes of the file", size);
    return Error::MemoryAllocationFailed;
  }
  const uintptr_t place = (reinterpret_cast<uintptr_t>(memory) + alignment_ - 1) & ~(alignment_ - 1);
  void* data = reinterpret_cast<void*>(place);
  FreeableBuffer result(data, size, [](void* context, void*, size_t) { platform_free(context); }, memory);
  const Error error = load_into(offset, size, info, data);
  if (error != Error::Ok) return error;
  return result;
}

}  // namespace torchette::extension
