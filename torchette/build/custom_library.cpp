// SPDX-License-Identifier: BSD-3-Clause
// What a library of operators has beside them: the door through which
// torchette::extension::load_custom_library() enters. The library brings the parts of the core that its
// kernels call, so it needs nothing to be loaded.
#include "torchette/extension/custom_op.h"

namespace torchette {
Span<const Kernels> kernel_table() { return {}; }
}  // namespace torchette

extern "C" TORCHETTE_EXPORT const torchette::extension::CustomLibrary torchette_custom_library = {
    torchette::extension::kCustomLayout, &torchette::extension::custom_kernels,
    &torchette::extension::custom_ops, &torchette::register_pal};
