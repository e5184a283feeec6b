// SPDX-License-Identifier: BSD-3-Clause
// Loading operators that `torchette custom build` has made.
#pragma once

#include <vector>

#include "torchette/extension/custom_op.h"

namespace torchette::extension {

/// Opens a library and registers its kernels, which stay until the program ends; its log lines go to `log`,
/// or where the library's own platform layer writes them, its kernels are added to `added`. A second time it
/// gives the same and registers nothing. Errors: AccessFailed (it cannot be opened), InvalidExternalData (it
/// holds no operators, or was built with other headers), NotSupported (nothing can be loaded on this
/// platform), those of register_kernels().
Result<const CustomLibrary*> load_custom_library(const char* path, const PalImpl& log = {},
                                                 std::vector<Kernels>* added = nullptr);

}  // namespace torchette::extension
