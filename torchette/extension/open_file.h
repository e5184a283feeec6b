// SPDX-License-Identifier: BSD-3-Clause
// Opens and reads a model's file, for the loaders that read or map it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torchette::extension {

/// A descriptor of the regular file at `path`, which the caller closes, and its bytes in `size`; -1, with the
/// reason in the log, when there is none that can be read.
int open_regular_file(const char* path, size_t* size);

/// The bytes of an open file; false where it is not a regular one.
bool size_of_file(int file, size_t* size);

/// Reads at `offset`, as pread does, which Windows lacks: how many bytes, 0 at the end of the file, -1 with
/// errno.
int64_t read_at(int file, void* buffer, size_t size, size_t offset);

}  // namespace torchette::extension
