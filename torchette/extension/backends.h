// SPDX-License-Identifier: BSD-3-Clause
// The backends that this build contains, for programs that want all of them. What links only some names them
// itself: `register_backend(null_backend)`.
#pragma once

#include "torchette/runtime/error.h"

namespace torchette {

/// Registers the backends of this build. A backend whose name is registered stays, so further calls have no
/// effect. Errors: those of register_backend().
Error register_all_backends();

}  // namespace torchette
