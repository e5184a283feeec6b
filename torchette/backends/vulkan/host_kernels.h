// SPDX-License-Identifier: BSD-3-Clause
// Kernels that only payloads on the processor need.
#pragma once

#include <string>

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace vulkan {

Kernels host_kernels();
/// The kernel of that name: of host_kernels(), else of the runtime; null if there is none.
const Kernel* kernel_of(const std::string& name);

}  // namespace vulkan
}  // namespace torchette
