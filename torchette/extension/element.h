// SPDX-License-Identifier: BSD-3-Clause
// Reads and writes an element of a tensor of any dtype as a Scalar, and names dtypes. For printing and
// conversion; kernels use typed loops.
#pragma once

#include "torchette/runtime/value.h"

namespace torchette::extension {

/// Returns whether get_element() and set_element() support `type`.
bool has_elements(ScalarType type);
/// Returns element `index` in memory order. Requires `has_elements(type)`.
Scalar get_element(const void* data, ScalarType type, size_t index);
/// Sets element `index` in memory order. Requires `has_elements(type)`. An integer out of the dtype's range
/// wraps around; a floating-point value becomes infinite.
void set_element(void* data, ScalarType type, size_t index, Scalar value);
/// Returns torch's name of a dtype, such as "float32", or "an unknown dtype".
const char* dtype_name(ScalarType type);

}  // namespace torchette::extension
