// SPDX-License-Identifier: BSD-3-Clause
// Loads libraries of custom operators that `torchette custom build` has built.
#pragma once

#include <vector>

#include "torchette/extension/custom_op.h"

namespace torchette::extension {

/// Opens a library and registers its kernels, which remain registered until the program ends. The library
/// writes log lines to `log`, or to its own platform layer if `log` is empty. Its kernels are appended to
/// `added`. A further call for the same library returns the same object and registers nothing. Errors:
/// AccessFailed (the library cannot be opened), InvalidExternalData (it contains no operators, or was built
/// with other headers), NotSupported (the platform has no dynamic libraries), those of register_kernels().
Result<const CustomLibrary*> load_custom_library(const char* path, const PalImpl& log = {},
                                                 std::vector<Kernels>* added = nullptr);

}  // namespace torchette::extension
