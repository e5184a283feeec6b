// SPDX-License-Identifier: BSD-3-Clause
// Lets the C interface and the Python module receive log lines in one process.
#pragma once

#include "torchette/runtime/platform.h"

namespace torchette::extension {

using LogFunction = decltype(PalImpl::emit_log_message);

/// Registers a function that receives log lines in addition to the log function of the C interface
/// (torchette_set_log()).
void register_log(LogFunction function);

}  // namespace torchette::extension
