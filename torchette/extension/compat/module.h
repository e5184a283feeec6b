// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's names of Module and BundledModule.
#pragma once

#include "torchette/extension/bundled_module.h"
#include "torchette/extension/compat/runtime.h"

#define ET_MODULE_NAMESPACE module
#define ET_BUNDLED_MODULE_NAMESPACE bundled_module

namespace executorch::extension {
namespace module {
using ::torchette::extension::Module;
}
namespace bundled_module {
using ::torchette::extension::BundledModule;
}
}  // namespace executorch::extension

namespace torch::executor {
using ::torchette::extension::Module;
}
