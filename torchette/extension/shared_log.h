// SPDX-License-Identifier: BSD-3-Clause
// The C interface and the Python module in one process: both receive log lines, in whichever order they come.
#pragma once

#include "torchette/runtime/platform.h"

namespace torchette::extension {

using LogFunction = decltype(PalImpl::emit_log_message);

/// Registers a function that receives log lines beside the log function of the C interface
/// (torchette_set_log).
void register_log(LogFunction function);

}  // namespace torchette::extension
