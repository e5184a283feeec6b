// SPDX-License-Identifier: BSD-3-Clause
// Implements FileDataLoader with reads at offsets, so that several threads may load from one file.
#include "torchette/extension/file_data_loader.h"

#include <fcntl.h>
#ifdef _WIN32
#include <io.h>
#else
#include <unistd.h>
#endif

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "torchette/extension/open_file.h"
#include "torchette/runtime/platform.h"

namespace torchette::extension {

namespace {

bool is_alignment(size_t alignment) {
  if (alignment != 0 && (alignment & (alignment - 1)) == 0 && alignment <= 4096) return true;
  TORCHETTE_LOG(Error, "alignment %zu is not a power of two up to 4096", alignment);
  return false;
}

}  // namespace

Result<FileDataLoader> FileDataLoader::from(const char* path, size_t alignment) {
  if (!is_alignment(alignment)) return Error::InvalidArgument;
  size_t size;
  const int file = open_regular_file(path, &size);
  if (file < 0) return Error::AccessFailed;
  return FileDataLoader(file, size, alignment);
}

Result<FileDataLoader> FileDataLoader::from_descriptor(int descriptor, size_t alignment) {
  if (!is_alignment(alignment)) return Error::InvalidArgument;
  size_t size;
#if defined(_WIN32)
  const int file = dup(descriptor);
#elif defined(F_DUPFD_CLOEXEC)
  const int file = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
#else  // WASI cannot duplicate a descriptor
  errno = ENOTSUP;
  const int file = -1;
#endif
  if (file < 0 || !size_of_file(file, &size)) {
    TORCHETTE_LOG(Error, "descriptor %d is not an open file: %s", descriptor,
                  file < 0 ? strerror(errno) : "its size is unknown");
    if (file >= 0) ::close(file);
    return Error::AccessFailed;
  }
  return FileDataLoader(file, size, alignment);
}

Result<FileDataLoader> FileDataLoader::fromFileDescriptorUri(const char* uri, size_t alignment) {
  constexpr char kScheme[] = "fd:///";
  char* end = nullptr;
  const bool has_scheme = strncmp(uri, kScheme, sizeof(kScheme) - 1) == 0;
  const long descriptor = has_scheme ? strtol(uri + sizeof(kScheme) - 1, &end, 10) : -1;
  if (!has_scheme || end == uri + sizeof(kScheme) - 1 || *end != 0 || descriptor < 0 ||
      descriptor > INT_MAX) {
    TORCHETTE_LOG(Error, "%s does not have the form fd:///12", uri);
    return Error::InvalidArgument;
  }
  return from_descriptor(static_cast<int>(descriptor), alignment);
}

void FileDataLoader::close() {
  if (file_ >= 0) ::close(file_);
}

Error FileDataLoader::read_into(size_t offset, size_t size, void* buffer) const {
  if (offset > size_ || size > size_ - offset) {
    TORCHETTE_LOG(Error, "%zu bytes at offset %zu exceed the file of %zu bytes", size, offset, size_);
    return Error::InvalidArgument;
  }
  auto* destination = static_cast<uint8_t*>(buffer);
  while (size > 0) {
    const int64_t num_read = read_at(file_, destination, size, offset);
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read <= 0) {
      TORCHETTE_LOG(Error, "cannot read the file at offset %zu: %s", offset,
                    num_read < 0 ? strerror(errno) : "the file has shrunk");
      return Error::AccessFailed;
    }
    destination += num_read;
    offset += static_cast<size_t>(num_read);
    size -= static_cast<size_t>(num_read);
  }
  return Error::Ok;
}

Result<FreeableBuffer> FileDataLoader::read(size_t offset, size_t size, const SegmentInfo& info) const {
  if (offset > size_ || size > size_ - offset) {
    TORCHETTE_LOG(Error, "%zu bytes at offset %zu exceed the file of %zu bytes", size, offset, size_);
    return Error::InvalidArgument;
  }
  // `memory` is the allocation, `data` is the aligned address in it.
  void* memory = platform_allocate(size + alignment_);
  if (memory == nullptr) {
    TORCHETTE_LOG(Error, "cannot allocate %zu bytes of the file", size);
    return Error::MemoryAllocationFailed;
  }
  const uintptr_t address = (reinterpret_cast<uintptr_t>(memory) + alignment_ - 1) & ~(alignment_ - 1);
  void* data = reinterpret_cast<void*>(address);
  FreeableBuffer result(data, size, [](void* context, void*, size_t) { platform_free(context); }, memory);
  const Error error = load_into(offset, size, info, data);
  if (error != Error::Ok) return error;
  return result;
}

}  // namespace torchette::extension
