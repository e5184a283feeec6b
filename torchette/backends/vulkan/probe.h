// SPDX-License-Identifier: BSD-3-Clause
// Whether a driver runs a shader as the processor does: drivers are not always right, and wrong results look
// like others.
#pragma once

#include "torchette/backends/vulkan/device.h"

namespace torchette {
namespace vulkan {

/// Runs the shader's probes for these constants on the device and on the processor. `agrees`: floats of 32
/// bits are within 1e-4, those of 16 bits within 2e-2 of the largest number of their buffer, whole numbers
/// are equal. Errors: those of the device; Internal (the interpreter cannot run the probe: the shader's or
/// the probe's fault).
Error probe(Device& device, const Shader& shader, Span<const uint32_t> constants, VkPipeline pipeline,
            bool* agrees);

}  // namespace vulkan
}  // namespace torchette
