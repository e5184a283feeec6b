// SPDX-License-Identifier: BSD-3-Clause
// Kernels that payloads need on the processor and programs do not.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace vulkan {

Kernels host_kernels();

}  // namespace vulkan
}  // namespace torchette
