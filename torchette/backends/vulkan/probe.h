// SPDX-License-Identifier: BSD-3-Clause
// Tests whether a driver runs a shader like the interpreter, because some drivers compute wrong results
// without an error.
#pragma once

#include "torchette/backends/vulkan/device.h"

namespace torchette {
namespace vulkan {

/// Runs the shader's probes for these constants on the device and in the interpreter. `agrees` is true if
/// integers are equal and floats differ by at most 1e-4 (float32) or 2e-2 (float16) of the maximum magnitude
/// of their buffer. Errors: those of the device; Internal (the interpreter cannot run the probe, because of
/// an error in the shader or the probe).
Error probe(Device& device, const Shader& shader, Span<const uint32_t> constants, VkPipeline pipeline,
            bool* agrees);

}  // namespace vulkan
}  // namespace torchette
