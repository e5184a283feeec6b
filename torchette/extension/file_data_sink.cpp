// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/file_data_sink.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "torchette/runtime/platform.h"

namespace torchette::extension {

Result<FileDataSink> FileDataSink::create(const char* path) {
  FILE* const file = fopen(path, "wb");
  if (file == nullptr) {
    TORCHETTE_LOG(Error, "cannot open %s for writing: %s", path, strerror(errno));
    return Error::AccessFailed;
  }
  return FileDataSink(file);
}

Result<size_t> FileDataSink::append(const void* data, size_t size) {
  if (file_ == nullptr) return Error::AccessFailed;
  if (size != 0 && fwrite(data, 1, size, static_cast<FILE*>(file_)) != size) return Error::Internal;
  written_ += size;
  return written_ - size;
}

bool FileDataSink::close() {
  FILE* const file = static_cast<FILE*>(file_);
  file_ = nullptr;
  return file == nullptr || fclose(file) == 0;
}

}  // namespace torchette::extension
