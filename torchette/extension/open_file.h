// SPDX-License-Identifier: BSD-3-Clause
// Opens and reads model files for the loaders.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torchette::extension {

/// Opens the regular file at `path` and sets `*size` to its size in bytes. Returns a descriptor, which the
/// caller closes. Returns -1 and logs the reason if the file cannot be opened.
int open_regular_file(const char* path, size_t* size);

/// Sets `*size` to the size of an open file. Returns false if it is not a regular file.
bool size_of_file(int file, size_t* size);

/// Reads up to `size` bytes at `offset`, like pread(), which Windows lacks. Returns the number of bytes, 0 at
/// the end of the file, or -1 and sets errno.
int64_t read_at(int file, void* buffer, size_t size, size_t offset);

}  // namespace torchette::extension
