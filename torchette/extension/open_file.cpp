// SPDX-License-Identifier: BSD-3-Clause
// The one place where a path becomes a descriptor.
#include "torchette/extension/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "torchette/runtime/platform.h"

namespace torchette::extension {

int open_regular_file(const char* path, size_t* size) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status{};
  if (file < 0 || fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    TORCHETTE_LOG(Error, "%s cannot be opened: %s", path,
                  file < 0 ? strerror(errno) : "it is not a regular file");
    if (file >= 0) close(file);
    return -1;
  }
  *size = static_cast<size_t>(status.st_size);
  return file;
}

}  // namespace torchette::extension
