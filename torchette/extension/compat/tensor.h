// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's names of TensorPtr and of devices.
#pragma once

#include "torchette/extension/compat/runtime.h"
#include "torchette/extension/tensor_ptr.h"

#ifndef TORCHETTE_ATEN
namespace executorch::aten {
using ::torchette::extension::Device;
using ::torchette::extension::DeviceIndex;
using ::torchette::extension::DeviceType;
}  // namespace executorch::aten
namespace torch::executor {
using ::torchette::extension::Device;
using ::torchette::extension::DeviceType;
}  // namespace torch::executor
#endif
