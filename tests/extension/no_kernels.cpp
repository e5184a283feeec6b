// SPDX-License-Identifier: BSD-3-Clause
// Links no kernels, for tests that do not run kernels.
#include "torchette/runtime/kernel.h"

namespace torchette {
Span<const Kernels> kernel_table() { return {}; }
}  // namespace torchette
