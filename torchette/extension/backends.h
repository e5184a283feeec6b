// SPDX-License-Identifier: BSD-3-Clause
// Registers all backends that this build contains. A program that links only some backends registers them
// separately: `register_backend(null_backend)`.
#pragma once

#include "torchette/runtime/error.h"

namespace torchette {

/// Registers the backends of this build. Skips names that are already registered, so further calls have no
/// effect. Errors: those of register_backend().
Error register_all_backends();

}  // namespace torchette
