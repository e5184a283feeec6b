// SPDX-License-Identifier: BSD-3-Clause
// Part of every library of operators: the entry point for torchette::extension::load_custom_library(). The
// library contains the parts of the core that its kernels call, so it does not depend on a loaded runtime.
#include "torchette/extension/custom_op.h"

namespace torchette {
Span<const Kernels> kernel_table() { return {}; }
}  // namespace torchette

extern "C" TORCHETTE_EXPORT const torchette::extension::CustomLibrary torchette_custom_library = {
    torchette::extension::kCustomLayout, &torchette::extension::custom_kernels,
    &torchette::extension::custom_ops, &torchette::register_pal};
