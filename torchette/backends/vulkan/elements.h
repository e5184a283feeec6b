// SPDX-License-Identifier: BSD-3-Clause
// Conversion of tensor elements between the types of the host and those of the device.
#pragma once

#include "torchette/backends/vulkan/graph.h"

namespace torchette {
namespace vulkan {

/// Converts `n` elements of the host to elements of the device. Returns false if there is no conversion
/// between the types, or if an integer does not fit 32 bits.
bool to_device(ScalarType type, const void* from, Kind kind, void* to, int64_t n);

/// Converts `n` elements of the device to elements of the host. Returns false if there is no conversion
/// between the types.
bool from_device(Kind kind, const void* from, ScalarType type, void* to, int64_t n);

/// The element type of a tensor that the payload stores.
ScalarType stored_type(fb::VkDataType type);

}  // namespace vulkan
}  // namespace torchette
