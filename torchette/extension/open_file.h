// SPDX-License-Identifier: BSD-3-Clause
// Opens a model's file for the loaders that read or map it.
#pragma once

#include <cstddef>

namespace torchette::extension {

/// A descriptor of the regular file at `path`, which the caller closes, and its bytes in `size`; -1, with the
/// reason in the log, when there is none that can be read.
int open_regular_file(const char* path, size_t* size);

}  // namespace torchette::extension
