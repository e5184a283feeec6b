// SPDX-License-Identifier: BSD-3-Clause
// Opens and reads files on POSIX and Windows.
#include "torchette/extension/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <io.h>
#include <windows.h>
#else
#include <unistd.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "torchette/runtime/platform.h"

namespace torchette::extension {

#ifdef _WIN32
constexpr int kOpenFlags = O_RDONLY | O_BINARY | O_NOINHERIT;
#else
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC;
#endif

bool size_of_file(int file, size_t* size) {
#ifdef _WIN32  // `stat` has a 32-bit size on Windows
  struct _stat64 status{};
  if (_fstat64(file, &status) != 0) return false;
#else
  struct stat status{};
  if (fstat(file, &status) != 0) return false;
#endif
  *size = static_cast<size_t>(status.st_size);
  return (status.st_mode & S_IFMT) == S_IFREG;
}

int open_regular_file(const char* path, size_t* size) {
  const int file = open(path, kOpenFlags);
  if (file < 0 || !size_of_file(file, size)) {
    TORCHETTE_LOG(Error, "cannot open %s: %s", path, file < 0 ? strerror(errno) : "it is not a regular file");
    if (file >= 0) close(file);
    return -1;
  }
  return file;
}

int64_t read_at(int file, void* buffer, size_t size, size_t offset) {
#ifdef _WIN32
  OVERLAPPED at{};
  at.Offset = static_cast<DWORD>(offset);
  at.OffsetHigh = static_cast<DWORD>(static_cast<uint64_t>(offset) >> 32);
  DWORD got = 0;
  if (ReadFile(reinterpret_cast<HANDLE>(_get_osfhandle(file)), buffer,
               static_cast<DWORD>(std::min<size_t>(size, 1u << 30)), &got, &at))
    return got;
  if (GetLastError() == ERROR_HANDLE_EOF) return 0;
  errno = EIO;
  return -1;
#else
  return pread(file, buffer, size, static_cast<off_t>(offset));
#endif
}

}  // namespace torchette::extension
